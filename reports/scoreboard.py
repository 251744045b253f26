"""The ablation table: encodings down, tasks across; first the scores, then what can be said of their differences."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import pandas as pd

from posbench import lengths, plots, published
from posbench.cells import Column
from posbench.comparison import ALL_TASKS, Comparison, Difference, compare
from posbench.errors import UserError
from posbench.numerals import NONE, amount, compared, counted, number, p_value, span
from posbench.report import Document, Figure, Report, StudyResults
from posbench.results import STATUSES, VARIANT
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
        note = "Generated data." if _generated(context) else ""
        common = (*filter(None, (_counted(lengths.trained(context.frame)), note)), *context.notes)
        parts: list[Table | Figure] = [_quality(comparison, common)]
        if comparison.differences:
            parts.append(_differences(comparison, context.ablations, common))
        if comparison.ranking is not None:
            parts.append(_ranks(comparison, common))
            if len(comparison.ranking.tasks) >= RANKED:
                draw = partial(plots.rank_plot, comparison, note=note)
                parts.append(Figure(title="Average ranks", name="ranks", draw=draw))
        trained = lengths.trained(context.frame)
        parts += lengths.tables(context.frame, common, left_out=DRAWN)
        if not lengths.several(context.frame).empty:
            parts.append(Figure(title="Scores by length", name="lengths",
                                draw=partial(plots.by_length, lengths.several(context.frame),
                                             trained=lengths.trained_lengths(context.frame), note=note)))
        parts += [replace(table, notes=(*table.notes, *common)) for table in context.extras]
        parts += published.tables(context.published, context.frame, alpha=context.alpha, common=common)
        parts += [_costs(context.costs, list(dict.fromkeys(trained["encoding"]))), _ran(trained)]
        parts += [*_broken(trained), _columns(comparison.columns)]
        if not context.curves.empty:
            parts.append(Figure(title="Learning curves", name="curves",
                                draw=partial(plots.learning_curves, context.curves, note=note)))
        parts += context.search
        return Document(title=context.title, header=_header(context, comparison),
                        warnings=_warnings(context, comparison), parts=tuple(parts))

    def data(self, context: StudyResults) -> dict[str, pd.DataFrame]:
        comparison = compare(context.frame, baseline=context.baseline, alpha=context.alpha)
        return {"tidy": context.frame, "comparisons": comparison.table(), **context.sheets}


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
            lines.append(f"With {seeds} seed{'s' if seeds != 1 else ''} no column can show a difference at "
                         f"{comparison.alpha:g} after {family} comparison{'s' if family != 1 else ''}, however large "
                         f"it is: {counted(comparison.needed, 'seed')} are needed, {comparison.needed - seeds} more.")
    return tuple(lines)


def _quality(comparison: Comparison, common: tuple[str, ...]) -> Table:
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


def _differences(comparison: Comparison, ablations: Mapping[str, str], common: tuple[str, ...]) -> Table:
    columns = comparison.columns
    others = [encoding for encoding in comparison.encodings if encoding != comparison.baseline]
    rows = [(("‡ " if encoding.partition(VARIANT)[0] in ablations else "") + encoding,
             *(_change(comparison, encoding, column) for column in columns)) for encoding in others]
    detectable = tuple(number(comparison.detectable[column.label], _digits(comparison, column)) for column in columns)
    pairs = tuple(span([len(entry.pairs) for entry in (comparison.differences[name, column.label] for name in others)
                        if entry.pairs]) for column in columns)
    notes = ["Encoding minus baseline, paired by seed, ± half of the 95 % t interval of the difference.",
             f"Detectable: the smallest true difference that a paired t test would find with power 0.8 at alpha = "
             f"{comparison.alpha:g} / {len(others)}, from the column's pooled deviation of differences."]
    if any(_decided(entry) for entry in comparison.differences.values()):
        notes.append("p: sign-flip test, adjusted after Holm; given where there are pairs enough to reach alpha. "
                     f"* p ≤ {comparison.alpha:g}.")
    if any(column.label == ALL_TASKS for column in columns):
        notes.append("All tasks: paired by seed too, each seed with its mean over tasks, so that interval, p and "
                     "detectable difference are over seeds, of exactly these tasks, and say nothing of others.")
    if marked := [f"{name}: {ablations[name]}" for name in others if name in ablations]:
        notes.append("‡ Ablations, and no comparison of encodings at an equal budget: " + "; ".join(marked) + ".")
    notes.append("Uncorrected p, all counts and verdicts: comparisons.csv.")
    return Table(title=f"Difference to '{comparison.baseline}'", columns=("encoding", *map(_head, columns)),
                 rows=tuple(rows), footer=(("detectable", *detectable), ("pairs", *pairs)), notes=(*notes, *common))


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
    notes = (f"Friedman over {test.n} tasks: chi² = {test.chi2:.2f}, Iman-Davenport F = {test.f:.2f}, "
             f"p {compared(test.p)} ({test.form}). Critical difference {ranking.critical_difference:.2f} "
             f"(Nemenyi, {comparison.alpha:g}).",
             "z is negative where the encoding ranks better than the baseline.")
    if test.n < RANKED:
        notes = (f"Ranks over {test.n} tasks are described and not tested: {RANKED} tasks are the least for that.",)
    return Table(title="Ranks over tasks", columns=tuple(heads), rows=tuple(map(tuple, rows)), notes=(*notes, *common))


def _costs(costs: pd.DataFrame, encodings: Sequence[str]) -> Table:
    known = {row.encoding: row for row in costs.itertuples()}
    rows = []
    for encoding in encodings:
        row = known.get(encoding)
        rows.append((encoding, *(amount(getattr(row, name, None), scale, form) for name, scale, form in (
            ("parameters", 1, "{:,.0f}"), ("flops", 1, "{:.3g}"), ("step_seconds", 1e3, "{:.1f}"),
            ("step_ratio", 1, "{:.2f}"), ("peak_memory", 2**-20, "{:,.2f}")))))
    return Table(title="Cost", columns=("encoding", "parameters", "FLOPs of a step", "step, ms", "step / nope",
                                        "peak memory, MiB"), rows=tuple(rows),
                 notes=("Step / nope: step time over that of nope in the same study, on the machine above.",))


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
        text += f"\np {compared(entry.p_holm)}{' *' if entry.p_holm <= comparison.alpha else ''}"
    return text


def _decided(entry: Difference) -> bool:
    return entry.estimate is not None and not entry.verdict.startswith("needs")


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


REPORT = Scoreboard()
"""Found by this name."""
