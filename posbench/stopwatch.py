"""A stopwatch: what a record says of its time."""

from __future__ import annotations

import time


class Stopwatch:
    """Runs from the moment at which it is made.

    Args:
        spent: seconds that earlier attempts took.

    Attributes:
        began: the date, in seconds since 1970, of the clock that people read; spans are of one that nobody sets.
    """

    def __init__(self, spent: float = 0.0) -> None:
        self.spent, self.began, self._start = spent, time.time(), time.monotonic()

    @property
    def seconds(self) -> float:
        """Up to now, earlier attempts included."""
        return self.spent + time.monotonic() - self._start

    def dates(self) -> dict[str, float]:
        """When this attempt began, and that it ends now, as facts of a record."""
        return {"began": self.began, "ended": time.time()}
