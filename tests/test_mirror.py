"""The mirror: calls never wait for the tracker behind it, everything arrives in order, and its end is bounded."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest

from posbench.mirror import Mirror
from posbench.store import Record
from posbench.track import MLflow
from posbench.tracker import JsonLines, Tracker
from tests.test_track import record


class Held(Tracker):
    """Takes no call before a file appears, as a server that does not answer."""

    def __init__(self, gate: Path, out: Path) -> None:
        self.gate, self.lines = gate, JsonLines(out)

    def trial(self, record: Record, files: Mapping[str, Path]) -> None:
        while not self.gate.exists():
            time.sleep(0.01)
        self.lines.trial(record, files)

    def end(self) -> str:
        return "told at the end"


class Leaver(Tracker):
    """Takes its process along, as a fault within a library can."""

    def trial(self, record: Record, files: Mapping[str, Path]) -> None:
        os._exit(7)


def test_calls_return_while_the_tracker_is_stuck_and_all_arrives_in_order(tmp_path: Path) -> None:
    gate, out = tmp_path / "gate", tmp_path / "lines"
    mirror = Mirror(partial(Held, gate, out))
    # More than a pipe holds: a call that waited for the tracker would never come back.
    records = [record(seed=seed, facts={"padding": "x" * 20000}) for seed in range(20)]
    for each in records:
        mirror.trial(each, {})
    assert not out.exists()
    gate.touch()
    assert mirror.end() == "told at the end"
    direct = JsonLines(tmp_path / "direct")
    for each in records:
        direct.trial(each, {})
    assert out.read_bytes() == direct.path.read_bytes()


def test_what_is_left_after_its_patience_is_told_and_the_process_is_gone(tmp_path: Path) -> None:
    mirror = Mirror(partial(Held, tmp_path / "never", tmp_path / "lines"), patience=0.2)
    for seed in range(3):
        mirror.trial(record(seed=seed), {})
    child = mirror.process
    assert mirror.end() == (
        "the copy of the record was 4 of 4 entries behind after 0 s: posbench sync completes it"
    )
    assert not child.is_alive()


def test_what_was_never_sent_does_not_hold_up_the_end_of_the_program(tmp_path: Path) -> None:
    """More waits than a pipe holds, and nobody will read it."""
    code = ("import sys; from tests.test_mirror import *\n"
            "if __name__ == '__main__':\n"
            "    home = Path(sys.argv[1])\n"
            "    mirror = Mirror(partial(Held, home / 'never', home / 'lines'), patience=0.2)\n"
            "    for seed in range(20): mirror.trial(record(seed=seed, facts={'padding': 'x' * 20000}), {})\n"
            "    print(mirror.end())")
    script = tmp_path / "script.py"
    script.write_text(code)
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], cwd=root, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(root)}, timeout=120, check=True)
    assert done.stdout.startswith("the copy of the record was 21 of 21 entries behind")


def test_a_tracker_that_dies_is_told_and_stops_nothing(tmp_path: Path) -> None:
    mirror = Mirror(Leaver)
    for seed in range(3):
        mirror.trial(record(seed=seed), {})
    mirror.process.join()
    mirror.trial(record(seed=3), {})
    assert mirror.end() == "the copy of the record ended early with exit code 7: posbench sync completes it"


def test_where_no_process_can_be_started_a_study_goes_on_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    mirror = Mirror(Tracker)
    with monkeypatch.context() as patched:
        patched.setattr(SpawnProcess, "start", full)
        mirror.prepare()
        mirror.trial(record(), {})
        assert mirror.end() == ("no copy of the record: its process cannot be started (Resource temporarily "
                                "unavailable): posbench sync makes it")
    mirror.prepare()
    assert mirror.end() == "", "the next study has one again"


@pytest.mark.parametrize("mirrored", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_mlflow_behind_a_mirror_holds_every_trial_once(tmp_path: Path, mirrored: bool) -> None:
    make = partial(MLflow, tmp_path)
    tracker = Mirror(make) if mirrored else make()
    for _ in range(2):
        tracker.prepare()
        tracker.begin("posbench-toy-mini", "toy")
        for seed in range(3):
            tracker.trial(record(seed=seed), {})
        tracker.summary("toy", {"cola/rope mean": 0.6}, {})
        assert tracker.end() == ""
    client = MLflow(tmp_path)._client()
    found = client.search_runs([client.get_experiment_by_name("posbench-toy-mini").experiment_id])
    kinds = sorted(run.data.tags["posbench.kind"] for run in found)
    assert kinds == ["encoding", "summary", "trial", "trial", "trial"]
