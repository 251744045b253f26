"""Several coordinators over one store: each trial runs once, none is lost, and none runs in two places."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from posbench import study_folder
from posbench.config import StudyConfig
from posbench.errors import StorageError, UserError
from posbench.execute import Here
from posbench.locks import exclusive
from posbench.store import Record, Store
from posbench.study import from_preset
from posbench.study_folder import claim
from posbench.turns import Turns
from tests.test_runner import trial
from tests.test_workers import wild

ROOT = Path(__file__).resolve().parents[1]
# A coordinator without torch: its trials write that they began and that they ended, and take a moment in between.
COORDINATOR = """
import os, sys, time
from pathlib import Path
from types import SimpleNamespace
from posbench.config import EncodingChoice, TrainConfig, TrialConfig
from posbench.execute import failed
from posbench.stopwatch import Stopwatch
from posbench.store import Store
from posbench.turns import Turns
from dataclasses import replace
store, number, mine = Store(Path(sys.argv[1])), int(sys.argv[2]), os.getpid()
config = TrialConfig(encoding=EncodingChoice(name="nope"), suite="glue", task="cola", seed=0,
                     train=TrainConfig(steps=1))
turns = Turns(store, [SimpleNamespace(config=config, fingerprint=f"{place:064x}") for place in range(number)])
events = os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
print("ready", flush=True)
sys.stdin.readline()
while turns:
    turn = turns.next()
    if turn is None:
        time.sleep(0.02)
        continue
    with store.claim(turn.fingerprint) as held:
        if not held:
            turns.leave(turn)
        elif not turn.settled(store):
            os.write(events, f"{mine} begins {turn.fingerprint}\\n".encode())
            time.sleep(0.01)
            store.keep(replace(failed(turn, "failed", "no luck", Stopwatch()), seconds=float(mine)), {})
            os.write(events, f"{mine} ends {turn.fingerprint}\\n".encode())
