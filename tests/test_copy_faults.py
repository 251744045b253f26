"""A study whose MLflow database fails at any operation, or is held by somebody: the same results, and a line on it."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from posbench import mirror, studying, track
from posbench.copying import sync
from posbench.errors import StorageError
from posbench.store import MANIFEST, Store
from posbench.study import Plan
from posbench.track import DATABASE, MLflow
from posbench.tracker import Tracker
from tests.test_faults import TABLES, TRIALS, call, leftovers, tiny

FAULTS = (sqlite3.OperationalError("database is locked"), sqlite3.OperationalError("disk I/O error"),
          sqlite3.DatabaseError("database disk image is malformed"))
RUNS = {"tuning": 4, "trial": TRIALS - 4, "encoding": 2, "summary": 1}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Plan:
    return tiny(monkeypatch)


class FailingDatabase:
    """Counts operations on sqlite and lets one of them fail, or that one and all after it."""

    def __init__(self, number: int, error: sqlite3.Error, patched: pytest.MonkeyPatch, *, stays: bool = False) -> None:
        self.number, self.error, self.stays = number, error, stays
        self.count, self.failed = 0, ""
        genuine, one = sqlite3.connect, self.one

        class Cursor(sqlite3.Cursor):
            def execute(self, *arguments: Any) -> Any:
                one("execute")
                return super().execute(*arguments)

            def executemany(self, *arguments: Any) -> Any:
                one("executemany")
                return super().executemany(*arguments)

        class Connection(sqlite3.Connection):
            def cursor(self, *arguments: Any) -> Any:
                return super().cursor(Cursor)

            def execute(self, *arguments: Any) -> Any:
                return self.cursor().execute(*arguments)

            def commit(self) -> None:
                one("commit")
                super().commit()

        def connect(*arguments: Any, **named: Any) -> Any:
            one("connect")
            return genuine(*arguments, **{**named, "factory": Connection})

        patched.setattr(sqlite3, "connect", connect)
        patched.setattr(sqlite3.dbapi2, "connect", connect)

    def one(self, name: str) -> None:
        self.count += 1
        if self.count == self.number or (self.stays and self.count > self.number > 0):
            self.failed = self.failed or name
            raise type(self.error)(*self.error.args)


def copied(make: Callable[[Path], Tracker], patched: pytest.MonkeyPatch) -> None:
    """Studies tell this tracker from now on."""
    patched.setattr(studying, "tracker_named", lambda name, home: make(home))


def runs(home: Path) -> Counter[str]:
    """Runs in the copy by kind, deleted ones left out; each key once."""
    client = MLflow(home)._client()
    experiment = client.get_experiment_by_name("posbench-study")
    found = [run.data.tags for run in client.search_runs([experiment.experiment_id])] if experiment else []
    assert len({tags["posbench.key"] for tags in found}) == len(found)
    return Counter(tags["posbench.kind"] for tags in found)


def sound(home: Path, calm: Path, told: str) -> None:
    """Each trial once and whole, the same tables, nothing torn."""
    store = Store(home / "trials")
    found = [file.parent.name for file in store.root.glob(f"*/*/{MANIFEST}")]
    assert len(found) == TRIALS and all(store.has(one) for one in found), told
    for one in found:
        mine, theirs = store.load(one), Store(calm / "trials").load(one)
        assert (mine.status, mine.rows, mine.curves) == (theirs.status, theirs.rows, theirs.curves), told
    for name in TABLES:
        assert (home / "study" / name).read_bytes() == (calm / "study" / name).read_bytes(), f"{name} {told}"
    assert leftovers(home) == [] and not list(home.glob(".mlflow-*")), told


@pytest.mark.parametrize("samples", [
    3,
    # Each is two studies, and a database that MLflow opens anew.
    pytest.param(30, marks=pytest.mark.slow),
])
def test_whichever_operation_of_the_database_fails_the_study_is_the_same(
    small: Plan, migrated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    samples: int
) -> None:
    """MLflow waits between its attempts to open a database; that it does so in a process of its own is shown below."""
    monkeypatch.setattr("mlflow.store.db.utils.time", SimpleNamespace(sleep=lambda seconds: None))
    copied(MLflow, monkeypatch)
    calm = tmp_path / "calm"
    calm.mkdir()
    shutil.copy(migrated, calm / DATABASE)
    with monkeypatch.context() as patched:
        counted = FailingDatabase(0, FAULTS[0], patched)
        assert not call(small, calm, monkeypatch)
    assert counted.count > 100 and runs(calm) == RUNS
    assert "MLflow copy incomplete" not in capsys.readouterr().out
    numbers = sorted(random.Random(0).sample(range(1, counted.count + 1), samples))
    reached = 0
    for place, number in enumerate(numbers):
        home, stays = tmp_path / str(number), place % 2 == 1
        home.mkdir()
        shutil.copy(migrated, home / DATABASE)
        if place:  # the first one trains; a copy of results tells the same to the tracker
            shutil.copytree(calm / "trials", home / "trials")
        with monkeypatch.context() as patched:
            failing = FailingDatabase(number, FAULTS[place % len(FAULTS)], patched, stays=stays)
            assert not call(small, home, monkeypatch)
        told = f"operation {number} of {counted.count} ({failing.failed}) fails, {'and all after it' * stays}"
        failing.number = 0  # MLflow keeps its connections
        reached += bool(failing.failed)
        sound(home, calm, told)
        said = capsys.readouterr().out
        assert runs(home) == RUNS or "MLflow copy incomplete: " in said, f"{told}: nobody is told what is lost"
        assert not call(small, home, monkeypatch)
        assert runs(home) == RUNS and "MLflow copy incomplete" not in capsys.readouterr().out, told
        sound(home, calm, told)
        shutil.rmtree(home)
    assert reached > samples // 2, "a study whose results are there asks the database a little less"


class Creates:
    """In place of MLflow's client, which takes seconds to write a database that is as whole."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def search_experiments(self, **named: Any) -> None:
        with (self.home / DATABASE).open("w") as file:
            for _ in range(100):
                file.write(f"{os.getpid()}\n")
                file.flush()
                time.sleep(0.002)


