"""The ablation table: encodings down, tasks across; first the scores, then what can be said of their differences."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pandas as pd
from posbench.reports._scoreboard_cells import differences, quality

from posbench import cost, lengths, plots, published
from posbench.cells import Column
from posbench.comparison import ALL_TASKS, Comparison, compare
from posbench.errors import UserError
from posbench.numerals import NONE, amount, compared, counted, p_value, span
from posbench.report import Document, Figure, Report, StudyResults
from posbench.results import STATUSES
from posbench.signs import Signs
from posbench.tables import Table

STATED = ("suite", "preset", "data source", "machine", "threads", "versions")
"""Facts that a reader needs and only the caller knows; one that is not given is printed as such."""

RANKED = 5
"""Tasks from which on ranks are tested and drawn; over fewer, whole ranks hardly average out."""


DRAWN = ("bits by place in window", "bits by position")
"""Scores of so many lengths that they are drawn, and not printed; the second is in results of earlier versions."""


class Scoreboard(Report):
    """Quality, differences, ranks, costs, and everything that did not run."""

    name = "scoreboard"

    def document(self, context: StudyResults) -> Document:
        if context.frame.empty:
            raise UserError(f"report {self.name}: the study has no trials; run it first")
        comparison = compare(context.frame, baseline=context.baseline, alpha=context.alpha)
        # Tables and figures are copied out of their page, so each says on how many trials it rests, and on what data.
        signs, note = context.signs, "Generated data." if _generated(context) else ""
        drawn = f"{signs.caption(comparison.encodings)} {note}".strip()
        common = (*filter(None, (_counted(lengths.trained(context.frame)), note)), *context.notes)
        parts: list[Table | Figure] = [quality(comparison, common)]
        if comparison.differences:
            parts.append(differences(comparison, context.ranges, common))
        if comparison.ranking is not None:
            parts.append(_ranks(comparison, common))
            if len(comparison.ranking.tasks) >= RANKED:
                draw = partial(plots.rank_plot, _signed(comparison, signs), note=drawn)
                parts.append(Figure(title="Average ranks", name="ranks", draw=draw))
        trained = lengths.trained(context.frame)
        parts += lengths.tables(context.frame, common, left_out=DRAWN)
        if not lengths.several(context.frame).empty:
            parts.append(Figure(title="Scores by length", name="lengths",
                                draw=partial(plots.by_length, signs.frame(lengths.several(context.frame)),
                                             trained=lengths.trained_lengths(context.frame), ranges=context.ranges,
                                             note=drawn)))
        parts += [replace(table, notes=(*table.notes, *common)) for table in context.extras]
        parts += published.tables(context.published, context.frame, alpha=context.alpha, common=common)
        parts += [_costs(context.costs, list(dict.fromkeys(trained["encoding"]))), _ran(trained)]
        parts += [*_broken(trained), _columns(comparison.columns)]
        if not context.curves.empty:
            parts.append(Figure(title="Learning curves", name="curves",
                                draw=partial(plots.learning_curves, signs.frame(context.curves), ranges=context.ranges,
                                             note=drawn)))
        parts += context.search
        return Document(title=context.title, header=_header(context, comparison),
                        warnings=_warnings(context, comparison), parts=tuple(
                            signs.table(part) if isinstance(part, Table) else part for part in parts))

    def data(self, context: StudyResults) -> dict[str, pd.DataFrame]:
        comparison = compare(context.frame, baseline=context.baseline, alpha=context.alpha)
        return {"tidy": context.frame, "comparisons": context.signs.told(comparison.table()), **context.sheets}


def _signed(comparison: Comparison, signs: Signs) -> Comparison:
    """The comparison for a figure of its ranks, in which names bear their signs."""
    ranking = comparison.ranking
    assert ranking is not None
    return replace(comparison, ranking=replace(ranking, average={
        signs.named(name): rank for name, rank in ranking.average.items()}))


def _generated(context: StudyResults) -> bool:
    return "generated" in str(context.header.get("data source", "")).lower()


def _counted(frame: pd.DataFrame) -> str:
    counts = _by_status(frame).sum()
    told = ", ".join(f"{counts[status]} {status}" for status in STATUSES)
    return f"Of {counted(int(counts.sum()), 'planned trial')}: {told}."


def _by_status(frame: pd.DataFrame) -> pd.DataFrame:
    """Number of trials, one row an encoding, one column a status; a trial counts once, by the worst of its rows."""
    severity = {status: place for place, status in enumerate(STATUSES)}
    worst = frame.assign(severity=frame["status"].map(severity)).groupby(
        ["encoding", "task", "seed"], sort=False, dropna=False)["severity"].max().reset_index()
    counts = pd.DataFrame(0, index=list(dict.fromkeys(worst["encoding"])), columns=list(STATUSES))
    for encoding, place in zip(worst["encoding"], worst["severity"], strict=True):
        counts.loc[encoding, STATUSES[place]] += 1
    return counts


def _header(context: StudyResults, comparison: Comparison) -> tuple[tuple[str, str], ...]:
    given = {name: str(text) for name, text in context.header.items()}
    facts = [(name, given.pop(name, "not stated")) for name in STATED]
    columns = [column for column in comparison.columns if column.label != ALL_TASKS]
    splits: dict[str, list[str]] = {}
    for column in columns:
        splits.setdefault(column.split or "unknown split", []).append(column.label)
    seeds = sorted({seed for column in columns for seed in column.planned})
    family = len(comparison.encodings) - 1
    return (
        *facts,
        *given.items(),
        ("splits", "; ".join(f"{split}: {', '.join(labels)}" for split, labels in splits.items())),
        ("seeds", f"{', '.join(map(str, seeds))} (n = {len(seeds)}), the same for every encoding, and paired"),
        ("baseline", comparison.baseline or f"none ('{context.baseline}' is not in the study)"),
        *(_tested(comparison, family) if comparison.baseline else ()),
    )


def _tested(comparison: Comparison, family: int) -> tuple[tuple[str, str], ...]:
    return (
        ("family", f"in each column the comparisons with the baseline ({family}), corrected after Holm to "
                   f"{comparison.alpha:g}; columns are not corrected for one another"),
        ("intervals", "Student-t, 95 %, over seeds; not adjusted for the number of comparisons"),
        ("test", "paired sign-flip permutation test, two-sided"),
    )


def _warnings(context: StudyResults, comparison: Comparison) -> tuple[str, ...]:
    lines = [*context.warnings, *comparison.notes]
    if _generated(context):
        lines.insert(0, "The data are generated: the scores say nothing of data sets whose names the tasks bear.")
    if comparison.differences:
        seeds = min((len(column.run) for column in comparison.columns), default=0)
        if seeds < comparison.needed:
            family = len(comparison.encodings) - 1
            lines.append(f"With {counted(seeds, 'seed')} no column can show a difference at "
                         f"{comparison.alpha:g} after {counted(family, 'comparison')}, however large "
                         f"it is: {counted(comparison.needed, 'seed')} are needed, {comparison.needed - seeds} more.")
    return tuple(lines)


def _ranks(comparison: Comparison, common: tuple[str, ...]) -> Table:
    ranking = comparison.ranking
    assert ranking is not None
    order = sorted(ranking.average, key=lambda name: ranking.average[name])
    place = {name: index for index, name in enumerate(ranking.average)}
    heads = ["encoding", "average rank"]
    rows = [[name, f"{ranking.average[name]:.2f}"] for name in order]
    if ranking.control is not None and len(ranking.tasks) >= RANKED:
        heads += [f"z against '{comparison.baseline}'", "p (Holm)"]
        for row in rows:
            z, p = ranking.control.z[place[row[0]]], ranking.control.p_holm[place[row[0]]]
            row += [NONE if math.isnan(z) else f"{z:+.2f}", NONE if math.isnan(p) else p_value(p)]
    test = ranking.friedman
    notes = [f"Friedman over {test.n} tasks: chi² = {test.chi2:.2f}, Iman-Davenport F = {test.f:.2f}, "
             f"p {compared(test.p)} ({test.form}). Critical difference {ranking.critical_difference:.2f} "
             f"(Nemenyi, {comparison.alpha:g})."]
    if len(heads) > 2:
        notes.append("z is negative where the encoding ranks better than the baseline.")
    if test.n < RANKED:
        notes = [f"Ranks over {test.n} tasks are described and not tested: {RANKED} tasks are the least for that."]
    return Table(title="Ranks over tasks", columns=tuple(heads), rows=tuple(map(tuple, rows)), notes=(*notes, *common))


def _costs(costs: pd.DataFrame, encodings: Sequence[str]) -> Table:
    known = {row.encoding: row for row in costs.itertuples()}
    rows = []
    for encoding in encodings:
        row = known.get(encoding)
        parameters, flops, step, memory = (amount(getattr(row, name, None), scale, form) for name, scale, form in (
            ("parameters", 1, "{:,.0f}"), ("flops", 1, "{:.3g}"), ("step_seconds", 1e3, "{:.1f}"),
            ("peak_memory", 2**-20, "{:,.2f}")))
        rows.append((encoding, parameters, flops, step, NONE if row is None else cost.ratio(row), memory))
    over = {row.step_over for row in known.values() if isinstance(getattr(row, "step_over", None), str)}
    name = next(iter(over), "")
    notes = [f"Step / {name}: step time over that of {name} in the same study, on the machine above." if name else
             "Step / bare: step time over that of the same model without any encoding, measured in the same run, on "
             "the machine above."]
    if any("[" in row[4] for row in rows):
        notes.append("In brackets the quartiles over rounds of the ratio within a round.")
    return Table(title="Cost", columns=("encoding", "parameters", "FLOPs of a step", "step, ms",
                                        f"step / {name or 'bare'}", "peak memory, MiB"),
                 rows=tuple(rows), notes=tuple(notes))


def _ran(frame: pd.DataFrame) -> Table:
    counts = _by_status(frame)
    total = counts.sum()
    rows = tuple((str(encoding), str(row.sum()), *map(str, row)) for encoding, row in counts.iterrows())
    return Table(title="Trials", columns=("encoding", "planned", *STATUSES), rows=rows,
                 footer=(("total", str(total.sum()), *map(str, total)),))


def _broken(frame: pd.DataFrame) -> list[Table]:
    trials = frame[frame["status"] != "done"].fillna({"reason": "no reason given"})
    if trials.empty:
        return []
    rows = []
    for key, own in trials.groupby(["encoding", "task", "status", "reason"], sort=False, dropna=False):
        encoding, task, status, reason = map(str, key)
        seeds = ", ".join(map(str, sorted(set(own["seed"]))))
        rows.append((encoding, task, seeds, status, textwrap.shorten(reason, 300, placeholder=" ...")))
    return [Table(title="Trials with another status than done", rows=tuple(rows), texts=(1, 2, 3, 4),
                  columns=("encoding", "task", "seeds", "status", "reason"))]


def _columns(columns: Sequence[Column]) -> Table:
    heads = ("column", "task", "split", "length", "metric", "better", "examples", "seeds run")
    rows = tuple((column.label, column.task, column.split or NONE, str(column.length or NONE), column.metric or NONE,
                  "higher" if column.higher_is_better else "lower", span(column.examples),
                  f"{len(column.run)} of {len(column.planned)}") for column in columns if column.label != ALL_TASKS)
    return Table(title="Columns", columns=heads, rows=rows, texts=(1, 2, 4, 5))


REPORT = Scoreboard()
"""Found by this name."""
