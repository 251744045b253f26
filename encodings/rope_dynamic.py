"""rope_dynamic: a trained rope model whose base follows the length of the input, dynamic NTK (Peng et al. 2023).

    b' = b (s max(n, L0) / L0 - (s - 1))^(r/(r-2))                       (section 3.3, with the base of section 3.1)

n is the length of the sequence at hand and L0 the trained one; up to L0 this is rope. The released code, which
libraries follow, has the additional s; with s = 1, the default here, the base grows with n / L0 alone.

n is counted in this pass alone, over the real tokens of the same row and document. So no long input changes the answer
to a later short one, and neither padding nor the other rows of a batch change anything. What the method itself costs
remains: beyond L0 every new token changes the table, so that keys turned earlier are no longer right and cached
decoding differs from the full pass.

Parameters: none; weights of a trained rope model fit as they are.
"""

from dataclasses import dataclass

from torch import Tensor

from posbench.encoding import Paper, Properties, Side, option
from posbench.positions import Positions
from posbench.rotary import ScaledRotary


class RopeDynamic(ScaledRotary):
    """Rope with a base that grows with sequences longer than the trained ones."""

    paper = Paper(
        title="YaRN: Efficient Context Window Extension of Large Language Models",
        arxiv="2309.00071",
        equations="section 3.3, unnumbered, with the base of definition 1",
        differs="s of the released code as an option; the length is that of a row and not of the padded batch",
    )
    properties = Properties(monotone=False, factorises=True, cached=False)
    space = {"factor": (1.0, 8.0)}

    @dataclass(frozen=True, kw_only=True)
    class Config(ScaledRotary.Config):
        factor: float = option(1.0, "s, how much faster than the length the base grows", at_least=1)

    def frequencies(self, at: Positions, side: Side) -> Tensor:
        longer = self.size(at, side).clamp(min=self.original).double() / self.original
        return self.stretched(self.config.factor * longer - (self.config.factor - 1), at.q.device)


ENCODING = RopeDynamic
