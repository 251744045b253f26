"""Bench: what every encoding costs at every length, all of them in turn in one run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic.dataclasses import dataclass

from posbench import cost, environment
from posbench.config import STRICT, EncodingChoice, ModelConfig, TrainConfig, setting
from posbench.encoding import HOOKS, overrides
from posbench.errors import UserError
from posbench.numerals import NONE, amount, counted
from posbench.options import build_options
from posbench.registry import ENCODINGS
from posbench.report import Document
from posbench.store import write_atomically
from posbench.tables import Table, csv_text
from posbench.transformer import Head

VOCABULARY = 8192


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Bench:
    """What is measured."""

    lengths: tuple[int, ...] = setting((128, 512, 2048), "tokens of a row")
    tokens: int = setting(2048, "tokens of a step; rows are as many as fit, one at least", ge=1, le=10**9)
    rounds: int = setting(15, "measured steps of each encoding at each length", ge=1, le=10**6)
    model: ModelConfig
    train: TrainConfig

    def rows(self, length: int) -> int:
        return max(1, self.tokens // length)


STANDARD = Bench(model=ModelConfig(), train=TrainConfig(steps=1, threads=environment.cores()))


def loaded(choices: Iterable[EncodingChoice]) -> dict[str, tuple[Any, Any]]:
    """Class and options by label, beginning with one that has no hooks, to which ratios are taken.

    Raises:
        UserError: an unknown name or option, or the same label twice.
    """
    found: dict[str, tuple[Any, Any]] = {}
    for choice in choices:
        if choice.label in found:
            raise UserError(f"encoding '{choice.label}' is given twice: give it once")
        cls = ENCODINGS.load(choice.name).value
        found[choice.label] = (cls, build_options(choice.name, cls, choice.options))
    if not any(not overrides(cls, *HOOKS) for cls, _ in found.values()):
        found = {"nope": (ENCODINGS.load("nope").value, None), **found}
    return found


def measure(encodings: Mapping[str, tuple[Any, Any]], bench: Bench,
            step: Callable[[str], None] = lambda name: None) -> pd.DataFrame:
    """One row an encoding and length: cost.COLUMNS, length, rows, tokens_per_second."""
    table = []
    for length in bench.lengths:
        step(counted(length, "token"))
        shape = cost.Shape(rows=bench.rows(length), tokens=length, vocabulary=VOCABULARY,
                           head=Head(kind="classification", outputs=2))
        for row in cost.measure(encodings, bench.model, bench.train, shape, rounds=bench.rounds):
            speed = shape.rows * length / row["step_seconds"] if row["step_seconds"] else None
            table.append({"length": length, "rows": shape.rows, **row, "tokens_per_second": speed})
    return pd.DataFrame(table, columns=["length", "rows", *cost.COLUMNS, "tokens_per_second"])


def made_with(model: ModelConfig, train: TrainConfig) -> tuple[tuple[str, str], ...]:
    """Machine, versions and model, as a table's header states them."""
    facts = environment.facts()
    device = facts["accelerator"] if train.device != "cpu" and facts["accelerator"] else facts["processor"]
    linear = f"linear attention ({model.feature_map}), " if model.attention == "linear" else ""
    return (
        ("machine", f"{device}, {counted(train.threads, 'thread')}"),
        ("versions", environment.spelled_versions(facts["versions"])),
        ("model", f"{model.shape}, {linear}{counted(model.layers, 'layer')}, {model.width} wide, "
                  f"{counted(model.heads, 'head')}, feed-forward {model.feedforward}, "
                  f"dropout {model.dropout:g}, vocabulary {VOCABULARY}"),
    )


def document(table: pd.DataFrame, bench: Bench) -> Document:
    """The table as people read it: encodings down, lengths across."""
    header = (
        *made_with(bench.model, bench.train),
        ("step", f"forward, backward, clipping and AdamW on {counted(bench.tokens, 'token')}; "
                 f"rows of {_listed(table)}"),
        ("rounds", f"{bench.rounds}, each one step of every encoding in turn; medians"),
    )
    broken = table[table["step_seconds"].isna()]
    busy = cost.warning(table.to_dict("records"))
    warnings = (*((busy,) if busy else ()),
                *(f"{row.encoding} at length {row.length}: {row.reason}" for row in broken.itertuples()))
    return Document(title="posbench: costs of a training step", header=header, warnings=warnings, parts=(
        _across(table, "Step time over nope's", cost.ratio,
                ("In brackets the quartiles over rounds of the ratio within a round.",)),
        _across(table, "Thousand tokens per second", lambda row: amount(row.tokens_per_second, 1e-3, "{:,.1f}"), ()),
        _across(table, "Peak memory of a step, MiB", lambda row: amount(row.peak_memory, 2**-20, "{:,.1f}"),
                ("Activations, gradients and temporary tensors; weights and optimizer are left out.",)),
        *_growth(table),
    ))


def write(table: pd.DataFrame, shown: Document, folder: Path, name: str = "bench") -> list[Path]:
    """NAME.csv, .md, .tex and .txt in the folder."""
    forms = {"csv": csv_text(table), "md": shown.markdown(), "tex": shown.latex(), "txt": shown.text()}
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, text in forms.items():
        write_atomically(folder / f"{name}.{suffix}", text.encode())
    return [folder / f"{name}.{suffix}" for suffix in forms]


def _listed(table: pd.DataFrame) -> str:
    shapes = table[["rows", "length"]].drop_duplicates()
    return ", ".join(f"{row.rows} x {row.length}" for row in shapes.itertuples())


def _across(table: pd.DataFrame, title: str, cell: Callable[[Any], str], notes: Sequence[str]) -> Table:
    lengths = list(dict.fromkeys(table["length"]))
    cells = {(row.encoding, row.length): cell(row) for row in table.itertuples()}
    rows = tuple((name, *(cells[name, length] for length in lengths)) for name in dict.fromkeys(table["encoding"]))
    return Table(title=title, columns=("encoding", *map(str, lengths)), rows=rows, notes=tuple(notes))


def _growth(table: pd.DataFrame) -> tuple[Table, ...]:
    """How time and memory of a row grow between the two longest lengths: exponent 1 is linear, 2 is quadratic."""
    longest = sorted(set(table["length"]))[-2:]
    if len(longest) < 2:
        return ()
    rows = []
    for name, own in table.groupby("encoding", sort=False):
        short, long = (own[own["length"] == length].iloc[0] for length in longest)
        exponents = []
        for column in ("step_seconds", "peak_memory"):
            a, b = short[column] / short["rows"], long[column] / long["rows"]
            known = pd.notna(a) and pd.notna(b) and a > 0 and b > 0
            exponents.append(f"{math.log(b / a) / math.log(longest[1] / longest[0]):.2f}" if known else NONE)
        rows.append((str(name), *exponents))
    return (Table(title=f"Growth of a row's cost from {longest[0]} to {longest[1]} tokens",
                  columns=("encoding", "time", "memory"), rows=tuple(rows),
                  notes=("Exponent of the length: 1 is linear, 2 quadratic.",)),)
