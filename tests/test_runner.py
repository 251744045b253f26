"""The runner: pairing, determinism, and that nothing is called done that is not."""

from __future__ import annotations

import dataclasses
import math
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from posbench.config import EncodingChoice, TrialConfig, override
from posbench.errors import UserError
from posbench.execute import Here, run_and_keep
from posbench.objective import predicted_of
from posbench.runner import run
from posbench.schedule import learning_rate, updates
from posbench.store import Store
from posbench.study import from_preset
from posbench.trial import Trial, load_rows, load_suite, resolve

SMALL = {
    "train.steps": "12",
    "train.evaluations": "2",
    "model.width": "16",
    "model.heads": "2",
    "model.layers": "1",
    "model.feedforward": "32",
}


def config(encoding: str = "rope", task: str = "cola", seed: int = 0, **changes: str) -> TrialConfig:
    study = from_preset(
        "glue", "mini", {**SMALL, **{name.replace("__", "."): value for name, value in changes.items()}}
    )
    return study.trial(EncodingChoice.parse(encoding), task, seed)


def trial(encoding: str = "rope", task: str = "cola", seed: int = 0, **changes: str) -> Trial:
    return resolve(config(encoding, task, seed, **changes))


def measured(record: object) -> dict:
    """A record without what a clock says."""
    plain = dataclasses.asdict(record)  # type: ignore[call-overload]
    facts = {name: plain["facts"][name] for name in ("data_hash", "vocabulary", "rows", "updates", "position_rms")}
    return {name: plain[name] for name in ("status", "rows", "curves", "parameters")} | facts


def test_the_same_trial_twice_is_equal_to_the_last_bit() -> None:
    (one, arrays), (two, again) = run(trial()), run(trial())
    assert measured(one) == measured(two)
    assert all(np.array_equal(arrays[name], again[name]) for name in arrays)


def test_a_trial_takes_the_threads_that_its_record_states(monkeypatch: pytest.MonkeyPatch) -> None:
    before, asked = torch.get_num_threads(), []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    record, _ = run(trial(train__threads=str(before + 1)))
    assert asked == [before + 1] == [record.facts["threads"]]


def test_a_clock_that_is_set_back_makes_no_trial_shorter_than_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    hours = iter(range(10**6, 0, -1))
    monkeypatch.setattr(time, "time", lambda: 3600.0 * next(hours))
    began = time.monotonic()
    record, _ = run(trial())
    assert 0 < record.seconds <= time.monotonic() - began


def test_the_same_encoding_under_another_name_is_bit_identical(tmp_path: Path) -> None:
    """The A/A study: nothing in the pipeline looks at a name."""
    twin = tmp_path / "twin.py"
    twin.write_text(Path(__file__).parents[1].joinpath("encodings", "rope.py").read_text())
    (one, arrays), (two, again) = run(trial("rope")), run(trial(str(twin)))
    assert one.fingerprint != two.fingerprint
    assert measured(one) == measured(two)
    assert all(np.array_equal(arrays[name], again[name]) for name in arrays)


def test_seeds_differ_in_everything_that_is_drawn() -> None:
    records = [run(trial(seed=seed))[0] for seed in (0, 1)]
    first = [next(point["value"] for point in record.curves if point["metric"] == "train/loss") for record in records]
    assert first[0] != first[1]


