"""transformer_xl: content and position in four terms (Dai et al. 2019).

    A_ij = q_i . k_j + q_i . W_R R_{i-j} + u . k_j + v . W_R R_{i-j}                     (section 3.3, A^rel)

R are fixed sinusoids of the distance from key to query, W_R projects them for each layer, u and v are a content and a
position bias for each head. All four terms are divided by sqrt(d), as in the released code; the paper writes no scale.

One R belongs to each of the Q + K - 1 offsets that occur: they are projected once, multiplied with (q + v), and the
products laid out by offset; a tensor of Q x K x d is never formed. The released code shifts a matrix of K columns,
which is right for keys behind the query only; here keys ahead have sinusoids of negative distances, so that encoders
work, as in XLNet.

As in the released code by default, all layers share u and v, and each has its own W_R; `untied` gives each layer its
own u and v too. All start from N(0, 0.02). Sines and cosines alternate where the released code has all sines first: W_R
meets the same channels in another order.

The paper's memory of an earlier segment is no part of the encoding: keys of a memory have positions of their own.

Parameters: N D^2 + 2 H d in N layers; N (D^2 + 2 H d) if untied.
"""

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from posbench import maths
from posbench.encoding import Dimensions, Encoding, Paper, Properties, option
from posbench.positions import Positions


class TransformerXL(Encoding):
    """Sinusoids of the distance, projected like keys, and two biases in place of a query's position."""

    paper = Paper(
        title="Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context",
        arxiv="1901.02860",
        equations="section 3.3, A^rel, and appendix B",
    )
    scope = "layer"
    properties = Properties(monotone=False, factorises=True, shift=True)

    @dataclass(frozen=True, kw_only=True)
    class Config:
        untied: bool = option(False, "each layer has its own biases u and v, where otherwise all layers share them")

    def __init__(self, dimensions: Dimensions, config: Config | None = None) -> None:
        super().__init__(dimensions, config)
        heads, d = dimensions.heads, dimensions.head_width
        self.projection = nn.Parameter(torch.empty(heads, d, dimensions.width))
        self.content_bias = nn.Parameter(torch.empty(heads, d))
        self.position_bias = nn.Parameter(torch.empty(heads, d))

    def tie(self, first: Self) -> None:
        if not self.config.untied:
            self.content_bias, self.position_bias = first.content_bias, first.position_bias

    @classmethod
    def parameter_count(cls, dimensions: Dimensions, config: Any) -> int:
        inner = dimensions.heads * dimensions.head_width
        biased = dimensions.layers if config.untied else 1
        return dimensions.layers * inner * dimensions.width + biased * 2 * inner

    @classmethod
    def flop_count(cls, dimensions: Dimensions, config: Any, length: int) -> int:
        offsets = 2 * length - 1
        return dimensions.layers * 2 * dimensions.width * (dimensions.width * offsets + length * offsets + length)

    def scores(self, q: Tensor, k: Tensor, at: Positions) -> Tensor:
        table, place = at.once((TransformerXL, "table"), lambda: self._table(at))
        # All terms are summed before they are rounded: at random they are larger than the content beside them.
        weights, u, v = (maths.precise(p) for p in (self.projection, self.content_bias, self.position_bias))
        keys = weights @ table.to(weights.dtype).T  # (H, d, D), (D, n) -> (H, d, n)
        by_offset = (maths.precise(q) + v[:, None]) @ keys
        if place is None:
            positions = maths.relative_shift(by_offset, at.length)
        else:
            positions = by_offset.gather(-1, place.expand(*q.shape[:3], at.length))
        return (positions + (maths.precise(k) @ u[..., None]).transpose(-1, -2)).to(q.dtype)

    def _table(self, at: Positions) -> tuple[Tensor, Tensor | None]:
        """Sinusoids (n, D) of the offsets that occur, and the row of each pair (B|1, 1, Q, K); None if by diagonals."""
        if at.regular:
            offsets, place = torch.arange(1 - at.length, at.queries, device=at.k.device), None
        else:
            offsets, rows = at.offsets().unique(return_inverse=True)
            place = rows[:, None]
        return maths.sinusoids(-offsets, self.dimensions.width), place


ENCODING = TransformerXL
