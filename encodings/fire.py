"""fire: a small network of the normalised logarithm of the distance (Li et al. 2023).

    b_ij = f(psi(i - j) / psi(max(L, i))),   psi(x) = log(c x + 1),   f: 1 -> w -> H with one ReLU

i is the position of the query and L a trained threshold: the distance is measured against what lies behind the query
and never against the current length, so that decoding equals the full pass. For queries up to L the normaliser is
constant and the bias depends on the offset alone; beyond, the same offset counts for less the further out it is. Logits
are therefore not invariant to shifts, however large L is: far enough out they change.

L is a factor, from 1, times `threshold`; by default that is a quarter of the training length (512 in the listing).
c starts at 0.1; both act by their absolute values, and psi(max(L, i)) is kept off 0 by 1e-6, as in the paper's listing.
The network starts uniform in +-1/sqrt(inputs), torch's own default, which that listing uses. Each layer has its own,
or with `shared` all layers share one. The paper is about causal models; its listing has |i - j|, which makes
encoders symmetric in direction; below the threshold they are blind to it, and beyond it a query's own position counts.

Parameters: 2 w + w H + H + 2 for each layer, or once if shared.
"""

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from posbench import maths
from posbench.encoding import Dimensions, Encoding, Paper, Properties, option
from posbench.positions import Positions


class Fire(Encoding):
    """A learned function of the distance, interpolated to the length behind the query."""

    paper = Paper(
        title="Functional Interpolation for Relative Positions Improves Long Context Transformers",
        arxiv="2310.04418",
        equations="FIRE with logarithm and threshold, and the paper's listing of it",
        differs="encoders have |i - j|, as in the listing",
    )
    scope = "layer"
    properties = Properties(monotone=False, factorises=False)

    @dataclass(frozen=True, kw_only=True)
    class Config:
        hidden: int = option(32, "w, width of the network's hidden layer", at_least=1)
        threshold: float | None = option(None, "first value of L in tokens; a quarter of the training length if none",
                                         above=0)
        shared: bool = option(False, "one network, c and L for all layers")

    def __init__(self, dimensions: Dimensions, config: Config | None = None) -> None:
        super().__init__(dimensions, config)
        self.threshold = self.config.threshold or dimensions.length / 4
        if self.threshold >= dimensions.length:
            # Up to L the function depends on |i - j| alone; what is claimed is for every length, within L and beyond.
            self.properties = replace(self.properties, reversal=None, shift=None)
        hidden, heads = self.config.hidden, dimensions.heads
        self.c = nn.Parameter(torch.empty(()))
        self.factor = nn.Parameter(torch.empty(()))
        self.inner = nn.utils.skip_init(nn.Linear, 1, hidden)
        self.outer = nn.utils.skip_init(nn.Linear, hidden, heads)

    def tie(self, first: Self) -> None:
        if self.config.shared:
            self.c, self.factor, self.inner, self.outer = first.c, first.factor, first.inner, first.outer

    @classmethod
    def parameter_count(cls, dimensions: Dimensions, config: Any) -> int:
        hidden, heads = config.hidden, dimensions.heads
        return (1 if config.shared else dimensions.layers) * (2 * hidden + hidden * heads + heads + 2)

    @classmethod
    def flop_count(cls, dimensions: Dimensions, config: Any, length: int) -> int:
        return (1 if config.shared else dimensions.layers) * 2 * length**2 * config.hidden * dimensions.heads

    def initial(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        if name in ("c", "factor"):
            value.fill_(0.1 if name == "c" else 1.0)
            return
        bound = 1.0 if name.startswith("inner") else self.config.hidden**-0.5
        value.uniform_(-bound, bound, generator=generator)

    def bias(self, at: Positions) -> Tensor:
        # Layers that share the network share its parameters, and so what it answers in this pass.
        return at.once((Fire, "bias", self.c), lambda: self._bias(at))

    def _bias(self, at: Positions) -> Tensor:
        c, factor = maths.precise(self.c).abs(), maths.precise(self.factor)
        distance, behind = at.offsets().abs().to(c.dtype), at.q.to(c.dtype)
        normaliser = (c * torch.maximum((factor * self.threshold).abs(), behind)).log1p() + 1e-6
        share = (c * distance).log1p() / normaliser[:, :, None]
        # Products are written out, or left to a matrix product outside autocast, which would round them to bfloat16.
        weights, offsets, outer, constants = (maths.precise(p) for p in (*self.inner.parameters(),
                                                                         *self.outer.parameters()))
        hidden = (share[..., None] * weights[:, 0] + offsets).relu()
        with torch.autocast(share.device.type, enabled=False):
            return (hidden @ outer.T + constants).movedim(-1, 1)


ENCODING = Fire