@pytest.mark.parametrize("dropout", ["0", "0.25"])
def test_trials_that_differ_in_the_encoding_alone_are_paired(dropout: str) -> None:
    """Placebo with its constant at zero is nope: equal numbers show equal weights, order of rows and dropout masks."""
    from posbench.registry import ENCODINGS

    placebo = trial("placebo", model__dropout=dropout)
    cls = ENCODINGS.load("placebo").value
    silent = type("Silent", (cls,), {"initial": lambda self, name, value, generator: value.zero_()})
    placebo = dataclasses.replace(placebo, plugin=dataclasses.replace(placebo.plugin, value=silent))
    nope = run(trial("nope", model__dropout=dropout))[0]
    losses = [[point["value"] for point in record.curves] for record in (nope, run(placebo)[0])]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_scores_are_of_all_rows_and_follow_from_the_kept_predictions() -> None:
    from sklearn.metrics import accuracy_score, matthews_corrcoef

    for task, metric, function in (("cola", "mcc", matthews_corrcoef), ("rte", "accuracy", accuracy_score)):
        record, arrays = run(trial(task=task))
        rows = [row for row in record.rows if row["metric"] == metric]
        assert rows and record.status in ("done", "degenerate")
        for row in rows:
            gold, predicted = (arrays[f"{row['split']}/{what}"] for what in ("gold", "predicted"))
            assert row["n"] == len(gold) == record.facts["rows"][row["split"]]
            assert row["value"] == pytest.approx(function(gold, predicted), abs=1e-12)
            assert np.array_equal(predicted, arrays[f"{row['split']}/output"].argmax(-1))


def test_the_test_split_is_read_once_and_after_training(monkeypatch: pytest.MonkeyPatch) -> None:
    from posbench import runner

    reads: list[tuple[str, int]] = []
    genuine = runner._Run._score

    def counted(self: runner._Run, split: str) -> object:
        reads.append((split, len(self.state.step_seconds)))
        return genuine(self, split)

    monkeypatch.setattr(runner._Run, "_score", counted)
    run(trial(train__select="best"))
    assert [done for split, done in reads if split.startswith("test")] == [12]
    assert [done for split, done in reads if split == "validation"] == [6, 12]


def test_selection_takes_the_best_weights_on_validation_and_never_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    from posbench import runner

    scores = iter([0.1, 0.9, math.nan, 0.3])
    kept: list[torch.Tensor] = []

    def told(self: runner._Run, step: int) -> float:
        kept.append(self.model.head.out.weight.detach().clone())
        score = next(scores)
        return -math.inf if math.isnan(score) else score

    monkeypatch.setattr(runner._Run, "_evaluate", told)
    under_way = runner._Run(trial(train__select="best", train__evaluations="4"), lambda done, planned: None)
    under_way.result()
    assert torch.equal(under_way.model.head.out.weight, kept[1])
    assert not torch.equal(kept[1], kept[3])


def test_a_loss_that_leaves_the_finite_numbers_is_diverged_and_has_no_score() -> None:
    record, arrays = run(trial(train__learning_rate="1e12", train__clip="1e30", train__steps="60", train__warmup="0"))
    assert record.status == "diverged"
    assert "is nan" in record.reason or "is inf" in record.reason or "not finite" in record.reason
    assert not record.rows and not arrays


def test_constant_predictions_of_a_regression_are_degenerate_and_score_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    from posbench.objective import Sequences

    monkeypatch.setattr(Sequences, "predict", lambda self, model, data: np.full(len(data), 0.5, dtype=np.float32))
    record, _ = run(trial(task="stsb"))
    assert record.status == "degenerate"
    assert "predictions are equal" in record.reason
    assert [row["value"] for row in record.rows] == [0.0] * len(record.rows)


