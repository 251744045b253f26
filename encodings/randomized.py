"""randomized: random but ordered position ids for any other encoding (Ruoss et al. 2023).

    token i of n stands at the i-th smallest of n positions drawn from 0 ... R - 1 without replacement

R, here `range`, is larger than any sequence to come, so that training meets all distances that longer inputs will have.
The encoding inside is `base` with its default options, built for sequences of R tokens.

Training draws a new sample in each pass, from a generator that is seeded by a counter of passes. The counter is in the
state dict and starts at a number of the trial's seed: a run that is resumed goes on as it would have, and no other
random stream moves. Each row and packed document gets a sample of its own size n, all from one permutation of R, which
all layers share; the released code draws one sample for all rows of a batch, with rotations anew in every layer.

Evaluation draws nothing: token i stands at the expectation of its sample, floor((i + 1)(R + 1) / (n + 1)) - 1. The
paper samples then too, so that one model gives several answers. Either way a position depends on n, and a sequence that
grows moves all its tokens: keys turned before do not stay right. Tokens with equal ids keep equal ids. A base that is
blind to direction stays so up to the rounding of positions. More than R tokens are refused by a typed error.

Parameters: those of the base with tables for R positions.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from posbench import maths
from posbench.encoding import Dimensions, Encoding, Paper, Properties, Wrapper, option
from posbench.errors import ContextLengthExceeded, UserError
from posbench.positions import Positions
from posbench.registry import ENCODINGS
from posbench.seeds import generator


class Randomized(Wrapper):
    """Ordered random positions around another encoding."""

    paper = Paper(
        title="Randomized Positional Encodings Boost Length Generalization of Transformers",
        arxiv="2305.16843",
        equations="none; the sampling of ordered indices, unnumbered",
        differs="evaluation takes the sample's expectation; every row has a sample of its own length",
    )
    properties = Properties(monotone=False, factorises=True, cached=False, beyond="refused")
    space = {"range": (512, 8192)}
    passes: Tensor

    @dataclass(frozen=True, kw_only=True)
    class Config:
        base: str = option("rope", "name of the encoding that gets the positions")
        range: int | None = option(None, "R, positions to draw from; 16 times the trained length if none", at_least=1)

    def __init__(self, dimensions: Dimensions, config: Config | None = None) -> None:
        config = type(self).Config() if config is None else config
        wide = self._wide(dimensions, config)
        if wide.length < dimensions.length:
            raise UserError(f"encoding 'randomized': range = {config.range}, but training sequences have up to "
                            f"{dimensions.length} tokens: choose a range of at least that")
        super().__init__(dimensions, config, self._base(config)(wide))
        # Whoever cannot tell tokens apart by position does not see which positions they have.
        blind = self.base.properties.permutation
        self.properties = replace(self.base.properties, shift=blind, cached=blind, beyond="refused")
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    @staticmethod
    def _wide(dimensions: Dimensions, config: Any) -> Dimensions:
        return replace(dimensions, length=16 * dimensions.length if config.range is None else config.range)

    @staticmethod
    def _base(config: Any) -> type[Encoding]:
        if config.base == "randomized":
            raise UserError("encoding 'randomized': base = 'randomized', but positions are drawn once: choose another")
        return ENCODINGS.load(config.base).value

    @classmethod
    def built_on(cls, config: Any) -> tuple[str, ...]:
        return (config.base,)

    @classmethod
    def parameter_count(cls, dimensions: Dimensions, config: Any) -> int:
        base = cls._base(config)
        return base.parameter_count(cls._wide(dimensions, config), base.Config())

    @property
    def max_length(self) -> int:
        own, inner = self.base.dimensions.length, self.base.max_length
        return own if inner is None else min(own, inner)

    def initial(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        if name != "passes":
            return super().initial(name, value, generator)
        value.copy_(torch.randint(2**23, (), generator=generator))  # a start for each seed, exact in float32

    def positions(self, at: Positions) -> Positions:
        limit = self.max_length
        if at.end > limit:
            raise ContextLengthExceeded(self.spelled(), limit, at.end, "raise its range")
        pairs = list(zip((at.q, at.k), at.sizes(), strict=True))
        if self.training:
            order = torch.randperm(limit, generator=generator(int(self.passes), "randomized positions"))[: at.end]
            self.passes += 1
            q, k = (maths.drawn_places(*pair, order.to(at.q.device)) for pair in pairs)
            end = int(order.max()) + 1
        else:
            q, k = (maths.expected_places(*pair, limit) for pair in pairs)
            end = at.end * (limit + 1) // (at.end + 1)
        return super().positions(replace(at, q=q, k=k, end=end, regular=False))


ENCODING = Randomized
