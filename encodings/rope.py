"""rope: rotary position embedding (Su et al. 2021).

Queries and keys are turned pair of channels by pair, by an angle that grows with the position, so that their product
depends on the offset alone:

    <R(m) q, R(n) k> = <q, R(n - m) k>,   angles p base^(-2i/r), i = 0 ... r/2 - 1        (Eq. 15, 16 and 34)

r is the number of turned channels, the whole head or a fraction of it. Values are not turned, and cross attention is
left alone.

Parameters: none.
"""

from posbench.encoding import Paper, Properties
from posbench.rotary import Rotary


class Rope(Rotary):
    """Rotation of queries and keys."""

    paper = Paper(
        title="RoFormer: Enhanced Transformer with Rotary Position Embedding",
        arxiv="2104.09864",
        equations="15, 16, 34",
        differs="fraction < 1 turns the first channels of a head only, with frequencies of that width (GPT-NeoX)",
    )
    properties = Properties(monotone=False, factorises=True, shift=True)
    space = {"base": (1e3, 1e6)}


ENCODING = Rope
