"""xpos: rotation with a decay of each pair of channels (Sun et al. 2022).

    q' = zeta^((p - c) / S) R(p) q,   k' = zeta^(-(p - c) / S) R(p) k                          (Eq. 10, algorithm 1)
    zeta_i = (2i / r + gamma) / (1 + gamma)                                                                  (Eq. 9)

so that the product of pair i decays by zeta_i^((m - n) / S) with the distance m - n to keys behind. For keys ahead it
would grow without bound: the method is for causal models. The paper has neither S, which is `scale_base`, nor c, and no
number for gamma: those are the released code's.

The centre c cancels in every product, and only keeps the powers small. It is half of the trained length, whatever the
length of the input: code that centres each call anew multiplies cached keys by another factor than the full pass does.
The powers are formed in float64 from absolute positions.

One factor of the product still grows as the other shrinks: zeta_0 = 2/7, and float16 holds zeta_0^(-n/512) up to
n = 4532, float32 up to 36260. Somewhat before, beyond 3965 and 35693 positions from the centre, the queries' factor is
no normal number any more and loses digits: such positions are refused by a typed error. bfloat16 reaches as far as
float32.

Parameters: none.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from posbench.encoding import Dimensions, Paper, Properties, Side, option
from posbench.errors import ContextLengthExceeded, UserError
from posbench.positions import Positions
from posbench.rotary import Rotary


class Xpos(Rotary):
    """Rotation with exponential decay."""

    paper = Paper(
        title="A Length-Extrapolatable Transformer",
        arxiv="2212.10554",
        equations="9, 10 and algorithm 1; gamma, scale_base and the centre from the released code",
        differs="the centre is the same for every length, so that cached keys stay right",
    )
    properties = Properties(monotone=False, factorises=True, shift=True, norm=False)
    needs_causal = True
    sided = True
    space = {"scale_base": (128.0, 2048.0)}

    @dataclass(frozen=True, kw_only=True)
    class Config(Rotary.Config):
        scale_base: float = option(512.0, "S, positions after which pair i has decayed by zeta_i", above=0)
        gamma: float = option(0.4, "how far the smallest zeta lies above 0, zeta_0 = gamma / (1 + gamma)", above=0)

    def __init__(self, dimensions: Dimensions, config: Config | None = None) -> None:
        super().__init__(dimensions, config)
        reach = self.reach(torch.float32)
        if reach < self.centre:
            raise UserError(f"encoding 'xpos': scale_base = {self.config.scale_base:g}, but powers hold for {reach} "
                            f"positions from the centre of {dimensions.length} tokens alone: raise it")

    @property
    def centre(self) -> int:
        """c, the position at which queries and keys keep their length."""
        return self.dimensions.length // 2

    def amplitudes(self, at: Positions, side: Side) -> Tensor:
        pair = torch.arange(0, self.turned, 2, dtype=torch.float64, device=at.q.device) / self.turned
        zeta = (pair + self.config.gamma) / (1 + self.config.gamma)
        power = at.q - self.centre if side == "query" else self.centre - at.k
        return zeta ** (power[..., None] / self.config.scale_base)

    def reach(self, dtype: torch.dtype) -> int:
        """Largest distance from the centre at which all factors are normal numbers of this dtype."""
        slowest = math.log((1 + self.config.gamma) / self.config.gamma)
        return int(-math.log(torch.finfo(dtype).tiny) * self.config.scale_base / slowest)

    def rotate(self, x: Tensor, at: Positions, side: Side) -> Tensor:
        limit = self.centre + self.reach(x.dtype)
        if at.end > limit:
            raise ContextLengthExceeded(self.spelled(), limit, at.end, "raise its scale_base")
        return super().rotate(x, at, side)


ENCODING = Xpos
