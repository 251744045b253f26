"""Checkpoints on disk: torn, damaged, foreign and hostile ones are never read, and a full disk stops no training."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from posbench import checkpoint
from posbench.checkpoint import Checkpoints
from posbench.execute import run_and_keep
from posbench.runner import checkpoints_of
from posbench.store import Store
from tests.test_checkpoint import DECODER, Stopped, everything, trial, whole

ROOT = Path(__file__).resolve().parents[1]
SIZE = 500


def captured(step: int, size: int = SIZE) -> Callable[[], tuple[dict[str, torch.Tensor], dict[str, Any]]]:
    return lambda: ({"weights/a": torch.full((size,), float(step))}, {"step": step})


def checkpoints(folder: Path, **identity: str) -> Checkpoints:
    return Checkpoints(folder, {"fingerprint": "ab", "encoding": "rope", **identity}, pause=0.0)


def newest(folder: Path, **identity: str) -> tuple[int | None, list[str]]:
    """Step of the checkpoint that would be taken, proven whole; and what was said of others."""
    steps: list[int] = []

    def take(tensors: Any, plain: Any) -> None:
        assert torch.equal(tensors["weights/a"], torch.full_like(tensors["weights/a"], float(plain["step"])))
        steps.append(plain["step"])

    found = checkpoints(folder, **identity)
    assert found.restore(take) == bool(steps)
    return (steps[0] if steps else None), found.events


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def two(folder: Path) -> None:
    for step in (3, 7):
        assert checkpoints(folder).write(step, captured(step))


def test_the_newest_two_are_kept_and_the_newest_is_taken(tmp_path: Path) -> None:
    for step in (3, 7, 11):
        assert checkpoints(tmp_path / "new").write(step, captured(step))
    assert names(tmp_path / "new") == [f"checkpoint-{step}.{kind}" for step in (11, 7) for kind in
                                       ("json", "safetensors")]
    assert newest(tmp_path / "new") == (11, [])
    assert newest(tmp_path / "none") == (None, [])


def test_where_one_takes_long_the_next_comes_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most one part in 51 of the time goes into writing, however short the pause that was asked for."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    here = Checkpoints(tmp_path, {}, pause=10.0)
    now = 9.9
    assert not here.due()
    now = 10.1
    assert here.due()

    def slow() -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        nonlocal now
        now += 2.0
        return captured(1)()

    assert here.write(1, slow)
    now += 99.9
    assert not here.due()
    now += 0.2
    assert here.due()


@pytest.mark.parametrize("kind", ["safetensors", "json"])
@pytest.mark.parametrize("damage", ["empty", "half", "shorter", "flipped", "gone"])
def test_a_damaged_one_gives_way_to_the_one_before_and_then_to_none(tmp_path: Path, kind: str, damage: str) -> None:
    two(tmp_path)
    for step, left in ((7, 3), (3, None)):
        file = tmp_path / f"checkpoint-{step}.{kind}"
        content = file.read_bytes()
        keep = {"empty": 0, "half": len(content) // 2, "shorter": len(content) - 1}.get(damage, len(content))
        flipped = bytearray(content)
        flipped[-3] ^= 1
        file.write_bytes(bytes(flipped) if damage == "flipped" else content[:keep])
        if damage == "gone":
            file.unlink()
        found, events = newest(tmp_path)
        assert found == left
        if (kind, damage) != ("json", "gone"):  # that is a checkpoint which was never finished
            assert len(events) == 1 and f"after update {step} not used" in events[0]
        assert not list(tmp_path.glob(f"checkpoint-{step}.*")), "training comes to that step again"


def test_no_flipped_bit_goes_unseen(tmp_path: Path) -> None:
    for name in ("checkpoint-5.safetensors", "checkpoint-5.json"):
        place = 0
        while True:
            checkpoints(tmp_path).write(5, captured(5, 4))
            content = bytearray((tmp_path / name).read_bytes())
            if place >= len(content):
                break
            content[place] ^= 1 << place % 8
            (tmp_path / name).write_bytes(bytes(content))
            assert newest(tmp_path)[0] is None, (name, place)
            place += 5


def test_a_folder_full_of_garbage_holds_no_checkpoint_and_takes_the_new_ones(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-99.json").mkdir()
    (tmp_path / "checkpoint-98.safetensors").mkdir()
    (tmp_path / "checkpoint-97.json").symlink_to("nowhere")
    for name, content in (("checkpoint-96.json", b"[" * 100_000), ("checkpoint-95.json", b"\xff"),
                          ("checkpoint-94.json", b'{"files": {"checkpoint-94.safetensors": 3}}'),
                          ("checkpoint--1.json", b"{}"), ("checkpoint-1234567890123.json", b"{}")):
        (tmp_path / name).write_bytes(content)
    found, events = newest(tmp_path)
    assert found is None and len(events) == 3
    here = checkpoints(tmp_path)
    for step in (3, 7, 11):
        assert here.write(step, captured(step)), here.events
    assert {name for name in names(tmp_path) if name.startswith(("checkpoint-7", "checkpoint-11", "checkpoint-3"))} == {
        f"checkpoint-{step}.{kind}" for step in (7, 11) for kind in ("json", "safetensors")}
    assert newest(tmp_path) == (11, [])


def test_a_pickle_under_a_checkpoints_name_is_not_read(tmp_path: Path) -> None:
    canary = tmp_path / "canary"

    class Hostile:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(canary),)

    folder = tmp_path / "trial"
    folder.mkdir()
    torch.save(Hostile(), tmp_path / "saved")
    for content in (pickle.dumps(Hostile()), (tmp_path / "saved").read_bytes()):
        (folder / "checkpoint-9.safetensors").write_bytes(content)
        known = {"files": {"checkpoint-9.safetensors": hashlib.sha256(content).hexdigest()}}
        (folder / "checkpoint-9.json").write_text(json.dumps(known))
        found, events = newest(folder)
        assert found is None and "damaged" in events[0]
    assert not canary.exists()


def test_of_another_trial_or_other_code_is_refused_with_the_differences(tmp_path: Path) -> None:
    for other, told in (({"fingerprint": "cd", "encoding": "alibi"},
                         "encoding is rope there and alibi here; fingerprint is ab there and cd here"),
                        ({"torch": "9.9"}, "torch is absent there and 9.9 here")):
        two(tmp_path)
        found, events = newest(tmp_path, **other)
        assert found is None and len(events) == 2 and told in events[0]


@pytest.mark.parametrize(("fact", "value", "told"), [
    ("distributed.world", lambda: 2, "processes is 1 there and 2 here"),
    ("distributed.on_gpu", lambda device: True, "device is cpu there and cuda here"),
    ("environment.code_hash", lambda: "other", "and other here"),
])
def test_what_is_trained_in_another_way_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fact: str, value: Callable[..., Any], told: str
) -> None:
    """More processes draw other dropout masks, and a GPU rounds in another way: the end would be no run's."""
    one = trial()
    with monkeypatch.context() as patched:
        patched.setattr("posbench.runner.distributed.on_gpu", lambda device: False)
        assert checkpoints_of(one, tmp_path).write(3, captured(3))
        patched.setattr(f"posbench.runner.{fact}", value)
        here = checkpoints_of(one, tmp_path)
        assert not here.restore(lambda tensors, plain: pytest.fail("taken")) and told in here.events[0]


