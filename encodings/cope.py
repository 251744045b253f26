"""cope: positions counted by content (Golovneva et al. 2024).

    g_ij = sigmoid(q_i . k_j),   p_ij = sum of g_it over the keys t from j to i,   p_ij <= p_max
    a_ij = softmax(q_i . (k_j + e[p_ij])),   e[p] interpolated between rows floor(p) and ceil(p)

A gate opens for keys that the query counts, so that a position may mean the third noun and not the third token. Gates
are summed AFTER the mask: a sum that takes in keys which the query may not see, padding, other documents or the future,
tells the query about them. Position ids are not read; keys are counted in the order in which they are stored.

As in the released code, gates see logits that are divided by sqrt(d), rows 0 ... p_max - 1 are multiplied with the
query first and interpolated afterwards, and the product has the scale 1/sqrt(d) like the content beside it (that code
has an option that leaves it unscaled). Rows start at 0, as there, and are shared by the heads of a layer.

The paper is about causal models. In an encoder the sum runs from j to the last key that the query sees, which is what
that code does without its mask: counted from the end, not blind to direction. Gates and sums are formed in float32.

Parameters: p_max d N in N layers.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from posbench import maths
from posbench.encoding import Dimensions, Encoding, Paper, Properties, option
from posbench.positions import Positions


class Cope(Encoding):
    """A vector for each contextual position, which is a sum of gates."""

    paper = Paper(
        title="Contextual Position Encoding: Learning to Count What's Important",
        arxiv="2405.18719",
        equations="gates, positions, interpolation and attention, with the scales of ContextPosSelfAttn, released code",
        differs="encoders count from the last key that is seen",
    )
    scope = "layer"
    properties = Properties(monotone=False, factorises=False, shift=True)
    space = {"positions": (16, 256)}

    @dataclass(frozen=True, kw_only=True)
    class Config:
        positions: int = option(64, "p_max, rows of the table; larger sums share the last one", at_least=2)

    def __init__(self, dimensions: Dimensions, config: Config | None = None) -> None:
        super().__init__(dimensions, config)
        if not dimensions.causal:
            # Counted from the last visible key, all far columns share the last row: the rank ends at some length.
            self.properties = replace(self.properties, factorises=None)
        self.table = nn.Parameter(torch.empty(self.config.positions, dimensions.head_width))

    @classmethod
    def parameter_count(cls, dimensions: Dimensions, config: Any) -> int:
        return config.positions * dimensions.head_width * dimensions.layers

    @classmethod
    def flop_count(cls, dimensions: Dimensions, config: Any, length: int) -> int:
        return dimensions.layers * 2 * length * dimensions.width * (length + config.positions)

    def initial(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        value.zero_()

    def scores(self, q: Tensor, k: Tensor, at: Positions) -> Tensor:
        # Autocast would round the sums to bfloat16, which tells 257 from 256 no more.
        with torch.autocast(q.device.type, enabled=False):
            queries, last = maths.precise(q), len(self.table) - 1
            positions = self._positions(queries, maths.precise(k), at).clamp(max=last)
            by_row = queries @ self.table.to(queries.dtype).T
            floor = positions.detach().long()
            below, above = by_row.gather(-1, floor), by_row.gather(-1, (floor + 1).clamp(max=last))
            return torch.lerp(below, above, positions - floor).to(q.dtype)

    @staticmethod
    def _positions(q: Tensor, k: Tensor, at: Positions) -> Tensor:
        """(B, H, Q, K) sums of gates from each key to the last one that the query sees."""
        gates = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).sigmoid()
        seen = at.visible()
        if seen is not None:
            gates = gates.masked_fill(~seen, 0.0)
        return gates.flip(-1).cumsum(-1).flip(-1)


ENCODING = Cope
