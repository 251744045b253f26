"""A whole small study in which the N-th operation on files fails: nothing torn is seen, and the same call goes on."""

from __future__ import annotations

import builtins
import contextlib
import errno
import fcntl
import io
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from posbench import quarantine, studying
from posbench.config import StudyConfig, TrainConfig
from posbench.errors import StorageError, Terminated
from posbench.execute import Here
from posbench.store import MANIFEST, Record, Store
from posbench.study import Plan, from_preset, plan
from posbench.trial import Trial
from tests.torture import calm_text

SEARCH = {"trials": 2, "space": {"train.learning_rate": {"low": 1e-3, "high": 4e-3, "log": True}}}
TRIALS = 6
TABLES = ("scoreboard.md", "comparisons.csv", "search.csv")
BY_PATH = (io.open, os.open, os.replace, os.link, os.chmod, os.unlink, os.mkdir, os.listdir, os.scandir)
BY_DESCRIPTOR = (os.fsync, fcntl.flock, tempfile.mkstemp)
SAMPLES = 6


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Plan:
    return tiny(monkeypatch)


def tiny(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Two encodings, a search of two points each, one reporting seed; a checkpoint at every update."""
    monkeypatch.setenv("POSBENCH_CHECKPOINT_SECONDS", "0")
    monkeypatch.setattr("posbench.checkpoint.SHARE", 0)
    monkeypatch.setattr(quarantine, "prove", lambda choices: None)  # the contract is not what is tested here
    monkeypatch.setattr("posbench.outcome.cost.measure", lambda known, *rest, **more: [
        {"encoding": label, "parameters": 1, "flops": 1.0, "step_ratio": 1.0, "step_seconds": 1.0, "peak_memory": 1.0}
        for label in known])
    study: StudyConfig = from_preset("glue", "mini", {
        "encodings": [{"name": "nope"}, {"name": "rope"}], "tasks": ["rte"], "seeds": [0], "baseline": "nope",
        "search": SEARCH, "train.steps": "3", "train.evaluations": "2", "model.width": "16", "model.heads": "2",
        "model.layers": "1", "model.feedforward": "16", "train.batch_size": "8",
    })
    return plan(study)


def call(whole: Plan, home: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """What `posbench study` does once its arguments are read; whether a trial failed."""
    monkeypatch.setenv("POSBENCH_HOME", str(home))
    return studying._run(whole, home / "study", lambda train: Here(Store(home / "trials")), "json")


class Half:
    """A file of which a half is written before the disk is full."""

    def __init__(self, file: Any, before: Callable[[str], None]) -> None:
        self.file, self.before = file, before

    def __enter__(self) -> Half:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, content: bytes) -> int:
        try:
            self.before("write")
        except OSError:
            self.file.write(content[: len(content) // 2])
            raise
        return int(self.file.write(content))


class Failing:
    """Counts operations on files below a folder, and lets one of them fail as a full disk does."""

    def __init__(self, home: Path, number: int, patched: pytest.MonkeyPatch) -> None:
        self.home, self.number, self.count, self.failed = str(home), number, 0, ""
        for genuine in BY_PATH:
            owner = io if genuine is io.open else os
            patched.setattr(owner, genuine.__name__, self.counted(genuine, by_path=True))
        patched.setattr(builtins, "open", io.open)
        for genuine in BY_DESCRIPTOR:
            owner = {os.fsync: os, fcntl.flock: fcntl, tempfile.mkstemp: tempfile}[genuine]
            patched.setattr(owner, genuine.__name__, self.counted(genuine, by_path=False))
        patched.setattr(os, "fdopen", self.opened(os.fdopen))

    def counted(self, genuine: Callable[..., Any], *, by_path: bool) -> Callable[..., Any]:
        def operation(*arguments: Any, **others: Any) -> Any:
            if not by_path or (arguments and str(arguments[0]).startswith(self.home)):
                self.one(genuine.__name__)
            return genuine(*arguments, **others)

        return operation

    def opened(self, genuine: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **others: Half(genuine(*arguments, **others), self.one)

    def one(self, name: str) -> None:
        self.count += 1
        if self.count == self.number:
            self.failed = name
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def leftovers(home: Path) -> list[str]:
    return [str(file.relative_to(home)) for file in home.rglob("*")
            if file.suffix == ".tmp" or file.name == "lock" or "checkpoint-" in file.name]


def test_whichever_operation_of_a_study_fails_the_same_call_completes_it(
    small: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calm = tmp_path / "calm"
    with monkeypatch.context() as patched:
        counted = Failing(calm, 0, patched)
        assert not call(small, calm, monkeypatch)
    assert counted.count > 100 and leftovers(calm) == []
    wanted = os.environ.get("POSBENCH_FAULTS")  # such as 1,2,3: those alone, for whoever looks for a fault
    numbers = [int(text) for text in wanted.split(",")] if wanted else sorted(
        random.Random(0).sample(range(1, counted.count + 1), SAMPLES))
    for number in numbers:
        home = tmp_path / str(number)
        with monkeypatch.context() as patched:
            failing = Failing(home, number, patched)
            try:
                failed = call(small, home, monkeypatch)
                assert not failed, f"operation {number} ({failing.failed}) is charged to a trial"
            except StorageError as error:
                assert error.exit_code == 3 and "\n" not in str(error)
        store = Store(home / "trials")
        assert all(store.has(file.parent.name) for file in store.root.glob(f"*/*/{MANIFEST}"))
        told = f"after operation {number} ({failing.failed})"
        assert not call(small, home, monkeypatch), told
        assert len(list(store.root.glob(f"*/*/{MANIFEST}"))) == TRIALS
        for name in TABLES:
            texts = [calm_text(name, (folder / "study" / name).read_text()) for folder in (home, calm)]
            assert texts[0] == texts[1], f"{name} {told}"
        assert [left for left in leftovers(home) if left.startswith("trials")] == [], told
        shutil.rmtree(home)
    (trial,) = list((calm / "trials").glob("*/*/record.json"))[:1]
    for name in ("checkpoint-3.safetensors", "checkpoint-3.json"):
        (trial.parent / name).write_bytes(b"left by a kill right after the result was kept")
    for hours, name in ((2, ".scoreboard.md.old.tmp"), (0, ".scoreboard.md.new.tmp")):
        left = calm / "study" / name
        left.write_bytes(b"left by a kill, or being written by another report")
        os.utime(left, (time.time() - 3600 * hours,) * 2)
    assert not call(small, calm, monkeypatch)
    assert leftovers(calm) == ["study/.scoreboard.md.new.tmp"]
    capsys.readouterr()


class Stopped(Here):
    """Ends in the way that it is told to, after so many records."""

    def __init__(self, store: Store, ending: BaseException | None) -> None:
        super().__init__(store)
        self.ending, self.calls, self.closed = ending, 0, 0

    def results(self, trials: Sequence[Trial]) -> Generator[Record]:
        self.calls += 1
        for record in super().results(trials):
            yield record
            if self.ending:
                raise self.ending

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("ending", [None, StorageError("full"), KeyboardInterrupt(), Terminated(143)], ids=repr)
def test_an_executor_serves_a_whole_study_and_is_closed_however_it_ends(
    small: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: BaseException | None
) -> None:
    monkeypatch.setenv("POSBENCH_HOME", str(tmp_path))
    made: list[Stopped] = []

    def place(train: TrainConfig) -> Stopped:
        made.append(Stopped(Store(tmp_path / "trials"), ending))
        return made[-1]

    with pytest.raises(type(ending)) if ending else contextlib.nullcontext():
        studying._run(small, tmp_path / "study", place, "none")
    (own,) = made
    assert own.closed == 1 and own.calls == (1 if ending else 2), "the search's points, and then what reports"