"""


def coordinators(folder: Path, count: int, trials: int) -> list[subprocess.Popen[str]]:
    """So many processes over one store, all let go at one moment."""
    started = [subprocess.Popen([sys.executable, "-c", COORDINATOR, str(folder / "store"), str(trials),
                                 str(folder / "events")], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                text=True) for _ in range(count)]
    for process in started:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return started


def test_eight_coordinators_run_each_trial_once(tmp_path: Path) -> None:
    """All of them fail, which a later study would run again, and these must not: each takes what another just did."""
    for process in coordinators(tmp_path, 8, 60):
        assert process.wait(60) == 0
    events = [line.split() for line in (tmp_path / "events").read_text().split("\n") if line]
    prints = [f"{place:064x}" for place in range(60)]
    assert sorted(of for _, kind, of in events if kind == "begins") == prints, "none twice, none lost"
    store = Store(tmp_path / "store")
    owners = {of: float(by) for by, kind, of in events if kind == "ends"}
    assert {one: store.load(one).seconds for one in prints} == owners
    assert len(set(owners.values())) > 1
    assert not list(store.root.rglob("lock")) and not list(store.root.rglob("*.tmp"))


def test_what_a_killed_coordinator_had_under_way_another_one_runs(tmp_path: Path) -> None:
    first, *others = coordinators(tmp_path, 3, 80)
    events = tmp_path / "events"
    while not (events.exists() and events.read_text().count(f"{first.pid} begins") > 3):
        time.sleep(0.005)
    first.send_signal(signal.SIGKILL)
    first.wait()
    for process in others:
        assert process.wait(60) == 0
    store = Store(tmp_path / "store")
    assert all(store.has(f"{place:064x}") for place in range(80))
    lines = [line.split() for line in events.read_text().split("\n") if line]
    began = [of for _, kind, of in lines if kind == "begins"]
    ended = {of for _, kind, of in lines if kind == "ends"}
    twice = {of for of in began if began.count(of) > 1}
    assert len(twice) <= 1, "at most the one that died under its coordinator"
    assert ended == set(began)


def test_a_trial_that_another_process_runs_is_waited_for_and_its_result_taken(tmp_path: Path) -> None:
    """And it comes last: the others are run meanwhile."""
    store = Store(tmp_path)
    first, second = trial("nope"), trial("rope")
    hold = ("import sys, time; from pathlib import Path; from posbench.store import Store, Record\n"
            "store = Store(Path(sys.argv[1])); claim = store.claim(sys.argv[2]); claim.__enter__()\n"
            "print('held', flush=True); sys.stdin.readline()\n"
            "store.keep(Record(fingerprint=sys.argv[2], label='theirs', config={}, status='done'), {})")
    other = subprocess.Popen([sys.executable, "-c", hold, str(tmp_path), first.fingerprint], cwd=ROOT, text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout is not None and other.stdin is not None and other.stdout.readline() == "held\n"
    records: list[Record] = []
    for record in Here(store).results([first, second]):
        records.append(record)
        if len(records) == 1:
            other.stdin.write("\n")
            other.stdin.flush()
    assert [record.label for record in records] == ["rope", "theirs"]
    assert other.wait() == 0


def test_a_failure_is_run_again_by_a_later_study_and_taken_by_one_beside_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    note = tmp_path / "note"
    fails = trial(wild(tmp_path, "fails", f"open({str(note)!r}, 'a').write('x'); raise RuntimeError('no luck')"))
    beside = Turns(store, [fails])
    for _ in range(2):
        assert [record.status for record in Here(store).results([fails])] == ["failed"]
    assert note.read_text() == "xx"
    turn = beside.next()
    assert turn is not None and turn.settled(store) == store.load(fails.fingerprint)


def test_a_lock_of_a_removed_folder_is_no_lock(tmp_path: Path) -> None:
    """Two processes must never hold locks on two files of one name."""
    path = tmp_path / "trial" / "lock"
    with exclusive(path) as first, exclusive(path) as second:
        assert first and not second
    assert not path.exists()
    stale = os.open(tmp_path / "trial" / "stale", os.O_RDWR | os.O_CREAT)
    with exclusive(path) as mine:
        assert mine
        path.unlink()
        with exclusive(path) as other:
            assert other
    os.close(stale)


def test_a_lock_whose_file_went_between_opening_and_locking_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who held it let go, and removed it, just then; the lock of a file without a name keeps nobody out."""
    path, genuine, calls = tmp_path / "lock", fcntl.flock, []

    def late(descriptor: int, operation: int) -> None:
        if not calls:
            path.unlink()
        calls.append(operation)
        genuine(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with exclusive(path) as mine:
        assert mine and path.exists()


def test_a_file_system_without_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*arguments: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(StorageError, match="keeps no locks") as told, exclusive(tmp_path / "lock"):
        pass
    assert told.value.exit_code == 3


def test_of_studies_that_claim_a_folder_at_one_moment_one_has_it(tmp_path: Path) -> None:
    """Each sees an empty folder, and each is about to write."""
    folder = tmp_path / "folder"
    studies = [from_preset("glue", "mini", {"train.steps": str(steps)}) for steps in range(5, 11)]
    forks = multiprocessing.get_context("fork")
    start = forks.Barrier(len(studies))

    def claims(study: StudyConfig) -> None:
        start.wait()
        try:
            claim(folder, study)
            told = "mine"
        except UserError as error:
            told = str(error)
        (tmp_path / f"{study.train.steps}.txt").write_text(told)

    processes = [forks.Process(target=claims, args=(study,)) for study in studies]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    told = {file.stem: file.read_text() for file in tmp_path.glob("*.txt")}
    winner, = (steps for steps, text in told.items() if text == "mine")
    assert len(told) == len(studies)
    assert all("belongs to another study" in text and f"train.steps is {winner} there" in text
               for steps, text in told.items() if steps != winner)


@pytest.mark.parametrize("way", ["folder", "link", "parent"])
def test_what_is_in_the_way_of_a_studys_file_is_told(tmp_path: Path, way: str) -> None:
    folder = tmp_path / "link" / "folder" if way == "parent" else tmp_path / "folder"
    if way == "parent":
        (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    else:
        folder.mkdir()
        (folder / "study.json").mkdir() if way == "folder" else (folder / "study.json").symlink_to("nowhere")
    with pytest.raises(UserError, match=r"in the way|cannot be written"):
        claim(folder, from_preset("glue", "mini", {}))


def test_a_folder_that_was_claimed_between_the_look_and_the_writing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    genuine = study_folder.write_atomically
    mine, theirs = (from_preset("glue", "mini", {"train.steps": steps}) for steps in ("5", "6"))

    def late(*arguments: object, **named: object) -> None:
        monkeypatch.setattr(study_folder, "write_atomically", genuine)
        claim(folder, theirs)
        genuine(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(study_folder, "write_atomically", late)
    with pytest.raises(UserError, match="steps is 6 there and 5 here"):
        claim(folder, mine)
    assert not list(folder.glob("*.tmp"))
