"""Signals: one waits for a checkpoint while a trial trains, and none waits anywhere else."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from posbench.errors import Terminated
from posbench.interrupt import Deferred
from posbench.runner import checkpoints_of, run
from tests.test_checkpoint import Stopped, trial
from tests.test_study import TINY, all_gone, posbench

ROOT = Path(__file__).resolve().parents[1]


def handlers() -> list[Any]:
    return [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]


@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_waits_and_handlers_are_as_before(number: int, error: type[BaseException]) -> None:
    before = handlers()
    with pytest.raises(error) as ended, Deferred() as signals:
        assert handlers() != before and not signals.asked
        signals.obey()
        signal.raise_signal(number)
        assert signals.asked
        signals.obey()
    assert handlers() == before
    if error is Terminated:
        assert ended.value.code == 143  # type: ignore[attr-defined]


def test_a_second_one_acts_at_once_and_one_that_nobody_obeyed_at_the_end() -> None:
    before, reached = handlers(), False
    with pytest.raises(KeyboardInterrupt), Deferred() as signals:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        reached = True
    assert not reached and not signals.asked and handlers() == before
    with pytest.raises(KeyboardInterrupt), Deferred():
        signal.raise_signal(signal.SIGINT)
        reached = True
    assert reached and handlers() == before
    with pytest.raises(KeyboardInterrupt), Deferred():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("the loop failed by itself")
    assert handlers() == before


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Deferred() as signals:
            signal.raise_signal(signal.SIGINT)
            assert not signals.asked
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_trial_leaves_no_handlers_and_works_in_any_thread(tmp_path: Path) -> None:
    before, one = handlers(), trial()
    records = [run(one)[0], run(one, checkpoints=checkpoints_of(one, tmp_path / "main"))[0]]
    assert handlers() == before
    thread = threading.Thread(
        target=lambda: records.append(run(one, checkpoints=checkpoints_of(one, tmp_path / "thread"))[0]))
    thread.start()
    thread.join()
    assert len(records) == 3 and records[0].curves == records[1].curves == records[2].curves
    assert not list(tmp_path.iterdir()), "a short trial writes none"


def test_ctrl_c_leaves_a_checkpoint_in_a_library_too(tmp_path: Path) -> None:
    before = handlers()
    with pytest.raises(KeyboardInterrupt):
        Stopped(trial(), tmp_path, 4, signal.SIGINT).result()
    assert handlers() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["checkpoint-4.json", "checkpoint-4.safetensors"]
    with pytest.raises(KeyboardInterrupt):
        Stopped(trial(), None, 4, signal.SIGINT).result()


# Workers run the file's upper part too. Updates from the twentieth on are slow, so that a signal meets a trial at work.
SLOW = """
import sys, time
from pathlib import Path
from posbench.objective import Sequences
genuine, updates = Sequences.loss, 0
def loss(*arguments):
    global updates
    updates += 1
    if updates >= 20:
        Path(sys.argv[0]).with_suffix(".marker").touch()
        time.sleep(0.05)
    return genuine(*arguments)
Sequences.loss = loss
if __name__ == "__main__":
    from posbench.cli import main
    main()
"""


@pytest.mark.parametrize(("number", "code", "jobs", "group"), [
    (signal.SIGINT, 130, "1", True), pytest.param(signal.SIGTERM, 143, "2", False, marks=pytest.mark.slow),
    pytest.param(signal.SIGTERM, 143, "1", False, marks=pytest.mark.slow),
    pytest.param(signal.SIGTERM, 143, "2", True, marks=pytest.mark.slow),
    pytest.param(signal.SIGINT, 130, "2", True, marks=pytest.mark.slow),
])
def test_a_study_that_is_stopped_leaves_checkpoints_and_goes_on_from_them(
    tmp_path: Path, proved: Path, number: int, code: int, jobs: str, group: bool
) -> None:
    home, script = proved, tmp_path / "slow.py"
    marker = script.with_suffix(".marker")
    script.write_text(SLOW)
    arguments = ["study", "glue", *TINY, "--encodings", "rope,nope", "--baseline", "nope", "--tasks", "cola", "--seeds",
                 "1", "--tracker", "none", "--set", "train.steps=100", "--jobs", jobs]
    process = subprocess.Popen(
        [sys.executable, str(script), *arguments], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True, env={**os.environ, "PYTHONPATH": str(ROOT), "POSBENCH_HOME": str(home)},
    )
    latest = time.monotonic() + 240
    while not marker.exists():
        assert process.poll() is None and time.monotonic() < latest, process.communicate()
        time.sleep(0.02)
    (os.killpg if group else os.kill)(process.pid, number)
    told = process.communicate(timeout=120)[1]
    assert process.returncode == code, told
    assert all_gone(process.pid)
    found = {file.parent for file in (home / "trials").rglob("checkpoint-*.json")}
    assert found
    line = [line for line in told.splitlines() if line.startswith("posbench: ")]
    assert len(line) == 1 and "Traceback" not in told, told
    assert re.fullmatch(rf"posbench: (interrupted|terminated); {len(found)} trials? under way (was|were) checkpointed, "
                        "finished trials are kept, the same command goes on", line[0])
    assert not list(home.rglob("*.tmp"))
    again = posbench(home, *arguments)
    assert again.returncode == 0, again.stderr
    assert (f"{len(found)} of 2 trials went on from a checkpoint (on CPU bitwise the same)"
            in " ".join(again.stdout.split()))
    from posbench.store import Store

    store = Store(home / "trials")
    records = [store.load(file.parent.name) for file in (home / "trials").rglob("manifest.json")]
    assert len(records) == 2 and sum(record.facts["resumed"] for record in records) == len(found)
    assert not list(home.rglob("checkpoint-*"))
