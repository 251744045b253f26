"""Every encoding against the baseline, paired by seed, with one declared family of comparisons for each column."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from posbench.cells import Cell, Column, Grid, average, read
from posbench.numerals import counted
from posbench.ranks import Control, Friedman, against_control, critical_difference, friedman, rank_rows
from posbench.stats import (
    Estimate,
    detectable_difference,
    holm,
    paired_difference,
    seeds_needed,
    sign_flip_p,
    t_interval,
)

ALL_TASKS = "all tasks"
"""Label of the column that takes all tasks together."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One encoding minus the baseline in one column.

    Attributes:
        pairs: the seeds that were paired; over all tasks a seed is one pair, of its means over tasks.
        estimate: mean difference with its interval, not adjusted for the number of comparisons; None without pairs.
        p: two-sided p of the sign-flip test; NaN where no comparison is made.
        p_holm: p adjusted over all encodings of the column.
        verdict: 'better', 'worse', 'no difference shown', 'needs 6 more seeds', or 'not compared: ' and why.
    """

    pairs: tuple[str, ...] = ()
    estimate: Estimate | None = None
    p: float = math.nan
    p_holm: float = math.nan
    verdict: str = ""


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Average ranks over tasks, 1 is best; an encoding without a mean in a task ranks last there.

    Attributes:
        average: by encoding.
        tasks: those that were ranked.
        friedman: test of 'all rank alike'.
        critical_difference: Nemenyi's distance at which two average ranks differ.
        control: each encoding against the baseline, in the order of `average`; None without a baseline.
    """

    average: dict[str, float]
    tasks: tuple[str, ...]
    friedman: Friedman
    critical_difference: float
    control: Control | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What a scoreboard prints.

    Attributes:
        baseline: label of the baseline, or None where the table has no such encoding.
        alpha: level of the tests, after Holm's correction.
        encodings: rows, in the order of the table.
        columns: scored splits, and last the column ALL_TASKS where there is one.
        cells: by (encoding, column label).
        differences: by (encoding, column label); empty without a baseline.
        needed: pairs without which no comparison of a column can reach alpha.
        detectable: by column label, the smallest difference found with power 0.8; NaN where it cannot be told.
        ranking: None where fewer than two encodings or tasks can be ranked.
        notes: what a reader must know before the numbers.
    """

    baseline: str | None
    alpha: float
    encodings: tuple[str, ...]
    columns: tuple[Column, ...]
    cells: Grid
    differences: dict[tuple[str, str], Difference]
    needed: int
    detectable: dict[str, float]
    ranking: Ranking | None
    notes: tuple[str, ...]

    def table(self) -> pd.DataFrame:
        """One row a cell: counts, mean and interval, difference to the baseline, p-values and verdict."""
        return pd.DataFrame([self._row(encoding, column) for encoding in self.encodings for column in self.columns])

    def _row(self, encoding: str, column: Column) -> dict[str, object]:
        cell = self.cells[encoding, column.label]
        difference = self.differences.get((encoding, column.label), Difference())
        mean, change = cell.estimate or _UNKNOWN, difference.estimate or _UNKNOWN
        return {
            "encoding": encoding, "column": column.label, "task": column.task, "split": column.split,
            "length": column.length, "metric": column.metric, "higher_is_better": column.higher_is_better,
            "planned": len(cell.statuses), **cell.counts,
            "mean": mean.mean, "sd": mean.sd, "half_width": mean.half_width, "low": mean.low, "high": mean.high,
            "baseline": self.baseline, "pairs": len(difference.pairs), "paired": " ".join(difference.pairs),
            "difference": change.mean, "difference_sd": change.sd, "difference_half_width": change.half_width,
            "difference_low": change.low, "difference_high": change.high,
            "p": difference.p, "p_holm": difference.p_holm, "verdict": difference.verdict,
        }


_UNKNOWN = Estimate(mean=math.nan, sd=math.nan, error=math.nan, half_width=math.nan, n=0)


def compare(table: pd.DataFrame, *, baseline: str = "learned", alpha: float = 0.05) -> Comparison:
    """Means, paired differences to the baseline and ranks of a tidy table (results.frame).

    The family of a column is every encoding against the baseline; a comparison that could not be made stays in it.
    Only seeds that both sides have are paired, and an encoding (or baseline) that lost a seed to a divergence or an
    error is not compared at all: its surviving seeds are the lucky ones.
    """
    encodings, columns, cells = read(table)
    known = baseline if baseline in encodings else None
    notes = [] if known else [f"The baseline '{baseline}' is not among the encodings: no differences are given."]
    together = _all_tasks(encodings, columns, cells, notes)
    needed = seeds_needed(comparisons=max(len(encodings) - 1, 1), alpha=alpha)
    differences: dict[tuple[str, str], Difference] = {}
    detectable: dict[str, float] = {}
    for column in (*columns, *together):
        parts = [column] if column.label != ALL_TASKS else list(columns)
        family = {} if known is None else {encoding: _difference(cells, encoding, known, column, parts)
                                           for encoding in encodings if encoding != known}
        adjusted = _adjusted(family, column, needed=needed, alpha=alpha)
        differences.update({(encoding, column.label): entry for encoding, entry in adjusted.items()})
        detectable[column.label] = _detectable(list(adjusted.values()), alpha=alpha)
    lost = sum(bool(cells[encoding, column.label].trouble) for encoding in encodings for column in columns)
    if lost:
        have = "has" if lost == 1 else "have"
        notes.append(f"{lost} of {counted(len(encodings) * len(columns), 'cell')} {have} no mean, because a seed that "
                     "others ran has no score there. Each shows what happened, and a mean over its other seeds is not "
                     "given.")
    mixed = [column.label for column in columns if len(column.examples) > 1]
    if mixed:
        notes.append(f"Scored on unequal numbers of examples, which are not paired: {', '.join(mixed)}.")
    ranking = _ranking(encodings, columns, cells, known, alpha, notes)
    return Comparison(baseline=known, alpha=alpha, encodings=encodings, columns=(*columns, *together), cells=cells,
                      differences=differences, needed=needed, detectable=detectable, ranking=ranking,
                      notes=tuple(notes))


def _all_tasks(encodings: Sequence[str], columns: Sequence[Column], cells: Grid, notes: list[str]) -> list[Column]:
    """The column over all tasks, whose cells are added to the grid; none where a mean would have no meaning."""
    by_task = _by_task(columns)
    if len(by_task) < 2:
        return []
    if len({column.higher_is_better for column in columns}) > 1:
        notes.append("No mean over tasks is given: in some a higher score is better, in others a lower one.")
        return []
    run = sorted(set.intersection(*(set(column.run) for column in columns)))
    planned = sorted({seed for column in columns for seed in column.planned})
    for encoding in encodings:
        grouped = [[cells[encoding, column.label] for column in group] for group in by_task.values()]
        cells[encoding, ALL_TASKS] = average(grouped, run)
    return [Column(label=ALL_TASKS, task=ALL_TASKS, split=None, length=None, metric="mean of the tasks' scores",
                   higher_is_better=columns[0].higher_is_better, planned=tuple(planned), run=tuple(run))]


def _difference(cells: Grid, encoding: str, baseline: str, column: Column, parts: Sequence[Column]) -> Difference:
    """One column paired by seed; over several `parts` a seed counts once, with the mean over tasks that it has there.

    Tasks of one seed share first weights and may all lean one way, so that (task, seed) pairs would be no independent
    ones; and how much tasks differ from one another says nothing of how well the mean over these tasks is known.
    """
    new, old = cells[encoding, column.label], cells[baseline, column.label]
    for name, cell in (("", new), ("baseline ", old)):
        if cell.broken or (column not in parts and cell.estimate is None):
            return Difference(verdict=f"not compared: {name}{cell.trouble}")
    seeds = [seed for seed in column.run if seed in new.values and seed in old.values]
    for part in parts:
        one, other = cells[encoding, part.label].examples, cells[baseline, part.label].examples
        if any(one.get(seed) != other.get(seed) for seed in seeds):
            return Difference(verdict="not compared: other numbers of examples")
    if not seeds:
        return Difference(verdict="not compared: no seed in common")
    new_side, old_side = ([cell.values[seed] for seed in seeds] for cell in (new, old))
    estimate = paired_difference(treatment=new_side, baseline=old_side)
    return Difference(pairs=tuple(map(str, seeds)), estimate=estimate,
                      p=sign_flip_p(np.subtract(new_side, old_side).tolist()))


def _adjusted(family: dict[str, Difference], column: Column, *, needed: int, alpha: float) -> dict[str, Difference]:
    """The family with Holm's p and verdicts."""
    entries = {}
    for (encoding, entry), p in zip(family.items(), holm([entry.p for entry in family.values()]), strict=True):
        verdict = entry.verdict
        if entry.estimate is not None:
            more = needed - len(entry.pairs)
            if more > 0:
                verdict = f"needs {counted(more, 'more seed')}"
            elif p <= alpha:
                verdict = "better" if (entry.estimate.mean > 0) == column.higher_is_better else "worse"
            else:
                verdict = "no difference shown"
        entries[encoding] = Difference(pairs=entry.pairs, estimate=entry.estimate, p=entry.p, p_holm=p, verdict=verdict)
    return entries


