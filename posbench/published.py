"""Published results beside those of a study: a table with a verdict for each, by one fixed rule."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import pandas as pd

from posbench.cells import Cell, Column, read
from posbench.numerals import NONE, counted, number
from posbench.results import WITHOUT_VALUE
from posbench.stats import Estimate, paired_difference
from posbench.suite import Direction, Published
from posbench.tables import Row, Table

WIDE = 44
"""Characters of a verdict's line."""

RULE = ("Verdict: 'not comparable' with the reason, where there is one; 'not run' where there is no such result here; "
        "'undecided' with one seed; 'reproduced' where the published number, which may be off by half a unit of its "
        "last digit, lies within the 95 % t interval of the mean here; 'not reproduced' otherwise.")

Found = tuple[Column, dict[str, Cell]]
"""A scored split at its shortest length, which is that of training, and its cells by encoding."""


def tables(entries: Sequence[Published | Direction], frame: pd.DataFrame, *, alpha: float,
           common: tuple[str, ...]) -> list[Table]:
    """The table 'Published', or none where nothing was published.

    Args:
        entries: of the study's preset. frame: the tidy table, completed with what was planned and not run.
        alpha: level at which a direction is judged, corrected for their number. common: notes of every table.
    """
    rows = [_number(entry, frame) for entry in entries if isinstance(entry, Published)]
    claims = [(entry, task) for entry in entries if isinstance(entry, Direction)
              for task in dict.fromkeys(frame["task"])]
    rows += [_direction(entry, task, frame, alpha=alpha / len(claims)) for entry, task in claims]
    if not rows:
        return []
    notes = [RULE] if len(rows) > len(claims) else []
    if claims:
        each = 100 * (1 - alpha / len(claims))
        notes.append(f"A direction is judged by the t interval of the difference, paired by seed, at "
                     f"{100 * (1 - alpha):g} % corrected for {counted(len(claims), 'direction')} after Bonferroni "
                     f"({each:.4g} %): "
                     "'reproduced' where all of it lies on the claimed side, 'not reproduced' otherwise, 'undecided' "
                     "with one pair. That is a paired t test, which takes differences to be normal; the sign-flip test "
                     "of the differences to the baseline does not, and needs more seeds.")
    notes += dict.fromkeys(entry.note for entry in entries if entry.note)
    notes.append(f"Published in: {'; '.join(dict.fromkeys(entry.source for entry in entries))}.")
    return [Table(title="Published", columns=("task", "score", "encoding", "published", "here", "verdict"),
                  rows=tuple(rows), notes=(*notes, *common), texts=(1, 2, 3, 5))]


def _number(entry: Published, frame: pd.DataFrame) -> Row:
    found = _found(frame, entry.task, entry.splits or (entry.split,), entry.metric)
    cell = found[1].get(entry.encoding) if found else None
    here = cell.estimate if cell else None
    if entry.incomparable:
        verdict = f"not comparable: {entry.incomparable}"
    elif cell is None or here is None:
        verdict = _unrun(cell)
    elif entry.rows is not None and set(cell.examples.values()) - {entry.rows}:
        scored = " or ".join(f"{count:,}" for count in sorted(set(cell.examples.values())))
        verdict = f"not comparable: {scored} rows scored, {entry.rows:,} published"
    else:
        verdict = judged(entry, here)
    return (entry.task, f"{entry.metric}, {entry.split}", entry.encoding, f"{entry.value} ({entry.model})",
            _shown(here, entry.scale, entry.decimals + 1), textwrap.fill(verdict, WIDE))


def judged(entry: Published, here: Estimate) -> str:
    """'reproduced', 'not reproduced', or 'undecided' with a single seed."""
    if here.n == 1:
        return "undecided"
    distance = abs(float(entry.value) - entry.scale * here.mean)
    # What is printed is a decimal number, and a border of its rounding is none of a binary one.
    within = distance <= entry.scale * here.half_width + entry.rounding + 1e-9
    return "reproduced" if within else "not reproduced"


def _direction(entry: Direction, task: str, frame: pd.DataFrame, *, alpha: float) -> Row:
    found = _found(frame, task, (entry.split,), entry.metric)
    cells = [found[1].get(name) for name in (entry.encoding, entry.over)] if found else []
    verdict = next((_unrun(cell) for cell in cells if cell is None or cell.estimate is None), "")
    here = None
    if not found:
        verdict = _unrun(None)
    elif not verdict:
        column, (own, other) = found[0], (cell.values for cell in cells if cell)
        here = paired_difference(treatment=[own[seed] for seed in column.run],
                                 baseline=[other[seed] for seed in column.run], confidence=1 - alpha)
        verdict = direction(here, higher_is_better=column.higher_is_better)
    length = f" at {found[0].length}" if found and found[0].length else ""
    return (task, f"{entry.metric}, {entry.split}{length}", f"{entry.encoding}\nless {entry.over}", entry.told,
            _shown(here, 1.0, 3, sign=True), textwrap.fill(verdict, WIDE))


def direction(here: Estimate, *, higher_is_better: bool) -> str:
    """The verdict on 'better', from the mean paired difference with its interval at the corrected level."""
    if here.n == 1:
        return "undecided"
    low, high = (here.low, here.high) if higher_is_better else (-here.high, -here.low)
    if low > 0:
        return "reproduced"
    return f"not reproduced: {'the opposite' if high < 0 else 'no difference'} is shown"


def _found(frame: pd.DataFrame, task: str, splits: Sequence[str], metric: str) -> Found | None:
    """None where no trial of the task has such a score, or was to have one."""
    broken = frame["status"].isin(WITHOUT_VALUE)
    own = frame[(frame["task"] == task) & ((frame["split"].isin(splits) & (frame["metric"] == metric)) | broken)]
    if own.empty:
        return None
    _, columns, cells = read(own.assign(primary=True))
    matching = [column for column in columns if column.split in splits and column.metric == metric]
    if not matching:
        return None
    column = min(matching, key=lambda one: one.length or 0)
    return column, {encoding: cell for (encoding, label), cell in cells.items() if label == column.label}


def _unrun(cell: Cell | None) -> str:
    trouble = cell.trouble if cell else ""
    return "not run" if trouble in ("", "missing") else f"not run: {trouble}"


def _shown(here: Estimate | None, scale: float, digits: int, *, sign: bool = False) -> str:
    if here is None:
        return NONE
    half = f" ±{number(scale * here.half_width, digits)}" if here.n > 1 else ""
    return f"{number(scale * here.mean, digits, sign=sign)}{half} (n = {here.n})"
