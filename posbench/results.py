"""The tidy table of results: one row a measurement, and one row for a trial that has none.

The key of a row is (encoding, options, task, seed, split, length, metric); parts of it may be unknown (None), so every
group-by here and downstream passes dropna=False: pandas would otherwise lose those rows in silence.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from posbench.errors import UserError

COLUMNS: dict[str, str] = {
    "fingerprint": "the trial's name in the store",
    "encoding": "display label, such as 'rope' or 'rope:base=500000'",
    "options": "the encoding's options as canonical JSON",
    "suite": "name of the suite",
    "task": "name of the task",
    "seed": "seed of the trial",
    "split": "the split that was scored; None for a trial that reached none",
    "length": "tokens, where a score belongs to one length; else None",
    "metric": "name of the score",
    "value": "the score, in the metric's own unit; NaN where there is none",
    "n": "number of scored examples",
    "higher_is_better": "the metric's direction",
    "primary": "whether tables show this metric",
    "parameters": "number of trainable parameters",
    "flops": "floating-point operations of the whole training",
    "seconds": "wall-clock time of the training, s",
    "peak_memory": "largest memory in use, bytes",
    "status": "what became of the trial, one of STATUSES",
    "reason": "why, where status is not 'done'",
}
"""Name and meaning of each column, in order."""

KEY = ["encoding", "options", "task", "seed", "split", "length", "metric"]
"""What makes a measurement one of its kind."""

STATUSES = ("done", "degenerate", "diverged", "failed", "refused", "missing")
"""done: a finite score. degenerate: scored, but predictions are constant or the score is undefined; counts as run.
diverged: the loss left the finite numbers. failed: an error. refused: the combination is not possible. missing: planned
and not run."""

WITHOUT_VALUE = ("diverged", "failed", "refused", "missing")
"""Statuses of trials that have no score."""

VARIANT = " -> "
"""In a label, between a trained encoding and what took its place at scoring, without training."""

_TEXT = ("fingerprint", "encoding", "options", "suite", "task", "split", "metric", "status", "reason")
_COUNTS = ("seed", "length", "n", "parameters")
_FLAGS = ("higher_is_better", "primary")


def frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """The rows as a table with exactly COLUMNS, in the order given.

    A row that is 'done' with a score that is no finite number becomes 'degenerate', with the reason: a number that
    cannot be averaged is never a success.

    Raises:
        UserError: a column is unknown or missing, a status or flag is none, a trial without a score carries one, or
            two rows have one key (a mean of the two would hide that they come from different trials).
    """
    records = [_record(row, place) for place, row in enumerate(rows)]
    table = pd.DataFrame(records, columns=list(COLUMNS), dtype=object)
    for name in COLUMNS:
        if name in _COUNTS:
            table[name] = table[name].astype("int64" if name == "seed" else "Int64")
        elif name in _FLAGS:
            table[name] = table[name].astype(bool)
        elif name not in _TEXT:
            table[name] = table[name].astype("float64")
    _refuse_duplicates(table)
    return table


def complete(table: pd.DataFrame, plan: Iterable[tuple[str, str, int]]) -> pd.DataFrame:
    """The table with a row of status 'missing' for each planned (encoding, task, seed) that has none.

    The planned grid is where a report starts, so that a trial which was never run is seen and not just absent.
    """
    present = {(row.encoding, row.task, row.seed) for row in table.itertuples()}
    rows: list[Any] = table.to_dict("records")
    shown = table[table["primary"]]
    for encoding, task, seed in plan:
        if (encoding, task, seed) in present:
            continue
        present.add((encoding, task, seed))
        same_task, same_encoding = shown[shown["task"] == task], table[table["encoding"] == encoding]
        rows.append({
            **dict.fromkeys(COLUMNS),
            "encoding": encoding,
            "options": same_encoding["options"].iloc[0] if len(same_encoding) else None,
            "suite": table["suite"].iloc[0] if len(table) else None,
            "task": task,
            "seed": seed,
            "metric": same_task["metric"].iloc[0] if len(same_task) else None,
            "higher_is_better": bool(same_task["higher_is_better"].iloc[0]) if len(same_task) else True,
            "primary": True,
            "status": "missing",
            "reason": "planned and not run",
        })
    return frame(rows)


def _record(row: Mapping[str, Any], place: int) -> dict[str, Any]:
    where = f"result row {place} ({row.get('encoding')}, {row.get('task')}, seed {row.get('seed')})"
    unknown, missing = sorted(set(row) - set(COLUMNS)), [name for name in COLUMNS if name not in row]
    if unknown or missing:
        raise UserError(f"{where}: unknown columns {unknown}, missing columns {missing}; "
                        "give each of results.COLUMNS, None where it is not known")
    record = {name: None if _absent(row[name]) else row[name] for name in COLUMNS}
    if isinstance(record["options"], Mapping):
        record["options"] = json.dumps(record["options"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    for name in ("encoding", "task", "status"):
        if not isinstance(record[name], str) or not record[name]:
            raise UserError(f"{where}: {name} is {record[name]!r}, give a text")
    for name in _COUNTS:
        record[name] = _whole(record[name], name, where)
    if record["seed"] is None:
        raise UserError(f"{where}: seed is unknown, and without it nothing can be paired; give a whole number")
    for name in _FLAGS:
        if record[name] not in (True, False):
            raise UserError(f"{where}: {name} is {record[name]!r}, give True or False")
    return _with_status(record, where)


def _with_status(record: dict[str, Any], where: str) -> dict[str, Any]:
    status, value = record["status"], record["value"]
    if status not in STATUSES:
        raise UserError(f"{where}: status '{status}' is none of {', '.join(STATUSES)}")
    finite = value is not None and math.isfinite(value)
    if status in WITHOUT_VALUE and finite:
        raise UserError(f"{where}: a trial that is '{status}' has no score, but {value!r} is given; leave value empty")
    if not finite:
        record["value"] = None
        if status == "done":
            record["status"] = "degenerate"
            record["reason"] = record["reason"] or f"{record['metric']} is {'undefined' if value is None else value}"
    return record


def _absent(value: Any) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def _whole(value: Any, name: str, where: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or int(value) != value:
        raise UserError(f"{where}: {name} is {value!r}, give a whole number")
    return int(value)


def _refuse_duplicates(table: pd.DataFrame) -> None:
    # duplicated() takes two unknown parts of a key as equal, which is what is wanted here.
    twice = table[table.duplicated(KEY, keep=False)]
    if twice.empty:
        return
    first = twice.iloc[0]
    same = twice[[_same(row, first) for _, row in twice.iterrows()]]
    key = ", ".join(f"{name}={first[name]}" for name in KEY if not _absent(first[name]))
    names = " and ".join(str(name) for name in same["fingerprint"])
    raise UserError(f"two results for one cell ({key}): trials {names}; remove one of them, "
                    "or label the encodings apart")


def _same(row: pd.Series, other: pd.Series) -> bool:
    return all(row[name] == other[name] if not _absent(row[name]) else _absent(other[name]) for name in KEY)
