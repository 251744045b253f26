"""learned: a trained table of absolute positions, added to the token embeddings (Devlin et al. 2018).

    x_p = token_p + P[p],   p = 0 ... max_length - 1

The first real token stands at 0. Libraries that begin at the padding id plus one (fairseq, RoBERTa) keep rows that no
token ever reads; here the row does not depend on which id pads, as in BERT. Beyond the table there is nothing to look
up: a longer sequence is refused by a typed error, neither cut nor wrapped around.

Rows start from N(0, s) with the standard deviation s of the token embeddings, as BERT does with s = 0.02.

Parameters: max_length * D.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from posbench.encoding import Dimensions, Encoding, Paper, Properties, option
from posbench.positions import Positions


class Learned(Encoding):
    """One trained vector a position."""

    paper = Paper(
        title="BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
        arxiv="1810.04805",
        equations="none; section 3 and figure 2, input representation (also Gehring et al. 2017, arXiv 1705.03122)",
    )
    properties = Properties(monotone=False, factorises=True, norm=False, single_key=False, beyond="refused")

    @dataclass(frozen=True, kw_only=True)
    class Config:
        max_length: int | None = option(None, "rows of the table in tokens; the longest training sequence if none",
                                        at_least=1)

    def __init__(self, dimensions: Dimensions, config: Config | None = None) -> None:
        super().__init__(dimensions, config)
        self.table = nn.Parameter(torch.empty(self.max_length, dimensions.width))

    @property
    def max_length(self) -> int:
        return self._rows(self.dimensions, self.config)

    @staticmethod
    def _rows(dimensions: Dimensions, config: Config) -> int:
        return dimensions.length if config.max_length is None else config.max_length

    @classmethod
    def parameter_count(cls, dimensions: Dimensions, config: Any) -> int:
        return cls._rows(dimensions, config) * dimensions.width

    def initial(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        value.normal_(0.0, self.dimensions.embedding_std, generator=generator)

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        return x + functional.embedding(at.q, self.table).to(x.dtype)


ENCODING = Learned
