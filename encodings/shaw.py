"""shaw: clipped relative positions in keys and values (Shaw et al. 2018).

    e_ij = q_i . (k_j + aK_ij) / sqrt(d)                                                            (Eq. 4, 5)
    z_i  = sum_j w_ij (v_j + aV_ij)                                                                 (Eq. 3)
    a_ij = row clip(j - i, -k, k) + k of a table of 2k + 1 rows                                     (section 3.2)

Every layer has its own two tables, which its heads share, as in the paper. Tensors of Q x K x d are never formed: q is
multiplied with the 2k + 1 rows and the product looked up by offset, and weights are summed by offset before they meet
the rows of the value table.

Tables start from N(0, 0.02). tensor2tensor's variant for decoding with a mask keeps the rows j <= i alone; this file
keeps all 2k + 1, in decoders too, as the paper states them: there the rows for keys ahead stay unused.

Parameters: N * 2 (2k + 1) d in N layers; half of that without the value term.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from posbench.encoding import Dimensions, Encoding, Paper, Properties, option
from posbench.positions import Positions


class Shaw(Encoding):
    """A vector for each clipped offset, added to keys and to values."""

    paper = Paper(
        title="Self-Attention with Relative Position Representations",
        arxiv="1803.02155",
        equations="3, 4, 5, and section 3.2 for the clipping",
    )
    scope = "layer"
    properties = Properties(monotone=False, factorises=False, shift=True, single_key=False)
    space = {"clip": (2, 64)}

    @dataclass(frozen=True, kw_only=True)
    class Config:
        clip: int = option(16, "k, the offset in tokens from which on all offsets share one vector", at_least=1)
        values: bool = option(True, "also add vectors to the values, not to the keys alone")

    def __init__(self, dimensions: Dimensions, config: Config | None = None) -> None:
        super().__init__(dimensions, config)
        shape = (2 * self.config.clip + 1, dimensions.head_width)
        self.key_table = nn.Parameter(torch.empty(shape))
        self.value_table = nn.Parameter(torch.empty(shape)) if self.config.values else None
        if self.value_table is None:
            self.properties = replace(self.properties, single_key=True)

    @classmethod
    def parameter_count(cls, dimensions: Dimensions, config: Any) -> int:
        return dimensions.layers * (1 + config.values) * (2 * config.clip + 1) * dimensions.head_width

    @classmethod
    def flop_count(cls, dimensions: Dimensions, config: Any, length: int) -> int:
        return dimensions.layers * (1 + config.values) * 2 * length * dimensions.width * (2 * config.clip + 1)

    def scores(self, q: Tensor, k: Tensor, at: Positions) -> Tensor:
        products = q @ self.key_table.to(q.dtype).T
        return products.gather(-1, self._rows(at).expand(*q.shape[:3], at.length))

    def values(self, weights: Tensor, at: Positions) -> Tensor:
        if self.value_table is None:
            return weights.new_zeros(1).expand(*weights.shape[:3], self.dimensions.head_width)
        sums = weights.new_zeros(*weights.shape[:3], len(self.value_table))
        sums = sums.scatter_add(-1, self._rows(at).expand_as(weights), weights)
        return sums @ self.value_table.to(weights.dtype)

    def _rows(self, at: Positions) -> Tensor:
        """(B|1, 1, Q, K) row of the tables for each pair; the same in every layer, so made once a pass."""
        clip = self.config.clip
        return at.once((Shaw, "rows", clip), lambda: at.offsets().clamp(-clip, clip)[:, None] + clip)


ENCODING = Shaw
