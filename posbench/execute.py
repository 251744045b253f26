"""Where trials run: in this process, or in worker processes that a fault of one trial cannot take along."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from posbench.config import to_plain
from posbench.errors import ContextLengthExceeded, StorageError, Terminated, UserError, reason_of
from posbench.store import Record, Store
from posbench.trial import Trial, resolve

# A worker that imports torch and its plugins afresh needs seconds; one that says nothing for longer never started.
JOIN_SECONDS = 5
# Workers that are asked to end finish their step and write a checkpoint; longer than this nobody waits.
CHECKPOINT_SECONDS = 30


def execute(trials: Sequence[Trial], root: Path, jobs: int) -> Generator[Record]:
    """Runs trials and yields the record of each as it is kept in the store under `root`.

    Args:
        trials: what to run, in this order.
        root: folder of the store.
        jobs: trials at once; with 1 they run in this process.

    Raises:
        StorageError: results cannot be written; nothing else stops the others.
    """
    if jobs <= 1 or len(trials) <= 1:
        store = Store(root)
        for trial in trials:
            yield run_and_keep(trial, store)
        return
    pool = _Pool(min(jobs, len(trials)), root)
    try:
        yield from pool.results(trials)
    finally:
        pool.close()


def run_and_keep(trial: Trial, store: Store) -> Record:
    """Runs one trial; whatever happens to it is a record, and only a store that cannot be written is an error."""
    from posbench.runner import checkpoints_of, run

    checkpoints = None
    try:
        checkpoints = checkpoints_of(trial, store.folder(trial.fingerprint), tell)
        record, predictions = run(trial, checkpoints=checkpoints)
    except ContextLengthExceeded as error:
        record, predictions = failed(trial, "refused", str(error)), {}
    except UserError as error:
        record, predictions = failed(trial, "failed", str(error)), {}
    except (KeyboardInterrupt, Terminated):
        raise
    except BaseException as error:  # a plugin that wants to leave, by SystemExit or worse, ends its trial alone
        reason = reason_of(error)
        record, predictions = failed(trial, "failed", reason, traceback.format_exc()), {}
    store.keep(record, predictions)
    if checkpoints is not None:
        checkpoints.remove()
    return record


def tell(line: str) -> None:
    """A line on what is wrong with the machine and not with a trial, for whoever watches."""
    sys.stderr.write(f"posbench: warning: {line}\n")


def failed(trial: Trial, status: str, reason: str, trace: str = "") -> Record:
    """The record of a trial without a result."""
    return Record(
        fingerprint=trial.fingerprint,
        label=trial.config.encoding.label,
        config=to_plain(trial.config),
        status=status,
        reason=reason,
        facts={"traceback": trace} if trace else {},
    )


class _Worker:
    """One process with the trial that it is busy with."""

    def __init__(self, context: Any, root: Path) -> None:
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, root), daemon=True)
        self.process.start()
        theirs.close()
        self.trial: Trial | None = None


class _Pool:
    def __init__(self, size: int, root: Path) -> None:
        # Spawned, not forked: torch's threads do not survive a fork.
        self.context = multiprocessing.get_context("spawn")
        self.root, self.store = root, Store(root)
        self.workers = [_Worker(self.context, root) for _ in range(size)]

    def results(self, trials: Sequence[Trial]) -> Iterator[Record]:
        waiting = deque(trials)
        for worker in self.workers:
            self._give(worker, waiting)
        while busy := {worker.connection: worker for worker in self.workers if worker.trial is not None}:
            for connection in wait(list(busy)):
                worker = busy[connection]
                trial = worker.trial
                assert trial is not None
                try:
                    kind, content = worker.connection.recv()
                except (EOFError, OSError):
                    record = self._died(worker, trial)
                    worker = self._replace(worker)
                else:
                    if kind == "storage":
                        raise StorageError(content)
                    if content == trial.fingerprint:
                        record = self.store.load(content)
                    else:
                        changed = "its plugin or data changed while the study ran: run the study again"
                        record = failed(trial, "failed", changed)
                self._give(worker, waiting)
                yield record

    def _give(self, worker: _Worker, waiting: deque[Trial]) -> None:
        worker.trial = waiting.popleft() if waiting else None
        if worker.trial is not None:
            worker.connection.send(worker.trial.config)

    def _died(self, worker: _Worker, trial: Trial) -> Record:
        worker.process.join(JOIN_SECONDS)
        record = failed(trial, "failed", f"the worker process ended with {manner_of_end(worker.process.exitcode)}")
        self.store.keep(record, {})
        return record

    def _replace(self, worker: _Worker) -> _Worker:
        fresh = _Worker(self.context, self.root)
        self.workers[self.workers.index(worker)] = fresh
        return fresh

    def close(self) -> None:
        """Ends the workers: those with a trial leave a checkpoint of it, unless that takes too long."""
        try:
            for worker in self.workers:
                if worker.trial is not None:
                    worker.process.terminate()
                worker.connection.close()
            latest = time.monotonic() + CHECKPOINT_SECONDS
            for worker in self.workers:
                worker.process.join(max(0.0, latest - time.monotonic()))
        finally:  # a second signal waits for no one
            for worker in self.workers:
                worker.process.kill()


def manner_of_end(code: int | None) -> str:
    """How a process ended, from its exit code."""
    return f"signal {-code} ({signal.Signals(-code).name})" if code is not None and code < 0 else f"exit code {code}"


def end_with_parent() -> None:
    """Ends this child when its parent does: a coordinator that was killed runs again soon, and nothing may train or
    write beside it."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _serve(connection: Connection, root: Path) -> None:
    """A worker's life: a trial in, a word out, until the other side is gone."""
    # Ctrl-C reaches the whole group; the coordinator decides what becomes of the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    store = Store(root)
    while True:
        try:
            config = connection.recv()
            try:
                answer = ("kept", run_and_keep(resolve(config), store).fingerprint)
            except StorageError as error:
                answer = ("storage", str(error))
            connection.send(answer)
        except (EOFError, OSError):
            return
        except Terminated as stop:
            # The checkpoint is written; to take the interpreter down in order only keeps the coordinator waiting.
            os._exit(int(stop.code or 0))
