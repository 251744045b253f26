"""Language models: answers and running text against loops and closed forms, lengths, refusals and variants."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from posbench.suites.lm import BITS
from torch import nn

from posbench import corpus, language
from posbench.config import EncodingChoice, EvaluationConfig, StudyConfig, TrialConfig, build, to_plain
from posbench.errors import UserError
from posbench.execute import run_and_keep
from posbench.language import area, effective_length, lengths
from posbench.lengths import AREA, REACH
from posbench.objective import objective_of
from posbench.outcome import _frame
from posbench.runner import run
from posbench.store import Store
from posbench.study import from_preset, plan
from posbench.suite import Rows
from posbench.transformer import Transformer
from posbench.trial import Trial, resolve

SMALL = {"train.steps": "6", "train.evaluations": "2", "train.batch_size": "4", "model.width": "16",
         "model.heads": "2", "model.layers": "1", "model.feedforward": "32"}


def trial(encoding: str = "rope", suite: str = "longtext", task: str = "induction", **changes: str) -> Trial:
    study = from_preset(suite, "mini", {**SMALL, "data.max_length": "16",
                                        **{name.replace("__", "."): value for name, value in changes.items()}})
    return resolve(study.trial(EncodingChoice.parse(encoding), task, 0))


def with_rows(one: Trial, monkeypatch: pytest.MonkeyPatch, **splits: list[tuple[str, ...]]) -> Any:
    """The trial's objective on other rows."""
    from posbench.suite import TaskData

    data = TaskData(splits={name: Rows(texts=texts, labels=[]) for name, texts in splits.items()}, scored=("test",))
    for module in (language, corpus):
        monkeypatch.setattr(module, "load_rows", lambda *_: (data, ""), raising=False)
    return objective_of(one)


