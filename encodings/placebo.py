"""placebo: a random bias that is fixed per seed and carries no information on positions.

It tells what an additive bias does as such, apart from the positions in it. A bias b_ij that is made of positions alone
and leaves the layer equivariant to permutations must satisfy b_p(i)p(j) = b_ij for every permutation p. Pairs (i, j)
fall into two orbits, i = j and i /= j, so that

    b_ij = a [i = j] + c                                            (Zaheer et al. 2017, Lemma 3)

is the only one there is. The softmax cancels c. What remains is one number a_h for each head on a token's attention to
itself. It is read off the equality of positions and not off the diagonal of the matrix, so that it stays with the token
in caches, padding and packed documents.

The numbers are N(0, 1), rounded to what bfloat16 holds exactly, so that casting a model there and back changes nothing.
They are no parameters and are never trained.

Parameters: none.
"""

import torch
from torch import Tensor

from posbench.encoding import Dimensions, Encoding, Paper, Properties


class Placebo(Encoding):
    """A random constant for each head on the attention of a token to itself."""

    paper = Paper(
        title="Deep Sets",
        arxiv="1703.06114",
        equations="Lemma 3, the form of equivariant matrices",
        differs="the paper proves the form; as a control for position encodings it is posbench's own",
    )
    properties = Properties(monotone=False, factorises=False, permutation=True, reversal=True, shift=True)
    constant: Tensor

    def __init__(self, dimensions: Dimensions, config: Encoding.Config | None = None) -> None:
        super().__init__(dimensions, config)
        self.register_buffer("constant", torch.empty(dimensions.heads))

    def initial(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        value.copy_(value.normal_(0.0, 1.0, generator=generator).bfloat16())

    def offset_bias(self, distance: Tensor) -> Tensor:
        return self.constant[:, None] * (distance == 0)


ENCODING = Placebo
