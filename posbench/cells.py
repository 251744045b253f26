"""The tidy table as a grid: one row an encoding, one column a scored split, in each cell what became of every seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pandas as pd

from posbench.errors import UserError
from posbench.results import STATUSES, WITHOUT_VALUE
from posbench.stats import Estimate, t_interval

Key = tuple[str | None, int | None, str | None]
"""Split, length and metric of a score."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One scored split of a task, or several tasks taken together.

    Attributes:
        label: unique; the task's name, with what tells its scores apart where it has several ('mnli-matched').
        task, split, length, metric, higher_is_better: as in the tidy table; split is None where it is not known.
        planned: seeds of the task's trials, run or not.
        run: those that at least one encoding has run; a mean is one over exactly these.
        examples: numbers of scored examples that occur, one unless encodings were scored on other rows.
    """

    label: str
    task: str
    split: str | None
    length: int | None
    metric: str | None
    higher_is_better: bool
    planned: tuple[int, ...]
    run: tuple[int, ...]
    examples: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One encoding in one column.

    Attributes:
        values: finite score by seed, of done and degenerate trials.
        examples: number of scored examples by seed, where it is known.
        statuses: status by planned seed.
        estimate: mean over the column's run seeds with its interval; None where one of them has no score here, because
            a mean over other seeds than its neighbour's is no comparison.
    """

    values: dict[int, float] = field(default_factory=dict)
    examples: dict[int, int] = field(default_factory=dict)
    statuses: dict[int, str]
    estimate: Estimate | None

    @property
    def counts(self) -> dict[str, int]:
        """Number of seeds by status, each of results.STATUSES."""
        found = list(self.statuses.values())
        return {status: found.count(status) for status in STATUSES}

    @property
    def broken(self) -> dict[str, int]:
        """Number of seeds that were tried and have no score, by status."""
        lost = [status for seed, status in self.statuses.items() if seed not in self.values and status != "missing"]
        return {status: lost.count(status) for status in STATUSES if status in lost}

    @property
    def trouble(self) -> str:
        """Why there is no mean, such as '1/3 diverged', or an empty text."""
        if self.estimate is not None:
            return ""
        total = len(self.statuses)
        lost = self.broken
        missing = self.counts["missing"]
        if missing:
            lost["missing"] = missing
        if list(lost.values()) == [total]:
            return next(iter(lost))
        return ", ".join(f"{count}/{total} {status}" for status, count in lost.items())


Grid = dict[tuple[str, str], Cell]
"""Cells by (encoding, column label)."""


def read(table: pd.DataFrame) -> tuple[tuple[str, ...], tuple[Column, ...], Grid]:
    """Encodings and columns in the order of their first row, and a cell for each pair of them.

    Raises:
        UserError: one label stands for an encoding with two sets of options, or one metric has two directions.
    """
    _refuse_ambiguity(table)
    encodings = tuple(dict.fromkeys(table["encoding"]))
    shown = table[table["primary"] | table["status"].isin(WITHOUT_VALUE)]
    columns: list[Column] = []
    cells: Grid = {}
    for task, rows in shown.groupby("task", sort=False, dropna=False):
        planned = tuple(sorted(set(rows["seed"])))
        run = tuple(sorted(set(rows.loc[rows["status"] != "missing", "seed"])))
        records = list(rows.itertuples())
        # A trial that broke off has one row, which speaks for every column of its task.
        broken = {(row.encoding, row.seed): row.status for row in records if row.status in WITHOUT_VALUE}
        for key, label in _labels(str(task), records).items():
            measured = {(row.encoding, row.seed): row for row in records
                        if _key(row) == key and row.status not in WITHOUT_VALUE}
            for encoding in encodings:
                cells[encoding, label] = _cell(encoding, planned, run, measured, broken)
            flags = [bool(row.higher_is_better) for row in records if _key(row) == key]
            examples = {count for encoding in encodings for count in cells[encoding, label].examples.values()}
            columns.append(Column(label=label, task=str(task), split=key[0], length=key[1], metric=key[2],
                                  higher_is_better=flags[0], planned=planned, run=run,
                                  examples=tuple(sorted(examples))))
    return encodings, tuple(columns), cells


