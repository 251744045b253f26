"""rope: rotary position embedding (Su et al. 2021).

Queries and keys are turned pair of channels by pair, by an angle that grows with the position, so that their product
depends on the offset alone:

    <R(m) q, R(n) k> = <q, R(n - m) k>,   angles p base^(-2i/r), i = 0 ... r/2 - 1        (Eq. 15, 16 and 34)

r is the number of turned channels, the whole head or a fraction of it. Values are not turned, and cross attention is
left alone.

Parameters: none.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from posbench import maths
from posbench.encoding import Dimensions, Encoding, Paper, Properties, Side, option
from posbench.errors import UserError
from posbench.positions import Positions


class Rope(Encoding):
    """Rotation of queries and keys."""

    paper = Paper(
        title="RoFormer: Enhanced Transformer with Rotary Position Embedding",
        arxiv="2104.09864",
        equations="15, 16, 34",
        differs="fraction < 1 turns the first channels of a head only, with frequencies of that width (GPT-NeoX)",
    )
    properties = Properties(shift=True)
    space = {"base": (1e3, 1e6)}

    @dataclass(frozen=True, kw_only=True)
    class Config:
        base: float = option(10000.0, "theta, the base of the geometric series of frequencies", above=1)
        layout: maths.Layout = option("interleaved", "pairs (2i, 2i+1) as in the paper, or (i, i + r/2)")
        fraction: float = option(1.0, "share of a head's channels that is turned", above=0, at_most=1)

    def __init__(self, dimensions: Dimensions, config: Config | None = None) -> None:
        super().__init__(dimensions, config)
        turned = self.config.fraction * dimensions.head_width
        self.turned = int(turned)
        if turned != self.turned or self.turned % 2:
            raise UserError(
                f"encoding 'rope': fraction {self.config.fraction} of a head of {dimensions.head_width} channels is "
                f"{turned:g}, but channels turn in pairs: choose a head width or fraction that gives an even number"
            )

    def rotate(self, x: Tensor, at: Positions, side: Side) -> Tensor:
        if side not in ("query", "key"):
            return x
        positions = at.q if side == "query" else at.k
        cos, sin = at.once((self, positions is at.q, x.dtype), lambda: self._turn(positions, x))
        if self.turned == x.shape[-1]:
            return maths.rotate(x, cos, sin, self.config.layout)
        head = maths.rotate(x[..., : self.turned], cos, sin, self.config.layout)
        return torch.cat([head, x[..., self.turned :]], dim=-1)

    def _turn(self, positions: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B|1, L) -> cos and sin, each (B|1, 1, L, r/2) in the dtype of x, rounded only when finished."""
        frequencies = maths.inverse_frequencies(self.turned, self.config.base, positions.device)
        angles = maths.angles(positions, frequencies)[:, None]
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


ENCODING = Rope
