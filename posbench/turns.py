"""Whose turn a trial is: every trial of every coordinator over one store runs exactly once, and never in two places."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from posbench.config import TrialConfig
from posbench.store import Record, Stamp, Store

POLL = 0.5
"""Seconds between two looks at what other coordinators run."""


class Wanted(Protocol):
    """What a coordinator needs of a trial: it may never have loaded the plugin itself."""

    @property
    def config(self) -> TrialConfig: ...

    @property
    def fingerprint(self) -> str: ...


@dataclass(frozen=True)
class Turn:
    """One attempt at a trial.

    Attributes:
        config, fingerprint: the trial's. seen: what the store held of it when the study began; another result than
            that one came from another coordinator and is taken as it is.
        lost: how each worker ended that was lost in an earlier attempt. spent: seconds of those attempts.
    """

    config: TrialConfig
    fingerprint: str
    seen: Stamp
    lost: tuple[str, ...] = ()
    spent: float = 0.0

    def settled(self, store: Store) -> Record | None:
        """The result that appeared since the study began; to be asked while the trial's lock is held."""
        if store.stamp(self.fingerprint) != self.seen and store.has(self.fingerprint):
            return store.load(self.fingerprint)
        return None


class Turns:
    """The trials of one coordinator that have no result yet.

    Those that another coordinator runs come last: they are looked at again until that one has kept a result, or has
    died and left them to others.
    """

    def __init__(self, store: Store, trials: Iterable[Wanted]) -> None:
        self.store = store
        self.waiting = deque(
            Turn(trial.config, trial.fingerprint, store.stamp(trial.fingerprint)) for trial in trials
        )
        self.elsewhere: list[Turn] = []
        self.look_again = 0.0

    def __bool__(self) -> bool:
        return bool(self.waiting or self.elsewhere)

    def next(self) -> Turn | None:
        """A trial that may run now."""
        if not self.waiting and self.elsewhere and time.monotonic() >= self.look_again:
            held = {turn.fingerprint for turn in self.elsewhere if self.store.held(turn.fingerprint)}
            self.waiting.extend(turn for turn in self.elsewhere if turn.fingerprint not in held)
            self.elsewhere = [turn for turn in self.elsewhere if turn.fingerprint in held]
            self.look_again = time.monotonic() + POLL
        return self.waiting.popleft() if self.waiting else None

    def leave(self, turn: Turn) -> None:
        """Another coordinator runs this one."""
        self.elsewhere.append(turn)
        self.look_again = time.monotonic() + POLL

    def again(self, turn: Turn, manner: str, spent: float) -> None:
        """Its worker was lost after so many seconds, earlier attempts included: the next that runs."""
        self.waiting.appendleft(replace(turn, lost=(*turn.lost, manner), spent=spent))
