"""alibi: a fixed linear penalty on distance (Press et al. 2021).

    logit_ij = q_i . k_j / sqrt(d) - m_h |i - j|                                                    (section 3)

Slopes m_h are the geometric series 2^(-8/H), 2^(-16/H), ... for a number of heads that is a power of two. For others
the paper's text has that series too, and libraries differ; this file follows the authors' released code, which takes
the slopes of the next lower power of two, then every other slope of the next higher one.

The paper is about causal models, where i - j >= 0. In encoders this file has the symmetric form, which is blind to
direction; the authors' shortcut matrix m_h j is right under the causal mask alone and would reward keys ahead.

Parameters: none.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from posbench import maths
from posbench.encoding import Dimensions, Encoding, Paper, Properties
from posbench.positions import Positions


class Alibi(Encoding):
    """Attention with linear biases."""

    paper = Paper(
        title="Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation",
        arxiv="2108.12409",
        equations="section 3, unnumbered",
        differs="encoders have the symmetric -m|i - j|",
    )
    properties = Properties(monotone=True, factorises=False, reversal=True, shift=True)

    def __init__(self, dimensions: Dimensions, config: Any = None) -> None:
        super().__init__(dimensions, config)
        # Under the causal mask -m (i - j) = -m i + m j; |i - j| has no such form.
        self.properties = replace(self.properties, factorises=dimensions.causal)

    def offset_bias(self, distance: Tensor) -> Tensor:
        return -maths.alibi_slopes(self.dimensions.heads, distance.device)[:, None] * distance.abs()

    def score_mod(self, at: Positions) -> Callable[..., Tensor]:
        slopes = maths.alibi_slopes(self.dimensions.heads, at.q.device)

        def mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            # Indices are places in storage; positions are looked up, so that padding and caches keep their distances.
            distance = at.k[b if at.k.shape[0] > 1 else 0, k] - at.q[b if at.q.shape[0] > 1 else 0, q]
            return score - slopes[h] * distance.abs()

        return mod

    def decay(self) -> Tensor:
        return -maths.alibi_slopes(self.dimensions.heads)


ENCODING = Alibi