def writers(database: Path) -> set[str]:
    """Who wrote a database of `Creates`, which must be whole."""
    lines = database.read_text().splitlines()
    assert len(lines) == 100, "half a database was seen"
    return set(lines)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("links", [True, False])
def test_processes_that_create_a_database_at_one_moment_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """Not all file systems know a second name for a file."""
    def unknown(*arguments: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(MLflow, "_client", lambda self: Creates(self.home))
    if not links:
        monkeypatch.setattr(os, "link", unknown)
    forks = multiprocessing.get_context("fork")
    start = forks.Barrier(8)

    def prepares() -> None:
        start.wait(60)
        tracker = MLflow(tmp_path)
        tracker.prepare()
        assert not tracker.failures, tracker.reason
        assert len(writers(tmp_path / DATABASE)) == 1

    processes = [forks.Process(target=prepares) for _ in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 8
    assert [file.name for file in tmp_path.iterdir()] == [DATABASE], "what was built aside is gone"
    assert writers(tmp_path / DATABASE) <= {str(process.pid) for process in processes}


HOLD = ("import sqlite3, sys\n"
        "database = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "database.execute('begin exclusive'); print('held', flush=True); sys.stdin.readline()")


@pytest.mark.parametrize("apart", [
    False,
    # MLflow is loaded in a process of its own, and three attempts wait two seconds each.
    pytest.param(True, marks=pytest.mark.slow),
])
def test_a_database_that_another_process_holds_loses_the_copy_and_nothing_else(
    small: Plan, migrated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    apart: bool
) -> None:
    calm, home = tmp_path / "calm", tmp_path / "home"
    copied(lambda place: Tracker(), monkeypatch)
    assert not call(small, calm, monkeypatch)
    home.mkdir()
    shutil.copy(migrated, home / DATABASE)
    copied((lambda place: mirror.Mirror(partial(MLflow, place))) if apart else MLflow, monkeypatch)
    monkeypatch.setattr(track, "LOCKED_SECONDS", 0.05)
    capsys.readouterr()
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(home / DATABASE)], text=True, stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE)
    assert other.stdout is not None and other.stdout.readline() == "held\n"
    assert not call(small, home, monkeypatch), "a copy that fails is no trial that failed"
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(StorageError, match=r"MLflow copy incomplete: .*database is locked"):
        sync(home / "study")
    other.communicate("\n")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "MLflow" in line and "incomplete" in line]
    total = sum(RUNS.values())
    assert line.startswith(f"MLflow copy incomplete: {total} of {total} runs, posbench sync fills it in: ")
    assert "database is locked" in line
    sound(home, calm, "with a database that was held")
    for _ in range(2):
        sync(home / "study")
        assert f" is complete: {TRIALS} results" in capsys.readouterr().out and runs(home) == RUNS