def average(cells: Sequence[Sequence[Cell]], seeds: Sequence[int]) -> Cell:
    """Several tasks as one cell: by seed, the mean over tasks of the mean over a task's columns.

    Args:
        cells: for each task the cells of its columns.
        seeds: the seeds that all tasks have run.
    """
    every = [cell for task in cells for cell in task]
    planned = sorted({seed for cell in every for seed in cell.statuses})
    values = {seed: _mean(_mean(cell.values[seed] for cell in task) for task in cells)
              for seed in planned if all(seed in cell.values for cell in every)}
    statuses = {seed: _worst(cell.statuses.get(seed, "missing") for cell in every) for seed in planned}
    whole = bool(seeds) and all(cell.estimate is not None for cell in every) and all(seed in values for seed in seeds)
    return Cell(values=values, statuses=statuses,
                estimate=t_interval([values[seed] for seed in seeds]) if whole else None)


def _cell(encoding: str, planned: Sequence[int], run: Sequence[int], measured: dict, broken: dict) -> Cell:
    values, examples, statuses = {}, {}, {}
    for seed in planned:
        row = measured.get((encoding, seed))
        statuses[seed] = row.status if row is not None else broken.get((encoding, seed), "missing")
        if row is not None and math.isfinite(row.value):
            values[seed] = float(row.value)
            if not pd.isna(row.n):
                examples[seed] = int(row.n)
    whole = bool(run) and all(seed in values for seed in run)
    return Cell(values=values, examples=examples, statuses=statuses,
                estimate=t_interval([values[seed] for seed in run]) if whole else None)


def _labels(task: str, records: Sequence) -> dict[Key, str]:
    """Scores of a task with their labels: only what differs between them is named."""
    scored = list(dict.fromkeys(_key(row) for row in records if row.status not in WITHOUT_VALUE))
    # Where nothing was scored, the splits that would have been are columns, so that a task that failed is seen.
    planned = list(dict.fromkeys(_key(row) for row in records if _key(row)[0] is not None))
    keys = scored or planned or [_key(row) for row in records][:1]
    several = [len({key[part] for key in keys}) > 1 for part in range(3)]
    splits = _tails([str(key[0]) for key in keys])
    return {
        key: task
        + (f"-{split}" if several[0] else "")
        + (f"@{key[1]}" if several[1] else "")
        + (f":{key[2]}" if several[2] else "")
        for key, split in zip(keys, splits, strict=True)
    }


def _tails(names: list[str]) -> list[str]:
    """Names without the words they all begin with: validation_matched, validation_mismatched: matched, mismatched."""
    words = [name.replace("-", "_").split("_") for name in names]
    while len(set(names)) > 1 and all(len(entry) > 1 for entry in words) and len({entry[0] for entry in words}) == 1:
        words = [entry[1:] for entry in words]
    return ["_".join(entry) for entry in words]


def _key(row: object) -> Key:
    split, length, metric = (None if pd.isna(part) else part
                             for part in (getattr(row, name) for name in ("split", "length", "metric")))
    return split, None if length is None else int(length), metric


def _refuse_ambiguity(table: pd.DataFrame) -> None:
    options = table[table["options"].notna()].groupby("encoding", sort=False, dropna=False)["options"].nunique()
    for encoding, count in options.items():
        if count > 1:
            raise UserError(f"the label '{encoding}' stands for {count} sets of options: label the encodings apart")
    scored = table[~table["status"].isin(WITHOUT_VALUE)]
    directions = scored.groupby(["task", "metric"], sort=False, dropna=False)["higher_is_better"].nunique()
    for scores, count in directions.items():
        if count > 1:
            raise UserError(f"task and metric {scores} are given in both directions: declare one")


def _worst(statuses: Iterable[str]) -> str:
    order = {"done": 0, "degenerate": 1, "missing": 2, "refused": 3, "failed": 4, "diverged": 5}
    return max(statuses, key=lambda status: order[status])


def _mean(values: Iterable[float]) -> float:
    sample = list(values)
    return math.fsum(sample) / len(sample)
