"""kerple: a trained logarithmic or power penalty on distance (Chi et al. 2022).

    log    b_ij = -r1 log(1 + r2 |i - j|),   r1, r2 > 0                             (section 4, after Eq. 4)
    power  b_ij = -r1 |i - j|^r2,            r1 > 0, 0 < r2 <= 2                    (section 4, after Eq. 4)

The penalty is added to logits that are scaled already, as in the released code; the paper's Eq. 1 divides it by sqrt(d)
with the content, which is another unit of r1 and, with the same start, a penalty smaller by sqrt(d).

The kernels are conditionally positive definite in these ranges only. The released code clamps parameters that have
left them in every forward pass, and a clamped one is stuck while the gradient points outwards; here r is a smooth
function of a free parameter, softplus for a positive number and twice a sigmoid for the exponent, so that no step can
leave the range and every gradient finds its way back.

r start where the released code starts them: r1 and the exponent uniform in (0, 2) and (0, 2), the slope r2 of the
logarithm, and r1 of the power kernel, uniform in (0, 1). The paper is about causal models; |i - j| is symmetric, so
encoders get the same kernel, blind to direction. Distances, logarithms and powers are formed in float32.

All layers share one kernel, as in the released code and in the paper, which counts two numbers a head for the whole
model (2 x 12 beside the 32 x 12 of T5's table); `untied` gives each layer its own.

Parameters: 2 H; 2 H N in N layers if untied.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from posbench import maths
from posbench.encoding import Dimensions, Encoding, Paper, Properties, option

# Values closer to the ends of a range than this are not drawn: the released code's own lower bound.
MARGIN = 1e-2


class Kerple(Encoding):
    """A kernel of the distance with two trained numbers a head."""

    paper = Paper(
        title="KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation",
        arxiv="2205.09921",
        equations="section 4, the logarithmic and the power variant after Eq. 4",
        differs="the penalty is not divided by sqrt(d), as in the released code; ranges are kept by softplus and "
        "sigmoid and not by clamping; encoders have the symmetric form",
    )
    properties = Properties(monotone=True, factorises=False, reversal=True, shift=True)
    space = {"kernel": ["log", "power"]}

    @dataclass(frozen=True, kw_only=True)
    class Config:
        kernel: Literal["log", "power"] = option("log", "how the penalty grows with the distance")
        untied: bool = option(False, "each layer has a kernel of its own, where otherwise all layers share one")

    def __init__(self, dimensions: Dimensions, config: Config | None = None) -> None:
        super().__init__(dimensions, config)
        self.scope = "layer" if self.config.untied else "model"
        self.amplitude = nn.Parameter(torch.empty(dimensions.heads))
        self.rate = nn.Parameter(torch.empty(dimensions.heads))

    @classmethod
    def parameter_count(cls, dimensions: Dimensions, config: Any) -> int:
        return 2 * dimensions.heads * (dimensions.layers if config.untied else 1)

    def initial(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        # The larger range belongs to r1 of the logarithm and to the exponent.
        wide = (name == "amplitude") == (self.config.kernel == "log")
        value.uniform_(MARGIN, 2 - MARGIN if wide else 1, generator=generator)
        exponent = name == "rate" and self.config.kernel == "power"
        value.copy_(torch.logit(value / 2) if exponent else value.expm1().log())

    def kernel(self) -> tuple[Tensor, Tensor]:
        """r1 and r2, each (H,), inside their ranges."""
        amplitude, rate = functional.softplus(maths.precise(self.amplitude)), maths.precise(self.rate)
        return amplitude, functional.softplus(rate) if self.config.kernel == "log" else 2 * rate.sigmoid()

    def offset_bias(self, distance: Tensor) -> Tensor:
        amplitude, rate = (r[:, None] for r in self.kernel())
        steps = distance.abs().to(rate.dtype)
        if self.config.kernel == "log":
            return -amplitude * (rate * steps).log1p()
        # exp(r log x) with x = 0 left out, whose logarithm would make the gradient of r NaN.
        return -amplitude * (rate * steps.clamp(min=1).log()).exp() * (steps > 0)


ENCODING = Kerple