@pytest.mark.parametrize("other", ["alibi", "learned", "deberta"])
def test_of_another_model_is_never_loaded_in_part(tmp_path: Path, other: str) -> None:
    """As if fingerprint and versions were the same: names and shapes alone refuse it."""
    changes = {name.replace(".", "__"): value for name, value in DECODER.items()}
    shorter = changes | {"data__max_length": "16"}
    theirs, ours = Stopped(trial(other, **shorter), None), Stopped(trial("learned", **changes), None)
    before = {name: value.detach().clone() for name, value in ours.state.capture(0.0)[0].items()}
    with pytest.raises(checkpoint.Misfit, match=r"weights/|optimizer/") as refused:
        ours.state.restore(*theirs.state.capture(0.0))
    assert "absent" in str(refused.value) or "there and" in str(refused.value)
    after = ours.state.capture(0.0)[0]
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


def test_a_record_says_that_training_was_resumed_and_what_was_refused(tmp_path: Path) -> None:
    one, store = trial(), Store(tmp_path)
    folder = store.folder(one.fingerprint)
    for stop in (6, 8):
        with pytest.raises(SystemExit):
            Stopped(one, folder, stop).result()
    file = folder / "checkpoint-8.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    record = run_and_keep(one, store)
    assert record.facts["resumed"] == 1, "what was trained between 6 and 8 is not in it"
    assert record.facts["checkpoints"] == [
        "checkpoint after update 8 not used: its SHA-256 is not that of its manifest"]
    assert names(folder) == ["manifest.json", "predictions.safetensors", "record.json"]
    assert run_and_keep(one, Store(tmp_path / "other")).curves == record.curves


