"""Texts of the language models: where their splits lie, and what is told of bad ones."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from posbench.suites.lm import SUITE

from posbench.config import DataConfig, StudyConfig, build, override
from posbench.data import MissingTask
from posbench.errors import UserError
from posbench.study import from_preset
from posbench.suites import _lm_texts
from posbench.trial import resolve

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "lm"


def folder(task: str, path: Path, **changes) -> object:
    return SUITE.load(task, DataConfig(source="folder", path=str(path), **changes))


def joined(data) -> bytes:
    return "".join(data.splits[name].texts[0][0] for name in ("train", "validation", "test")).encode("latin-1")


def test_every_byte_is_in_one_split_also_where_a_border_parts_a_character(tmp_path: Path) -> None:
    content = ("中é🙂 text " * 50).encode() + bytes(range(256))
    (tmp_path / "some.txt").write_bytes(content)
    for share in (0.1, 0.11, 0.2):
        data = folder("text", tmp_path, held_out=share)
        assert joined(data) == content
        held = int(len(content) * share / 2)
        assert [len(data.splits[name].texts[0][0]) for name in ("validation", "test")] == [held, held]
    assert f"{len(content) - 2 * held:,} bytes of some.txt" in data.notes["train"]
    (tmp_path / "some.txt").unlink()
    (tmp_path / "some.txt.gz").write_bytes(gzip.compress(content))
    assert joined(folder("text", tmp_path)) == joined(folder("text", tmp_path / "some.txt.gz")) == content


def test_enwik8_is_split_by_ninety_five_and_five_million_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lm_texts, "WHOLE", 30_000_000)
    data = _lm_texts._cut(bytes(30_000_000), "of it", 0.1, published=True)
    assert {name: len(rows.texts[0][0]) for name, rows in data.splits.items()} == {
        "train": 20_000_000, "validation": 5_000_000, "test": 5_000_000}
    assert (0.9 * 100, _lm_texts._cut.__module__) == (90, _lm_texts.__name__)


def test_pythons_documentation_is_a_real_text_and_named_by_its_version() -> None:
    import platform

    data = SUITE.load("docs", DataConfig(source="python"))
    text = joined(data).decode()
    assert len(text) > 300_000 and text.count(" the ") > 1000
    assert platform.python_version() in data.notes["test"]
    with pytest.raises(UserError, match="use --tasks text"):
        folder("docs", Path("."))


def test_bad_texts_are_told(tmp_path: Path) -> None:
    with pytest.raises(MissingTask, match="give its folder with --data"):
        SUITE.load("enwik8", DataConfig())
    with pytest.raises(UserError, match="does not exist"):
        folder("text", tmp_path / "nowhere")
    with pytest.raises(MissingTask, match="0 files in"):
        folder("text", tmp_path)
    with pytest.raises(MissingTask, match="no file 'enwik8' or"):
        folder("enwik8", tmp_path)
    (tmp_path / "text8").write_bytes(b"")
    with pytest.raises(UserError, match="text8: the file is empty"):
        folder("text8", tmp_path)
    (tmp_path / "text8").write_bytes(b"abc de. f")
    with pytest.raises(UserError, match=r"byte 0x2e at 6 is none of text8's 27"):
        folder("text8", tmp_path)
    (tmp_path / "enwik8.gz").write_bytes(b"no gzip")
    with pytest.raises(UserError, match="cannot be read"):
        folder("enwik8", tmp_path)


def test_the_texts_that_are_there() -> None:
    if not SHARED.exists():
        pytest.skip(f"{SHARED} is not there")
    assert len(joined(folder("text", SHARED / "enwiki-xml"))) == 4_188_490
    assert len(joined(folder("text8", SHARED / "text8-real-16k"))) == 16_391


@pytest.mark.parametrize("preset", ["mini", "real-mini", "small", "paper"])
def test_presets_are_settings(preset: str) -> None:
    base = build(StudyConfig, {"suite": "lm", "preset": preset, "encodings": [{"name": "rope"}], "tasks": ["docs"],
                               "seeds": [0], "train": {"steps": 1}}, where="test")
    config = override(base, dict(SUITE.presets[preset]))
    assert len(config.seeds) >= 3 and config.model.shape == "decoder" and config.evaluation.longest == 8
    assert (config.data.source == "python") == (preset == "mini")


def test_placements_and_the_softmax_control_are_choices_of_one_study() -> None:
    study = from_preset("lm", "mini", {"model.width": "16", "model.heads": "2"})
    trials = {choice.label: resolve(study.trial(choice, "docs", 0)) for choice in study.encodings}
    assert len({trial.fingerprint for trial in trials.values()}) == len(trials) == 8
    linear = {label: trial.config.model for label, trial in trials.items() if trial.config.model.attention == "linear"}
    assert {model.rotation for label, model in linear.items() if label.startswith("rope")} == {
        "before", "numerator", "both"}
    assert study.baseline in linear and "learned" in trials and trials["rope"].config.model.attention == "softmax"


def test_no_paragraph_of_pythons_documentation_comes_twice() -> None:
    """Topics quote each other: the test would stand in the training text."""
    paragraphs = joined(SUITE.load("docs", DataConfig(source="python"))).decode().split("\n\n")
    assert len(paragraphs) == len(set(paragraphs)) > 1500
