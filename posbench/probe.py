"""Probe: one encoding, built small, in the places where the contract looks at it.

Shapes: B batch, H heads, L tokens, Q queries, K keys, D model width, d head width.
"""

from __future__ import annotations

import copy
import math
import os
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from posbench import attention
from posbench.config import ModelConfig
from posbench.encoding import Dimensions, Encoding
from posbench.errors import UserError
from posbench.numerals import counted
from posbench.positions import Positions
from posbench.seeds import generator
from posbench.transformer import Head, Transformer

Shape = Literal["encoder", "decoder", "encoder-decoder"]
Kind = Literal["softmax", "linear"]
SHAPES: tuple[Shape, ...] = ("encoder", "decoder", "encoder-decoder")
CAUSAL: tuple[Shape, ...] = ("decoder", "encoder-decoder")
KINDS: tuple[Kind, ...] = ("softmax", "linear")
SEED = 20240229
VOCABULARY = 23


class ContractError(Exception):
    """A check found what no tolerance excuses; the text tells what."""


def relative(a: Tensor, b: Tensor) -> float:
    """max|a - b| / max|a|, NaN when either is not finite."""
    scale = a.abs().max().clamp(min=torch.finfo(a.dtype).tiny)
    return ((a - b).abs().max() / scale).item()


def worst(errors: Iterable[float]) -> float:
    """The largest of the errors, and NaN if any of them is: Python's max drops a NaN that does not come first."""
    told = list(errors)
    return math.nan if any(math.isnan(error) for error in told) else max(told)


def largest(a: Tensor, b: Tensor) -> float:
    """max|a - b|: 0 only when both are alike bit by bit; 0 when they are empty."""
    return (a - b).abs().max().item() if a.numel() else 0.0


