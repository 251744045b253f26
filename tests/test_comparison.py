"""What is compared with what: pairs, families, lost runs, and proof that equal encodings are seldom told apart."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats import power

from posbench import results
from posbench.comparison import ALL_TASKS, compare
from posbench.errors import UserError
from tests.fake_study import broken, row, table


def test_better_and_worse_follow_the_metrics_direction():
    scores = {"learned": {"t": [0.5] * 8}, "up": {"t": [0.6 + 0.001 * i for i in range(8)]}}
    for higher, verdict in ((True, "better"), (False, "worse")):
        comparison = compare(table(scores, higher_is_better=higher))
        assert comparison.differences["up", "t"].verdict == verdict
        assert comparison.differences["up", "t"].estimate.mean == pytest.approx(0.1035)


def test_three_seeds_say_how_many_more_are_needed():
    scores = {name: {"t": [0.5 + place, 0.6 + place, 0.7 + place]}
              for place, name in enumerate(["learned", *"abcdefg"])}
    comparison = compare(table(scores))
    assert comparison.needed == 9
    assert {entry.verdict for entry in comparison.differences.values()} == {"needs 6 more seeds"}


def test_equal_runs_show_no_difference():
    comparison = compare(table({"learned": {"t": [0.1] * 6}, "twin": {"t": [0.1] * 6}}))
    entry = comparison.differences["twin", "t"]
    assert (entry.p, entry.verdict, comparison.detectable["t"]) == (1.0, "no difference shown", 0.0)


def test_pairs_are_by_seed_and_not_by_place():
    rows = [row("learned", seed=seed, value=0.1 * seed) for seed in range(6)]
    rows += [row("rope", seed=seed, value=0.1 * seed + 0.01) for seed in reversed(range(6))]
    estimate = compare(results.frame(rows)).differences["rope", "cola"].estimate
    assert estimate.mean == pytest.approx(0.01) and estimate.sd == pytest.approx(0, abs=1e-12)


def test_unequal_seeds_have_no_mean_and_pair_what_both_have():
    scores = {"learned": {"t": [0.1, 0.2, 0.3]}, "rope": {"t": [0.2, 0.3]}}
    comparison = compare(table(scores))
    assert comparison.cells["rope", "t"].estimate is None
    assert comparison.cells["rope", "t"].trouble == "1/3 missing"
    assert comparison.differences["rope", "t"].pairs == ("0", "1")
    assert comparison.notes and "1 of 2 cells" in comparison.notes[0]


def test_a_seed_that_nobody_has_run_yet_takes_no_mean_away():
    scores = {name: {"t": [0.1, 0.2, "missing"]} for name in ("learned", "rope")}
    comparison = compare(table(scores))
    assert comparison.cells["rope", "t"].estimate.n == 2 and comparison.cells["rope", "t"].counts["missing"] == 1


@pytest.mark.parametrize("status", ["diverged", "failed", "refused"])
def test_a_lost_seed_is_shown_ranks_last_and_is_not_compared(status):
    good, bad = [0.9] * 7, [0.9] * 6 + [status]
    comparison = compare(table({"learned": {"a": [0.1] * 7, "b": [0.1] * 7}, "rope": {"a": good, "b": bad}}))
    cell = comparison.cells["rope", "b"]
    assert cell.trouble == f"1/7 {status}" and cell.counts[status] == 1 and cell.counts["done"] == 6
    assert comparison.differences["rope", "b"].verdict == f"not compared: 1/7 {status}"
    assert comparison.differences["rope", "a"].verdict == "better"
    assert comparison.ranking.average == {"learned": 1.5, "rope": 1.5}
    assert comparison.cells["rope", ALL_TASKS].estimate is None


def test_a_baseline_that_lost_a_seed_is_compared_with_nobody():
    comparison = compare(table({"learned": {"t": ["diverged", 0.1, 0.2]}, "rope": {"t": [0.1, 0.2, 0.3]}}))
    assert comparison.differences["rope", "t"].verdict == "not compared: baseline 1/3 diverged"


def test_an_encoding_whose_trials_all_failed_is_still_a_row():
    scores = {"learned": {"a": [0.1, 0.2], "b": [0.1, 0.2]}, "rope": {"a": ["failed"] * 2, "b": ["failed"] * 2}}
    comparison = compare(table(scores))
    assert comparison.encodings == ("learned", "rope")
    assert len(comparison.table()) == 2 * 3 and comparison.cells["rope", "a"].trouble == "failed"
    assert comparison.ranking.average["rope"] == 2


def test_a_task_that_failed_everywhere_is_still_a_column():
    scores = {name: {"a": [0.1, 0.2], "b": ["failed"] * 2} for name in ("learned", "rope")}
    assert [column.label for column in compare(table(scores)).columns] == ["a", "b", ALL_TASKS]


def test_the_splits_of_a_task_that_failed_everywhere_are_columns():
    rows = [{**broken(name, "mnli", 0, "failed"), "split": split}
            for name in ("learned", "rope") for split in ("m", "mm")]
    comparison = compare(results.frame(rows))
    assert [column.label for column in comparison.columns] == ["mnli-m", "mnli-mm"]
    assert comparison.cells["rope", "mnli-mm"].trouble == "failed"


def test_degenerate_runs_count_and_an_undefined_score_ranks_last():
    rows = [row(name, task, seed, 0.5) for name in ("learned", "rope") for task in "ab" for seed in (0, 1)]
    rows[0].update(value=0.0, status="degenerate")
    rows[-1].update(value=None, status="degenerate")
    comparison = compare(results.frame(rows))
    first, last = comparison.cells["learned", "a"], comparison.cells["rope", "b"]
    assert first.estimate.n == 2 and first.estimate.mean == 0.25 and first.counts["degenerate"] == 1
    assert last.estimate is None and last.trouble == "1/2 degenerate"
    assert comparison.ranking.average == {"learned": 1.5, "rope": 1.5}


def test_a_task_with_a_missing_cell_is_left_out_of_the_ranks_and_named():
    scores = {"learned": {t: [0.1, 0.2] for t in "abc"}, "rope": {"a": [0.2, 0.3], "b": [0.2, 0.3], "c": [0.1]}}
    comparison = compare(table(scores))
    assert comparison.ranking.tasks == ("a", "b") and any(note.endswith(": c.") for note in comparison.notes)


def test_two_scored_splits_are_two_columns_and_one_task():
    rows = [row(name, task, seed, value, split=split)
            for name in ("learned", "rope") for seed in (0, 1)
            for task, split, value in (("mnli", "dev-m", 0.2), ("mnli", "dev-mm", 0.4), ("rte", "dev", 0.9))]
    comparison = compare(results.frame(rows))
    assert [column.label for column in comparison.columns] == ["mnli-m", "mnli-mm", "rte", ALL_TASKS]
    assert comparison.cells["rope", ALL_TASKS].estimate.mean == pytest.approx((0.3 + 0.9) / 2)
    assert comparison.differences["rope", ALL_TASKS].pairs == ("0", "1")
    assert comparison.ranking.friedman.n == 2


def test_lengths_are_columns():
    rows = [row(name, "copy", seed, length=length) for name in ("learned", "rope") for seed in (0, 1)
            for length in (64, 128)]
    assert [column.label for column in compare(results.frame(rows)).columns] == ["copy@64", "copy@128"]


def test_the_difference_over_all_tasks_is_paired_by_seed_and_blind_to_the_spread_between_tasks():
    generator = np.random.default_rng(2)
    base, lifts = generator.normal(size=(3, 7)), np.array([[-4.0], [0.0], [5.0]])
    new = base + lifts + generator.normal(size=7)
    scores = {name: {task: list(values[place]) for place, task in enumerate("abc")}
              for name, values in (("learned", base), ("rope", new))}
    comparison = compare(table(scores))
    entry = comparison.differences["rope", ALL_TASKS]
    wanted = stats.ttest_rel(new.mean(0), base.mean(0)).confidence_interval(0.95)
    assert (entry.estimate.low, entry.estimate.high) == pytest.approx(tuple(wanted)) and len(entry.pairs) == 7
    # The exact test by brute force: both signs of each seed's mean.
    changes = (new - base).mean(0)
    totals = [abs(np.dot(signs, changes)) for signs in itertools.product((1, -1), repeat=7)]
    assert entry.p == pytest.approx(np.mean(np.array(totals) >= abs(changes.sum()) - 1e-9))
    found = power.TTestPower().solve_power(nobs=7, alpha=0.05, power=0.8, alternative="two-sided")
    assert comparison.detectable[ALL_TASKS] == pytest.approx(found * changes.std(ddof=1), rel=1e-3)


def test_three_seeds_of_many_tasks_are_three_pairs_and_no_verdict():
    scores = {name: {task: [0.1 * seed + lift for seed in range(3)] for task in "abcdefghi"}
              for name, lift in (("learned", 0.0), ("rope", 0.01))}
    entry = compare(table(scores)).differences["rope", ALL_TASKS]
    assert (entry.p, entry.verdict) == (pytest.approx(2 / 2**3), "needs 3 more seeds")


@pytest.mark.parametrize(("scores", "told"), [
    ({"nope": {"t": [0.1]}, **{name: {"t": ["failed"]} for name in "abcd"}}, "5 encodings, 1 of them with a score,"),
    ({"nope": {"t": [0.1]}, "rope": {"t": [0.2]}}, "here are 2 encodings and 1 such task."),
    ({"nope": {"t": ["failed"]}}, "here is 1 encoding, none of them with a score, and 1 such task."),
    ({"nope": {"t": [0.1], "u": [0.1]}, "rope": {"t": [0.2], "u": ["missing"]}}, "are 2 encodings and 1 such task."),
])
def test_a_study_without_ranks_says_what_there_is_to_rank(scores, told):
    (note,) = [note for note in compare(table(scores)).notes if note.startswith("No ranks")]
    assert told in note


def test_tasks_of_two_directions_have_no_mean():
    rows = [row(name, task, seed, higher_is_better=task == "a") for name in ("learned", "rope") for task in "ab"
            for seed in (0, 1)]
    comparison = compare(results.frame(rows))
    assert ALL_TASKS not in {column.label for column in comparison.columns}
    assert any("No mean over tasks" in note for note in comparison.notes)


def test_other_numbers_of_examples_are_not_paired():
    rows = [row(name, seed=seed, n=n) for name, n in (("learned", 99), ("rope", 100)) for seed in (0, 1)]
    comparison = compare(results.frame(rows))
    assert comparison.differences["rope", "cola"].verdict == "not compared: other numbers of examples"


def test_a_missing_baseline_is_said():
    comparison = compare(table({"rope": {"t": [0.1, 0.2]}}))
    assert comparison.baseline is None and not comparison.differences and "'learned'" in comparison.notes[0]


def test_one_label_for_two_sets_of_options_is_refused():
    with pytest.raises(UserError, match="'rope'"):
        compare(results.frame([row(options="{}"), row(seed=1, options='{"base":5}')]))


def test_a_metric_of_two_directions_is_refused():
    with pytest.raises(UserError, match="accuracy"):
        compare(results.frame([row(), row(seed=1, higher_is_better=False)]))


def test_tasks_whose_seeds_lean_one_way_together_raise_no_false_alarm_over_all_of_them():
    """What a seed's first weights do to one encoding they may do to it in every task."""
    generator, studies, found = np.random.default_rng(7), 200, 0
    blank = table({name: {task: [0.0] * 6 for task in "abcd"} for name in ("learned", "rope")})
    for _ in range(studies):
        scores = generator.normal(size=(2, 1, 6)) + 0.3 * generator.normal(size=(2, 4, 6))
        entry = compare(blank.assign(value=scores.ravel())).differences["rope", ALL_TASKS]
        found += entry.verdict in ("better", "worse")
    assert 0 < found / studies <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / studies)


def test_same_encoding_under_four_names_is_seldom_significant():
    generator, studies = np.random.default_rng(4), 1000
    blank = table({name: {"t": [0.0] * 7} for name in ("learned", *"abc")})
    found = 0
    for _ in range(studies):
        scores = generator.normal(size=(4, 7)) + generator.normal(size=7)
        comparison = compare(blank.assign(value=scores.ravel()))
        verdicts = {entry.verdict for entry in comparison.differences.values()}
        found += bool(verdicts & {"better", "worse"})
    assert found / studies <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / studies)
    assert found > 0
