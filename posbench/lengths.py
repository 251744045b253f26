"""What of a study's results changes with length: which rows those are, and their tables."""

from __future__ import annotations

import pandas as pd

from posbench.cells import Cell, read
from posbench.numerals import number, span
from posbench.results import VARIANT
from posbench.tables import Table

REACH, AREA = "effective length", "area under the curve"
"""Names of the two numbers that sum up the scores of a task at all lengths."""

PARTS = (", whole rows", ", cut rows")
"""Behind a metric's name where it is told apart of rows that were read whole, and of those that lost tokens."""


def trained(frame: pd.DataFrame) -> pd.DataFrame:
    """The table without variants, which nobody trained, and without lengths that a trained encoding refuses."""
    return frame[~frame["encoding"].str.contains(VARIANT, regex=False) & ~refused(frame)]


def refused(frame: pd.DataFrame) -> pd.Series:
    """True at rows that say that a trained model has no answer at one length."""
    return (frame["status"] == "refused") & frame["length"].notna()


def several(frame: pd.DataFrame) -> pd.DataFrame:
    """The scored rows of those tasks that are scored at several lengths."""
    scored = frame[frame["value"].notna()]
    counts = scored[scored["primary"]].groupby("task", sort=False)["length"].nunique()
    return scored[scored["task"].isin(counts[counts > 1].index)]


def trained_lengths(frame: pd.DataFrame) -> dict[str, int]:
    """By task the length of training, which is the shortest that is scored."""
    rows = several(frame)
    return {str(task): int(length) for task, length in
            rows[rows["primary"]].groupby("task", sort=False)["length"].min().items()}


def tables(frame: pd.DataFrame, common: tuple[str, ...], *, left_out: tuple[str, ...]) -> list[Table]:
    """One table for each score by length or by part, beside the primary one, encodings down; then refusals.

    Args:
        common: notes of every table. left_out: scores that have a figure of their own.
    """
    parts = frame["value"].notna() & frame["metric"].str.endswith(PARTS).fillna(False)
    rows = pd.concat([several(frame), frame[parts]])
    found = []
    for metric in dict.fromkeys(rows.loc[~rows["primary"], "metric"]):
        if metric in left_out:
            continue
        own = rows[rows["metric"] == metric]
        if own["length"].notna().any():
            own = pd.concat([own, frame[refused(frame) & frame["task"].isin(own["task"])]])
        encodings, columns, cells = read(own.assign(primary=True, metric=metric))
        arrow = "↑" if columns[0].higher_is_better else "↓"
        largest = max((abs(value) for cell in cells.values() for value in cell.values.values()), default=0.0)
        digits = 0 if metric == REACH else 3 if largest < 10 else 2
        shown = tuple((encoding, *(_shown(cells[encoding, column.label], digits) for column in columns))
                      for encoding in encodings)
        heads = tuple(f"{column.label} {arrow}" for column in columns)
        found.append(Table(title=metric[0].upper() + metric[1:], columns=("encoding", *heads), rows=shown,
                           notes=(*_told(metric), *common)))
    return found + _refusals(frame)


def _told(metric: str) -> tuple[str, ...]:
    return {
        REACH: ("The longest scored length at which the primary score reaches the threshold declared above, mean over "
                "seeds; 0 where none does.",),
        AREA: ("Area under the primary score over log2 of the length, as a share of the whole; a refused length "
               "counts as 0.",),
    }.get(metric, ())


def _shown(cell: Cell, digits: int) -> str:
    if cell.estimate is None:
        return cell.trouble
    half = f" ±{number(cell.estimate.half_width, digits)}" if cell.estimate.n > 1 else ""
    return number(cell.estimate.mean, digits) + half


def _refusals(frame: pd.DataFrame) -> list[Table]:
    own = frame[refused(frame)]
    if own.empty:
        return []
    rows = []
    for (encoding, task), part in own.groupby(["encoding", "task"], sort=False):
        lengths = ", ".join(str(length) for length in sorted(set(part["length"])))
        reason = part.sort_values("length")["reason"].iloc[0]
        rows.append((str(encoding), str(task), lengths, str(reason), span([part["seed"].nunique()])))
    return [Table(title="Refused lengths", columns=("encoding", "task", "lengths", "reason", "seeds"),
                  rows=tuple(rows), texts=(1, 2, 3),
                  notes=("The model is trained and scored; at these lengths its encoding has nothing to say.",))]
