"""Trials on a Ray cluster, each as one task; the only file that knows Ray.

A task hands its trial to a worker process of its machine, as the coordinator does at home, so that time limits, retries
and reasons are the same everywhere. Results come back as the bytes of the store's files, and are kept by the
coordinator: machines need not share a disk.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import secrets
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posbench.config import TrialConfig, to_plain
from posbench.errors import StorageError, Terminated, UserError, one_line
from posbench.execute import failed
from posbench.interrupt import Deferred
from posbench.stopwatch import Stopwatch
from posbench.store import Record, Store, parsed
from posbench.turns import POLL, Turn, Turns
from posbench.workers import Processes

# Read by Ray when it is imported: it reports nothing to its makers, and hides no GPU where a task asked for none.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
try:
    import ray
except ImportError as error:
    raise UserError(f"--executor ray needs Ray ({error}): pip install 'posbench[ray]'") from None

if TYPE_CHECKING:
    from posbench.trial import Trial

LOST = (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.OutOfMemoryError)
"""What Ray says of a task whose process or machine somebody ended."""
ANSWER_SECONDS = 10.0
"""Seconds in which the address of a cluster answers."""
OBJECT_STORE = 100 * 2**20
"""Bytes of shared memory for results under way; a trial's are some hundred kilobytes."""


class RayCluster:
    """Trials on the cluster of RAY_ADDRESS, or that `ray start` began here, or else of this machine for this study.

    Args:
        store: where results are kept, by this process alone.
        threads: of a trial, which are as many of a machine's processors.
        gpus: of a trial; a fraction shares a GPU among several.
        jobs: trials at once; 0 for as many as the cluster has room for.
        timeout: seconds that one trial may take; None for no end.
    """

    def __init__(self, store: Store, threads: int, *, gpus: float, jobs: int, timeout: float | None) -> None:
        if gpus > 1 and gpus != int(gpus):
            raise UserError(f"--gpus-per-trial {gpus:g}: give a part of a GPU, such as 0.25, or a whole number")
        self.store, self.threads, self.gpus, self.jobs, self.timeout = store, threads, gpus, jobs, timeout
        self.connected: contextlib.ExitStack | None = None

    def results(self, trials: Sequence[Trial]) -> Generator[Record]:
        """Runs trials and yields the record of each as it is kept.

        Raises:
            UserError: there is no such cluster, or no machine of it has room for a trial.
        """
        if not trials:
            return
        if self.connected is None:
            connected = contextlib.ExitStack()
            connected.enter_context(_connected())
            self.connected = connected
        try:
            yield from self._results(trials)
        except BaseException:  # what is under way on other machines ends with the connection
            self.close()
            raise

    def close(self) -> None:
        """Ends the connection; until then processes of the cluster keep their workers for the next trials."""
        connected, self.connected = self.connected, None
        if connected is not None:
            connected.close()

    def _results(self, trials: Sequence[Trial]) -> Generator[Record]:
        room = self._room()
        task = ray.remote(num_cpus=self.threads, num_gpus=self.gpus, max_retries=0)(_run_here)
        turns, found = Turns(self.store, trials), {trial.fingerprint: trial for trial in trials}
        # Within its calls Ray turns what a signal raises into an exit of its own: signals are heard between two.
        with contextlib.ExitStack() as everything, Deferred() as signals:
            # Other coordinators see the locks that this process holds for what runs on other machines.
            under_way: dict[Any, tuple[Turn, contextlib.ExitStack, Stopwatch]] = {}
            while True:
                signals.obey()
                while len(under_way) < room and (turn := turns.next()):
                    held = everything.enter_context(contextlib.ExitStack())
                    if not held.enter_context(self.store.claim(turn.fingerprint)):
                        turns.leave(turn)
                    elif record := turn.settled(self.store):
                        held.close()
                        yield record
                    else:
                        reference = task.remote(turn, _source(turn.config), self.timeout)
                        under_way[reference] = turn, held, Stopwatch(turn.spent)
                if not under_way:
                    if not turns:
                        return
                    time.sleep(POLL)
                    continue
                done, _ = ray.wait(list(under_way), timeout=POLL)
                for reference in done:
                    turn, held, watch = under_way.pop(reference)
                    with held:
                        record = self._collected(reference, found[turn.fingerprint], turn, turns, watch)
                    if record:
                        yield record

    def _collected(self, reference: Any, trial: Trial, turn: Turn, turns: Turns, watch: Stopwatch) -> Record | None:
        """What a task came to, kept in the store; None where it was lost and runs again."""
        predictions: Mapping[str, Any] = {}
        try:
            record, predictions = parsed(ray.get(reference))
            record = _as_at_home(record, trial, turn)
        except LOST as error:
            manner = f"{type(error).__name__} of Ray"
            if not turn.lost:
                turns.again(turn, manner, watch.seconds)
                return None
            told = " and, once more, with ".join((*turn.lost, manner))
            record = failed(trial, "failed", f"the worker on the cluster ended with {told}", watch,
                            lost=list(turn.lost))
        except ray.exceptions.RayError as error:
            told = one_line(str(error).rstrip().rpartition("\n")[2])
            record = failed(trial, "failed", f"the cluster could not run it: {told}", watch, traceback=str(error))
        self.store.keep(record, predictions)
        return record

    def _room(self) -> int:
        """Trials that fit the cluster at once."""
        fits = 0
        for machine in ray.nodes():
            if machine["Alive"]:
                has = machine["Resources"]
                fits += min(_rooms(has.get(name, 0), amount) for name, amount in self._needs().items())
        if not fits:
            asked = " and ".join(f"{amount:g} {name}" for name, amount in self._needs().items())
            raise UserError(
                f"no machine of the Ray cluster has {asked} for a trial: change train.threads or --gpus-per-trial"
            )
        return min(fits, self.jobs) if self.jobs else fits

    def _needs(self) -> dict[str, float]:
        """What a trial takes of a machine, by Ray's names."""
        return {name: amount for name, amount in (("CPU", self.threads), ("GPU", self.gpus)) if amount}


