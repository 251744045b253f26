"""The tidy table: whole rows, one a measurement, and none lost."""

import math

import pytest

from posbench import results
from posbench.errors import UserError
from tests.fake_study import broken, row


def test_columns_and_order_are_those_declared():
    table = results.frame([row(seed=1), row(seed=0)])
    assert list(table.columns) == list(results.COLUMNS)
    assert list(table["seed"]) == [1, 0]


def test_empty_table_has_the_columns():
    assert list(results.frame([]).columns) == list(results.COLUMNS)


@pytest.mark.parametrize("change", [{"epoch": 3}, {"value": ...}], ids=["unknown", "missing"])
def test_unknown_and_missing_columns_are_refused_by_name(change):
    entry = row()
    for name, value in change.items():
        if value is ...:
            del entry[name]
        else:
            entry[name] = value
    with pytest.raises(UserError, match=next(iter(change))):
        results.frame([entry])


@pytest.mark.parametrize("changes", [{}, {"options": None}, {"split": None}, {"length": 512}])
def test_two_results_for_one_cell_name_both_trials(changes):
    with pytest.raises(UserError, match=r"first.*second"):
        results.frame([row(fingerprint="first", **changes), row(seed=5), row(fingerprint="second", **changes)])


@pytest.mark.parametrize("part", results.KEY)
def test_rows_that_differ_in_any_part_of_the_key_are_both_kept(part):
    other = {"seed": 7, "length": 512}.get(part, "other")
    assert len(results.frame([row(), row(**{part: other})])) == 2


def test_group_by_keeps_rows_with_unknown_keys():
    table = results.frame([row(options=None, length=None, split=None), row(options="{}", length=512)])
    groups = table.groupby(results.KEY, dropna=False)["value"].count()
    assert len(groups) == 2 and groups.sum() == 2


def test_options_are_one_text_whatever_the_order_of_their_names():
    table = results.frame([row(options={"b": 1, "a": 2}), row(seed=1, options={"a": 2, "b": 1})])
    assert set(table["options"]) == {'{"a":2,"b":1}'}


@pytest.mark.parametrize("status", results.WITHOUT_VALUE)
def test_a_trial_without_a_score_is_a_row_and_may_carry_none(status):
    table = results.frame([broken("rope", "cola", 0, status)])
    assert table["status"].iloc[0] == status and math.isnan(table["value"].iloc[0])
    with pytest.raises(UserError, match=status):
        results.frame([row(status=status, value=0.5)])


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_a_done_trial_whose_score_is_no_number_is_degenerate_and_says_why(value):
    entry = results.frame([row(value=value, metric="spearman")]).iloc[0]
    assert entry["status"] == "degenerate" and "spearman" in entry["reason"] and math.isnan(entry["value"])


@pytest.mark.parametrize("changes", [{"status": "ok"}, {"primary": None}, {"higher_is_better": "yes"}, {"seed": None},
                                     {"seed": 1.5}, {"encoding": ""}, {"task": None}])
def test_malformed_rows_are_refused(changes):
    with pytest.raises(UserError):
        results.frame([row(**changes)])


def test_planned_trials_that_were_not_run_become_rows():
    table = results.frame([row("rope", seed=0), broken("rope", "cola", 1, "failed")])
    plan = [("rope", "cola", 0), ("rope", "cola", 1), ("rope", "cola", 2), ("nope", "cola", 0)]
    whole = results.complete(table, plan)
    added = whole[whole["status"] == "missing"]
    assert [(entry.encoding, entry.seed) for entry in added.itertuples()] == [("rope", 2), ("nope", 0)]
    assert set(added["metric"]) == {"accuracy"} and added["value"].isna().all() and len(whole) == 4


def test_completing_a_complete_table_changes_nothing():
    table = results.frame([row(), row(seed=1, length=64, split=None)])
    assert results.complete(table, [("rope", "cola", 0)]).equals(table)
