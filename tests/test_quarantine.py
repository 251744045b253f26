"""A plugin under test cannot take the program along that asks about it."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from posbench import environment, quarantine
from posbench.config import EncodingChoice, TrainConfig, TrialConfig
from posbench.errors import UserError
from posbench.quarantine import check_apart, prove, prove_once, verdicts
from posbench.testing import check_encoding
from posbench.trial import resolve

PLUGIN = '''
"""wild: misbehaves."""

import ctypes, os, signal, subprocess, sys, time
from posbench.encoding import Encoding, Paper, Properties


class Wild(Encoding):
    """Misbehaves where it is used."""

    paper = Paper(title="None", equations="none")
    properties = Properties(permutation=True, reversal=True, shift=True)

    def embed(self, x, at):
        {behaviour}
        return x


ENCODING = Wild
'''


@pytest.fixture
def wild(tmp_path: Path):
    def write(behaviour: str) -> str:
        path = tmp_path / "wild.py"
        path.write_text(PLUGIN.format(behaviour=behaviour))
        return str(path)

    return write


@pytest.mark.parametrize(
    ("behaviour", "told"),
    [
        ("os._exit(0)", "ended with exit code 0"),
        ("ctypes.string_at(0)", "ended with signal 11"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "ended with signal 9"),
    ],
)
def test_leaving_is_a_failed_verdict(wild, behaviour: str, told: str) -> None:
    path = wild(behaviour)
    (verdict,) = check_apart(path)
    assert not verdict.passed and told in verdict.reason
    with pytest.raises(UserError, match=told):
        prove([EncodingChoice(name=path)])


def test_a_hang_ends_with_all_that_it_started(wild, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    path = wild(f"open({str(note)!r}, 'w').write(str(subprocess.Popen(['sleep', '600']).pid)); time.sleep(600)")
    (verdict,) = check_apart(path, seconds=15)
    assert not verdict.passed and "15 s" in verdict.reason
    child = int(note.read_text())
    for _ in range(50):
        if not _runs(child):
            break
        time.sleep(0.1)
    assert not _runs(child)


def test_what_is_in_order_has_the_verdicts_of_this_process(wild) -> None:
    path = wild("pass")
    assert verdicts(EncodingChoice(name=path)) == check_encoding(path)


def test_a_wrong_option_is_the_users_mistake(wild) -> None:
    with pytest.raises(UserError, match="unknown option"):
        check_apart(wild("pass"), {"speed": 3})


def _runs(pid: int) -> bool:
    """Whether the process is there and no zombie that its new parent has not yet collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return os.path.exists(f"/proc/{pid}")


def test_a_built_in_encoding_that_fails_is_told_before_anything_is_written(tmp_path: Path, monkeypatch) -> None:
    from posbench import cli

    def fails(choices: list[EncodingChoice]) -> None:
        if choices:
            raise UserError("fails its contract")

    monkeypatch.setattr(quarantine, "prove", fails)
    monkeypatch.setenv("POSBENCH_HOME", str(tmp_path / "home"))
    with pytest.raises(UserError, match="fails its contract"):
        cli.app(["study", "glue", "--encodings", "nope", "--baseline", "nope", "--tasks", "cola", "--seeds", "1"],
                standalone_mode=False)
    assert not (tmp_path / "home").exists()


def test_a_proof_is_made_once_for_each_version_of_what_it_is_of(tmp_path: Path, monkeypatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(quarantine, "prove", lambda choices: made.extend(choice.label for choice in choices))

    def trial(text: str):
        train = TrainConfig(steps=1)
        return resolve(TrialConfig(encoding=EncodingChoice.parse(text), suite="glue", task="rte", seed=0, train=train))

    rope = trial("rope")
    told: list[str] = []
    for _ in range(2):
        prove_once([rope, trial("nope")], tmp_path, tell=told.append)
    assert made == ["rope", "nope"]
    assert told == ["proving rope, nope: some seconds each, once for this code and machine"]
    prove_once([trial("rope:base=500")], tmp_path)
    edited = replace(rope, plugin=replace(rope.plugin, source_hash="0" * 64))
    prove_once([edited], tmp_path)
    monkeypatch.setitem(environment.facts(), "code", "another")
    prove_once([rope], tmp_path)
    assert made == ["rope", "nope", "rope:base=500", "rope", "rope"]

    def fails(choices: object) -> None:
        raise UserError("fails its contract")

    monkeypatch.setattr(quarantine, "prove", fails)
    for _ in range(2):
        with pytest.raises(UserError, match="fails its contract"):
            prove_once([trial("rope:base=600")], tmp_path)
