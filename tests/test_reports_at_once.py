"""Reports of one study by several processes at one moment: each file whole, all of them of one report."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from posbench import cli, outcome, study_folder
from posbench.copying import WRITTEN
from posbench.locks import exclusive
from posbench.study import Plan
from tests.test_faults import call, leftovers, tiny

REPORTS = 4


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Plan:
    return tiny(monkeypatch)


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix in WRITTEN}


def at_once(home: Path) -> list[str]:
    """What so many processes print that all run `posbench report` at one moment.

    They are forked, and so need not load torch, which would take each of them longer than its report.
    """
    forks = multiprocessing.get_context("fork")
    start = forks.Barrier(REPORTS)

    def reports(number: int) -> None:
        sys.argv, told = ["posbench", "report", str(home / "study")], io.StringIO()
        start.wait(60)
        try:
            with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
                cli.main()
        finally:
            (home / f"{number}.out").write_text(told.getvalue())

    processes = [forks.Process(target=reports, args=(number,)) for number in range(REPORTS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    told = [(home / f"{number}.out").read_text() for number in range(REPORTS)]
    assert [process.exitcode for process in processes] == [0] * REPORTS, told
    return told


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_reports_at_once_write_the_bytes_of_one_and_leave_nothing(
    small: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not call(small, tmp_path, monkeypatch)
    folder = tmp_path / "study"
    wanted = files(folder)
    assert len(wanted) > 8
    for name in wanted:
        (folder / name).unlink()
    assert len(set(at_once(tmp_path))) == 1
    assert files(folder) == wanted and leftovers(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_reports_at_once_measure_costs_once(
    small: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where results came from another machine, whose costs are not those of this one."""
    assert not call(small, tmp_path, monkeypatch)
    folder = tmp_path / "study"
    (folder / outcome.COSTS).unlink()
    genuine: Callable[..., list[dict[str, Any]]] = outcome.cost.measure

    def measured(*arguments: Any, **named: Any) -> list[dict[str, Any]]:
        with (tmp_path / "measured").open("a") as file:
            file.write("x")
        time.sleep(0.2)
        return [row | {"step_seconds": float(os.getpid())} for row in genuine(*arguments, **named)]

    monkeypatch.setattr(outcome.cost, "measure", measured)
    assert len(set(at_once(tmp_path))) == 1
    assert (tmp_path / "measured").read_text() == "x"
    assert leftovers(tmp_path) == [] and not list(folder.glob("*lock*"))


def test_a_report_that_was_stopped_while_it_measured_holds_nobody_up_for_good(
    small: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome, "COSTS_SECONDS", 1.0)
    study_folder.claim(tmp_path / "study", small.study)
    with exclusive(tmp_path / "study" / outcome.COSTS_LOCK) as mine:
        assert mine and not call(small, tmp_path, monkeypatch)
    assert (tmp_path / "study" / outcome.COSTS).exists()