class Fixed(nn.Module):
    """Logits by a function of the ids that are read."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, ids: torch.Tensor, at: Any = None) -> torch.Tensor:
        return self.function(ids)

    def encoding(self, layer: int) -> Any:
        return type("Endless", (), {"max_length": None})


# Lengths.


def test_lengths_effective_length_and_area() -> None:
    assert lengths(32, 8) == (32, 64, 128, 256) and lengths(32, 1) == (32,) and lengths(32, 6) == (32, 64, 128)
    scores = {32: 1.0, 64: 0.9, 128: 0.5, 256: 0.1}
    assert effective_length(scores, 0.9) == 64 and effective_length(scores, 0.95) == 32
    assert effective_length(scores, 1.1) == 0 and effective_length({}, 0.5) == 0
    # Trapezoids of equal width over log2: (.5 * 1 + .9 + .5 + .5 * .1) / 3.
    assert area(scores, (32, 64, 128, 256)) == pytest.approx((0.5 + 0.9 + 0.5 + 0.05) / 3)
    assert area({32: 1.0}, (32, 64, 128, 256)) == pytest.approx(0.5 / 3)  # refused beyond
    assert area({32: 0.7}, (32,)) == 0.7


# Answers.


def test_only_the_answer_is_scored_and_only_it_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("ab=", "ba"), ("a=", "a"), ("abb=", "bba")]
    objective = with_rows(trial(evaluation__longest="1"), monkeypatch, train=rows, validation=rows,
                          test=[("b" * 9 + "=", "a")])
    # Start and padding, then the symbols in their order.
    assert objective.vocabulary == 5 and objective.ids == {"=": 2, "a": 3, "b": 4}
    seen: list[torch.Tensor] = []

    def uniform(ids: torch.Tensor) -> torch.Tensor:
        seen.append(ids)
        return torch.zeros(*ids.shape, objective.vocabulary)

    assert float(objective.loss(Fixed(uniform), np.arange(3))) == pytest.approx(math.log(5))
    # [start] a b = b; the last token of an answer is not read, or stands where the mask says padding.
    assert seen[0].tolist() == [[0, 3, 4, 2, 4, 3, 1], [0, 3, 2, 3, 1, 1, 1], [0, 3, 4, 4, 2, 4, 4]]
    assert objective.encoded["train"][1].tolist() == [5, 3, 7]

    def always_a(ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(torch.full_like(ids, 3), objective.vocabulary).float()

    scored, arrays = objective.measure(Fixed(always_a), "validation", 16)
    # Of 'ba', 'a' and 'bba' one answer is all a, and three tokens of six are.
    assert {row["metric"]: row["value"] for row in scored} == {"exact match": 1 / 3, "token accuracy": 0.5}
    assert {row["n"] for row in scored} == {3} and [row["primary"] for row in scored] == [True, False]
    assert arrays["validation/gold, 16"].tolist() == [[4, 3, -1], [3, -1, -1], [4, 4, 3]]


def test_answers_are_those_of_greedy_decoding() -> None:
    one = trial(task="reverse", train__steps="1")
    objective = objective_of(one)
    model = Transformer(one.config.model, one.encoding, one.options, vocabulary=objective.vocabulary, length=16,
                        head=objective.head(one.task, objective.vocabulary)).eval()
    model.initialise(3)
    with torch.no_grad():
        model.head.bias[5] += 0.02  # so that some tokens are right by chance
        rows, arrays = objective.measure(model, "validation", 16)
        right = 0
        for prompt, answer in objective.data.splits["validation"].texts:
            ids = [0, *(objective.ids[symbol] for symbol in prompt)]
            for _ in answer:
                ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
            right += ids[-len(answer):] == [objective.ids[symbol] for symbol in answer]
    assert rows[0]["value"] == pytest.approx(right / 200)
    assert len(arrays["validation/predicted, 16"]) == 200


def test_padding_and_batch_size_change_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("ab=", "ba"), ("a=", "a"), ("abbabb=", "bbabba")]
    objective = with_rows(trial(evaluation__longest="1"), monkeypatch, train=rows, validation=rows,
                          test=[("b" * 9 + "=", "a")])
    one = objective.trial
    model = Transformer(one.config.model, one.encoding, one.options, vocabulary=objective.vocabulary, length=16,
                        head=objective.head(one.task, objective.vocabulary)).eval()
    model.initialise(0)
    whole, *parts = (objective.loss(model, np.array(rows)).item() for rows in ([0, 1, 2], [0], [1], [2]))
    assert whole == pytest.approx(np.average(parts, weights=[2, 1, 6]), rel=1e-5)
    together = objective.measure(model, "validation", 16)[1]["validation/predicted, 16"]
    for row in range(3):
        alone = objective._answered(model, "validation", np.array([row]))[0].argmax(-1).numpy()
        assert np.array_equal(together[row][together[row] >= 0], alone)


def test_a_row_that_is_too_long_or_unheard_of_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("ab=", "ba")]
    with pytest.raises(UserError, match="test, row 1: the symbol 'z'"):
        with_rows(trial(), monkeypatch, train=rows, validation=rows, test=[("z=", "a")])
    with pytest.raises(UserError, match="a row of 18 tokens where 16 are the most"):
        with_rows(trial(), monkeypatch, train=[("a" * 16 + "=", "a")], validation=rows, test=rows)


# Refusals and variants.


def test_a_table_is_refused_beyond_its_end_and_is_no_failure(tmp_path: Any) -> None:
    one = trial("learned")
    record = run_and_keep(one, Store(tmp_path))
    assert record.status == "done"
    assert [row["length"] for row in record.rows if row["primary"]] == [16]
    apart = Store(tmp_path).load(one.fingerprint).facts["apart"]
    assert [(row["length"], row["status"], row["value"]) for row in apart] == [
        (length, "refused", None) for length in (32, 64, 128)]
    assert "refused at length 32: the encoding ends at 16 positions" in apart[0]["reason"]
    summed = {row["metric"]: row["value"] for row in record.rows if row["length"] is None}
    assert set(summed) == {REACH, AREA}
    assert summed[AREA] == pytest.approx(record.rows[0]["value"] / 6)


def test_variants_are_scored_on_the_same_weights_without_training() -> None:
    plain, _ = run(trial(evaluation__variants=""))
    record, arrays = run(trial(evaluation__variants="rope -> rope_linear:factor=1, rope -> rope_ntk:factor=8"))
    assert record.rows == plain.rows and record.curves == plain.curves  # scoring variants changes nothing else
    apart = record.facts["apart"]
    assert {row["variant"] for row in apart} == {"rope_linear:factor=1", "rope_ntk:factor=8"}
    # Interpolated by the factor 1 rope is itself, to the last bit.
    same = [{name: value for name, value in row.items() if name != "variant"} for row in apart
            if row["variant"] == "rope_linear:factor=1"]
    assert same == record.rows
    assert np.array_equal(arrays["test/predicted, 16"], arrays["test/predicted, 16, rope_linear:factor=1"])
    # What nothing was declared for has no variant, and the same result is the same trial.
    assert "apart" not in run(trial("nope", evaluation__variants="rope -> rope_ntk"))[0].facts
    assert trial("nope", evaluation__variants="rope -> rope_ntk").fingerprint == trial("nope").fingerprint
    assert trial(evaluation__variants="rope -> rope_ntk").fingerprint != trial().fingerprint


def test_a_variant_with_other_parameters_or_no_arrow_is_refused() -> None:
    with pytest.raises(UserError, match="'t5' cannot take the place of a trained 'rope'"):
        run(trial(evaluation__variants="rope -> t5"))
    with pytest.raises(UserError, match="names no pair"):
        trial(evaluation__variants="rope_ntk")
    with pytest.raises(UserError, match="unknown encoding 'rope_ntl'"):
        trial(evaluation__variants="rope -> rope_ntl")


def test_the_tidy_table_has_lengths_variants_and_refusals(tmp_path: Any) -> None:
    study = from_preset("longtext", "mini", {**SMALL, "data.max_length": "16", "tasks": ["induction"], "seeds": [0],
                                             "encodings": [{"name": "learned"}, {"name": "rope"}],
                                             "evaluation.variants": "rope -> rope_ntk:factor=8"})
    whole = plan(study)
    frame = _frame(whole, {one.fingerprint: run_and_keep(one, Store(tmp_path)) for one in whole.trials}, ())
    assert set(frame["encoding"]) == {"learned", "rope", "rope -> rope_ntk:factor=8"}
    shown = frame[frame["primary"]]
    for encoding in set(frame["encoding"]):
        assert shown[shown["encoding"] == encoding]["length"].tolist() == [16, 32, 64, 128]
    assert shown[shown["encoding"] == "learned"]["status"].tolist() == ["done", *["refused"] * 3]
    from posbench.comparison import compare
    from posbench.lengths import tables, trained

    comparison = compare(frame, baseline="rope")
    assert comparison.cells["learned", "induction@32"].trouble == "refused"
    assert comparison.cells["learned", "induction@16"].estimate is not None
    assert set(trained(frame)["encoding"]) == {"learned", "rope"} and set(trained(frame)["status"]) == {"done"}
    titles = [table.title for table in tables(frame, (), left_out=())]
    assert titles == ["Token accuracy", "Effective length", "Area under the curve", "Refused lengths"]


def test_a_length_whose_output_is_not_finite_counts_as_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("ab=", "ba"), ("abbabb=", "bbabba")]
    objective = with_rows(trial(evaluation__longest="2"), monkeypatch, train=rows, validation=rows,
                          test=[*rows, ("a" * 20 + "=", "a")])

    def right_and_then_nothing(ids: torch.Tensor) -> torch.Tensor:
        logits = 9.0 * nn.functional.one_hot(ids.roll(-1, 1), objective.vocabulary)
        logits[:, -1] = 0.0
        return logits if ids.shape[1] < 16 else logits * math.nan

    found, _, arrays = objective._at_all_lengths(Fixed(right_and_then_nothing), "test", None)
    assert [row["value"] for row in found if row["primary"]][1] == math.inf and "test/gold, 32" not in arrays
    summed = {row["metric"]: row["value"] for row in found if row["length"] is None}
    assert summed[REACH] in (0.0, 16.0) and summed[AREA] == pytest.approx(found[0]["value"] / 2)


# Running text.


def text(monkeypatch: pytest.MonkeyPatch, content: bytes, **changes: str) -> Any:
    one = trial("rope", "lm", "docs", **{"data__max_length": "8", "evaluation__longest": "4",
                                         "evaluation__tokens": "1000000", **changes})
    part = (content.decode("latin-1"),)
    return with_rows(one, monkeypatch, train=[part], validation=[part], test=[part])


def test_a_uniform_model_costs_log2_of_the_vocabulary_at_every_length_and_stride(monkeypatch) -> None:
    for stride in ("1", "2", "8"):
        objective = text(monkeypatch, bytes(range(256)) * 2, evaluation__tokens="64", evaluation__stride=stride)
        assert objective.vocabulary == 256
        scores = objective.score(Fixed(lambda ids: torch.zeros(*ids.shape, 256)), "test")
        assert [row["value"] for row in scores.rows] == pytest.approx([8.0] * (3 + 3 + 3), abs=1e-6)


def test_bits_are_those_of_a_known_model_over_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that knows the share of each byte, and gives the one that it has just read half of its trust."""
    # Few symbols, so that one often repeats the one before: otherwise every byte would cost the same.
    content = np.random.default_rng(0).integers(0, 3, 300, dtype=np.uint8).tobytes()

    def logits(ids: torch.Tensor) -> torch.Tensor:
        shares = torch.full((*ids.shape, 256), 0.5 / 256)
        return (shares + 0.5 * nn.functional.one_hot(ids, 256)).log()

    objective = text(monkeypatch, content)
    # The longest window is 32: 32 bytes of context, then as many whole windows as there are.
    assert objective.scored("test") == (32, 32 + 8 * 32)
    nats = [-math.log(0.5 / 256 + 0.5 * (content[place] == content[place - 1])) for place in range(32, 288)]
    for window in (8, 16, 32):
        for stride in (window, 4):
            assert objective.nats(Fixed(logits), "test", window, stride) == pytest.approx(np.array(nats), rel=1e-5)
    scores = objective.score(Fixed(logits), "test")
    expected = math.fsum(nats) / len(nats) / math.log(2)
    for row in scores.rows:
        if row["metric"] != "bits by place in window":
            assert row["value"] == pytest.approx(expected, rel=1e-6) and row["n"] == 256
    by_place = [row for row in scores.rows if row["metric"] == "bits by place in window"]
    assert [(row["length"], row["n"]) for row in by_place] == [(8, 256), (16, 128), (32, 128)]
    assert by_place[0]["value"] == pytest.approx(expected, rel=1e-6)
    for row in by_place[1:]:
        # Every place of every window, looked at one by one: the second half of windows of this length.
        own = [cost for place, cost in enumerate(nats) if place % row["length"] >= row["length"] // 2]
        assert row["value"] == pytest.approx(math.fsum(own) / len(own) / math.log(2), rel=1e-6)


def test_places_of_windows_are_each_in_one_bin() -> None:
    for trained, longest in ((64, 8), (12, 4), (4, 8), (8, 1)):
        scored = lengths(trained, longest)
        bins = [pair for length in scored for pair in itertools.pairwise(corpus.places(scored, length))]
        assert [place for start, stop in bins for place in range(start, stop)] == list(range(scored[-1]))
    assert corpus.places((64, 128), 64) == [0, 8, 16, 32, 64] and corpus.places((64, 128), 128) == [64, 128]
    assert corpus.places((12, 24), 12) == [0, 8, 12]


def test_an_encoding_with_an_end_has_the_same_bytes_at_each_place_as_all_others() -> None:
    rows = {}
    for encoding in ("learned", "nope"):
        one = trial(encoding, "lm", "docs", evaluation__tokens="256")
        objective = objective_of(one)
        model = Transformer(one.config.model, one.encoding, one.options, vocabulary=256, length=16,
                            head=objective.head(one.task, 256)).eval()
        model.initialise(0)
        with torch.no_grad():
            scores = objective.score(model, "test")
        rows[encoding] = {row["length"]: row["n"] for row in scores.rows if row["metric"] == corpus.BY_PLACE}
    assert rows == {"learned": {8: 128, 16: 128}, "nope": {8: 128, 16: 128, 32: 128, 64: 128, 128: 128}}


def test_the_same_text_in_the_first_and_in_a_later_window_costs_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every window is built alike: none has a start symbol of its own, and none carries anything over."""
    objective = text(monkeypatch, bytes(range(16)) * 40, evaluation__longest="1")
    one = objective.trial
    model = Transformer(one.config.model, one.encoding, one.options, vocabulary=256, length=8,
                        head=objective.head(one.task, 256)).eval()
    model.initialise(0)
    with torch.no_grad():
        nats = objective.nats(model, "test", 8, 8).reshape(-1, 8)
    for window in range(2, 8, 2):
        assert nats[window] == pytest.approx(nats[0], rel=1e-6)
    assert abs(nats[1] - nats[0]).max() > 1e-3


def test_sliding_bits_are_those_of_a_loop_over_single_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte in a window of its own run, one forward pass for each, and the sums over them."""
    content = np.random.default_rng(5).integers(0, 256, 150, dtype=np.uint8)
    objective = text(monkeypatch, content.tobytes(), evaluation__longest="2", evaluation__stride="2")
    one = objective.trial
    model = Transformer(one.config.model, one.encoding, one.options, vocabulary=256, length=8,
                        head=objective.head(one.task, 256)).eval()
    model.initialise(0)
    first, end = objective.scored("test")
    assert (first, end) == (16, 144)  # the last six bytes are no whole window of 16
    with torch.no_grad():
        rows = objective.score(model, "test").rows
        for window, stride in ((8, 8), (16, 16), (8, 2), (16, 2)):
            total = 0.0
            for place in range(first, end):
                last = first + ((place - first) // stride + 1) * stride  # one past the window's last target
                read = torch.tensor([content[last - window - 1 : place].tolist()])
                total -= float(model(read)[0, -1].double().log_softmax(-1)[content[place]])
            name = "bits per byte" if stride == window else "bits per byte, sliding"
            value = next(row["value"] for row in rows if (row["metric"], row["length"]) == (name, window))
            assert value == pytest.approx(total / (end - first) / math.log(2), rel=1e-5)


def test_a_window_sees_so_many_bytes_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    widths: dict[tuple[int, int], set[int]] = {}
    objective = text(monkeypatch, bytes(range(200)))
    for window, stride in ((8, 8), (8, 2), (32, 2)):
        read: list[torch.Tensor] = []

        def noted(ids: torch.Tensor, read: list[torch.Tensor] = read) -> torch.Tensor:
            read.append(ids)
            return torch.zeros(*ids.shape, 256)

        objective.nats(Fixed(noted), "test", window, stride)
        rows = torch.cat(read)
        widths[window, stride] = {rows.shape[1]}
        # Bytes count up: each window is a run of the text, ends one byte before its last target, and moves by stride.
        assert (rows[:, 1:] - rows[:, :-1] == 1).all() and (rows[1:, 0] - rows[:-1, 0] == stride).all()
        assert int(rows[0, -1]) == 32 + stride - 2
    assert widths == {(8, 8): {8}, (8, 2): {8}, (32, 2): {32}}


def test_bits_are_a_sum_over_bytes_and_no_mean_of_means() -> None:
    # 100 bytes at 2 nats and 10 at 4: 240 nats over 110 bytes.
    nats = np.array([2.0] * 100 + [4.0] * 10)
    assert BITS.function(gold=np.empty(110), predicted=nats) == pytest.approx(240 / 110 / math.log(2))
    assert not BITS.higher_is_better


def test_trained_on_text_the_order_of_batches_depends_on_the_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = text(monkeypatch, bytes(range(256)) * 4)
    one, two, other = (next(objective.batches(seed)) for seed in (0, 0, 1))
    assert np.array_equal(one, two) and not np.array_equal(one, other)
    assert one.shape == (4, 9) and (np.diff(one.astype(int), axis=1) % 256 == 1).all()


def test_a_text_that_is_too_short_and_a_stride_that_does_not_fit_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="the split 'test' has 40 bytes and needs 65"):
        text(monkeypatch, bytes(40))
    with pytest.raises(UserError, match=r"stride = 3 does not divide .* = 8, .*choose a divisor \(1, 2, 4, 8\)"):
        text(monkeypatch, bytes(100), evaluation__stride="3")
    with pytest.raises(UserError, match=r"stride = 4, half of the length by default, does not divide .*\(1, 3, 9\)"):
        text(monkeypatch, bytes(100), data__max_length="9")


def test_an_encoder_is_refused() -> None:
    with pytest.raises(UserError, match="use decoder"):
        objective_of(trial(model__shape="encoder"))


def test_the_header_names_trained_length_windows_strides_and_scored_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = text(monkeypatch, bytes(range(256)) * 2, evaluation__tokens="64", evaluation__stride="2")
    assert objective.stated()["evaluation"] == (
        "trained on windows of 8 bytes, scored in windows of 8, 16, 32, the same 64 bytes each time: non-overlapping "
        "(stride = window, each after 1 to window bytes) and sliding (stride 2, each byte after more than window - 2 "
        "bytes)")


def test_scores_follow_from_the_stored_sums_and_a_record_is_enough_to_run_again() -> None:
    one = trial("rope+attention=linear+rotation=before", "lm", "docs", evaluation__tokens="256")
    record, arrays = run(one)
    for row in record.rows:
        if row["metric"] in ("bits per byte", "bits per byte, sliding"):
            sliding = " sliding" if row["metric"].endswith("sliding") else ""
            nats = arrays[f"test/nats{sliding}, {row['length']}"]
            assert len(nats) == row["n"] == 256 and row["value"] == pytest.approx(nats.sum() / 256 / math.log(2))
    again = resolve(build(TrialConfig, record.config, where="record"))
    assert again.fingerprint == record.fingerprint and run(again)[0].rows == record.rows


def test_trials_of_a_study_differ_in_the_encoding_and_in_what_its_label_says() -> None:
    study = from_preset("lm", "mini", {})
    plain = [to_plain(study.trial(choice, "docs", 0)) for choice in study.encodings]
    for choice, one in zip(study.encodings, plain, strict=True):
        assert {name for name in one if one[name] != plain[0][name]} <= {"encoding", "model"}
        changed = {name for name, value in one["model"].items() if value != plain[0]["model"][name]}
        assert all(f"+{name}={one['model'][name]}" in choice.label for name in changed)


# Choices that change the model.


def test_a_choice_may_change_the_model_and_is_named_so() -> None:
    choice = EncodingChoice.parse("rope:base=500+attention=linear+rotation=before")
    assert (choice.name, choice.options) == ("rope", {"base": "500"})
    assert choice.model == {"attention": "linear", "rotation": "before"}
    assert choice.label == "rope:base=500+attention=linear+rotation=before"
    assert EncodingChoice.parse("a+b/mine.py").name == "a+b/mine.py"
    with pytest.raises(UserError, match="given twice"):
        EncodingChoice.parse("rope+attention=linear+attention=softmax")
    study = from_preset("lm", "mini", {})
    config = study.trial(choice, "docs", 0)
    assert config.model == dataclasses.replace(study.model, attention="linear", rotation="before")
    with pytest.raises(UserError, match=r"unknown setting 'model.atention'.*'attention'"):
        study.trial(EncodingChoice.parse("rope+atention=linear"), "docs", 0)


def test_the_same_trial_is_the_same_however_it_is_named() -> None:
    named = trial("rope+attention=linear", "lm", "docs")
    asked = trial("rope", "lm", "docs", model__attention="linear")
    assert named.fingerprint == asked.fingerprint != trial("rope", "lm", "docs").fingerprint


def test_settings_that_a_suite_does_not_use_change_no_fingerprint() -> None:
    plain = {"suite": "glue", "preset": "mini", "encodings": [{"name": "rope"}], "tasks": ["cola"], "seeds": [0],
             "train": {"steps": 1}}
    study = build(StudyConfig, plain, where="test")
    assert study.evaluation == EvaluationConfig()
    one = resolve(study.trial(study.encodings[0], "cola", 0))
    other = dataclasses.replace(study, evaluation=EvaluationConfig(longest=2))
    assert resolve(other.trial(study.encodings[0], "cola", 0)).fingerprint != one.fingerprint


def test_what_does_not_fit_is_told_before_anything_runs() -> None:
    grid = {**SMALL, "data.max_length": "16", "tasks": ["induction"], "seeds": [0], "encodings": [{"name": "rope"}]}
    with pytest.raises(UserError, match="'learned' cannot take the place of a trained 'rope'"):
        plan(from_preset("longtext", "mini", {**grid, "evaluation.variants": "rope -> learned"}))
    text_grid = {**grid, "tasks": ["docs"], "data.max_length": "16384"}
    with pytest.raises(UserError, match=r"the split 'validation' has \d+ bytes and needs 32769"):
        plan(from_preset("lm", "mini", text_grid))
