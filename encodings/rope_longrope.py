"""rope_longrope: a trained rope model with a factor of its own for every pair of channels, LongRoPE (Ding et al. 2024).

    f'_i = f_i / lambda_i                                                                           (Eq. 2, 3)
    queries and keys multiplied by sqrt(1 + ln(s) / ln(L0))                                         (released code)

The paper searches the lambda_i for each model; checkpoints carry two series, one for inputs up to the trained length
L0, one for longer ones. They are given as numbers with '/' between them. Without a searched series this file takes 1
throughout for short inputs and, for long ones, lambda_i = s^(2i/(r-2)), the NTK-aware series that is one of the three
from which the paper's search starts.

Which series holds is decided for each row and document by its own length in this pass alone. As the table changes where
a sequence outgrows L0, keys turned before are no longer right after it. The paper's other search variable, a number of
first tokens that are not interpolated, is left out as in the released checkpoints.

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


class RopeLongrope(ScaledRotary):
    """Rope with searched factors, one series for short sequences and one for long ones."""

    paper = Paper(
        title="LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens",
        arxiv="2402.13753",
        equations="2, 3",
        differs="all tokens are interpolated alike; the factor on queries and keys is the released code's",
    )
    properties = Properties(monotone=False, factorises=True, norm=False, cached=False)
    space = {"factor": (1.0, 32.0)}

    @dataclass(frozen=True, kw_only=True)
    class Config(ScaledRotary.Config):
        short_factors: str | None = option(None, "lambda_i up to L0 with '/' between them; all 1 if none")
        long_factors: str | None = option(None, "lambda_i beyond L0 with '/' between them; s^(2i/(r-2)) if none")
        attention_factor: float | None = option(
            None, "factor on queries and keys; sqrt(1 + ln(s) / ln(L0)) if none", above=0)

    def __init__(self, dimensions: Dimensions, config: Config | None = None) -> None:
        super().__init__(dimensions, config)
        given, factor = self.config.attention_factor, self.config.factor
        self.gain = math.sqrt(1 + math.log(factor) / math.log(self.original)) if given is None else given
        pairs = range(self.turned // 2)
        self.short = self._series("short_factors", [1.0 for _ in pairs])
        self.long = self._series("long_factors", [factor ** (2 * i / max(self.turned - 2, 1)) for i in pairs])
        same = self.long == self.short
        self.properties = replace(self.properties, norm=self.gain == 1, cached=same, shift=same)

    def frequencies(self, at: Positions, side: Side) -> Tensor:
        short, long = (torch.tensor(series, dtype=torch.float64, device=at.q.device)
                       for series in (self.short, self.long))
        return super().frequencies(at, side) / torch.where(self.size(at, side) > self.original, long, short)

    def _series(self, name: str, default: list[float]) -> list[float]:
        """The numbers of this option."""
        text = getattr(self.config, name)
        if text is None:
            return default
        try:
            series = [float(part) for part in text.split("/")]
        except ValueError:
            series = []
        if len(series) != self.turned // 2 or not all(0 < number < math.inf for number in series):
            raise UserError(f"encoding 'rope_longrope': {name} = '{text}', but it must be {self.turned // 2} numbers "
                            f"above 0, one for each pair of channels that turns, with '/' between them")
        return series


ENCODING = RopeLongrope
