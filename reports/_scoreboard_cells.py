"""The scoreboard's two tables of scores: what every encoding reaches, and how far it is from the baseline."""

from __future__ import annotations

import textwrap
from statistics import mean

from posbench.cells import Column
from posbench.comparison import ALL_TASKS, Comparison, Difference
from posbench.numerals import NONE, compared, number, span
from posbench.panels import UNLIMITED, Ranges
from posbench.results import VARIANT
from posbench.tables import Table

UNSEEN = "none"
"""In place of a detectable difference that no two scores can have."""


def quality(comparison: Comparison, common: tuple[str, ...]) -> Table:
    """Encodings down, scored splits across."""
    columns = comparison.columns
    ranks = comparison.ranking.average if comparison.ranking else {}
    rows = []
    for encoding in comparison.encodings:
        cells = [_score(comparison, encoding, column) for column in columns]
        rows.append((encoding, *cells, *([f"{ranks[encoding]:.2f}"] if ranks else [])))
    notes = ["Mean ± half of its 95 % t interval over seeds, not cut at the ends of a metric's range: few seeds give "
             "wide intervals. A cell with a seed that has no score shows what happened, and no mean over the others."]
    if any(cell.counts["degenerate"] and cell.estimate for cell in comparison.cells.values()):
        notes.append("† Some of these trials are degenerate, such as one that predicts one class throughout; they are "
                     "in the mean.")
    if any(column.label == ALL_TASKS for column in columns):
        notes.append("All tasks: for each seed the unweighted mean over tasks, a task with several columns counted "
                     "once; the interval is over seeds and says nothing of other tasks.")
    if ranks:
        notes.append("Rank: average over tasks, 1 is best; a cell without a mean ranks last.")
    return Table(title="Quality", columns=("encoding", *map(_head, columns), *(["rank\n↓"] if ranks else [])),
                 rows=tuple(rows), notes=(*notes, *common))


def differences(comparison: Comparison, ranges: Ranges, common: tuple[str, ...]) -> Table:
    """Encodings but the baseline down, with the least difference that each column could have shown."""
    columns = comparison.columns
    others = [encoding for encoding in comparison.encodings if encoding != comparison.baseline]
    rows = [(encoding, *(_change(comparison, encoding, column) for column in columns)) for encoding in others]
    detectable = tuple(_detectable(comparison, column, ranges) for column in columns)
    pairs = tuple(span([len(entry.pairs) for entry in (comparison.differences[name, column.label] for name in others)
                        if entry.pairs]) for column in columns)
    notes = ["Encoding minus baseline, paired by seed, ± half of the 95 % t interval of the difference.",
             f"Detectable: the smallest true difference that a paired t test would find with power 0.8 at alpha = "
             f"{comparison.alpha:g} / {len(others)}, from the column's pooled deviation of differences."]
    if UNSEEN in detectable:
        notes.append(f"Detectable '{UNSEEN}': not even the largest difference that the range of the scores allows "
                     "would be found; more seeds are needed.")
    if any(_decided(entry) for entry in comparison.differences.values()):
        notes.append("p: sign-flip test, adjusted after Holm; given where there are pairs enough to reach alpha."
                     + (f" * p ≤ {comparison.alpha:g}." if any(_starred(comparison, entry)
                                                              for entry in comparison.differences.values()) else ""))
    if any(column.label == ALL_TASKS for column in columns):
        notes.append("All tasks: paired by seed too, each seed with its mean over tasks, so that interval, test "
                     "and detectable difference are over seeds, of exactly these tasks, and say nothing of others.")
    notes.append("Uncorrected p, all counts and verdicts: comparisons.csv.")
    return Table(title=f"Difference to '{comparison.baseline}'", columns=("encoding", *map(_head, columns)),
                 rows=tuple(rows), footer=(("detectable", *detectable), ("pairs", *pairs)), notes=(*notes, *common))


def _head(column: Column) -> str:
    name = column.label.replace("-", "-\n", 1) if len(column.label) > 12 else column.label
    arrow = "↑" if column.higher_is_better else "↓"
    return f"{name}\n{'mean' if column.label == ALL_TASKS else column.metric or ''} {arrow}"


def _score(comparison: Comparison, encoding: str, column: Column) -> str:
    cell = comparison.cells[encoding, column.label]
    if cell.estimate is None:
        return _untrained(encoding, cell.trouble) or _trouble(cell.trouble)
    digits = _digits(comparison, column)
    mark = "†" if cell.counts["degenerate"] else ""  # in front, so that the digits stay below one another
    half = f" ±{number(cell.estimate.half_width, digits)}" if cell.estimate.n > 1 else ""
    return f"{mark}{number(cell.estimate.mean, digits)}{half}"


def _change(comparison: Comparison, encoding: str, column: Column) -> str:
    entry = comparison.differences[encoding, column.label]
    if entry.estimate is None:
        told = entry.verdict.removeprefix("not compared: ")
        return _untrained(encoding, told) or _trouble(told)
    digits = _digits(comparison, column)
    half = f" ±{number(entry.estimate.half_width, digits)}" if entry.estimate.n > 1 else ""
    text = f"{number(entry.estimate.mean, digits, sign=True)}{half}"
    if _decided(entry):
        text += f"\np {compared(entry.p_holm)}{' *' if _starred(comparison, entry) else ''}"
    return text


def _decided(entry: Difference) -> bool:
    return entry.estimate is not None and not entry.verdict.startswith("needs")


def _starred(comparison: Comparison, entry: Difference) -> bool:
    return _decided(entry) and entry.p_holm <= comparison.alpha


def _detectable(comparison: Comparison, column: Column, ranges: Ranges) -> str:
    value = comparison.detectable[column.label]
    if value > _widest(comparison, column, ranges) * (1 + 1e-9):
        return UNSEEN
    return number(value, _digits(comparison, column))


def _widest(comparison: Comparison, column: Column, ranges: Ranges) -> float:
    """The largest difference that two scores of a column can have; over all tasks, that of two means over tasks."""
    parts = [part for part in comparison.columns if part.label != ALL_TASKS]
    widths: dict[str, list[float]] = {}
    for part in parts if column.label == ALL_TASKS else [column]:
        low, high = ranges.get((part.task, part.metric or ""), UNLIMITED)
        widths.setdefault(part.task, []).append(high - low)
    return mean(mean(own) for own in widths.values())


def _untrained(encoding: str, trouble: str) -> str:
    """A variant is scored in some tasks alone; it is missing in no other."""
    return NONE if VARIANT in encoding and trouble in ("missing", "no seed in common") else ""


def _trouble(text: str) -> str:
    """On lines of its own, so that a long reason does not widen its column."""
    return textwrap.fill(text, 11)


def _digits(comparison: Comparison, column: Column) -> int:
    """Decimals of a column: scores below 10 have three, larger ones two or one; up to 1 no zero before the point."""
    largest = max((abs(value) for encoding in comparison.encodings
                   for value in comparison.cells[encoding, column.label].values.values()), default=0.0)
    return 3 if largest < 10 else 2 if largest < 1000 else 1
