"""A tracker in a process of its own, so that a slow or dead server costs the study nothing while it trains.

The study hands each result over and goes on at once; what has not arrived some time after its end is left to
`posbench sync`, which reads the store.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from posbench.numerals import counted
from posbench.processes import lead_group, manner_of_end
from posbench.store import Record
from posbench.tracker import Tracker

# After the last trial a study waits so long for its copy. A local database needs a tenth of a second a run, which it
# had while the trials ran.
PATIENCE_SECONDS = 60.0
# Below the priority of what trains: on a full machine the copy waits, not the trials.
NICENESS = 5


class Mirror(Tracker):
    """Passes every call on to a tracker in a child process, and never waits for it before the end.

    Args:
        make: builds the tracker in the child; it must be importable there, as a class or a partial of one is.
        patience: seconds that `end` waits for what is left.
    """

    def __init__(self, make: Callable[[], Tracker], *, patience: float = PATIENCE_SECONDS) -> None:
        self.make, self.patience = make, patience
        self._forget()

    def _forget(self) -> None:
        self.process: Any = None
        self.sent, self.done, self.line = 0, 0, ""

    def _start(self) -> None:
        # Spawned, as workers are: torch's threads do not survive a fork.
        context = multiprocessing.get_context("spawn")
        self.calls: Any = context.Queue()
        # What was not sent when the study ends is not waited for.
        self.calls.cancel_join_thread()
        self.answer, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_serve, args=(self.make, self.calls, theirs), daemon=True)
        process.start()
        self.process = process
        theirs.close()

    def _pass_on(self, name: str, *arguments: Any) -> None:
        self.sent += 1
        if self.process is None and not self.line:
            try:
                self._start()
            except OSError as error:
                self.line = (f"no copy of the record: its process cannot be started ({error.strerror}): posbench sync "
                             "makes it")
        if self.process is None:
            return
        self.calls.put((name, arguments))
        # Answers are taken out as they come: a full pipe would stop the child.
        with contextlib.suppress(EOFError, OSError):
            while self.answer.poll():
                self.done, self.line = self.answer.recv()

    def prepare(self) -> None:
        self._pass_on("prepare")

    def begin(self, study: str, description: str) -> None:
        self._pass_on("begin", study, description)

    def trial(self, record: Record, files: Mapping[str, Path]) -> None:
        self._pass_on("trial", record, dict(files))

    def summary(self, name: str, values: Mapping[str, float], files: Mapping[str, Path]) -> None:
        self._pass_on("summary", name, dict(values), dict(files))

    def end(self) -> str:
        self._pass_on("end")
        if self.process is None:
            told = self.line
            self._forget()
            return told
        deadline = time.monotonic() + self.patience
        try:
            while self.done < self.sent:
                if not self.answer.poll(max(0.0, deadline - time.monotonic())):
                    whole = counted(self.sent, "entry", "entries")
                    return (f"the copy of the record was {self.sent - self.done} of {whole} behind after "
                            f"{self.patience:.0f} s: posbench sync completes it")
                self.done, self.line = self.answer.recv()
            return self.line
        except (EOFError, OSError):
            self.process.join(1)
            return (f"the copy of the record ended early with {manner_of_end(self.process.exitcode)}: posbench sync "
                    "completes it")
        finally:
            self.process.kill()
            self.process.join()
            self._forget()


def _serve(make: Callable[[], Tracker], calls: Any, answer: Connection) -> None:
    """The child's life: a call in, the number of finished calls and what the call returned out."""
    # Ctrl-C reaches the whole group; the coordinator decides what becomes of the copy.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lead_group()
    os.nice(NICENESS)
    tracker, done = make(), 0
    while True:
        name, arguments = calls.get()
        line = getattr(tracker, name)(*arguments)
        done += 1
        answer.send((done, line or ""))
