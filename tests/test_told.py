"""What the commands refuse and what they say, in one line on stderr and with an exit code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from posbench import cli


def run(monkeypatch, capsys, home: Path, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setenv("POSBENCH_HOME", str(home))
    monkeypatch.setattr(sys, "argv", ["posbench", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


TWICE = {
    "a setting": (("--set", "train.steps=3", "--set", "train.steps=4"), "--set train.steps is given twice: give it"),
    "two units": (("--set", "train.steps=3", "--set", "train.epochs=4"),
                  "--set: 'train.steps' and 'train.epochs' are both given, and only one of them can hold"),
    "data": (("--data", "x", "--set", "data.path=y"), "--data and --set data.path say the same thing: leave one out"),
    "hub": (("--data", "hub", "--set", "data.source=folder"), "--data and --set data.source say the same thing"),
    "tokenizer": (("--tokenizer", "bpe", "--set", "data.tokenizer=bytes"), "--tokenizer and --set data.tokenizer say"),
    "revision": (("--revision", "abc"), "--revision abc: a commit on the hub, which --data hub alone reads"),
    "path": (("--set", "data.path=x"), "data.path is read where data.source is folder, and it is generated"),
}


@pytest.mark.parametrize("command", ["study", "status"])
@pytest.mark.parametrize("name", TWICE)
def test_of_two_options_none_is_dropped_in_silence(name, command, tmp_path, monkeypatch, capsys) -> None:
    arguments, told = TWICE[name]
    code, out, err = run(monkeypatch, capsys, tmp_path, command, "glue", *arguments)
    assert code == 2 and not out and err.startswith("posbench: error: ") and err.count("\n") == 1
    assert told in err and not list(tmp_path.iterdir())
    code, _, err = run(monkeypatch, capsys, tmp_path, "bench", "nope", "--set", "model.width=32", "--set",
                       "model.width=64")
    assert code == 2 and "--set model.width is given twice: give it once" in err