def _detectable(family: Sequence[Difference], *, alpha: float) -> float:
    """Smallest difference that a paired t test would find at Holm's first step, from the family's pooled deviation."""
    known = [entry.estimate for entry in family if entry.estimate is not None and entry.estimate.n > 1]
    if not known:
        return math.nan
    pooled = math.sqrt(sum(estimate.sd**2 for estimate in known) / len(known))
    return detectable_difference(sd=pooled, n=min(estimate.n for estimate in known), alpha=alpha / len(family))


def _ranking(encodings: tuple[str, ...], columns: Sequence[Column], cells: Grid, baseline: str | None,
             alpha: float, notes: list[str]) -> Ranking | None:
    scores, directions, tasks, left_out = [], [], [], []
    for task, group in _by_task(columns).items():
        rows = {encoding: [cells[encoding, column.label] for column in group] for encoding in encodings}
        if len({column.higher_is_better for column in group}) > 1 or any(map(_unrun, rows.values())):
            left_out.append(task)
            continue
        tasks.append(task)
        directions.append(group[0].higher_is_better)
        scores.append([_task_score(row) for row in rows.values()])
    if left_out:
        notes.append(f"Left out of the ranks, because a trial is missing or directions differ: {', '.join(left_out)}.")
    if len(encodings) < 2 or len(tasks) < 2:
        with_score = sum(any(cells[encoding, column.label].estimate for column in columns) for encoding in encodings)
        some = f", {with_score or 'none'} of them with a score," if with_score < len(encodings) else ""
        notes.append(f"No ranks: they need two encodings, and two tasks that all of them have run; here "
                     f"{'is' if len(encodings) == 1 else 'are'} {counted(len(encodings), 'encoding')}{some} and "
                     f"{counted(len(tasks), 'such task')}.")
        return None
    ranks = rank_rows(np.array(scores), higher_is_better=directions)
    means = [float(rank) for rank in ranks.mean(axis=0)]
    k, n = len(encodings), len(tasks)
    return Ranking(average=dict(zip(encodings, means, strict=True)), tasks=tuple(tasks), friedman=friedman(ranks),
                   critical_difference=critical_difference(k=k, n=n, alpha=alpha),
                   control=None if baseline is None else against_control(means, control=encodings.index(baseline), n=n))


def _unrun(row: Sequence[Cell]) -> bool:
    return any(cell.estimate is None and not cell.broken for cell in row)


def _task_score(row: Sequence[Cell]) -> float:
    means = [math.nan if cell.estimate is None else cell.estimate.mean for cell in row]
    return t_interval(means).mean if all(map(math.isfinite, means)) else math.nan


def _by_task(columns: Sequence[Column]) -> dict[str, list[Column]]:
    groups: dict[str, list[Column]] = {}
    for column in columns:
        groups.setdefault(column.task, []).append(column)
    return groups
