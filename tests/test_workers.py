"""Worker processes: whatever one trial does, its own record says so, and no other trial is touched by it."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch

from posbench import workers
from posbench.errors import StorageError
from posbench.execute import run_and_keep
from posbench.store import Record, Store
from posbench.trial import Trial
from posbench.workers import Processes
from tests.test_runner import measured, trial

PLUGIN = '''
import ctypes, os, re, resource, signal, subprocess, sys, time
from pathlib import Path
import torch
from posbench.encoding import Encoding, Paper


class Wild(Encoding):
    paper = Paper(title="t", arxiv="1", equations="1")

    def embed(self, x, at):
        {behaviour}
        return x


ENCODING = Wild
'''


def wild(folder: Path, name: str, behaviour: str) -> str:
    path = folder / f"{name}.py"
    path.write_text(PLUGIN.format(behaviour=behaviour))
    return str(path)


def results(store: Store, jobs: int, trials: list[Trial], timeout: float | None = None) -> list[Record]:
    with closing(Processes(store, jobs, timeout)) as place:
        return list(place.results(trials))


def runs(pid: int) -> bool:
    """Whether the process is there and no zombie that its new parent has not yet collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ends(pid: int, seconds: float = 10) -> bool:
    until = time.monotonic() + seconds
    while runs(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return not runs(pid)


def test_each_wild_trial_fails_alone_with_its_reason_and_its_last_words(tmp_path: Path) -> None:
    """All in one study, so that the siblings are the same; jobs change no number."""
    limit = "size = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize(); "
    limit += "resource.setrlimit(resource.RLIMIT_AS, (size + 2**28, -1)); "
    told = {
        "segfault": ("print('so far'); ctypes.string_at(0)", "signal 11 (SIGSEGV)"),
        "abort": ("os.abort()", "signal 6 (SIGABRT)"),
        "memory": (limit + "bytearray(2**34)", "out of memory"),
    }
    trials = {name: trial(wild(tmp_path, name, behaviour)) for name, (behaviour, _) in told.items()}
    siblings = [trial("nope"), trial("rope"), trial("nope", seed=1)]
    store = Store(tmp_path / "store")
    records = {record.fingerprint: record
               for record in results(store, 2, [*trials.values(), *siblings])}
    for name, (_, reason) in told.items():
        record = records[trials[name].fingerprint]
        assert record.status == "failed" and reason in record.reason, name
        assert store.load(record.fingerprint) == record
        assert "lost" not in record.facts, "a fault of the trial's own is not tried again"
    log = records[trials["segfault"].fingerprint].facts["log"]
    assert log[0] == "so far" and any("in embed" in line for line in log) and len(log) <= 60
    memory = records[trials["memory"].fingerprint]
    assert memory.reason.startswith("out of memory (") and "MemoryError" in memory.reason
    assert memory.facts["peak_memory"] > 2**26
    for one in siblings:
        assert measured(records[one.fingerprint]) == measured(run_and_keep(one, Store(tmp_path / "alone")))


def test_what_a_failure_changed_in_its_process_reaches_no_other_trial(tmp_path: Path) -> None:
    fails = trial(wild(tmp_path, "fails", "torch.set_default_dtype(torch.float64); 1 / 0"))
    first, second = results(Store(tmp_path / "store"), 1, [fails, trial("rope")])
    assert first.status == "failed" and "ZeroDivisionError" in first.reason
    assert measured(second) == measured(run_and_keep(trial("rope"), Store(tmp_path / "alone")))


def test_a_worker_that_never_begins_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "START_SECONDS", 0.01)
    (record,) = results(Store(tmp_path), 1, [trial("nope")])
    assert record.status == "failed" and record.reason == "timeout: no end after 0.01 s"


