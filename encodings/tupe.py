"""tupe: positions untied from words and from the class token (Ke et al. 2020).

    A:  a_ij = (x_i WQ)(x_j WK) / sqrt(2d) + (p_i UQ)(p_j UK) / sqrt(2d)                                (Eq. 7)
    R:  the same + b_{j-i}, a bias by bucket of the offset                                              (Eq. 8)
    reset: the positional part of row [CLS] becomes theta_1, that of its column theta_2        (Eq. 9, 10 and 11)

Positions meet positions and words meet words. p, UQ and UK are shared by all layers, so that the positional part is
computed once for the whole model. The template's scale of words is 1/sqrt(d) whatever the encoding; positions get the
same, which keeps the paper's proportion of both and makes the logits of variant A larger than the paper's by sqrt(2).

Rows p beyond the table do not exist: a longer sequence is refused. They start from N(0, 1), where the layer norm would
put them that the released code, but not the paper, lays over the table; UQ, UK and b start from N(0, 0.02). That code
also has constants beside UQ and UK, which the paper and this file have not.

The reset replaces the whole positional part, b included, as the paper has it; the released code resets the absolute
and the relative part one by one. theta belong to each head and start at 0. [CLS] is position 0 of an encoder; decoders
have no token that stands for the sequence in that place, and no reset. b has T5's buckets, 32 up to distance 128: in a
decoder all of them are for keys behind.

Parameters: max_length D + 2 D^2, + 2 H with the reset in an encoder, + 32 H in variant R.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from posbench import maths
from posbench.encoding import Dimensions, Encoding, Paper, Properties, option
from posbench.positions import Positions

BUCKETS, FARTHEST = 32, 128


class Tupe(Encoding):
    """Products of projected positions, without words in them, as a bias that all layers share."""

    paper = Paper(
        title="Rethinking Positional Encoding in Language Pre-training",
        arxiv="2006.15595",
        equations="7 and 10 for A, 8 and 11 for R, 9 for the reset",
        differs="both terms have the template's scale 1/sqrt(d) in place of 1/sqrt(2d)",
    )
    properties = Properties(monotone=False, factorises=True, beyond="refused")
    space = {"variant": ["A", "R"]}

    @dataclass(frozen=True, kw_only=True)
    class Config:
        variant: Literal["A", "R"] = option("A", "absolute positions alone, or with a relative bias on top")
        untied_cls: bool = option(True, "the class token of an encoder, position 0, is reset to numbers of its own")
        max_length: int | None = option(None, "rows of the table in tokens; the longest training sequence if none",
                                        at_least=1)

    def __init__(self, dimensions: Dimensions, config: Config | None = None) -> None:
        super().__init__(dimensions, config)
        if self.config.variant == "R":
            self.properties = replace(self.properties, factorises=False)
        width, heads, d = dimensions.width, dimensions.heads, dimensions.head_width
        self.table = nn.Parameter(torch.empty(self.max_length, width))
        self.query_projection = nn.Parameter(torch.empty(heads, width, d))
        self.key_projection = nn.Parameter(torch.empty(heads, width, d))
        self.cls = nn.Parameter(torch.empty(2, heads)) if self._resets(dimensions, self.config) else None
        self.relative = nn.Parameter(torch.empty(BUCKETS, heads)) if self.config.variant == "R" else None

    @property
    def max_length(self) -> int:
        return self._rows(self.dimensions, self.config)

    @staticmethod
    def _rows(dimensions: Dimensions, config: Config) -> int:
        return dimensions.length if config.max_length is None else config.max_length

    @staticmethod
    def _resets(dimensions: Dimensions, config: Config) -> bool:
        return config.untied_cls and not dimensions.causal

    @classmethod
    def parameter_count(cls, dimensions: Dimensions, config: Any) -> int:
        numbers = 2 * cls._resets(dimensions, config) + BUCKETS * (config.variant == "R")
        inner = dimensions.heads * dimensions.head_width
        return (cls._rows(dimensions, config) + 2 * inner) * dimensions.width + numbers * dimensions.heads

    @classmethod
    def flop_count(cls, dimensions: Dimensions, config: Any, length: int) -> int:
        return 2 * length * dimensions.width * (2 * dimensions.width + length)

    def initial(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        std = {"table": 1.0, "cls": 0.0}.get(name, 0.02)
        value.normal_(0.0, std, generator=generator)

    def bias(self, at: Positions) -> Tensor:
        with torch.autocast(at.q.device.type, enabled=False):
            queries = self._projected(at.q, self.query_projection) * self.dimensions.head_width**-0.5
            bias = queries @ self._projected(at.k, self.key_projection).transpose(-1, -2)
        if self.relative is not None:
            bucket = maths.t5_buckets(at.offsets(), BUCKETS, FARTHEST, bidirectional=not self.dimensions.causal)
            bias = bias + functional.embedding(bucket, maths.precise(self.relative)).movedim(-1, 1)
        if self.cls is None:
            return bias
        row, column = maths.precise(self.cls)[:, None, :, None, None]
        return torch.where(at.q[:, None, :, None] == 0, row, torch.where(at.k[:, None, None] == 0, column, bias))

    def _projected(self, positions: Tensor, projection: Tensor) -> Tensor:
        """(B|1, L) -> (B|1, H, L, d)."""
        return functional.embedding(positions, maths.precise(self.table))[:, None] @ maths.precise(projection)


ENCODING = Tupe
