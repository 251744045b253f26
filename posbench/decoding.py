"""Speed of beam search with a cache and without one, all encodings in turn in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
from pydantic.dataclasses import dataclass

from posbench.beam import Search, beam_search
from posbench.bench import VOCABULARY, made_with
from posbench.config import STRICT, DecodeConfig, ModelConfig, TrainConfig, setting
from posbench.errors import reason_of
from posbench.numerals import NONE, amount, counted
from posbench.report import Document
from posbench.seeds import generator
from posbench.tables import Table
from posbench.transformer import Head, Transformer

COLUMNS = ("length", "encoding", "cached_tokens_per_second", "plain_tokens_per_second", "ratio", "reason")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DecodeBench:
    """What is measured."""

    lengths: tuple[int, ...] = setting((64,), "tokens of every output")
    source: int = setting(32, "tokens of every source", ge=1, le=65536)
    rows: int = setting(8, "sources that are decoded at once", ge=1, le=65536)
    rounds: int = setting(5, "measured searches of each encoding in each way", ge=1, le=10**6)
    model: ModelConfig
    train: TrainConfig
    decode: DecodeConfig


STANDARD = DecodeBench(model=ModelConfig(shape="encoder-decoder", tied_embeddings=True, token_types=0),
                       train=TrainConfig(steps=1), decode=DecodeConfig())


def measure(encodings: Mapping[str, tuple[Any, Any]], bench: DecodeBench,
            step: Callable[[str], None] = lambda name: None) -> pd.DataFrame:
    """One row an encoding and length, with COLUMNS; the reason says why there is no number."""
    torch.set_num_threads(bench.train.threads)
    device, table = _device(bench), []
    for length in bench.lengths:
        step(counted(length, "token"))
        seconds: dict[tuple[str, bool], list[float]] = {}
        reasons: dict[str, str] = {}
        searches = {label: _search(*parts, bench, length, device) for label, parts in encodings.items()}
        # The first round warms up and is not counted.
        for turn in range(bench.rounds + 1):
            for label in encodings:
                for cached in (True, False) if label not in reasons else ():
                    try:
                        spent = searches[label](cached)
                    except Exception as error:  # the speed of the others is wanted all the same
                        reasons[label] = reason_of(error)
                        break
                    if turn:
                        seconds.setdefault((label, cached), []).append(spent)
        for label in encodings:
            row: dict[str, Any] = dict.fromkeys(COLUMNS) | {"length": length, "encoding": label,
                                                            "reason": reasons.get(label, "")}
            if label not in reasons:
                fast, slow = (bench.rows * length / statistics.median(seconds[label, cached])
                              for cached in (True, False))
                row |= {"cached_tokens_per_second": fast, "plain_tokens_per_second": slow, "ratio": fast / slow}
            table.append(row)
    return pd.DataFrame(table, columns=list(COLUMNS))


def _device(bench: DecodeBench) -> torch.device:
    return torch.device("cuda" if bench.train.device != "cpu" and torch.cuda.is_available() else "cpu")


def _search(cls: Any, options: Any, bench: DecodeBench, length: int, device: torch.device) -> Callable[[bool], float]:
    """Runs one search on a model with its first weights, of outputs that all have this length, and returns seconds."""
    made: list[Transformer] = []
    clock = time.process_time if own_time(bench, device) else time.perf_counter
    source = torch.randint(2, VOCABULARY, (bench.rows, bench.source), generator=generator(0, "source")).to(device)
    search = Search(begin=0, end=1, beam=bench.decode.beam, length_penalty=bench.decode.length_penalty,
                    shortest=length, longest=length)

    def seconds(cached: bool) -> float:
        if not made:
            model = Transformer(bench.model, cls, options, vocabulary=VOCABULARY, length=max(length, bench.source),
                                head=Head(kind="token", outputs=VOCABULARY))
            model.initialise(0)
            made.append(model.to(device).eval())
        began = clock()
        found = beam_search(made[0], source, None, replace(search, cached=cached))
        assert {len(best.tokens) for best in found} == {length}  # also waits for the device
        return clock() - began

    return seconds


def own_time(bench: DecodeBench, device: torch.device) -> bool:
    """Whether a search is one thread's work, of which the processor's time says more than the clock on the wall."""
    return device.type == "cpu" and bench.train.threads == 1


def document(table: pd.DataFrame, bench: DecodeBench) -> Document:
    """The table as people read it."""
    header = (
        *made_with(bench.model, bench.train),
        ("decoding", f"beam {bench.decode.beam}, {counted(bench.rows, 'source')} of "
                     f"{counted(bench.source, 'token')} at once"),
        ("rounds", f"{bench.rounds}, each one search of every encoding with the cache and one without; medians"),
        ("clock", "processor time of one thread" if own_time(bench, _device(bench)) else "time on the wall"),
    )
    broken = table[table["ratio"].isna()]
    warnings = tuple(f"{row.encoding} at length {row.length}: {row.reason}" for row in broken.itertuples())
    parts = []
    for length, own in table.groupby("length", sort=False):
        rows = tuple((str(row.encoding), amount(row.cached_tokens_per_second, 1, "{:,.0f}"),
                      amount(row.plain_tokens_per_second, 1, "{:,.0f}"), amount(row.ratio, 1, "{:.1f}") or NONE)
                     for row in own.itertuples())
        parts.append(Table(title=f"Beam search for outputs of length {length}, tokens per second",
                           columns=("encoding", "with cache", "without", "times"), rows=rows,
                           notes=("Tokens of the outputs, not of all hypotheses. Encoding the source is included.",)))
    return Document(title="posbench: speed of decoding", header=header, warnings=warnings, parts=tuple(parts))
