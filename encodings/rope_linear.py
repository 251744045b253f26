"""rope_linear: position interpolation of a trained rope model (Chen et al. 2023).

    f'(x, p) = f(x, p / s)                                                                          (Eq. 4)

All positions are pressed into the trained range: every pair of channels turns s times slower, near tokens too, which is
why the paper fine-tunes afterwards. s is the factor by which sequences may be longer than the trained ones.

Parameters: none; weights of a trained rope model fit as they are.
"""

from torch import Tensor

from posbench.encoding import Paper, Properties, Side
from posbench.positions import Positions
from posbench.rotary import ScaledRotary


class RopeLinear(ScaledRotary):
    """Rope with positions divided by a constant."""

    paper = Paper(
        title="Extending Context Window of Large Language Models via Positional Interpolation",
        arxiv="2306.15595",
        equations="4",
    )
    properties = Properties(monotone=False, factorises=True, shift=True)
    space = {"factor": (1.0, 16.0)}

    def frequencies(self, at: Positions, side: Side) -> Tensor:
        return super().frequencies(at, side) / self.config.factor


ENCODING = RopeLinear