def numbers(*shape: int, name: str, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers that depend on name and shape alone."""
    return torch.randn(shape, generator=generator(SEED, name), dtype=torch.float64).to(dtype)


def stirred_state() -> tuple[Any, ...]:
    """`global_state` after a few draws, so that a plugin that sets a seed cannot find its own state already there."""
    torch.rand(3)
    random.random()
    np.random.random()
    return global_state()


def global_state() -> tuple[Any, ...]:
    """What a plugin must leave alone: the random streams and the switches of the process."""
    return (*streams(), *(read() for read, _ in SWITCHES))


def streams() -> tuple[Any, ...]:
    """The states of the three global random streams."""
    drawn = np.random.get_state(legacy=False)
    words = drawn["state"]
    return (torch.get_rng_state().numpy().tobytes(), random.getstate(),
            words["key"].tobytes(), words["pos"], drawn["has_gauss"], drawn["gauss"])


def _environment(variables: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


# What a plugin may find in the process and must leave as it is: how each is read, and how it is set again.
SWITCHES: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_default_device, lambda device: torch.set_default_device(None if device.type == "cpu" else device)),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on)),
    (os.getcwd, os.chdir),
    (lambda: dict(os.environ), _environment),
)


@contextmanager
def isolated() -> Iterator[None]:
    """The same random state for every check, and the caller's state and switches again afterwards."""
    python_stream, numpy_stream = random.getstate(), np.random.get_state()
    switches = [read() for read, _ in SWITCHES]
    try:
        # Probes are so small that a second thread costs more than it does, and its sums would differ in the last bits.
        if torch.get_num_threads() != 1:
            torch.set_num_threads(1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            yield
    finally:
        random.setstate(python_stream)
        np.random.set_state(numpy_stream)
        for (read, restore), value in zip(SWITCHES, switches, strict=True):
            if read() != value:
                restore(value)


class Layer(nn.Module):
    """Attention of one layer around an encoding, with fixed random projections and no output projection."""

    def __init__(self, encoding: Encoding, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.encoding, self.dimensions = encoding, encoding.dimensions
        width = self.dimensions.width
        self.weights = (numbers(3, width, width, name="projections") * width**-0.5).to(dtype)

    def project(self, x: Tensor, at: Positions, queries: Positions | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """(B, L, D) -> queries, keys and values (B, H, L, d), embedded and turned; `at` after the positions hook.

        In decoding, `at` holds the new tokens alone, and `queries` new queries and all keys.
        """
        e = self.encoding
        queries = at if queries is None else queries
        embedded = attention.checked(e, "embed", e.embed(x, queries), x.shape, x.dtype)
        q, k, v = ((embedded @ w).unflatten(-1, (self.dimensions.heads, -1)).transpose(1, 2) for w in self.weights)
        return (attention.rotated(e, q, queries, "query"), attention.rotated(e, k, at, "key"),
                attention.rotated(e, v, at, "value"))

    def logits(self, x: Tensor, at: Positions) -> Tensor:
        """(B, L, D) -> (B, H, L, L)."""
        at = self.encoding.positions(at)
        q, k, _ = self.project(x, at)
        return attention.logits(q, k, self.encoding, at)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, at: Positions) -> Tensor:
        """Queries, keys and values -> (B, Q, D)."""
        y = attention.rotated(self.encoding, attention.dense(q, k, v, self.encoding, at), at, "output")
        return y.transpose(1, 2).flatten(2)

    def forward(self, x: Tensor, at: Positions) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        at = self.encoding.positions(at)
        return self.attend(*self.project(x, at), at)


class Subject:
    """An encoding class with options, in a model of one shape and kind of attention, as the checks ask for it.

    Parameters are N(0, 1) where not stated otherwise: many methods start at zero, where they would pass every check as
    the absence of an encoding.

    Attributes:
        length: tokens of a probe; a table that the options make shorter shortens it.
        long: tokens where what depends on the current length must show: twice the trained length, if the table allows.
    """

    def __init__(self, encoding: type[Encoding], config: Any, shape: Shape, attention: Kind = "softmax") -> None:
        self.encoding_class, self.config, self.shape, self.attention = encoding, config, shape, attention
        self.causal = shape != "encoder"
        # Embeddings of standard deviation 1 make absolute tables as strong as the random inputs they are added to.
        self.dimensions = Dimensions(width=32, heads=2, layers=2, length=32, causal=self.causal, embedding_std=1.0)
        self._measure()

    def _measure(self) -> None:
        self.limit = self.bare().max_length
        if self.limit is not None and self.limit < 8:
            raise UserError(f"encoding '{self.encoding_class.spelled()}' ends at {counted(self.limit, 'position')}: "
                            "the checks need at least 8")
        self.length = 16 if self.limit is None else min(16, self.limit // 2)
        self.long = 2 * self.dimensions.length if self.fits(2 * self.dimensions.length) else self.length

    def resized(self, **sizes: Any) -> Subject:
        """The same encoding in a model of other Dimensions.

        Raises:
            UserError: its options do not fit them.
        """
        other = copy.copy(self)
        other.dimensions = replace(self.dimensions, **sizes)
        other._measure()
        return other

    def bare(self, dimensions: Dimensions | None = None) -> Encoding:
        """A new instance whose parameters have no values yet."""
        return self.encoding_class(dimensions or self.dimensions, self.config)

    def encoding(self, dtype: torch.dtype = torch.float64, dimensions: Dimensions | None = None) -> Encoding:
        """A new instance, parameters N(0, 1) and buffers as `initial` makes them; always the same values."""
        return filled(self.bare(dimensions), "encoding").to(dtype).eval()

    def layer(self, dtype: torch.dtype = torch.float64) -> Layer:
        return Layer(self.encoding(dtype), dtype)

    def model(self, dtype: torch.dtype = torch.float64, encoding: type[Encoding] | None = None,
              **settings: Any) -> Transformer:
        """The template with a few layers and a head for every token, the encoding's parameters N(0, 1).

        Args:
            dtype: of all weights.
            encoding: another class in place of the subject, without options.
            settings: of ModelConfig.
        """
        settings = {"dropout": 0.0, "initial_std": 0.2, "attention": self.attention, **settings}
        config = ModelConfig(shape=self.shape, width=self.dimensions.width, heads=self.dimensions.heads,
                             layers=self.dimensions.layers,
                             feedforward=32, embedding_std=1.0, **settings)
        model = Transformer(config, encoding or self.encoding_class, self.config if encoding is None else None,
                            vocabulary=VOCABULARY, length=self.dimensions.length, head=Head(kind="token", outputs=3))
        model.initialise(SEED)
        for index, part in enumerate(model.encodings):
            assert isinstance(part, Encoding)
            filled(part, f"encodings.{index}")
        return model.to(dtype).eval()

    def read(self, model: Transformer, tokens: Tensor, **more: Any) -> Tensor:
        """The model's answer to tokens (B, L); an encoder-decoder also gets a source, which ends before they do."""
        kept = more.get("cache") is not None and more["cache"].source is not None
        if self.shape == "encoder-decoder" and not kept and not {"memory", "source_ids"} & more.keys():
            # One source for all rows: their order, and who else is in the batch, then changes nothing by itself.
            more["source_ids"] = self.source().expand(len(tokens), -1)
        return model(tokens, **more)

    def source(self) -> Tensor:
        """(1, S) int64 token ids, fewer than a probe has."""
        return self.tokens(1, self.length // 2, name="source")

    def at(self, length: int, start: int = 0) -> Positions:
        return Positions.first(length, causal=self.causal, start=start)

    def inputs(self, batch: int = 2, length: int | None = None, dtype: torch.dtype = torch.float64) -> Tensor:
        """(B, L, D) standard normal features."""
        return numbers(batch, length or self.length, self.dimensions.width, name="inputs", dtype=dtype)

    def tokens(self, batch: int = 3, length: int | None = None, name: str = "tokens") -> Tensor:
        """(B, L) int64 token ids."""
        return torch.randint(VOCABULARY, (batch, length or self.length), generator=generator(SEED, name))

    def fits(self, length: int) -> bool:
        """Whether positions 0 ... length - 1 lie inside the encoding's table."""
        return self.limit is None or length <= self.limit

    def narrow(self) -> Dimensions:
        """Sizes at which a derivative by finite differences is quick."""
        return replace(self.dimensions, length=8)


def filled(encoding: Encoding, name: str) -> Encoding:
    """The encoding with parameters N(0, 1) and persistent buffers from `initial`, in place."""
    buffers = set(dict(encoding.named_buffers())) & set(encoding.state_dict())
    with torch.no_grad():
        for key, parameter in encoding.named_parameters():
            parameter.copy_(numbers(*parameter.shape, name=f"{name}.{key}", dtype=torch.float32))
        for key, buffer in encoding.named_buffers():
            if key in buffers:
                value = torch.empty(buffer.shape, dtype=torch.float32)
                encoding.initial(key, value, generator(SEED, f"{name}.{key}"))
                buffer.copy_(value)
    return encoding
