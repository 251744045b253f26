"""Costs: what the tables hold, in which unit, and what happens to what breaks. No time is asserted."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pandas as pd
import pytest

from posbench import bench, outcome
from posbench.config import EncodingChoice, override
from posbench.errors import UserError
from tests.test_curves import first
from tests.test_study import posbench

SMALL = override(bench.STANDARD, {"lengths": [8, 16], "tokens": 32, "rounds": 3, "model.width": 16, "model.heads": 2,
                                  "model.layers": 1, "model.feedforward": 16})


def choices(*names: str) -> list[EncodingChoice]:
    return [EncodingChoice.parse(name) for name in names]


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return bench.measure(bench.loaded(choices("rope", "learned:max_length=8", "nope")), SMALL)


def test_every_encoding_is_measured_at_every_length(table: pd.DataFrame) -> None:
    cells = set(zip(table["encoding"], table["length"], table["rows"], strict=True))
    assert cells == {(name, length, 32 // length) for name in ("rope", "learned:max_length=8", "nope")
                     for length in (8, 16)}


def test_ratios_are_to_the_encoding_without_hooks(table: pd.DataFrame) -> None:
    assert (table[table["encoding"] == "nope"]["step_ratio"] == 1).all()
    rope = table[table["encoding"] == "rope"].set_index("length")
    bare = table[table["encoding"] == "nope"].set_index("length")
    assert set(rope["step_over"]) == {"nope"}
    for length in (8, 16):
        assert rope.loc[length, "step_ratio"] == pytest.approx(
            rope.loc[length, "step_seconds"] / bare.loc[length, "step_seconds"])
        assert rope.loc[length, "step_ratio_low"] <= rope.loc[length, "step_ratio_high"]
        assert rope.loc[length, "tokens_per_second"] == pytest.approx(32 / rope.loc[length, "step_seconds"])


def test_what_breaks_is_said_and_the_others_are_measured(table: pd.DataFrame) -> None:
    cell = table[(table["encoding"] == "learned:max_length=8") & (table["length"] == 16)].iloc[0]
    assert math.isnan(cell["step_seconds"]) and "8" in cell["reason"]
    shown = bench.document(table, SMALL)
    assert any("learned:max_length=8 at length 16" in text for text in shown.warnings)
    first = shown.parts[0]
    assert dict(zip([row[0] for row in first.rows], [row[2] for row in first.rows], strict=True))[
        "learned:max_length=8"] == "-"


@pytest.mark.parametrize(("load", "busy"), [(3.0, False), (3.1, True), (None, False)])
def test_a_busy_machine_is_told_by_bench_and_by_every_report_of_a_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: float | None, busy: bool
) -> None:
    """1.5 times two cores is 3."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    if load is None:
        monkeypatch.delattr(os, "getloadavg")
    else:
        monkeypatch.setattr(os, "getloadavg", lambda: (load, 9.0, 9.0))
    shown = bench.document(bench.measure(bench.loaded(choices("rope")), SMALL), SMALL)
    assert any("busy machine: a load of 3.1 on 2 cores" in text for text in shown.warnings) == busy
    plan, _ = first("glue", "cola", **{"encodings": ({"name": "rope"},), "model.width": 16, "model.layers": 1})
    told = outcome.study_results(plan, {}, tmp_path)
    assert any("busy machine" in text for text in told.warnings) == busy
    kept = json.loads((tmp_path / outcome.COSTS).read_text())["rows"][0]
    assert (kept["load"], kept["cores"], kept["step_over"]) == (load, None if load is None else 2, "")
    # What was measured then is told by each later report, whatever the machine does at that time.
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0 if busy else 9.0, 9.0, 9.0), raising=False)
    assert outcome.study_results(plan, {}, tmp_path).warnings == told.warnings


def test_a_length_that_nothing_can_take_is_said_for_every_encoding() -> None:
    table = bench.measure(bench.loaded(choices("rope", "nope")), override(SMALL, {"lengths": [2**50]}))
    assert list(table["encoding"]) == ["rope", "nope"] and table["step_seconds"].isna().all()
    assert all(table["reason"]) and len(bench.document(table, SMALL).warnings) == 2


def test_growth_is_the_exponent_of_the_length() -> None:
    rows = [{"encoding": name, "length": length, "rows": 4, "step_seconds": length**power, "step_ratio": 1.0,
             "step_ratio_low": 1.0, "step_ratio_high": 1.0, "peak_memory": 3 * length**power, "reason": "",
             "tokens_per_second": 1.0} for name, power in (("a", 1), ("b", 2)) for length in (1024, 4096)]
    growth = bench.document(pd.DataFrame(rows), SMALL).parts[-1]
    assert growth.rows == (("a", "1.00", "1.00"), ("b", "2.00", "2.00"))


def test_an_encoding_given_twice_and_an_unknown_one_are_refused() -> None:
    with pytest.raises(UserError, match="given twice"):
        bench.loaded(choices("rope", "rope"))
    with pytest.raises(UserError, match="unknown encoding 'rop'"):
        bench.loaded(choices("rop"))
    assert list(bench.loaded(choices("rope"))) == ["nope", "rope"]


def test_the_command_writes_every_form_and_says_what_was_measured(tmp_path: Path) -> None:
    small = ["--lengths", "8", "--tokens", "16", "--rounds", "2", "--set", "model.width=16", "--set", "model.layers=1"]
    run = posbench(tmp_path, "bench", "rope", *small)
    assert run.returncode == 0, run.stderr
    assert sorted(file.name for file in (tmp_path / "bench").iterdir()) == [
        "bench.csv", "bench.md", "bench.tex", "bench.txt"]
    assert "Step time over nope's" in run.stdout and "decoder" not in run.stdout
    for wrong, told in (("8,8", "different whole numbers"), ("x", "different whole numbers")):
        run = posbench(tmp_path, "bench", "rope", "--lengths", wrong)
        assert (run.returncode, told in run.stderr, "Traceback" in run.stderr) == (2, True, False)
    run = posbench(tmp_path, "bench", "rope", *small, "--set", "model.shap=decoder")
    assert run.returncode == 2 and "'model.shap'" in run.stderr and "shape" in run.stderr