def test_a_hang_ends_at_its_time_with_all_that_it_started_and_the_next_trial_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It hangs where the worker imports it, which is soon on a slow machine too."""
    for name in ("hangs", "late"):
        (tmp_path / f"{name}.py").write_text(
            "import multiprocessing, subprocess, time\nfrom pathlib import Path\n"
            "if multiprocessing.parent_process() is not None:\n"
            f"    Path({str(tmp_path / name)!r}).write_text(str(subprocess.Popen(['sleep', '600']).pid))\n"
            "    for number in range(1000):\n        print(number)\n    time.sleep(600)\n"
            + PLUGIN.format(behaviour="pass"))
    hanging = [trial(str(tmp_path / f"{name}.py")) for name in ("hangs", "late")]
    began = time.time()
    records = results(Store(tmp_path / "store"), 1, hanging, timeout=2)
    for record, name in zip(records, ("hangs", "late"), strict=True):
        assert record.status == "failed" and record.reason == "timeout: no end after 2 s"
        assert record.facts["log"] == [str(number) for number in range(940, 1000)]
        assert ends(int((tmp_path / name).read_text()))
        assert 2 <= record.seconds < 60 and began <= record.facts["began"] <= record.facts["ended"] - 2
    assert capfd.readouterr() == ("", "")


def test_workers_whose_results_nobody_waits_for_end_and_idle_ones_serve_the_next_call(tmp_path: Path) -> None:
    store = Store(tmp_path)
    long = trial("nope", **{"train.steps": "1000000"})
    with closing(Processes(store, 2)) as place:
        with closing(place.results([trial("nope"), long])) as running:
            assert next(running).config["train"]["steps"] != 1000000
            pids = {worker.process.pid for worker in place.workers}
        (idle,) = place.workers
        assert not store.held(long.fingerprint) and all(runs(pid) == (pid == idle.process.pid) for pid in pids if pid)
        (record,) = place.results([trial("rope")])
        assert record.status in ("done", "degenerate") and place.workers == [idle]
    assert not place.workers and not idle.process.is_alive()


@pytest.mark.parametrize("kills", [1, 2])
def test_a_worker_that_is_killed_is_replaced_once(tmp_path: Path, kills: int) -> None:
    note = str(tmp_path / "note")
    killed = trial(wild(tmp_path, "killed", f"if not Path({note!r}).exists() or os.stat({note!r}).st_size < {kills}: "
                        f"open({note!r}, 'ab').write(b'x'); os.kill(os.getpid(), signal.SIGKILL)"))
    store = Store(tmp_path / "store")
    (record,) = results(store, 2, [killed])
    assert record.facts["lost"] == ["signal 9 (SIGKILL)"]
    assert store.load(killed.fingerprint) == record
    if kills == 1:
        assert record.status in ("done", "degenerate")
        again = run_and_keep(killed, Store(tmp_path / "alone"))
        assert measured(record) == measured(again) and "lost" not in again.facts
    else:
        assert record.status == "failed"
        assert record.reason.endswith("ended with signal 9 (SIGKILL) and, once more, with signal 9 (SIGKILL)")
        assert Path(note).read_bytes() == b"xx"


def test_what_a_dead_worker_left_behind_holds_nothing_up(tmp_path: Path) -> None:
    """A forked child keeps every pipe of the worker open, so that no end of file ever comes."""
    forks = trial(wild(tmp_path, "forks", "pid = os.fork(); (time.sleep(600) if pid == 0 else os._exit(4))"))
    began = time.monotonic()
    (record,) = results(Store(tmp_path / "store"), 1, [forks])
    assert "exit code 4" in record.reason and time.monotonic() - began < 60


@pytest.mark.parametrize(
    "told", ["CUDA out of memory. Tried to allocate 2.00 GiB", "DefaultCPUAllocator: can't allocate memory"]
)
def test_an_allocator_without_memory_is_out_of_memory_and_the_batch_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    from posbench import runner

    sizes = []

    def starved(trial: Trial, **given: object) -> None:
        sizes.append(trial.config.train.batch_size)
        raise (torch.OutOfMemoryError if "CUDA" in told else RuntimeError)(told)

    monkeypatch.setattr(runner, "run", starved)
    record = run_and_keep(trial("nope"), Store(tmp_path))
    assert record.status == "failed" and record.reason.startswith("out of memory (") and told in record.reason
    assert record.facts["peak_memory"] > 2**26 and "traceback" in record.facts
    assert sizes == [trial("nope").config.train.batch_size], "tried once, as planned"


def test_a_store_that_a_worker_cannot_write_ends_the_study_and_is_no_failure_of_a_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Processes, "_conclude", lambda *given, **facts: pytest.fail("charged to the trial"))
    (tmp_path / "file").touch()
    with (closing(Processes(Store(tmp_path / "file" / "trials"), 1)) as place,
          pytest.raises(StorageError, match="Not a directory") as told):
        list(place.results([trial("nope")]))
    assert told.value.exit_code == 3 and "\n" not in str(told.value)


def test_a_worker_of_other_code_refuses_the_trial(tmp_path: Path) -> None:
    path = wild(tmp_path, "changes", "pass")
    before = trial(path)
    Path(path).write_text(Path(path).read_text() + "\n# changed\n")
    store = Store(tmp_path / "store")
    (record,) = results(store, 1, [before])
    assert record.status == "failed" and "changed while the study ran" in record.reason
    assert store.load(before.fingerprint) == record


def test_a_worker_that_does_not_listen_ends_with_a_coordinator_that_is_killed(tmp_path: Path) -> None:
    """The trial holds the interpreter's lock, so that no thread of the worker can look at its parent."""
    note = tmp_path / "pids"
    path = wild(tmp_path, "deaf", f"Path({str(note)!r}).write_text(str(os.getpid()) + ' ' + "
                                  "str(subprocess.Popen(['sleep', '600']).pid)); re.match('(a+)+$', 'a' * 60 + 'b')")
    coordinator = os.fork()
    if coordinator == 0:
        try:
            list(Processes(Store(tmp_path / "store"), 1).results([trial(path)]))
        finally:
            os._exit(0)
    until = time.monotonic() + 60
    while not (note.exists() and note.read_text().count(" ")) and time.monotonic() < until:
        time.sleep(0.1)
    worker, child = map(int, note.read_text().split())
    assert runs(worker) and runs(child)
    os.kill(coordinator, signal.SIGKILL)
    os.waitpid(coordinator, 0)
    assert ends(worker) and ends(child)
