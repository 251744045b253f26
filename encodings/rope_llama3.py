"""rope_llama3: a trained rope model scaled piece by piece, as the released code of Llama 3.1 does (Grattafiori 2024).

    f'_i = (1 - g_i) f_i / s + g_i f_i,   g_i = clamp((L0 f_i / 2 pi - low) / (high - low), 0, 1)

L0 f_i / 2 pi is how many times pair i turns within the trained length L0. Pairs that turn more than `high` times keep
their frequency, those that turn less than `low` times are s times slower, and between them the share is linear in the
number of turns: the ramp of YaRN's paper, with other ends and without its factor on the logits. The paper does
not state the rule; the released code does.

Parameters: none; weights of a trained rope model fit as they are.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from posbench.encoding import Dimensions, Paper, Properties, Side, option
from posbench.errors import UserError
from posbench.positions import Positions
from posbench.rotary import ScaledRotary


class RopeLlama3(ScaledRotary):
    """Rope with slow channels interpolated, fast ones kept, and a linear passage between them."""

    paper = Paper(
        title="The Llama 3 Herd of Models",
        arxiv="2407.21783",
        equations="none; apply_scaling of the released code",
    )
    properties = Properties(monotone=False, factorises=True, shift=True)
    space = {"factor": (1.0, 32.0)}

    @dataclass(frozen=True, kw_only=True)
    class Config(ScaledRotary.Config):
        factor: float = option(8.0, "s, how many times slower the slow pairs turn", at_least=1)
        low: float = option(1.0, "turns within L0 up to which a pair turns s times slower", above=0)
        high: float = option(4.0, "turns within L0 from which on a pair keeps its frequency", above=0)

    def __init__(self, dimensions: Dimensions, config: Config | None = None) -> None:
        super().__init__(dimensions, config)
        low, high = self.config.low, self.config.high
        if high <= low:
            raise UserError(f"encoding 'rope_llama3': low = {low:g} and high = {high:g}, but fast pairs turn more "
                            "often: choose a high above low")

    def frequencies(self, at: Positions, side: Side) -> Tensor:
        plain = super().frequencies(at, side)
        turns = self.original * plain / (2 * math.pi)
        kept = ((turns - self.config.low) / (self.config.high - self.config.low)).clamp(0, 1)
        return (1 - kept) * plain / self.config.factor + kept * plain


ENCODING = RopeLlama3
