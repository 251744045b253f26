"""What a study will take before it runs: trials, parameters, FLOPs, tokens, memory and time; nothing is written."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from posbench import cost
from posbench.ablation import options_of
from posbench.config import StudyConfig, TrainConfig, TrialConfig
from posbench.console import duration
from posbench.errors import reason_of
from posbench.numerals import NONE
from posbench.prospect import TrialsPlanned, cells
from posbench.registry import ENCODINGS
from posbench.report import Document
from posbench.store import Store
from posbench.study import stored
from posbench.tables import Table
from posbench.timing import Timings
from posbench.transformer import Head
from posbench.trial import load_suite

ROUNDS = 3
MEASURED = 5 * 10**9
"""FLOPs of the largest step that is taken to learn how long it lasts."""
VOCABULARY = 512
ORIGINS = {"store": "steps measured in the store", "steps": f"{ROUNDS} steps measured here",
           "products": "the speed of matrix products here, which no step reaches"}


def forecast(study: StudyConfig, root: Path) -> Document:
    """The plan of a study as a document.

    Args:
        root: folder of the store, from which finished trials and measured steps are read.
    """
    store, timings = Store(root), Timings(root)
    planned = cells(study, store)
    rows, times, work, tokens, unknown = [], 0.0, 0.0, 0.0, 0
    to_run = found = 0
    origins: set[str] = set()
    speed = functools.cache(_products)
    for label in dict.fromkeys(cell.label for cell in planned):
        own = [cell for cell in planned if cell.label == label]
        figures = [_figures(cell, store, timings, len(study.seeds), speed) for cell in own]
        rows.append((label, *_row(figures)))
        to_run, found = to_run + sum(f.to_run for f in figures), found + sum(f.stored for f in figures)
        for figure in figures:
            times += (figure.seconds or 0.0) * figure.to_run
            work += (figure.flops or 0.0) * figure.to_run
            tokens += (figure.tokens or 0.0) * figure.to_run
            unknown += figure.to_run * (figure.flops is None)
            origins |= {figure.origin} - {""}
    searched = sum(cell.searched for cell in planned)
    told = f" ({searched} of them tune)" if searched else ""
    header = [
        ("trials", f"{to_run + found}{told}: {to_run} to run, {found} in the store"),
        ("FLOPs", _amount(work, unknown)), ("tokens", _amount(tokens, unknown)),
        ("time", f"{duration(times)}, one trial after the other; from "
                 f"{'; '.join(ORIGINS[name] for name in ORIGINS if name in origins) or 'nothing that was measured'}"),
        ("nothing", "has run and nothing was written"),
    ]
    if assumed := dict.fromkeys(f"{cell.task} {cell.assumed}" for cell in planned if cell.assumed):
        header.append(("assumed", "; ".join(assumed)))
    missing = tuple(dict.fromkeys(f"Missing data of {cell.task}: {cell.missing}" for cell in planned if cell.missing))
    columns = ("encoding", "to run", "stored", "parameters", "FLOPs of a step", "updates", "FLOPs of a trial",
               "tokens of a trial", "memory, MiB", "seconds of a step", "time of a trial", "time from")
    notes = ("Every row is taken as long as data.max_length allows. Memory: weights, gradients, Adam's moments and "
             "what the backward pass needs, in 32 bits with the attention matrix kept. Where tasks differ, least to "
             "most.",)
    return Document(title=f"posbench: plan of {load_suite(study.suite).title}, preset {study.preset}",
                    header=tuple(header), warnings=missing,
                    parts=(Table(title="Plan", columns=columns, rows=tuple(rows), notes=notes),))


@dataclass(frozen=True, kw_only=True)
class _Figures:
    """Of the trials of one encoding on one task; None where it cannot be told."""

    to_run: int
    stored: int
    parameters: int | None
    step_flops: int | None
    updates: int | None
    flops: float | None
    tokens: float | None
    memory: int | None
    step_seconds: float | None
    seconds: float | None
    origin: str
    reason: str


def _figures(
    cell: TrialsPlanned, store: Store, timings: Timings, seeds: int, speed: Callable[[int], float]
) -> _Figures:
    records = stored((*cell.trials, *cell.tuning), store)
    done = sum(record.status != "failed" for record in records.values())
    planned = cell.config.encoding
    plugin = ENCODINGS.load(planned.name)
    reason = ""
    costs: dict[str, int | None] = {"parameters": None, "flops": None, "memory": None}
    try:
        costs = _costs(plugin.value, options_of(planned), cell.config.model, cell.shape)
    except Exception as error:  # an encoding that cannot be built here is told of in its row
        reason = reason_of(error)
    step = timings.step_seconds(cell.config)
    origin = "store" if step is not None else ""
    if step is None and costs["flops"]:
        if costs["flops"] < MEASURED:
            step, origin = _steps(plugin.value, options_of(planned), cell.config, cell.shape), "steps"
        else:
            step, origin = costs["flops"] / speed(cell.config.train.threads), "products"
    seconds = None
    if step is not None and cell.updates is not None:
        seconds = timings.trial_seconds(cell.config, cell.updates) if origin == "store" else step * cell.updates
    each = cell.shape.rows * cell.shape.tokens
    return _Figures(
        to_run=seeds + cell.searched - done, stored=done, parameters=costs["parameters"], step_flops=costs["flops"],
        updates=cell.updates,
        flops=None if cell.updates is None or costs["flops"] is None else float(costs["flops"]) * cell.updates,
        tokens=None if cell.updates is None else float(each) * cell.updates, memory=costs["memory"],
        step_seconds=step, seconds=seconds, origin=origin, reason=reason,
    )


@functools.lru_cache(maxsize=256)
def _costs(cls: Any, options: Any, model: Any, shape: cost.Shape) -> dict[str, int | None]:
    return cost.expected(cls, options, model, shape)


@functools.lru_cache(maxsize=256)
def _steps_of(cls: Any, options: Any, model: Any, train: Any, shape: cost.Shape) -> float | None:
    (row,) = cost.measure({"": (cls, options)}, model, train, shape, rounds=ROUNDS)
    return row["step_seconds"]


def _steps(cls: Any, options: Any, config: TrialConfig, shape: cost.Shape) -> float | None:
    """Seconds of a step that is taken here, once for all tasks whose steps do not differ in what takes time."""
    if shape.head.kind != "token":
        shape = replace(shape, vocabulary=VOCABULARY, head=Head(kind="classification", outputs=2))
    return _steps_of(cls, options, config.model, TrainConfig(steps=1, threads=config.train.threads,
                                                             device=config.train.device), shape)


def _products(threads: int) -> float:
    """FLOPs a second of a matrix product in 32 bits on this many threads."""
    torch.set_num_threads(threads)
    size = 1024
    left, right = torch.ones(size, size), torch.ones(size, size)
    left @ right
    began = time.perf_counter()
    for _ in range(ROUNDS):
        left @ right
    return ROUNDS * 2 * size**3 / (time.perf_counter() - began)


def _row(figures: Sequence[_Figures]) -> tuple[str, ...]:
    def span(name: str, form: str, unit: float = 1.0) -> str:
        known = [value * unit for figure in figures if (value := getattr(figure, name)) is not None]
        if not known:
            return NONE
        shown = list(dict.fromkeys(form.format(value) for value in (min(known), max(known))))
        return " to ".join(shown) + (" and unknown" if len(known) < len(figures) else "")

    times = [figure.seconds for figure in figures if figure.seconds is not None]
    shown = list(dict.fromkeys(duration(value) for value in (min(times), max(times)))) if times else [NONE]
    reasons = next((figure.reason for figure in figures if figure.reason), "")
    return (
        str(sum(figure.to_run for figure in figures)), str(sum(figure.stored for figure in figures)),
        span("parameters", "{:,.0f}"), span("step_flops", "{:.3g}"), span("updates", "{:,.0f}"),
        span("flops", "{:.3g}"), span("tokens", "{:.3g}"), span("memory", "{:,.0f}", 2**-20),
        span("step_seconds", "{:.3g}"), " to ".join(shown),
        reasons or ", ".join(dict.fromkeys(figure.origin for figure in figures if figure.origin)) or NONE,
    )


def _amount(value: float, unknown: int) -> str:
    told = f"{value:.3g} of the trials to run" if math.isfinite(value) else NONE
    return told + (f", and of {unknown} it cannot be told" if unknown else "")
