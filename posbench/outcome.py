"""From the records of a study to what its reports are given: tidy table, curves, costs, and the facts above them."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from posbench import ablation, cost, declaration, environment, provenance, results, search_report
from posbench.config import EncodingChoice, digest, to_plain
from posbench.locks import exclusive
from posbench.objective import Kept, kind_of, objective_of
from posbench.plots import CURVE_COLUMNS
from posbench.report import StudyResults
from posbench.signs import Signs
from posbench.store import Record, Store, write_atomically
from posbench.study import Plan
from posbench.study_folder import declarations
from posbench.tables import Table
from posbench.trial import Trial, load_rows
from posbench.turns import POLL

COSTS = "costs.json"
COSTS_LOCK = "costs.lock"
COSTS_SECONDS = 900.0
"""So long a report waits for another that measures; one that was stopped with its lock holds nobody up for good."""


def study_results(plan: Plan, records: Mapping[str, Record], folder: Path, store: Store | None = None) -> StudyResults:
    """Everything that a report shows.

    Args:
        plan: the grid. records: what is known of it, by fingerprint. folder: the study's own.
        store: where per-example arrays are; without one, tables that need them are left out.
    """
    study, tuned = plan.study, plan.tuned
    history = declarations(folder)
    costs = _costs(plan, records, folder)
    best = search_report.expected(tuned) if tuned else pd.DataFrame()
    signs = Signs(budgets=ablation.budgets(study), own=tuned.search.own_options if tuned else {})
    generated = "Generated data." if study.data.source == "generated" else ""
    tasks = provenance.of_tasks(plan)
    drawn = {task: _drawn(trial) for task, trial in {trial.config.task: trial for trial in plan.trials}.items()}
    curves = [
        point | {"metric": own[0], "value": point["value"] * own[1]}
        for point in _curves(plan.trials, records)
        if (own := drawn[point["task"]].get(point["metric"]))
    ]
    return StudyResults(
        title=f"posbench: {plan.trials[0].suite.title}, preset {study.preset}",
        header=provenance.header(plan, records, tasks) | declaration.told(history)
        | (search_report.header(study, tuned) if tuned else {}),
        warnings=(*declaration.warnings(history), *provenance.warnings(plan, tasks),
                  *filter(None, (cost.warning(costs),)),
                  *(search_report.warnings(tuned) if tuned else ())),
        frame=_frame(plan, records, costs),
        curves=pd.DataFrame(curves, columns=list(CURVE_COLUMNS)),
        costs=pd.DataFrame(costs, columns=list(cost.COLUMNS)),
        baseline=study.baseline,
        alpha=study.alpha,
        folder=folder,
        signs=signs,
        ranges=_ranges(plan),
        published=provenance.published(plan, tasks),
        extras=() if store is None else _extras(plan, records, store),
        search=search_report.parts(tuned, best, signs=signs, note=generated) if tuned else (),
        sheets={"search": search_report.points(tuned), "expected_best": best} if tuned else {},
        notes=(search_report.budget(tuned.search),) if tuned else (),
    )


def _extras(plan: Plan, records: Mapping[str, Record], store: Store) -> tuple[Table, ...]:
    """What each task's objective has to show beside the tables of all tasks."""
    tables: list[Table] = []
    for task in plan.study.tasks:
        trials = [trial for trial in plan.trials if trial.config.task == task and trial.fingerprint in records]
        kept = [Kept(trial=trial, record=records[trial.fingerprint],
                     arrays=partial(store.predictions, trial.fingerprint)) for trial in trials]
        if kept:
            tables += kind_of(trials[0]).extras(kept, baseline=plan.study.baseline, alpha=plan.study.alpha)
    return tuple(tables)


