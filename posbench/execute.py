"""Where trials run: in this process, in worker processes, or on a cluster; one trial runs in one place at a time."""

from __future__ import annotations

import resource
import sys
import time
import traceback
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from posbench import distributed
from posbench.config import to_plain
from posbench.errors import ContextLengthExceeded, Terminated, UserError, reason_of
from posbench.stopwatch import Stopwatch
from posbench.store import Record, Store
from posbench.turns import POLL, Turn, Turns, Wanted

if TYPE_CHECKING:
    from posbench.trial import Trial

NO_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "bad_alloc", "ALLOC_FAILED")


class Executor(Protocol):
    """A place where trials run, so many at once; 0 where the place decides."""

    jobs: int

    def results(self, trials: Sequence[Trial]) -> Generator[Record]:
        """Runs trials and yields the record of each when it lies in the store, also where another process ran it.

        Raises:
            StorageError: results cannot be written; nothing that happens to a trial stops the others.
        """
        ...

    def close(self) -> None:
        """Ends what stays between two calls of `results`, such as workers that have loaded torch."""
        ...


class Here:
    """One trial after the other in this process, with everything that plugins print.

    Args:
        store: where results are kept.
    """

    def __init__(self, store: Store) -> None:
        self.store, self.jobs = store, 1

    def results(self, trials: Sequence[Trial]) -> Generator[Record]:
        turns, found = Turns(self.store, trials), {trial.fingerprint: trial for trial in trials}
        while turns:
            turn = turns.next()
            if turn is None:
                time.sleep(POLL)
            elif record := run_once(found[turn.fingerprint], turn, self.store):
                yield record
            else:
                turns.leave(turn)

    def close(self) -> None:
        """Nothing stays."""


def run_once(trial: Trial, turn: Turn, store: Store) -> Record | None:
    """Runs one trial, or takes the result that came from elsewhere since; None while another process runs it."""
    with store.claim(turn.fingerprint) as mine:
        return (turn.settled(store) or run_and_keep(trial, store, turn.lost)) if mine else None


def run_and_keep(trial: Trial, store: Store, lost: Sequence[str] = ()) -> Record:
    """Runs one trial; whatever happens to it is a record, and only a store that cannot be written is an error.

    Args:
        trial: what to run.
        store: where its result is kept.
        lost: how the workers of earlier attempts ended, for the record.
    """
    from posbench.runner import checkpoints_of, run

    checkpoints, watch = None, Stopwatch()
    try:
        checkpoints = checkpoints_of(trial, store.folder(trial.fingerprint), tell)
        distributed.announce(trial.config)
        record, predictions = run(trial, checkpoints=checkpoints)
    except ContextLengthExceeded as error:
        record, predictions = failed(trial, "refused", str(error), watch), {}
    except UserError as error:
        record, predictions = failed(trial, "failed", str(error), watch), {}
    except (KeyboardInterrupt, Terminated):
        raise
    except BaseException as error:  # a plugin that wants to leave, by SystemExit or worse, ends its trial alone
        if distributed.world() > 1:
            # The others may be anywhere in this trial: no other can follow it in these processes.
            raise UserError(f"a trial of several processes ended with {reason_of(error)}: the same command goes on "
                            "from its last checkpoint, and in one process it tells more") from error
        facts: dict[str, Any] = {"traceback": traceback.format_exc()}
        reason = reason_of(error)
        if wanted_memory(error):
            facts["peak_memory"] = peak = peak_memory()
            reason = f"out of memory (the process had {peak / 2**20:,.0f} MiB at its peak): {reason}"
        record, predictions = failed(trial, "failed", reason, watch, **facts), {}
    if lost:
        record = replace(record, facts=record.facts | {"lost": list(lost)})
    store.keep(record, predictions)
    if checkpoints is not None:
        checkpoints.remove()
    return record


def tell(line: str) -> None:
    """A line on what is wrong with the machine and not with a trial, for whoever watches."""
    sys.stderr.write(f"posbench: warning: {line}\n")


def failed(trial: Wanted, status: str, reason: str, watch: Stopwatch, **facts: Any) -> Record:
    """The record of a trial without a result, which took the time of the watch."""
    return Record(
        fingerprint=trial.fingerprint,
        label=trial.config.encoding.label,
        config=to_plain(trial.config),
        status=status,
        reason=reason,
        seconds=watch.seconds,
        facts={**watch.dates(), **facts},
    )


def wanted_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on the machine or on its GPU; torch says it in several ways.

    Such a trial fails. A smaller batch would save it, and make it another trial than the ones beside it.
    """
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(told in str(error) for told in NO_MEMORY)
    )


def peak_memory() -> int:
    """Largest memory of this process so far, bytes: on the GPU where it used one, else resident."""
    import torch

    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
