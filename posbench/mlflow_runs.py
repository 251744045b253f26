"""What MLflow is told of a trial, and of all trials of one encoding. Values only: nothing here talks to MLflow.

Names are made for the browser's pages, which make a section of the text before a metric's first '/': 'score' (final
primary scores), 'validation' and 'train' (curves), 'final' (all final scores), 'spread' and 'cost'. The task is part of
a metric's name ('score/cola', 'validation/cola.matthews'), because a mean over tasks of unlike metrics says nothing,
while a mean over the seeds of one task is what an ablation table holds.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posbench.config import digest
from posbench.store import Record

LONGEST_PARAM = 500
LONGEST_KEY = 200
LONGEST_TAG = 4000
SCORED = ("done", "degenerate")
# Far apart for the eye, also for most colour-blind readers (Okabe and Ito, then darker ones).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A4EAB", "#8C8C00", "#A52A2A", "#444444")
_UNSAFE = re.compile(r"[^A-Za-z0-9_./ -]")


@dataclass(frozen=True, kw_only=True)
class Point:
    """One number of a metric; step is an update, or a length where the metric is scored at several."""

    name: str
    value: float
    step: int = 0


@dataclass(frozen=True, kw_only=True)
class Run:
    """All that MLflow keeps of one run.

    Attributes:
        name: as the table shows it. key: what the run is a copy of; equal keys are one run.
        kind: 'trial', 'tuning' (one of a search), 'encoding' (means over seeds) or 'summary'.
        finished: FINISHED or FAILED.
        params, tags: texts within MLflow's limits. points: finite numbers.
        texts: artifacts by path, from memory. files: artifacts by path, from disk.
        began, ended: seconds since 1970.
    """

    name: str
    key: str
    kind: str
    finished: bool = True
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    began: float = field(default_factory=time.time)
    ended: float = field(default_factory=time.time)

    def write_artifacts(self, folder: Path) -> None:
        """Lays all artifacts out below a folder; no name leads out of it."""
        for name, text in self.texts.items():
            _inside(folder, name).write_text(text, encoding="utf-8", errors="backslashreplace")
        for name, path in self.files.items():
            shutil.copyfile(path, _inside(folder, name))


def of_trial(record: Record, files: Mapping[str, Path]) -> Run:
    """The copy of one trial."""
    config, facts = record.config, record.facts
    options = config.get("encoding", {}).get("options", {})
    plain = {
        "encoding": record.label,
        "task": config.get("task", ""),
        "seed": config.get("seed", ""),
        "suite": config.get("suite", ""),
        "options": json.dumps(options, sort_keys=True),
    }
    tunes = config.get("tuning") is not None
    params, texts = _params(plain | {name: value for name, value in _flat(config)
                                     if name not in plain and (name != "tuning" or tunes)})
    points = _trial_points(record)
    finite = [point for point in points if math.isfinite(point.value)]
    broken = any(point.name.startswith("train/") and not math.isfinite(point.value) for point in points)
    # MLflow keeps NaN as 0 and infinity as the largest float: both would pass for numbers. They become words.
    status = "diverged" if broken and record.status == "done" else record.status
    tags = {
        "posbench.status": status,
        "posbench.reason": record.reason,
        "posbench.data_hash": facts.get("data_hash"),
        "posbench.plugin_origin": facts.get("plugin_origin"),
        "posbench.plugin_source": facts.get("plugin_source"),
        "posbench.suite_version": facts.get("suite_version"),
        "posbench.git_commit": facts.get("commit"),
        "posbench.device": facts.get("device"),
        **{f"posbench.versions.{name}": value for name, value in (facts.get("versions") or {}).items()},
    }
    if len(finite) < len(points):
        tags["posbench.not_finite"] = ", ".join(sorted({p.name for p in points if not math.isfinite(p.value)}))
    content = digest([status, record.reason, params, sorted((p.name, p.step, p.value) for p in finite)])
    ended = float(facts.get("ended") or time.time())
    return Run(
        name=f"{'tuning-' if tunes else ''}{record.label}-{plain['task']}-s{plain['seed']}",
        key=record.fingerprint,
        kind="tuning" if tunes else "trial",
        finished=status in SCORED or status == "pruned",
        params=params,
        tags=_tags(tags | {"posbench.content": content}),
        points=finite,
        texts={"config.json": json.dumps(config, indent=1, sort_keys=True), **texts},
        files=dict(files),
        began=float(facts.get("began") or ended - record.seconds),
        ended=ended,
    )


def of_encoding(label: str, records: Sequence[Record], colour: str) -> Run:
    """Means over the seeds of all trials of one encoding: one line of the table, one curve a task.

    A mean is over trials that have a score; 'scored' tells how many of them there are, so that the means of an encoding
    which diverges on hard seeds are not taken for those of one which never does.
    """
    scored = [record for record in records if record.status in SCORED]
    values: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    runs: defaultdict[str, int] = defaultdict(int)
    for record in scored:
        points = _trial_points(record)
        for name in {point.name for point in points}:
            runs[name] += 1
        for point in points:
            values[point.name, point.step].append(point.value)
    points = []
    for (name, step), found in values.items():
        # A curve must not jump where a seed has no number.
        if len(found) < runs[name] or not all(math.isfinite(value) for value in found):
            continue
        points.append(Point(name=name, step=step, value=_shown(statistics.fmean(found))))
        if name.startswith("score/") and len(found) > 1:
            spread = _shown(statistics.stdev(found))
            points.append(Point(name=f"spread/{name.removeprefix('score/')}", step=step, value=spread))
    seeds = sorted({record.config.get("seed", 0) for record in records})
    params, _ = _params({"encoding": label, "scored": f"{len(scored)} of {len(records)}", "seeds": len(seeds)})
    content = digest([params, colour, sorted((p.name, p.step, p.value) for p in points)])
    return Run(
        name=label,
        key=f"encoding:{label}",
        kind="encoding",
        params=params,
        points=points,
        tags=_tags({"posbench.content": content, "mlflow.runColor": colour}),
        began=min(float(record.facts.get("began") or time.time()) for record in records),
    )


def of_summary(name: str, values: Mapping[str, float], files: Mapping[str, Path]) -> Run:
    """The copy of a study's summary: its numbers, tables and figures."""
    points = [
        Point(name=key(metric), value=float(value)) for metric, value in values.items() if math.isfinite(float(value))
    ]
    content = digest(
        [
            sorted((p.name, p.value) for p in points),
            sorted((at, hashlib.sha256(path.read_bytes()).hexdigest()) for at, path in files.items()),
        ]
    )
    return Run(
        name=name,
        key=f"summary:{name}",
        kind="summary",
        points=points,
        files=dict(files),
        tags=_tags({"posbench.content": content}),
    )


