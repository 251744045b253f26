"""A search that a signal stops goes on with the same command: no trial runs twice, and the tables are the calm ones."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from posbench import cli
from posbench.objective import Sequences
from tests.test_interrupt import ROOT, SLOW
from tests.test_study import all_gone, posbench
from tests.torture import Study

FILE = """
suite: glue
encodings: [nope, rope]
tasks: [cola]
seeds: [0]
baseline: nope
search:
  trials: 2
  seeds: [7]
  space: {train.learning_rate: {low: 0.001, high: 0.004, log: true}}
model: {width: 16, heads: 2, layers: 1, feedforward: 16}
train: {steps: 30, evaluations: 2}
data: {train_rows: 300, evaluation_rows: 100}
"""
TRIALS = 6
SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


def run(home: Path, *arguments: str) -> int:
    """The command line in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSBENCH_HOME", str(home))
        patch.setattr(sys, "argv", ["posbench", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
    return int(stop.value.code or 0)


def arguments(study: Study, jobs: int) -> list[str]:
    return ["study", str(study.file), "--tracker", "none", "--jobs", str(jobs), "--out", str(study.folder)]


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("calm")
    study = Study(folder / "home", folder / "search.yaml")
    study.file.write_text(FILE)
    assert run(study.home, *arguments(study, 1)) == 0 and len(study.results()) == TRIALS
    return study


@pytest.fixture
def study(calm: Study, tmp_path: Path) -> Iterator[Study]:
    """An empty home; what a clock measured is taken over, as no second run repeats it."""
    before = signal.getsignal(signal.SIGTERM)
    study = Study(tmp_path / "home", calm.file)
    study.folder.mkdir(parents=True)
    for name in ("costs.json", "study.json"):
        shutil.copy(calm.folder / name, study.folder)
    yield study
    signal.signal(signal.SIGTERM, before)


def goes_on(study: Study, calm: Study, told: str, went_on: str) -> None:
    """Holds what the rest of a stopped study made against the calm one."""
    assert study.check() == [] and len(study.results()) == TRIALS
    assert study.tables() == calm.tables()
    assert study.leftovers() == []
    plain = " ".join(told.split())
    assert f"{went_on} from a checkpoint (on CPU bitwise the same)" in plain and "ran again" not in plain


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_search_that_is_stopped_goes_on(
    number: int, code: int, study: Study, calm: Study, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str]
) -> None:
    genuine, updates = Sequences.loss, 0

    def loss(*given: Any) -> Any:
        nonlocal updates
        updates += 1
        if updates == 50:  # of the second trial, the twentieth
            signal.raise_signal(number)
        return genuine(*given)

    with monkeypatch.context() as patch:
        patch.setattr(Sequences, "loss", loss)
        assert run(study.home, *arguments(study, 1)) == code
    assert updates == 50, "the step was finished, and no other begun"
    err = capsys.readouterr().err
    assert err.endswith("; 1 trial under way was checkpointed, finished trials are kept, the same command goes on\n")
    assert study.check() == [] and len(study.known) == 1
    assert run(study.home, "status", str(study.file)) == 0
    assert "1 of 4 trials of the search has a result" in capsys.readouterr().out
    assert run(study.home, *arguments(study, 1)) == 0
    goes_on(study, calm, capsys.readouterr().out, "1 of 6 trials went on")
    assert run(study.home, "status", str(study.folder)) == 0
    assert "interruptions  1 of 6 trials went on from a checkpoint" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_search_of_several_workers_that_is_stopped_goes_on(
    number: int, code: int, study: Study, calm: Study, tmp_path: Path
) -> None:
    script = tmp_path / "slow.py"
    script.write_text(SLOW)
    process = subprocess.Popen(
        [sys.executable, str(script), *arguments(study, 2)], cwd=ROOT, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "POSBENCH_HOME": str(study.home)})
    assert process.stderr is not None
    while not process.stderr.readline().startswith("[tuning 1/4]"):
        assert process.poll() is None
    time.sleep(0.5)  # the next of that worker is under way, and the other's first or second
    os.killpg(process.pid, number)
    told = process.communicate(timeout=120)[1]
    assert process.returncode == code and "Traceback" not in told, told
    assert all_gone(process.pid)
    assert study.check() == [] and 1 <= len(study.known) <= 3
    begun = len({file.parent for file in study.store.root.rglob("checkpoint-*.json")})
    assert begun
    again = posbench(study.home, *arguments(study, 2))
    assert again.returncode == 0, again.stderr
    goes_on(study, calm, again.stdout, f"{begun} of 6 trials went on")
