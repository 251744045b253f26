"""Published numbers beside those of a study, and what is said of the two. Values by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from posbench.reports.scoreboard import REPORT

from posbench import provenance, results
from posbench.provenance import TaskFacts
from posbench.published import RULE, tables
from posbench.study import Plan, from_preset
from posbench.suite import Direction, Published
from posbench.trial import Trial, load_suite
from tests.fake_study import broken, row, study, table

ENTRY = Published(preset="paper", task="t", encoding="rope", model="Model", metric="accuracy", source="Paper",
                  value="80.4", split="validation", note="An erratum.")
CLAIM = Direction(preset="mini", encoding="rope", over="learned", metric="accuracy", split="validation", told="higher",
                  source="Paper")
# Mean 80.4, deviation sqrt(0.63), t(2) = 4.302653: half of the interval is 1.9717.
SCORES = [80.1, 81.3, 79.8]


def cells(entry, frame, **settings):
    """The row of one entry, with the lines of a cell joined."""
    (found,) = tables([entry], frame, **{"alpha": 0.05, "common": (), **settings})
    (cell,) = found.rows
    return tuple(text.replace("\n", " ") for text in cell)


@pytest.mark.parametrize(("value", "verdict"), [
    ("80.4", "reproduced"),
    ("82.4", "reproduced"),  # 80.4 + 1.9717 = 82.3717, and 82.4 may have been 82.35
    ("82.5", "not reproduced"),  # 82.45 at least
    ("78.4", "reproduced"),  # 80.4 - 1.9717 = 78.4283, and 78.4 may have been 78.45
    ("78.3", "not reproduced"),
    ("82.43", "not reproduced"),  # two decimals are off by 0.005 at most
])
def test_a_number_is_reproduced_within_the_interval_and_its_own_rounding(value, verdict):
    found = cells(replace(ENTRY, value=value), table({"rope": {"t": SCORES}}))
    assert found[:4] == ("t", "accuracy, validation", "rope", f"{value} (Model)") and found[5] == verdict
    assert found[4] == ("80.40 ±1.97 (n = 3)" if len(value) == 4 else "80.400 ±1.972 (n = 3)")


def test_a_number_in_percent_is_held_against_the_share_times_a_hundred():
    frame = table({"rope": {"t": [0.801, 0.813, 0.798]}})
    assert cells(replace(ENTRY, scale=100.0, value="82.4"), frame)[4:] == ("80.40 ±1.97 (n = 3)", "reproduced")
    assert cells(replace(ENTRY, scale=100.0, value="82.5"), frame)[5] == "not reproduced"


def test_equal_scores_reproduce_what_rounds_to_them_alone():
    frame = table({"rope": {"t": [27.35] * 3}})
    assert [cells(replace(ENTRY, value=value), frame)[5] for value in ("27.3", "27.4", "27.5")] == [
        "reproduced", "reproduced", "not reproduced"]


def test_one_seed_decides_nothing():
    assert cells(ENTRY, table({"rope": {"t": [80.4]}}))[4:] == ("80.40 (n = 1)", "undecided")


def test_what_has_no_result_is_not_run_and_lucky_seeds_are_none():
    frame = table({"rope": {"t": [80.1, "diverged", 79.8]}, "learned": {"t": SCORES}})
    assert cells(ENTRY, frame)[4:] == ("-", "not run: 1/3 diverged")
    for change in ({"encoding": "alibi"}, {"task": "u"}, {"split": "test"}, {"metric": "f1"}):
        assert cells(replace(ENTRY, **change), frame)[4:] == ("-", "not run")
    planned = results.complete(frame, [("alibi", "t", seed) for seed in range(3)])
    assert cells(replace(ENTRY, encoding="alibi"), planned)[4:] == ("-", "not run")


def test_a_reason_comes_before_every_other_verdict():
    entry = replace(ENTRY, incomparable="another split")
    assert cells(entry, table({"rope": {"t": SCORES}}))[4:] == ("80.40 ±1.97 (n = 3)", "not comparable: another split")
    assert cells(entry, table({"learned": {"t": SCORES}}))[4:] == ("-", "not comparable: another split")


def test_other_rows_than_those_published_are_no_comparison():
    frame = table({"rope": {"t": SCORES}}, n=1014)
    assert cells(replace(ENTRY, rows=3003), frame)[5] == "not comparable: 1,014 rows scored, 3,003 published"
    assert cells(replace(ENTRY, rows=1014), frame)[5] == "reproduced"


def test_names_of_the_split_here_and_a_metric_that_no_table_shows():
    frame = table({"rope": {"t": SCORES}}, split="test", primary=False, metric="BLEU split")
    assert cells(replace(ENTRY, split="newstest", splits=("newstest", "test"), metric="BLEU split"), frame)[5] == (
        "reproduced")


def pairs(differences, base=1.0):
    return table({"learned": {"t": [base] * len(differences)}, "rope": {"t": [base + one for one in differences]}})


# Mean 0.4, deviation 0.1, standard error 0.1 / sqrt(3) = 0.057735; t(2) is 4.302653 at 95 % and 6.205347 at 97.5 %.
@pytest.mark.parametrize(("differences", "verdict"), [
    ([0.3, 0.4, 0.5], "reproduced"),  # from 0.1516
    ([0.1, 0.2, 0.3], "not reproduced: no difference is shown"),  # from 0.2 - 0.2484 < 0
    ([-0.3, -0.4, -0.5], "not reproduced: the opposite is shown"),
    ([0.4], "undecided"),
])
def test_a_direction_is_judged_by_the_paired_difference(differences, verdict):
    found = cells(CLAIM, pairs(differences))
    assert found[:4] == ("t", "accuracy, validation", "rope less learned", "higher") and found[5] == verdict


def test_a_direction_of_a_loss_is_downwards():
    lower = table({"learned": {"t": [2.0, 2.1, 2.2]}, "rope": {"t": [1.7, 1.7, 1.7]}}, higher_is_better=False)
    assert cells(CLAIM, lower)[4:] == ("-.400 ±.248 (n = 3)", "reproduced")
    higher = table({"rope": {"t": [2.0, 2.1, 2.2]}, "learned": {"t": [1.7, 1.7, 1.7]}}, higher_is_better=False)
    assert cells(CLAIM, higher)[4:] == ("+.400 ±.248 (n = 3)", "not reproduced: the opposite is shown")


def test_directions_are_corrected_for_their_number():
    frame = pairs([0.2, 0.3, 0.4])  # half of the interval 0.2484 alone, 0.3583 for two directions
    (alone,) = tables([CLAIM], frame, alpha=0.05, common=())
    (two,) = tables([CLAIM, replace(CLAIM, encoding="alibi")], frame, alpha=0.05, common=())
    assert alone.rows[0][4:] == ("+.300 ±.248 (n = 3)", "reproduced")
    assert two.rows[0][4:] == ("+.300 ±.358 (n = 3)", "not reproduced: no difference is shown")
    assert two.rows[1][5] == "not run" and "corrected for 2 directions" in two.notes[0] and RULE not in two.notes


def test_a_direction_is_that_of_the_trained_length():
    rows = [row(name, "t", seed, value + shift * (length > 64), length=length)
            for name, value, shift in (("learned", 1.0, 0.0), ("rope", 1.5, -1.0))
            for seed in (0, 1) for length in (128, 64)]
    found = cells(CLAIM, results.frame(rows))
    assert found[1] == "accuracy, validation at 64" and found[4].startswith("+.500") and found[5] == "reproduced"


def test_a_direction_without_one_of_its_sides_is_not_run():
    frame = table({"learned": {"t": [1.0, "failed"]}, "rope": {"t": [1.2, 1.3]}})
    assert cells(CLAIM, frame)[4:] == ("-", "not run: 1/2 failed")
    assert cells(CLAIM, results.frame([broken("nope", "t", 0, "failed")]))[4:] == ("-", "not run")


def test_every_form_of_the_report_has_the_table_its_rule_and_errata(tmp_path: Path) -> None:
    frame = table({"rope": {"t": SCORES}, "learned": {"t": SCORES}})
    written = {path.suffix: path.read_text() for path in REPORT.write(study(frame, tmp_path, published=(ENTRY,)))
               if path.stem == "scoreboard"}
    for text in written.values():
        assert "80.4 (Model)" in text and "An erratum." in text and "Published in: Paper." in text
        assert "lies within the 95" in re.sub(r"\s+", " ", text)
    assert "Published" not in REPORT.document(study(frame, tmp_path)).text()


def test_entries_of_all_suites_name_what_there_is() -> None:
    counts = {}
    for name in ("glue", "translation", "longtext", "lm"):
        suite = load_suite(name)
        counts[name] = len(suite.published)
        for entry in suite.published:
            labels = {choice.label for choice in from_preset(name, entry.preset, {}).encodings}
            assert entry.encoding in labels and entry.source
            if isinstance(entry, Direction):
                assert entry.over in labels
            else:
                metrics = {metric.name for metric in suite.tasks[entry.task].metrics}
                assert entry.metric in metrics | {"BLEU split"} and float(entry.value) < 100
    assert counts == {"glue": 14, "translation": 4, "longtext": 8, "lm": 16}


def test_published_values_are_those_of_the_paper() -> None:
    """RoFormer, tables of sections 4.1, 4.3 and of CAIL2019-SCM, entered a second time."""
    def values(suite: str, model: str) -> list[tuple[str, str, str]]:
        return [(entry.task, entry.split, entry.value) for entry in load_suite(suite).published if entry.model == model]

    assert {name: [value for *_, value in values("glue", name)] for name in ("BERT", "RoFormer")} == {
        "BERT": ["88.9", "93.5", "90.5", "85.8", "71.2", "84.6", "83.4"],
        "RoFormer": ["89.5", "90.7", "88.0", "87.0", "86.4", "80.2", "79.8"],
    }
    assert [task for task, *_ in values("glue", "BERT")] == ["mrpc", "sst2", "qnli", "stsb", "qqp", "mnli", "mnli"]
    assert {split for _, split, _ in values("glue", "BERT")} == {"test", "test_matched", "test_mismatched"}
    assert {value for *_, value in values("translation", "Transformer-base")} == {"27.3"}
    assert {value for *_, value in values("translation", "RoFormer")} == {"27.5"}
    assert [values("longtext", name) for name in ("BERT-512", "WoBERT-512", "RoFormer-512", "RoFormer-1024")] == [
        [("cail-512", "validation", "64.13"), ("cail-512", "test", "67.77")],
        [("cail-512", "validation", "64.07"), ("cail-512", "test", "68.10")],
        [("cail-512", "validation", "64.13"), ("cail-512", "test", "68.29")],
        [("cail-1024", "validation", "66.07"), ("cail-1024", "test", "69.79")],
    ]


def facts(rows: int) -> dict[str, TaskFacts]:
    return {"en-de": TaskFacts(rows={"train": rows}, cut={}, constants=(), content="", notes={}, stated={})}


@pytest.mark.parametrize(("changes", "rows", "why"), [
    ({}, 4_508_785, ""),
    ({"data.path": "somewhere", "train.threads": 2, "seeds": (7, 8)}, 4_508_785, ""),
    ({"data.source": "hub"}, 4_508_785, ""),
    ({}, 29_000, "trained on 29,000 rows, published on about 4,500,000"),
    ({"train.steps": 500}, 4_508_785, "settings are not the preset's: train.steps"),
    ({"data.source": "generated"}, 4_508_785, "settings are not the preset's: data.source"),
    ({"search.trials": 2, "search.seeds": (90,)}, 4_508_785, "settings are not the preset's: search"),
])
def test_a_preset_that_was_changed_or_trained_on_other_rows_is_not_the_papers(changes, rows, why):
    config = from_preset("translation", "paper", changes)
    plan = Plan(config, (Trial(None, None, None, load_suite("translation"), None, ""),))
    found = {entry.metric: entry.incomparable for entry in provenance.published(plan, facts(rows))}
    assert found == {"BLEU split": why, "BLEU": "the paper does not state its BLEU tool"}


def test_other_presets_have_no_entries() -> None:
    plan = Plan(from_preset("translation", "mini", {}),
                (Trial(None, None, None, load_suite("translation"), None, ""),))
    assert provenance.published(plan, facts(8000)) == ()
