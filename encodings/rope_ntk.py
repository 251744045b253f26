"""rope_ntk: a trained rope model with a larger base, NTK-aware interpolation (Peng et al. 2023, section 3.1).

    b' = b s^(r/(r-2))                                                                              (definition 1)

The fastest pair of channels keeps its frequency, so that neighbours are told apart as before; the slowest turns exactly
s times slower, so that the longest wave stays inside the trained range; the others lie between. s is fixed: it does not
follow the current length, as it does in rope_dynamic.

Parameters: none; weights of a trained rope model fit as they are.
"""

from torch import Tensor

from posbench.encoding import Paper, Properties, Side
from posbench.positions import Positions
from posbench.rotary import ScaledRotary


class RopeNtk(ScaledRotary):
    """Rope with a base that is larger by a constant."""

    paper = Paper(
        title="YaRN: Efficient Context Window Extension of Large Language Models",
        arxiv="2309.00071",
        equations="section 3.1, definition 1, which writes down what bloc97 published in 2023 without a paper",
    )
    properties = Properties(monotone=False, factorises=True, shift=True)
    space = {"factor": (1.0, 16.0)}

    def frequencies(self, at: Positions, side: Side) -> Tensor:
        return self.stretched(self.config.factor, at.q.device)


ENCODING = RopeNtk
