"""Scaffold: a new encoding's file, commented, which passes the contract as it is."""

from __future__ import annotations

import importlib.util
import keyword
from pathlib import Path

from posbench.errors import StorageError, UserError
from posbench.registry import ENCODINGS, NAME

TEMPLATE = '''\
"""{name}: a learned linear penalty on distance, to be replaced by your method.

    logit_ij = q_i . k_j / sqrt(d) - softplus(r_h) |i - j|

State here the formula, the paper and the equation, and where libraries differ, which of them you follow.

Parameters: H.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from posbench.encoding import Dimensions, Encoding, Paper, Properties, option

# posbench.maths has what many encodings need: inverse_frequencies, angles, sinusoids, rotate, alibi_slopes, t5_buckets.


class {cls}(Encoding):
    """A penalty for each head that grows with the distance."""

    # What this file follows. A paper has arxiv="YYMM.NNNNN" and the numbers of its equations; `differs` says where the
    # file departs from it.
    paper = Paper(title="{name}, unpublished", equations="the formula above")
    # One instance for the whole 'model', or one for each 'layer' with parameters of its own.
    scope = "model"
    # What one layer does; `posbench check` measures each claim, and those that are not made as well: permutation,
    # reversal, shift, norm, single_key, cached, beyond, monotone, factorises (see posbench.encoding.Properties).
    properties = Properties(reversal=True, shift=True)
    # What a search may vary: a list of values, or a pair of bounds.
    space = {{"start": (-4.0, 0.0)}}

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Options; on the command line {name}:start=-1."""

        start: float = option(-2.0, "first value of r, before the softplus", at_least=-20, at_most=20)

    def __init__(self, dimensions: Dimensions, config: Config | None = None) -> None:
        super().__init__(dimensions, config)
        # Parameters come without values, and modules by torch.nn.utils.skip_init: `initial` fills them from a stream
        # of their own, so that no other weight of the model changes with the encoding.
        self.rate = nn.Parameter(torch.empty(dimensions.heads))

    @classmethod
    def parameter_count(cls, dimensions: Dimensions, config: Any) -> int:
        """By the paper's formula, for the whole model: times dimensions.layers where the scope is 'layer'."""
        return dimensions.heads

    def initial(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        value.fill_(self.config.start)  # or value.normal_(0.0, 0.02, generator=generator), the default

    def offset_bias(self, distance: Tensor) -> Tensor:
        """(n,) key minus query positions, negative for keys behind -> (H, n)."""
        # In float32 whatever the model's dtype: bfloat16 holds no distance above 256 exactly.
        return -functional.softplus(self.rate.float())[:, None] * distance.abs()

    # The other hooks; write those that your method needs and no more. B batch, H heads, L new tokens, Q queries,
    # K keys, D width, d head width. Positions are at.q (B|1, Q) and at.k (B|1, K), and never the indices of a tensor:
    # padding, packing and caches then need no code here. Keep nothing between calls; at.once(key, make) keeps a table
    # for one pass. What depends on the length of a sequence reads at.sizes() and declares cached=False.
    #
    # embed(x, at)          (B, L, D) -> same, once, at the input: absolute encodings
    # rotate(x, at, side)   (B, H, L, d) -> same; side is 'query', 'key', 'value' or 'output': rotary encodings
    # scores(q, k, at)      -> (B, H, Q, K), added to q.k before the scale: encodings that look at the content
    # bias(at)              -> (B|1, H, Q, K), added after the scale: a bias that depends on more than the offset
    # values(weights, at)   (B, H, Q, K) -> (B, H, Q, d), added to the attention's output
    # positions(at)         Positions -> Positions: other position ids
    # decay()               -> (H,) log decay a step, for linear attention
    # max_length            property: positions end there, and longer inputs are refused


ENCODING = {cls}
'''


def new_encoding(name: str, folder: str | Path) -> Path:
    """Writes `folder`/`name`.py, an encoding that works and tells what to change, and returns its path.

    Args:
        name: the encoding's name: lower-case letters, digits and '_', beginning with a letter.
        folder: where the file goes; made when it is missing.

    Raises:
        UserError: the name is malformed, taken by another encoding, or a word of Python; or the file exists.
        StorageError: it cannot be written; there is no half of it then.
    """
    from posbench.store import write_atomically

    if not NAME.fullmatch(name):
        raise UserError(f"encoding name '{name}': use lower-case letters, digits and '_', beginning with a letter")
    if keyword.iskeyword(name) or name == "encoding":
        raise UserError(f"encoding name '{name}' means something else in the file: choose another")
    path = Path(folder) / f"{name}.py"
    if path.exists():  # told first: from its own folder the file also looks like an installed package
        raise UserError(f"'{path}' exists and is kept as it is: choose another name or folder")
    if importlib.util.find_spec(name):
        raise UserError(f"encoding name '{name}' is that of an installed package, which a file beside your own scripts "
                        "would hide: choose another")
    taken = ENCODINGS.found().get(name)
    if taken:
        raise UserError(f"encoding name '{name}' belongs to {taken[0].origin}: choose another")
    cls = "".join(part.capitalize() for part in name.split("_"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, TEMPLATE.format(name=name, cls=cls).encode(), fresh=True)
    except OSError as error:
        raise StorageError(f"'{path}' cannot be written: {error.strerror}") from None
    return path
