"""sandwich: the products of sinusoids as a fixed bias (Chi et al. 2022).

    b_ij = (p_i . p_j) / c_h,   p_i . p_j = sum_m cos((i - j) base^(-2m/w)),  m = 0 ... w/2 - 1
    c_h  = 8 h / H,  h = 1 ... H

A transformer with sinusoids at its input multiplies four kinds of pairs of content and position; this bias keeps the
pure product of positions, whose average falls off with distance, and leaves the others out. w is no width of the model
but an option; the compression ratios c_h of the heads are the exponents of ALiBi's slopes. Implementations differ in
the frequencies: attention-gym begins at m = 0, as the sinusoids of Vaswani et al. 2017 and this file do, NeMo at m = 1.

The value at distance 0, w/2 / c_h, is subtracted, which the softmax does not see: what remains is small near the
diagonal, where low precision would otherwise round it away. The paper is about causal models; cos is symmetric, so
encoders get the same bias, blind to direction. Angles and sums are formed in float64.

Parameters: none.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from posbench import maths
from posbench.encoding import Dimensions, Encoding, Paper, Properties, option
from posbench.errors import UserError


class Sandwich(Encoding):
    """A sum of cosines of the distance, weaker from head to head."""

    paper = Paper(
        title="Dissecting Transformer Length Extrapolation via the Lens of Receptive Field Analysis",
        arxiv="2212.10356",
        equations="products of sinusoids over compression ratios, unnumbered",
        differs="less its value at distance 0, a constant that the softmax cancels; encoders have the symmetric form",
    )
    properties = Properties(monotone=False, factorises=True, reversal=True, shift=True)
    space = {"width": [64, 128, 256]}

    @dataclass(frozen=True, kw_only=True)
    class Config:
        width: int = option(128, "w, channels of the sinusoids, an even number whatever the model's width", at_least=2)
        base: float = option(10000.0, "ratio of the longest wavelength to the shortest", above=1)

    def __init__(self, dimensions: Dimensions, config: Config | None = None) -> None:
        super().__init__(dimensions, config)
        if self.config.width % 2:
            raise UserError(f"encoding 'sandwich': width = {self.config.width}, but sines and cosines come in pairs: "
                            "choose an even number")

    def offset_bias(self, distance: Tensor) -> Tensor:
        frequencies = maths.inverse_frequencies(self.config.width, self.config.base, distance.device)
        products = (maths.angles(distance.abs(), frequencies).cos() - 1).sum(-1)
        heads = self.dimensions.heads
        ratio = torch.arange(1, heads + 1, dtype=torch.float64, device=distance.device) * 8 / heads
        return (products / ratio[:, None]).float()


ENCODING = Sandwich
