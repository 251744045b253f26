"""The copy of a study for browsing: what goes into it, and the command that fills in what it misses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from posbench.arguments import home, mlflow_place
from posbench.console import say, short
from posbench.errors import StorageError
from posbench.numerals import counted

if TYPE_CHECKING:
    from posbench.store import Record
    from posbench.study import Plan
    from posbench.tracker import Tracker

WRITTEN = (".md", ".html", ".tex", ".txt", ".csv", ".png", ".svg")
"""Endings of the files that reports write."""


def begin(copy: Tracker, plan: Plan, folder: Path) -> None:
    """Opens the copy of a study."""
    copy.prepare()
    # Names in MLflow are narrower than names of folders.
    name = re.sub(r"[^A-Za-z0-9._-]+|\.{2,}", "-", folder.name)[:50]
    copy.begin(f"posbench-{name}", f"{plan.trials[0].suite.title}, preset {plan.study.preset}")


def conclude(copy: Tracker, plan: Plan, records: Mapping[str, Record], files: Sequence[Path], folder: Path) -> str:
    """Adds the study's means, tables and figures; returns what could not be copied, empty when nothing."""
    from posbench.outcome import summary

    copy.summary(folder.name, summary(plan, records), {file.name: file for file in files})
    return copy.end()


def browsed(tracker: str) -> str:
    """Where a copy that is whole can be looked at; empty for one that is not for browsing."""
    place = mlflow_place(home())
    if tracker != "mlflow":
        return ""
    return f"   browse: posbench ui --home {short(place)}" if isinstance(place, Path) else f"   browse: {place}"


def sync(folder: Annotated[Path, typer.Argument(help="Folder of a study, such as out/glue-mini.")]) -> None:
    """Fill in what the MLflow copy of a study misses, from the stored results; runs nothing."""
    from posbench import study as studies
    from posbench.store import Store
    from posbench.study_folder import taken_up
    from posbench.track import MLflow

    store = Store(home() / "trials")
    plan = taken_up(folder, store)
    known = studies.known(plan, store)
    results = (*plan.tuned_records.values(), *known.values())
    copy = MLflow(mlflow_place(home()), mend="the same command goes on when that is mended")
    begin(copy, plan, folder.resolve())
    for record in results:
        copy.trial(record, {})
    files = [file for file in sorted(folder.iterdir()) if file.is_file() and file.suffix in WRITTEN]
    if told := conclude(copy, plan, known, files, folder.resolve()):
        raise StorageError(told)
    say(f"the MLflow copy of {folder} is complete: {counted(len(results), 'result')}")