def test_a_plugin_that_breaks_in_training_fails_its_trial_and_no_other(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(
        "from posbench.encoding import Encoding, Paper\nclass Broken(Encoding):\n"
        "    paper = Paper(title='t', arxiv='1', equations='1')\n"
        "    def embed(self, x, at):\n        raise RuntimeError('no luck')\nENCODING = Broken\n"
    )
    records = list(Here(Store(tmp_path / "store")).results([trial(str(broken)), trial("nope")]))
    assert records[0].status == "failed" and records[1].status in ("done", "degenerate")
    assert records[0].reason == "RuntimeError: no luck"
    assert "no luck" in records[0].facts["traceback"]


def test_a_process_that_is_asked_to_end_leaves_its_trial_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from posbench import runner
    from posbench.errors import Terminated

    def asked(trial: Trial, **others: object) -> None:
        raise Terminated(143)

    monkeypatch.setattr(runner, "run", asked)
    one = trial()
    with pytest.raises(Terminated):
        run_and_keep(one, Store(tmp_path))
    assert not Store(tmp_path).has(one.fingerprint)


def test_what_changes_a_fingerprint_and_what_does_not(tmp_path: Path) -> None:
    base = trial().fingerprint
    for changed in (
        trial("rope:base=500"),
        trial("nope"),
        trial(task="rte"),
        trial(seed=1),
        trial(train__steps="13"),
        trial(model__dropout="0.5"),
        trial(data__max_length="20"),
        trial(data__vocabulary="100"),
    ):
        assert changed.fingerprint != base
    assert trial("rope:base=10000").fingerprint == base, "an option at its default is the default"
    assert trial(train__learning_rate="0.00300").fingerprint == trial(train__learning_rate="3e-3").fingerprint
    source = Path(__file__).parents[1].joinpath("encodings", "nope.py").read_text()
    prints = set()
    for folder, text in (("a", source), ("b", source), ("c", source + "\n# other\n")):
        path = tmp_path / folder / "mine.py"
        path.parent.mkdir()
        path.write_text(text)
        prints.add(trial(str(path)).fingerprint)
    assert len(prints) == 2, "where a file lies is nothing, what it says is all"


def test_a_revision_with_other_rows_is_another_trial_and_one_with_the_same_rows_is_not(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a data set lies and what its commit is called is nothing, what it says is all."""
    words = {"a": "one", "b": "one", "c": "two"}
    asked = []

    def rows(repository: str, name: str, split: str, revision: str) -> list[dict[str, object]]:
        asked.append(revision[0])
        return [{"sentence": f"{words[revision[0]]} {row}", "label": label}
                for row, label in enumerate(["acceptable", "unacceptable"] * 20)]

    monkeypatch.setattr("posbench.suites.glue.hub_rows", rows)
    prints = {letter: trial(data__source="hub", data__revision=letter * 40).fingerprint for letter in words}
    assert set(asked) == set(words), "each revision is read"
    assert prints["a"] == prints["b"] != prints["c"]


@pytest.mark.parametrize(("split", "labels", "told"), [
    ("train", [], "the split 'train' is empty"), ("train", [1, 1, 1], "the split 'train' has one label alone (3 rows)"),
    ("test", [0, 0], "the split 'test' has one label alone (2 rows)"),
])
def test_rows_that_nothing_can_be_learned_from_are_refused_before_training(
    monkeypatch: pytest.MonkeyPatch, split: str, labels: list[int], told: str
) -> None:
    data = config(task="rte").data
    whole, _ = load_rows("glue", "rte", data)
    few = dataclasses.replace(whole.splits[split], texts=whole.splits[split].texts[: len(labels)], labels=labels)
    changed = dataclasses.replace(whole, splits={**whole.splits, split: few})
    monkeypatch.setattr(type(load_suite("glue")), "load", lambda self, task, data: changed)
    with pytest.raises(UserError, match=re.escape(told)):
        load_rows.__wrapped__("glue", "rte", data)


def test_the_schedule_rises_and_falls_linearly() -> None:
    rates = [learning_rate(step, 100, 0.1) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert max(rates) == rates[9] == 1.0 == rates[10]
    assert rates[-1] == pytest.approx(1 / 90)
    assert learning_rate(100, 100, 0.1) == 0.0
    assert learning_rate(0, 1, 0.0) == 1.0


def test_epochs_are_counted_in_updates() -> None:
    train = override(config(), {"train.epochs": "3"}).train
    assert updates(train, 100) == math.ceil(300 / train.batch_size)


def test_numbers_are_put_back_on_the_tasks_scale() -> None:
    stsb = trial(task="stsb").task
    assert predicted_of(stsb, np.array([-1.0, 0.0, 0.5, 2.0])).tolist() == [0.0, 0.0, 2.5, 5.0]