def _rooms(there: float, amount: float) -> int:
    """Trials that share what is there; a part of a GPU is a part of one, never the rests of two."""
    return math.floor(there) * math.floor(1 / amount) if amount < 1 else math.floor(there / amount)


@contextlib.contextmanager
def _connected() -> Iterator[None]:
    """A connection to the cluster, which ends with the block and, where it is our own, the cluster with it."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    # Ray takes SIGTERM for itself, and would end the study without a word.
    ours = signal.getsignal(signal.SIGTERM)
    named = os.environ.get("RAY_ADDRESS", "").removeprefix("local")
    started = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
    folder = None
    try:
        try:
            if not named and not started.exists():
                raise ConnectionError
            if named:
                _reached(named)
            ray.init(address=named or "auto", **quiet)
        except (ConnectionError, ValueError, ray.exceptions.RayError) as error:
            if named:
                raise UserError(f"no Ray cluster answers at RAY_ADDRESS={named}: {one_line(str(error), 300)}") from None
            # In a folder of its own, so that no other study finds this cluster and is cut off at its end. A token keeps
            # others out, since Ray listens to more than this machine.
            folder = tempfile.mkdtemp(prefix="posbench-ray-", dir="/tmp")
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
            small: dict[str, Any] = {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
            try:
                ray.init(address="local", _temp_dir=folder, **small, **quiet)
            except RuntimeError as error:
                raise StorageError(f"Ray does not start on this machine: {one_line(str(error), 300)}") from error
        except SystemExit as stop:
            if stop.code == signal.SIGTERM:
                raise Terminated(128 + signal.SIGTERM) from None
            raise
        finally:
            with contextlib.suppress(ValueError):  # a thread sets no signals
                signal.signal(signal.SIGTERM, ours)
        yield
    finally:
        ray.shutdown()
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _reached(address: str) -> None:
    """Raises ConnectionError where nothing listens at host:port; Ray itself would ask there for many minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise ConnectionError(str(error)) from None


@dataclass(frozen=True)
class _Home:
    """What a task's process keeps for the next one: workers, and a store in a folder that goes with the process."""

    devices: str | None
    place: Processes
    folder: Path


_HOMES: list[_Home] = []


def _run_here(turn: Turn, source: bytes | None, timeout: float | None) -> dict[str, bytes]:
    """A task: the files of the trial's result."""
    home = _home(timeout)
    (record,) = home.place.results([replace(turn, config=_placed(turn.config, source, home.folder))])
    files = home.place.store.files(record.fingerprint)
    home.place.store.drop(record.fingerprint)
    return files


def _home(timeout: float | None) -> _Home:
    # Another task of the same process may be given another GPU, which only a new worker sees.
    devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    for home in list(_HOMES):
        if home.devices == devices and home.place.timeout == timeout:
            return home
        _leave(home)
    folder = Path(tempfile.mkdtemp(prefix="posbench-task-"))
    home = _Home(devices, Processes(Store(folder / "trials"), 1, timeout), folder)
    _HOMES.append(home)
    atexit.register(_leave, home)
    return home


def _leave(home: _Home) -> None:
    if home in _HOMES:
        _HOMES.remove(home)
        home.place.close()
        shutil.rmtree(home.folder, ignore_errors=True)


def _source(config: TrialConfig) -> bytes | None:
    """The encoding's file itself, where the trial names one; other machines need not have it."""
    return Path(config.encoding.name).read_bytes() if config.encoding.name.endswith(".py") else None


def _placed(config: TrialConfig, source: bytes | None, folder: Path) -> TrialConfig:
    """The trial with the encoding's file on this machine; a path is no part of what makes it the trial that it is."""
    if source is None:
        return config
    place = folder / Path(config.encoding.name).name
    place.write_bytes(source)
    return replace(config, encoding=replace(config.encoding, name=str(place)))


def _as_at_home(record: Record, trial: Trial, turn: Turn) -> Record:
    """The record as this machine would have written it: with its own paths, and every attempt."""
    facts = dict(record.facts)
    if "plugin_origin" in facts:
        facts["plugin_origin"] = trial.plugin.origin
    if turn.lost:
        facts["lost"] = [*turn.lost, *facts.get("lost", ())]
    return replace(record, label=trial.config.encoding.label, config=to_plain(trial.config), facts=facts)
