"""Ray: the same trials with the same numbers in the same store, wherever they run, and no process left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from posbench.execute import run_and_keep
from posbench.store import Store
from tests.test_runner import trial
from tests.test_workers import ends, results, wild

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'posbench[ray]'")
ROOT = Path(__file__).resolve().parents[1]
CLOCKS = {"seconds", "step_seconds", "began", "ended"}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever cluster this machine has is not for tests."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def timeless(content: bytes) -> dict:
    plain = json.loads(content)
    return {name: value for name, value in {**plain.pop("facts"), **plain}.items() if name not in CLOCKS}


def test_a_cluster_gives_the_bytes_of_one_and_of_two_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are compared by the outputs for every scored row, which are theirs alone."""
    from posbench.ray_cluster import RayCluster

    mine = tmp_path / "mine" / "mine.py"
    mine.parent.mkdir()
    mine.write_text((ROOT / "encodings" / "rope.py").read_text())
    trials = [trial("nope"), trial(str(mine)), trial("rope", seed=1)]
    note = str(tmp_path / "note")
    killed = trial(wild(tmp_path, "killed", f"if not Path({note!r}).exists(): "
                                            f"Path({note!r}).touch(); os.kill(os.getppid(), signal.SIGKILL)"))
    stores = {name: Store(tmp_path / name) for name in ("here", "processes", "ray")}
    for one in trials:
        run_and_keep(one, stores["here"])
    results(stores["processes"], 2, trials)
    connected, start = [], ray.init
    monkeypatch.setattr(ray, "init", lambda *given, **named: [connected.append(given), start(*given, **named)][1])
    with closing(RayCluster(stores["ray"], 1, gpus=0, jobs=2, timeout=300)) as cluster:
        records = {record.fingerprint: record for some in ([killed, *trials[:2]], trials[2:], [])
                   for record in cluster.results(some)}
        assert len(connected) == 1 and ray.is_initialized(), "rounds of a search share a connection"
    assert not ray.is_initialized()
    for one in trials:
        assert records[one.fingerprint].status in ("done", "degenerate"), records[one.fingerprint].reason
        files = {name: store.files(one.fingerprint) for name, store in stores.items()}
        for name in ("processes", "ray"):
            assert files[name]["predictions.safetensors"] == files["here"]["predictions.safetensors"]
            assert timeless(files[name]["record.json"]) == timeless(files["here"]["record.json"])
    again = records[killed.fingerprint]
    assert again.status in ("done", "degenerate") and again.facts["lost"] == ["WorkerCrashedError of Ray"]
    assert stores["ray"].load(killed.fingerprint) == again


@pytest.mark.slow
def test_a_trial_that_hangs_on_a_cluster_has_failed(tmp_path: Path) -> None:
    from posbench.ray_cluster import RayCluster

    hangs = trial(wild(tmp_path, "hangs", "time.sleep(600)"))
    with closing(RayCluster(Store(tmp_path / "ray"), 1, gpus=0, jobs=1, timeout=10)) as cluster:
        (record,) = cluster.results([hangs])
    assert (record.status, record.reason) == ("failed", "timeout: no end after 10 s")


def test_another_plugin_on_the_machine_is_told_and_no_cluster_is_a_mistake(tmp_path: Path, monkeypatch) -> None:
    from posbench import ray_cluster
    from posbench.errors import UserError

    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(UserError, match="no Ray cluster answers at RAY_ADDRESS="):
        list(ray_cluster.RayCluster(Store(tmp_path), 1, gpus=0, jobs=0, timeout=None).results([trial("nope")]))


def test_without_ray_it_is_one_line(tmp_path: Path) -> None:
    code = ("import sys; sys.modules['ray'] = None; sys.argv = ['posbench', 'study', 'glue', '--tracker', 'none', "
            "'--tasks', 'cola', '--encodings', 'nope', '--baseline', 'nope', '--executor', 'ray']\n"
            "from posbench.cli import main; main()")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT,
                         env={**os.environ, "POSBENCH_HOME": str(tmp_path / "home")})
    assert run.returncode == 2 and "pip install 'posbench[ray]'" in run.stderr and run.stderr.count("\n") == 1
    assert not (tmp_path / "home").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_a_study_ends_no_process_stays(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "posbench", "study", "glue", "--tracker", "none", "--tasks", "cola", "--seeds", "2",
         "--encodings", "nope", "--baseline", "nope", "--executor", "ray", "--set", "train.steps=1000000"],
        cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "POSBENCH_HOME": str(tmp_path)})
    until = time.monotonic() + 120
    while not list(tmp_path.rglob("lock")) and time.monotonic() < until:
        time.sleep(0.2)
    time.sleep(20)
    started = descendants(process.pid)
    assert len(started) > 3
    process.send_signal(number)
    assert process.wait(60) == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
    assert all(ends(pid, 20) for pid in started)


def descendants(pid: int) -> list[int]:
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]