def columns(record: Record) -> tuple[list[str], list[str], list[str]]:
    """Names of a trial's metrics that a reader looks at first: primary scores, their curves, training losses."""
    names = list(dict.fromkeys(point.name for point in _trial_points(record)))
    task, primary = record.config.get("task", "task"), {row["metric"] for row in record.rows if row["primary"]}
    sections = {str(point["metric"]).rpartition("/")[0] for point in record.curves} - {"train", ""}
    curves = {key(f"{section}/{task}.{metric}") for section in sections for metric in primary}
    return (
        [name for name in names if name.startswith("score/")],
        [name for name in names if name in curves],
        [name for name in names if name.startswith("train/")],
    )


def key(text: str) -> str:
    """A name that MLflow takes: allowed characters, not too long, no path; different texts keep different names."""
    clean = re.sub(r"/+", "/", _UNSAFE.sub("_", text)).strip("/ ")
    clean = "/".join(part if part.strip(".") else "_" for part in clean.split("/"))
    if clean == text and len(clean) <= LONGEST_KEY:
        return text
    return f"{clean[:LONGEST_KEY]}.{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _trial_points(record: Record) -> list[Point]:
    task = record.config.get("task", "task")
    points = []
    for point in record.curves:
        section, _, rest = str(point["metric"]).rpartition("/")
        points.append(
            Point(name=key(f"{section or 'train'}/{task}.{rest}"), value=float(point["value"]), step=int(point["step"]))
        )
    lengths: defaultdict[tuple[str, str], set[Any]] = defaultdict(set)
    for row in record.rows:
        lengths[row["split"], row["metric"]].add(row.get("length"))
    splits = list(dict.fromkeys(row["split"] for row in record.rows if row["primary"]))
    for row in record.rows:
        name, value = f"{task}.{row['metric']}", float(row["value"])
        if len(lengths[row["split"], row["metric"]]) > 1:
            points.append(Point(name=key(f"length/{name}.{row['split']}"), value=value, step=int(row["length"] or 0)))
            continue
        points.append(Point(name=key(f"final/{name}.{row['split']}"), value=value))
        if row["primary"]:
            other = "" if row["split"] == splits[0] else f".{str(row['split']).removeprefix('validation_')}"
            points.append(Point(name=key(f"score/{task}{other}"), value=value))
    if record.seconds > 0:
        points.append(Point(name=key(f"cost/{task}.seconds"), value=float(record.seconds)))
    if record.step_seconds > 0:
        points.append(Point(name=key(f"cost/{task}.step_seconds"), value=float(record.step_seconds)))
    if record.parameters:
        points.append(Point(name=key(f"cost/{task}.parameters"), value=float(record.parameters)))
    return points


def _shown(value: float) -> float:
    """Pages print all digits of a number; a mean over a few seeds has no more than four."""
    return float(f"{value:.4g}")


def _inside(folder: Path, name: str) -> Path:
    path = folder.joinpath(*key(name).split("/"))
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, entry in value.items():
        if isinstance(entry, Mapping):
            yield from _flat(entry, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", entry


def _params(values: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Texts within the limit, and the whole of those that were cut as artifacts. A param can be written only once."""
    params, texts = {}, {}
    for name, value in values.items():
        text = str(value)
        if len(text) > LONGEST_PARAM:
            known = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
            at = f"params/{hashlib.sha256(name.encode()).hexdigest()[:16]}.txt"
            texts[at] = text
            text = f"{text[:200]}... (sha256 {known}, whole in {at})"
        params[key(name)] = text
    return params, texts


def _tags(values: Mapping[str, Any]) -> dict[str, str]:
    return {key(name): str(value)[:LONGEST_TAG] for name, value in values.items() if value not in (None, "")}
