"""sinusoidal: fixed absolute sinusoids added to the token embeddings (Vaswani et al. 2017).

    PE(p, 2i) = sin(p base^(-2i/D)),   PE(p, 2i + 1) = cos(p base^(-2i/D))                        (section 3.5)

The paper multiplies the token embeddings by sqrt(D) and draws them with standard deviation 1/sqrt(D), so that sinusoids
of amplitude 1 meet tokens of standard deviation 1. The template leaves the embeddings alone, whatever the encoding; so
the table is multiplied by their standard deviation, which keeps the paper's proportion of position to content.

Libraries differ in order and spacing. Sines first and cosines after (tensor2tensor) are the same table with its
channels permuted; an exponent over D/2 - 1 in place of D/2 (also tensor2tensor) is another table. This file has the
paper's order and the paper's spacing. An odd width has one sine more than cosines.

Parameters: none.
"""

from dataclasses import dataclass

from torch import Tensor

from posbench import maths
from posbench.encoding import Encoding, Paper, Properties, option
from posbench.positions import Positions


class Sinusoidal(Encoding):
    """A fixed table added once, at the input."""

    paper = Paper(
        title="Attention Is All You Need",
        arxiv="1706.03762",
        equations="section 3.5, unnumbered",
        differs="table and token embeddings are both smaller by the same factor, the embeddings' standard deviation",
    )
    properties = Properties(monotone=False, factorises=True, norm=False, single_key=False)
    space = {"base": (1e3, 1e6)}

    @dataclass(frozen=True, kw_only=True)
    class Config:
        base: float = option(10000.0, "ratio of the longest wavelength to the shortest", above=1)

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        table = maths.sinusoids(at.q, x.shape[-1], self.config.base) * self.dimensions.embedding_std
        return x + table.to(x.dtype)


ENCODING = Sinusoidal
