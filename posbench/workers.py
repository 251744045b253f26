"""Worker processes: a fault, a hang or a kill of one trial takes no other along, and no word of a plugin is printed."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Generator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from posbench.errors import StorageError, Terminated, UserError
from posbench.execute import failed
from posbench.processes import Tail, end_group, lead_group, manner_of_end
from posbench.stopwatch import Stopwatch
from posbench.store import Record, Store
from posbench.turns import POLL, Turn, Turns, Wanted

JOIN_SECONDS = 5.0
"""What a worker that was ended may take to be gone."""
CHECKPOINT_SECONDS = 30.0
"""Workers that are asked to end finish their step and write a checkpoint; longer than this nobody waits."""
START_SECONDS = 600.0
"""What a worker may take to load torch and begin; one that takes longer never will."""
FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP, 128 + signal.SIGTERM)
"""Exit codes of workers that somebody else ended, such as the kernel when memory ran out: no fault of the trial."""
CHANGED = (
    "where it was to run it is another trial: its plugin or data changed while the study ran (run it again), or that "
    "machine has another posbench or other files (install the same)"
)


class _Worker:
    """One process, and the turn that it is busy with."""

    def __init__(self, context: Any, store: Store) -> None:
        self.connection, theirs = context.Pipe()
        printed, prints = context.Pipe(duplex=False)
        self.process = context.Process(target=_serve, args=(theirs, prints, store), daemon=True)
        self.process.start()
        theirs.close()
        prints.close()
        self.tail = Tail(os.dup(printed.fileno()))
        printed.close()
        self.turn: Turn | None = None
        self.deadline = math.inf
        self.watch = Stopwatch()

    def take(self, turn: Turn) -> None:
        """Raises OSError where the process is gone."""
        self.tail.forget()
        self.connection.send(turn)
        self.turn, self.deadline, self.watch = turn, time.monotonic() + START_SECONDS, Stopwatch(turn.spent)

    def end(self, patience: float) -> tuple[int | None, list[str]]:
        """Ends it with all that it started; its exit code, None where it had to be ended, and its last lines."""
        self.process.join(patience)
        code = self.process.exitcode
        end_group(self.process)
        self.process.join(JOIN_SECONDS)
        self.connection.close()
        return code, self.tail.end()


class Processes:
    """Trials in worker processes of this machine, which are started when there is something to do and stay until
    `close`: each loads torch once, however often a search asks for results.

    Args:
        store: where workers keep results.
        jobs: trials at once.
        timeout: seconds that one trial may take; None for no end.
    """

    def __init__(self, store: Store, jobs: int, timeout: float | None = None) -> None:
        # Spawned, not forked: torch's threads do not survive a fork.
        self.context = multiprocessing.get_context("spawn")
        self.store, self.jobs, self.timeout = store, jobs, timeout
        self.workers: list[_Worker] = []

    def results(self, trials: Sequence[Wanted]) -> Generator[Record]:
        """Runs trials and yields the record of each as it is kept."""
        turns = Turns(self.store, trials)
        try:
            while True:
                self._hand_out(turns)
                busy = {worker.connection: worker for worker in self.workers if worker.turn is not None}
                if not busy and not turns:
                    return
                # Looked at twice a second even when nothing is said: what a worker left behind may hold its pipes open.
                if not busy:
                    time.sleep(POLL)
                answered = wait(list(busy), POLL)
                for connection, worker in busy.items():
                    if connection in answered:
                        record = self._answered(worker, turns)
                    elif time.monotonic() >= worker.deadline:
                        record = self._overdue(worker, turns)
                    elif not worker.process.is_alive() and not connection.poll():
                        record = self._lost(worker, turns)
                    else:
                        continue
                    if record:
                        yield record
        finally:  # where nobody waits for the rest, those at work are asked to end
            self._end([worker for worker in self.workers if worker.turn is not None])

    def _hand_out(self, turns: Turns) -> None:
        while sum(worker.turn is not None for worker in self.workers) < self.jobs and (turn := turns.next()):
            worker = next((worker for worker in self.workers if worker.turn is None), None)
            if worker is None:
                worker = self._started()
            try:
                worker.take(turn)
            except OSError:  # it ended with nothing to do
                self._dismiss(worker)
                turns.waiting.appendleft(turn)

    def _started(self) -> _Worker:
        try:
            worker = _Worker(self.context, self.store)
        except OSError as error:
            raise StorageError(f"no worker process can be started ({error.strerror}): give a smaller --jobs") from error
        self.workers.append(worker)
        return worker

    def _dismiss(self, worker: _Worker, patience: float = 0) -> tuple[int | None, list[str]]:
        self.workers.remove(worker)
        return worker.end(patience)

    def _answered(self, worker: _Worker, turns: Turns) -> Record | None:
        turn = worker.turn
        assert turn is not None
        try:
            kind, content = worker.connection.recv()
        except (EOFError, OSError):
            return self._lost(worker, turns)
        if kind == "begins":
            worker.deadline = time.monotonic() + self.timeout if self.timeout else math.inf
            worker.watch = Stopwatch(turn.spent)
            return None
        if kind == "storage":
            raise StorageError(content)
        worker.turn, worker.deadline = None, math.inf
        if kind == "elsewhere":
            turns.leave(turn)
            return None
        record = (self.store.load(turn.fingerprint) if kind == "kept"
                  else self._conclude(turn, turns, content, worker.watch))
        if record and record.status == "failed":
            # What a fault left behind in the process, such as a changed default of torch, is nothing for other trials.
            self._dismiss(worker)
        return record

    def _overdue(self, worker: _Worker, turns: Turns) -> Record | None:
        turn = worker.turn
        assert turn is not None
        _, lines = self._dismiss(worker)
        told = f"timeout: no end after {self.timeout or START_SECONDS:g} s"
        return self._conclude(turn, turns, told, worker.watch, log=lines)

    def _lost(self, worker: _Worker, turns: Turns) -> Record | None:
        turn = worker.turn
        assert turn is not None
        code, lines = self._dismiss(worker, JOIN_SECONDS)
        manner = manner_of_end(code) if code is not None else "no word, and had to be ended"
        if code in FROM_OUTSIDE and not turn.lost:
            turns.again(turn, manner, worker.watch.seconds)
            return None
        told = " and, once more, with ".join((*turn.lost, manner))
        return self._conclude(turn, turns, f"the worker process ended with {told}", worker.watch, log=lines,
                              lost=list(turn.lost))

    def _conclude(self, turn: Turn, turns: Turns, reason: str, watch: Stopwatch, **facts: Any) -> Record | None:
        """Keeps a failure; unless the trial has a result, or another coordinator runs it by now."""
        with self.store.claim(turn.fingerprint) as mine:
            if not mine:
                turns.leave(turn)
                return None
            if record := turn.settled(self.store):
                return record
            record = failed(turn, "failed", reason, watch, **{name: fact for name, fact in facts.items() if fact})
            self.store.keep(record, {})
            return record

    def close(self) -> None:
        """Ends all workers."""
        self._end(self.workers)

    def _end(self, workers: Sequence[_Worker]) -> None:
        """Asks workers to end, which leaves checkpoints of their trials, and then ends them."""
        try:
            for worker in workers:
                if worker.turn is not None:
                    worker.process.terminate()
                with contextlib.suppress(OSError):
                    worker.connection.close()
            until = time.monotonic() + CHECKPOINT_SECONDS
            for worker in workers:
                worker.process.join(max(0.0, until - time.monotonic()))
        finally:  # a second signal waits for no one
            for worker in workers:
                end_group(worker.process)
                worker.process.join(JOIN_SECONDS)
            self.workers = [worker for worker in self.workers if worker not in workers]


def _serve(connection: Connection, prints: Connection, store: Store) -> None:
    """A worker's life: a turn in, a word out, until the other side is gone."""
    import faulthandler

    # Ctrl-C reaches the whole terminal; the coordinator decides what becomes of the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lead_group()
    for descriptor in (1, 2):
        os.dup2(prints.fileno(), descriptor)
    prints.close()
    sys.stdout, sys.stderr = (
        open(descriptor, "w", buffering=1, errors="backslashreplace", closefd=False) for descriptor in (1, 2)
    )
    faulthandler.enable(all_threads=False)
    from posbench import runner  # noqa: F401  the seconds that this takes are no trial's

    while True:
        try:
            turn = connection.recv()
            connection.send(("begins", None))
            connection.send(_answer(turn, store))
        except (EOFError, OSError):
            return
        except Terminated as stop:
            # The checkpoint is written; to take the interpreter down in order only keeps the coordinator waiting.
            os._exit(int(stop.code or 0))


def _answer(turn: Turn, store: Store) -> tuple[str, str]:
    from posbench.execute import run_once
    from posbench.trial import resolve

    try:
        trial = resolve(turn.config)
        if trial.fingerprint != turn.fingerprint:
            return "failed", CHANGED
        record = run_once(trial, turn, store)
    except StorageError as error:
        return "storage", str(error)
    except UserError as error:
        return "failed", str(error)
    return ("kept", record.fingerprint) if record else ("elsewhere", "")