@pytest.mark.parametrize("operation", ["os.fsync", "os.replace", "os.open", "os.fdopen", "os.chmod",
                                       "tempfile.mkstemp"])
def test_whichever_operation_fails_the_last_good_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """The N-th call fails, for every N until none is left to fail."""
    module = {"os": os, "tempfile": tempfile}[operation.split(".")[0]]
    name = operation.split(".")[1]
    genuine = getattr(module, name)
    for number in range(1, 50):
        folder, told = tmp_path / str(number), []
        two(folder)
        calls = 0

        def fails(*arguments: Any, number: int = number, **others: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number:
                raise OSError(errno.ENOSPC, "No space left on device")
            return genuine(*arguments, **others)

        here = checkpoints(folder)
        here.tell = told.append
        with monkeypatch.context() as patched:
            patched.setattr(module, name, fails)
            written = here.write(9, captured(9))
        assert not list(folder.glob("*.tmp")), "no leftover"
        if written:
            assert number > 1 and newest(folder) == (9, [])
            return
        assert len(told) == 1 and "No space left" in told[0] and "training goes on" in told[0]
        assert newest(folder)[0] in (7, 9)  # the last fsync, of the folder, can fail after all is in place
        assert here.write(11, captured(11)) and newest(folder)[0] == 11
    pytest.fail("the operation never stopped failing")


def test_a_trial_whose_checkpoints_cannot_be_written_is_trained_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "PAUSE", 0.0)
    monkeypatch.setattr(Checkpoints, "due", lambda self: True)
    one = trial()
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "write_atomically", full)
        record = run_and_keep(one, Store(tmp_path))
    assert record.status in ("done", "degenerate")
    assert capsys.readouterr().err.count("cannot be written: No space left on device; training goes on") == 1
    assert len(record.facts["checkpoints"]) == 1
    assert record.curves == run_and_keep(one, Store(tmp_path / "other")).curves


@pytest.mark.skipif(sys.platform == "win32", reason="limits are POSIX's")
def test_a_file_size_limit_keeps_the_last_good_one(tmp_path: Path) -> None:
    code = ("import resource, sys; from pathlib import Path; from tests.test_checkpoint_files import *\n"
            "folder = Path(sys.argv[1]); two(folder)\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
            "assert not checkpoints(folder).write(9, captured(9, 100_000))\n"
            "assert newest(folder) == (7, []), newest(folder); assert not list(folder.glob('*.tmp'))")
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True, timeout=120)


def forked(work: Callable[[], None]) -> int:
    """A process of its own that does this; real, and without the seconds that loading takes."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return child


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_kill_while_checkpoints_are_written_leaves_a_whole_one(tmp_path: Path) -> None:
    draw = random.Random(0)

    def work(first: int) -> None:
        here = checkpoints(tmp_path)
        for step in range(first, first + 10_000):
            here.write(step, captured(step, 400_000))

    last = 0
    for kill in range(40):
        child = forked(lambda kill=kill: work(kill * 10_000 + 1))  # type: ignore[misc]
        latest = time.monotonic() + 60  # the first comes this far on a busy machine too
        while not kill and not list(tmp_path.glob("*.json")) and time.monotonic() < latest:
            time.sleep(0.01)
        time.sleep(draw.uniform(0.0, 0.1))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found, events = newest(tmp_path)
        assert events == [] and (found or 0) >= last, "whole, and never an older one than there was"
        last = found or 0
    assert last > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_training_that_is_killed_again_and_again_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    one, draw = trial(model__dropout="0.2", train__select="best"), random.Random(1)
    undisturbed = whole(one)
    folder = tmp_path / "trial"

    def work() -> None:
        run = Stopped(one, folder)
        assert run.checkpoints is not None
        run.checkpoints.pause = run.checkpoints.cost = 0.0
        checkpoint.SHARE = 0
        (tmp_path / "found").write_text(repr(everything(run)))

    kills = 0
    for _ in range(60):
        child = forked(work)
        deadline = time.monotonic() + draw.uniform(0.02, 0.1) * 1.15**kills
        while time.monotonic() < deadline and os.waitpid(child, os.WNOHANG)[0] == 0:
            time.sleep(0.01)
        try:
            os.kill(child, signal.SIGKILL)
            kills += os.waitpid(child, 0)[1] == signal.SIGKILL
        except (ProcessLookupError, ChildProcessError):
            break
    assert kills >= 3
    assert (tmp_path / "found").read_text() == repr(undisturbed)
