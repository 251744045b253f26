"""What of a study is drawn against updates, and in which unit."""

from __future__ import annotations

import math

import pytest

from posbench import outcome
from posbench.store import Record
from posbench.study import Plan, from_preset
from posbench.trial import Trial, resolve


def first(suite: str, task: str, **changes: object) -> tuple[Plan, Trial]:
    config = from_preset(suite, "mini", {"tasks": (task,), "seeds": (0,), **changes})
    trial = resolve(config.trial(config.encodings[0], task, 0))
    return Plan(config, (trial,)), trial


@pytest.mark.parametrize(("suite", "task", "score", "loss"), [
    ("lm", "docs", "validation/bits per byte", "train/loss, bits per byte"),
    ("longtext", "induction", "validation/exact match", "train/loss, nats per token of the answer"),
    ("translation", "en-de", "validation/BLEU", "train/loss, nats per target token, smoothing 0.1"),
])
def test_the_loss_is_drawn_with_its_unit(suite: str, task: str, score: str, loss: str) -> None:
    assert [name for name, _ in outcome._drawn(first(suite, task)[1]).values()] == [score, loss]


def test_a_loss_without_smoothing_names_none() -> None:
    trial = first("translation", "en-de", **{"train.label_smoothing": 0.0})[1]
    assert outcome._drawn(trial)["train/loss"][0] == "train/loss, nats per target token"


def test_labelled_rows_have_a_score_alone() -> None:
    assert outcome._drawn(first("glue", "cola")[1]) == {"validation/mcc": ("validation/mcc", 1.0)}


def test_a_guess_among_256_bytes_is_drawn_as_eight_bits(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, trial = first("lm", "docs")
    curves = [{"step": 1, "metric": "train/loss", "value": math.log(256)},
              {"step": 1, "metric": "validation/bits per byte", "value": 8.0},
              {"step": 1, "metric": "rate", "value": 1.0}]
    record = Record(fingerprint=trial.fingerprint, label=trial.config.encoding.label, config={}, status="failed",
                    curves=curves)
    monkeypatch.setattr(outcome, "_costs", lambda *_: [])
    found = outcome.study_results(plan, {trial.fingerprint: record}, tmp_path).curves
    assert list(zip(found["metric"], found["value"], strict=True)) == [
        ("train/loss, bits per byte", pytest.approx(8.0)), ("validation/bits per byte", 8.0)]


@pytest.mark.parametrize(("suite", "task", "names", "ends"), [
    ("glue", "cola", ("mcc",), (-1.0, 1.0)), ("glue", "stsb", ("spearman", "pearson"), (-1.0, 1.0)),
    ("glue", "mrpc", ("f1", "accuracy"), (0.0, 1.0)), ("translation", "en-de", ("BLEU", "chrF"), (0.0, 100.0)),
    ("longtext", "copy", ("exact match", "token accuracy"), (0.0, 1.0)),
    ("lm", "docs", ("bits per byte",), (0.0, math.inf)),
])
def test_scores_have_the_range_of_their_metric_in_tables_and_in_curves(
    suite: str, task: str, names: tuple[str, ...], ends: tuple[float, float]
) -> None:
    wanted = {(task, name): ends for name in (*names, f"validation/{names[0]}")}
    assert outcome._ranges(first(suite, task)[0]) == wanted
