"""nope: no position encoding, the negative control.

A bidirectional model without one is blind to the order of its input; a causal one of two or more layers is not, as its
mask carries positions (Kazemnejad et al. 2023, theorem 1).

Parameters: none.
"""

from posbench.encoding import Encoding, Paper, Properties


class Nope(Encoding):
    """Adds nothing anywhere."""

    paper = Paper(
        title="The Impact of Positional Encoding on Length Generalization in Transformers",
        arxiv="2305.19466",
        equations="none; the method is the absence of one (also Haviv et al. 2022, arXiv 2203.16634)",
    )
    properties = Properties(monotone=False, factorises=True, permutation=True, reversal=True, shift=True)


ENCODING = Nope
