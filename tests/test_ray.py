"""Ray: the same trials with the same numbers in the same store, wherever they run, and no process left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
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


@pytest.mark.parametrize(("gpus", "jobs", "room"), [
    (0, 0, 10), (1, 0, 4), (0.5, 0, 8), (0.4, 0, 8), (0.3, 0, 10), (0.25, 3, 3), (2, 0, 1), (4, 0, None)])
def test_a_share_of_a_gpu_is_a_share_of_one(tmp_path: Path, monkeypatch, gpus: float, jobs: int, room: int) -> None:
    """Two machines, three GPUs and one, eight cores and two; the third is gone."""
    from posbench.errors import UserError
    from posbench.ray_cluster import RayCluster

    machines = [{"Alive": alive, "Resources": {"CPU": cores, "GPU": cards}}
                for alive, cores, cards in ((True, 8.0, 3.0), (True, 2.0, 1.0), (False, 64.0, 8.0))]
    monkeypatch.setattr(ray, "nodes", lambda: machines)
    cluster = RayCluster(Store(tmp_path), 1, gpus=gpus, jobs=jobs, timeout=None)
    if room is None:
        with pytest.raises(UserError, match="has 1 CPU and 4 GPU for a trial"):
            cluster._room()
    else:
        assert cluster._room() == room


@pytest.mark.slow
def test_two_trials_share_a_gpu(tmp_path: Path, monkeypatch) -> None:
    """Ray believes what it is told of the machine; each trial waits for the other, which has to run beside it."""
    from posbench.ray_cluster import RayCluster

    pair = [trial(wild(tmp_path, name, f"note = Path({str(tmp_path)!r}) / '{name}'; "
                                       "note.write_text(os.environ['CUDA_VISIBLE_DEVICES'])\n"
                                       f"        while not (note.parent / '{other}').exists(): time.sleep(0.1)"))
            for name, other in (("one", "two"), ("two", "one"))]
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # names of sockets are short
        monkeypatch.setenv("RAY_TMPDIR", folder)
        started = Path(folder, "ray", "ray_current_cluster")
        head = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--port=0", "--num-cpus=2",
             "--num-gpus=1", "--include-dashboard=false", "--disable-usage-stats"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            until = time.monotonic() + 120
            while not started.exists() and time.monotonic() < until:
                time.sleep(0.2)
            with closing(RayCluster(Store(tmp_path / "ray"), 1, gpus=0.5, jobs=0, timeout=120)) as cluster:
                records = list(cluster.results(pair))
        finally:
            os.killpg(head.pid, signal.SIGKILL)
            head.wait()
    assert [record.status for record in records if record.status not in ("done", "degenerate")] == [], records
    assert {(tmp_path / name).read_text() for name in ("one", "two")} == {"0"}


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
    assert all(ends(pid, 120) for pid in started), "Ray's own agents look for their parent once a minute"


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
