"""self_extend: a trained rope model that reads far pairs at coarser positions, Self-Extend (Jin et al. 2024).

    offset of a pair at distance m - n:   m - n                                         if m - n < w, the neighbours
                                          floor(m / G) + w - floor(w / G) - floor(n / G)      otherwise

so that a model trained on L tokens meets no unknown offset up to (L - w) G + w of them. With group = none all far pairs
stand at the offset w: ReRoPE, the limit of ever larger groups (Su 2023, published without a paper). Its released code
also multiplies queries by max(1, ln(m + 1) / ln(L)), which is left out. With group = 1 it is rope.

Queries and keys are turned to their grouped positions, which belong to one token each, so that turned keys can be
cached. For neighbours the product is corrected: both are turned on, from the grouped to the exact position, and the
difference of the products is added. This equals the merging of two sets of logits in the released code.

As floor(m / G) - floor(n / G) is not the same for all pairs of one distance, logits change by a shift of all positions.

Parameters: none; weights of a trained rope model fit as they are.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from posbench.encoding import Dimensions, Paper, Properties, Side, option
from posbench.positions import Positions
from posbench.rotary import Rotary


class SelfExtend(Rotary):
    """Rope with exact offsets near by and grouped ones far away."""

    paper = Paper(
        title="LLM Maybe LongLM: Self-Extend LLM Context Window Without Tuning",
        arxiv="2401.01325",
        equations="none; grouped and neighbour positions as in the released code",
        differs="without groups it is ReRoPE, less that method's factor on the logits of late queries",
    )
    properties = Properties(monotone=False, factorises=False)
    needs_causal = True
    space = {"group": [2, 4, 8, 16]}

    @dataclass(frozen=True, kw_only=True)
    class Config(Rotary.Config):
        group: int | None = option(4, "G, positions that far pairs take for one; none for ReRoPE", at_least=1)
        window: int | None = option(
            None, "w, distance in tokens below which offsets are exact; a quarter of the trained length if none",
            at_least=1)

    def __init__(self, dimensions: Dimensions, config: Config | None = None) -> None:
        super().__init__(dimensions, config)
        given = self.config.window
        self.window = max(dimensions.length // 4, 1) if given is None else given
        if self.config.group in (None, 1):
            # Groups of one are rope itself.
            self.properties = replace(self.properties, shift=True, factorises=self.config.group == 1)

    def grouped(self, positions: Tensor, side: Side) -> Tensor:
        """(B|1, L) int64 -> the same: where far pairs see these queries or keys."""
        shift = self.window if side == "query" else 0
        if self.config.group is None:
            return torch.full_like(positions, shift)
        return positions // self.config.group + shift - shift // self.config.group

    def rotate(self, x: Tensor, at: Positions, side: Side) -> Tensor:
        if side not in ("query", "key"):
            return x
        return super().rotate(x, at.once((self, "grouped"), lambda: self._moved(at)), side)

    def scores(self, q: Tensor, k: Tensor, at: Positions) -> Tensor:
        rest = at.once((self, "rest"), lambda: self._rest(at))
        near = at.once((self, "near"), lambda: (at.offsets() > -self.window)[:, None])
        exact = super().rotate(q, rest, "query") @ super().rotate(k, rest, "key").transpose(-1, -2)
        return (exact - q @ k.transpose(-1, -2)).masked_fill(~near, 0)

    def _moved(self, at: Positions) -> Positions:
        """Queries and keys at their grouped positions."""
        return replace(at, q=self.grouped(at.q, "query"), k=self.grouped(at.k, "key"))

    def _rest(self, at: Positions) -> Positions:
        """How far each query and key is from its grouped to its exact position."""
        moved = self._moved(at)
        return replace(at, q=at.q - moved.q, k=at.k - moved.k)


ENCODING = SelfExtend