def _frame(plan: Plan, records: Mapping[str, Record], costs: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """The tidy table, completed with what was planned and not run."""
    by_label = {row["encoding"]: row for row in costs}
    rows = [
        row
        for trial in plan.trials
        if trial.fingerprint in records
        for row in _rows(trial, records[trial.fingerprint], by_label.get(trial.config.encoding.label, {}))
    ]
    cells = [(trial.config.encoding.label, trial.config.task, trial.config.seed) for trial in plan.trials]
    return results.complete(results.frame(rows), cells)


def _rows(trial: Trial, record: Record, costs: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    config = trial.config
    common = {
        "fingerprint": record.fingerprint,
        "encoding": record.label,
        "options": config.encoding.options,
        "suite": config.suite,
        "task": config.task,
        "seed": config.seed,
        "parameters": record.parameters or None,
        "flops": costs["flops"] * record.facts["updates"] if costs.get("flops") and "updates" in record.facts else None,
        "seconds": record.seconds or None,
        "peak_memory": costs.get("peak_memory"),
        "status": record.status,
        "reason": record.reason or None,
    }
    if record.status in results.WITHOUT_VALUE:
        # One row for each split that would have been scored, so that no column of the table loses the trial.
        metric = trial.task.primary_metric
        for split in load_rows(config.suite, config.task, config.data)[0].scored:
            yield {
                **common,
                "split": split,
                "length": None,
                "metric": metric.name,
                "value": None,
                "n": None,
                "higher_is_better": metric.higher_is_better,
                "primary": True,
            }
        return
    for row in record.rows:
        if trial.task.labelled:
            # Such a row has the length that it has; only running text is scored at lengths of one's choice. And which
            # of its scores is the primary one is the study's to say, not that of the study which ran it.
            row = row | {"length": None, "primary": row["metric"] == trial.task.primary}
        yield {**common, **row}
    for row in record.facts.get("apart", ()):
        variant = row["variant"]
        own = {name: value for name, value in row.items() if name != "variant"}
        if variant:
            # It was not trained, and costs what it costs the trained one.
            own |= {"encoding": f"{record.label}{results.VARIANT}{variant}",
                    "options": EncodingChoice.parse(variant).options}
        yield {**common, **own}


def _curves(trials: Iterable[Trial], records: Mapping[str, Record]) -> Iterable[dict[str, Any]]:
    for trial in trials:
        if trial.fingerprint in records:
            record = records[trial.fingerprint]
            for point in record.curves:
                yield {"encoding": record.label, "task": trial.config.task, "seed": trial.config.seed, **point}


def _drawn(trial: Trial) -> dict[str, tuple[str, float]]:
    """By name the curves of a task that are drawn, its score on the selection split and, where answers are more than a
    label, the training loss: how each is named with its unit, and what it is multiplied by for that."""
    score = f"{load_rows(trial.config.suite, trial.config.task, trial.config.data)[0].selection}/{trial.task.primary}"
    if trial.task.labelled:
        return {score: (score, 1.0)}
    unit, factor = kind_of(trial).loss_drawn(trial)
    return {score: (score, 1.0), "train/loss": (f"train/loss, {unit}", factor)}


def _ranges(plan: Plan) -> dict[tuple[str, str], tuple[float, float]]:
    """By task and metric, as the tidy table and as curves name it, the smallest and largest value of a score."""
    found = {}
    for task, trial in {trial.config.task: trial for trial in plan.trials}.items():
        for metric in trial.task.metrics:
            found[task, metric.name] = metric.range
        found[task, next(iter(_drawn(trial)))] = trial.task.primary_metric.range
    return found


def _costs(plan: Plan, records: Mapping[str, Record], folder: Path) -> list[dict[str, Any]]:
    """Measured once for these encodings, this shape and this machine, all in one run, when no trial runs any more.

    Not of an encoding whose trials all failed: one that hung or crashed there would do the same to this process.
    """
    trial = plan.trials[0]
    study = plan.study
    ends: dict[str, set[str]] = {}
    for record in (*plan.tuned_records.values(), *records.values()):
        ends.setdefault(record.label, set()).add(record.status)
    broken = [label for label, statuses in ends.items() if statuses == {"failed"}]
    unmeasured = [dict.fromkeys(cost.COLUMNS) | {"encoding": label, "reason": "all of its trials failed"}
                  for label in broken]
    encodings = {own.config.encoding.label: own for own in plan.trials
                 if own.config.task == trial.config.task and own.config.encoding.label not in broken}
    if not encodings:
        return unmeasured
    facts = environment.facts()
    key = digest(
        {
            "encodings": {
                label: [trial.sources, to_plain(trial.config.encoding), *sorted(trial.config.searched.items())]
                for label, trial in encodings.items()
            },
            "model": to_plain(study.model),
            "train": to_plain(study.train),
            "task": trial.config.task,
            "tokens": trial.config.data.max_length,
            "torch": facts["versions"]["torch"],
            "processor": facts["processor"],
            "accelerator": facts["accelerator"],
        }
    )
    # Reports at one moment would measure each other, and print different numbers into one folder: one measures.
    until = time.monotonic() + COSTS_SECONDS
    while not (known := _kept_costs(folder / COSTS, key)):
        with exclusive(folder / COSTS_LOCK) as mine:
            if (mine or time.monotonic() >= until) and not (known := _kept_costs(folder / COSTS, key)):
                known = _measured_costs(encodings, folder, key)
                break
        if not known:
            time.sleep(POLL)
    return known + unmeasured


def _measured_costs(encodings: Mapping[str, Trial], folder: Path, key: str) -> list[dict[str, Any]]:
    """Measures what encodings cost, and keeps it under the key."""
    trial = next(iter(encodings.values()))
    shape = _shape(trial)
    rows = cost.measure(
        {label: (own.encoding, own.options) for label, own in encodings.items()},
        trial.config.model,
        trial.config.train,
        shape,
        models={label: own.config.model for label, own in encodings.items()},
        shapes={label: _shape(own) for label, own in encodings.items() if own.config.encoding.settings},
    )
    write_atomically(
        folder / COSTS,
        json.dumps(
            {"key": key, "shape": {"rows": shape.rows, "tokens": shape.tokens}, "rows": rows}, indent=1
        ).encode(),
    )
    return rows


def _shape(trial: Trial) -> cost.Shape:
    """A batch of the trial, with every row as long as its settings allow."""
    objective = objective_of(trial)
    length = trial.config.data.max_length
    return cost.Shape(rows=trial.config.train.rows(length), tokens=length, vocabulary=objective.vocabulary,
                      head=objective.head(trial.task, objective.vocabulary))


def _kept_costs(path: Path, key: str) -> list[dict[str, Any]]:
    """Rows of an earlier measurement under this key; none where the file is missing, damaged, or of another study."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        known = json.loads(path.read_text())
        if known["key"] == key and all(isinstance(row, dict) and "encoding" in row for row in known["rows"]):
            return known["rows"]
    return []


def summary(plan: Plan, records: Mapping[str, Record]) -> dict[str, float]:
    """Means and half-widths of their intervals by 'encoding/task', for the summary in a tracker."""
    from posbench.comparison import compare

    comparison = compare(_frame(plan, records, ()), baseline=plan.study.baseline, alpha=plan.study.alpha)
    values = {}
    for (encoding, column), cell in comparison.cells.items():
        if cell.estimate is not None:
            values[f"{column}/{encoding} mean"] = cell.estimate.mean
            if cell.estimate.n > 1:
                values[f"{column}/{encoding} half interval"] = cell.estimate.half_width
    return values
