"""rope_yarn: a trained rope model whose slow channels are interpolated and whose logits are sharper (Peng et al. 2023).

    f'_i = (1 - g_i) f_i / s + g_i f_i                                                    (definition 2, NTK-by-parts)
    logits multiplied by m^2,   m = 0.1 ln(s) + 1                                                   (definition 3)

g_i is 1 for pairs that turn more than beta_fast times within the trained length L0, which keep their frequency, and 0
for those that turn less than beta_slow times, which are interpolated. Between them the paper's ramp is linear in the
number of turns; the released code's, which libraries follow and this file too, is linear in the pair's index i, from
floor(c(beta_fast)) to ceil(c(beta_slow)), where c(n) = r ln(L0 / (2 pi n)) / (2 ln b) is the pair that turns n times.

m multiplies queries and keys alike, once each, and only the channels that turn. An explicit attention_factor replaces
m; 1 turns it off.

Parameters: none; weights of a trained rope model fit as they are.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from posbench.encoding import Dimensions, Paper, Properties, Side, option
from posbench.errors import UserError
from posbench.positions import Positions
from posbench.rotary import ScaledRotary


class RopeYarn(ScaledRotary):
    """Rope with slower slow channels and sharper logits."""

    paper = Paper(
        title="YaRN: Efficient Context Window Extension of Large Language Models",
        arxiv="2309.00071",
        equations="definitions 2 and 3",
        differs="the ramp is linear in the index of the pair, as in the released code",
    )
    properties = Properties(monotone=False, factorises=True, shift=True, norm=False)
    space = {"factor": (1.0, 32.0)}

    @dataclass(frozen=True, kw_only=True)
    class Config(ScaledRotary.Config):
        beta_fast: float = option(32.0, "turns within L0 from which on a pair keeps its frequency", above=0)
        beta_slow: float = option(1.0, "turns within L0 up to which a pair turns s times slower", above=0)
        attention_factor: float | None = option(None, "m, factor on queries and keys; 0.1 ln(s) + 1 if none", above=0)

    def __init__(self, dimensions: Dimensions, config: Config | None = None) -> None:
        super().__init__(dimensions, config)
        fast, slow, given = self.config.beta_fast, self.config.beta_slow, self.config.attention_factor
        if fast <= slow:
            raise UserError(f"encoding 'rope_yarn': beta_fast = {fast:g} and beta_slow = {slow:g}, but fast pairs turn "
                            "more often: choose a beta_fast above beta_slow")
        self.gain = 0.1 * math.log(self.config.factor) + 1 if given is None else given
        if self.gain == 1:
            self.properties = replace(self.properties, norm=True)

    def frequencies(self, at: Positions, side: Side) -> Tensor:
        plain = super().frequencies(at, side)
        first = max(math.floor(self._pair(self.config.beta_fast)), 0)
        last = min(math.ceil(self._pair(self.config.beta_slow)), self.turned - 1)
        pair = torch.arange(self.turned // 2, dtype=torch.float64, device=at.q.device)
        # Where both ends meet there is no ramp but a step.
        slowed = ((pair - first) / (last - first if last != first else 1e-3)).clamp(0, 1)
        return plain * (1 - slowed) + plain / self.config.factor * slowed

    def _pair(self, turns: float) -> float:
        """Index of the pair, as a real number, that turns so many times within the trained length."""
        return self.turned * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(self.config.base))


ENCODING = RopeYarn
