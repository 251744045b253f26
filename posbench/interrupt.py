"""Signals while a trial trains: they wait for the end of the step, so that a checkpoint can be written.

A handler only sets a flag. Everywhere else (loading, scoring, reporting) a signal acts at once, as before.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from posbench.errors import Terminated

WAITING = (signal.SIGTERM, signal.SIGINT)
KEPT: list[Callable[[], str]] = []
"""What the command at work says of its results when it is stopped."""


class Deferred:
    """While entered, the first SIGTERM or SIGINT waits until `obey` is called; a second one acts at once.

    A worker process hears a signal twice where its whole group is signalled, from outside and from its coordinator,
    which kills it anyway when it takes too long: there the second one waits too. A signal that the process ignores
    stays ignored. Handlers are as before afterwards, and outside the main thread, which alone may set any, nothing
    waits.
    """

    def __init__(self, *, active: bool = True) -> None:
        self.active = active and threading.current_thread() is threading.main_thread()
        self.patient = multiprocessing.parent_process() is not None
        self.number: int | None = None
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Deferred:
        if self.active:
            for number in WAITING:
                before = signal.getsignal(number)
                if before is not None and before is not signal.SIG_IGN:
                    self.before[number] = before
                    signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()
        if self.number is not None:
            # Nobody obeyed: the loop ended in another way, and now the signal acts as it does anywhere.
            signal.raise_signal(self.number)

    @property
    def asked(self) -> bool:
        """Whether a signal waits."""
        return self.number is not None

    def obey(self) -> None:
        """Does what a waiting signal asks for, if one waits.

        Raises:
            KeyboardInterrupt: for SIGINT. Terminated: for SIGTERM, with the exit code 143.
        """
        number, self.number = self.number, None
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        if number is not None:
            raise Terminated(128 + number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self.number = number
        elif not self.patient:
            self.number = None
            self._restore()
            signal.raise_signal(number)

    def _restore(self) -> None:
        while self.before:
            signal.signal(*self.before.popitem())
