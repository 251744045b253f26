"""Structure of an encoding: how finely it tells positions apart, how it falls with distance, its work and its rank."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from posbench.contract import check
from posbench.encoding import Encoding, overrides
from posbench.errors import UserError
from posbench.positions import Positions
from posbench.probe import KINDS, SHAPES, ContractError, Layer, Subject, relative, worst

SLOW = 0.2
"""Growth of the rank that is forgiven: not all of a finite number of features show in 128 tokens."""
POSITIONS = 4096
"""Positions that are counted; bfloat16 itself holds 769 different ones of them."""
RANK = 1e-6
"""Singular values below this share of the largest are rounding of angles and tables in float32."""


@check("P12", "as many positions told apart in bfloat16 as in float64", tolerance=0.01,
       applies=lambda encoding: overrides(encoding, "embed", "rotate", "offset_bias"))
def resolution(subject: Subject) -> float:
    """Share of the positions 0 ... 4095 that float64 tells apart and a model in bfloat16 does not.

    What a method merges on purpose, such as distances in one bucket, is merged in both. Finished values may be rounded,
    so that a few rows may meet by chance.
    """
    count = min(POSITIONS, subject.limit or POSITIONS)
    low, high = subject.encoding(torch.bfloat16), subject.encoding()
    with torch.no_grad():
        for ours, rounded in zip(high.parameters(), low.parameters(), strict=True):
            ours.copy_(rounded)
        rows = zip(_told(low, count, torch.bfloat16), _told(high, count, torch.float64), strict=True)
        return worst(1 - _different(rounded) / _different(exact) for rounded, exact in rows)


def _told(encoding: Encoding, count: int, dtype: torch.dtype) -> list[Tensor]:
    """What the encoding makes of positions 0 ... count - 1, a row each: of zeros, of ones, and of distances."""
    at = encoding.positions(Positions.first(count, causal=encoding.dimensions.causal))
    heads, d = encoding.dimensions.heads, encoding.dimensions.head_width
    rows = []
    if overrides(encoding, "embed"):
        rows.append(encoding.embed(torch.zeros(1, count, heads * d, dtype=dtype), at)[0])
    if overrides(encoding, "rotate"):
        turned = encoding.rotate(torch.ones(1, heads, count, d, dtype=dtype), at, "query")
        rows.append(turned[0].transpose(0, 1).flatten(1))
    if overrides(encoding, "offset_bias"):
        rows.append(encoding.offset_bias(-torch.arange(count)).T)
    return rows


def _different(rows: Tensor) -> int:
    return len(rows.double().unique(dim=0))


@check("P14", "falls with every step of distance", shapes=("decoder",), claim="monotone", tolerance=0)
def decay(subject: Subject) -> float:
    """Share of the steps, over heads and distances, at which the mean logit between equal tokens does not fall."""
    length = subject.long
    x = subject.inputs(batch=8, length=1).expand(-1, length, -1)
    logits = subject.layer().logits(x, subject.at(length))[..., -1, :].mean(0)
    falls = logits.diff(dim=-1)  # from the farthest key to the query's own
    return (~(falls > 1e-9 * logits.abs().max())).double().mean().item()


@check("P18", "work as stated, and growing no faster than attention's", shapes=SHAPES, kinds=KINDS, tolerance=0.05)
def work(subject: Subject) -> float:
    """Relative error of `flop_count`, where it is stated, by the library's own counter.

    Twice the length may take four times the operations at most, in linear attention twice as many.
    """
    short = 256 if subject.attention == "linear" else subject.length
    if subject.fits(2 * short):
        exponent = math.log2(_model_flops(subject, 2 * short) / _model_flops(subject, short))
        most = 1 if subject.attention == "linear" else 2
        if exponent > most + 0.1:
            raise ContractError(f"operations grow with the length to the power {exponent:.2f}, and not {most} at most")
    said = subject.encoding_class.flop_count(subject.dimensions, subject.bare().config, subject.length)
    if said is None or subject.shape == "encoder-decoder" or subject.attention == "linear":
        return 0.0
    there = _model_flops(subject, subject.length) - _model_flops(subject, subject.length, Encoding)
    if there == 0:
        return float(said != 0)
    return abs(said - there) / there


def _model_flops(subject: Subject, length: int, encoding: type[Encoding] | None = None) -> int:
    """Operations of matrix products in one forward pass over one sequence, in the explicit form of attention."""
    model = subject.model(torch.float32, encoding)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        subject.read(model, subject.tokens(1, length))
    return counter.get_total_flops()


def _long_enough(encoding: Encoding | type[Encoding]) -> bool:
    """Whether a rank can be seen to stop growing: options may end a table before that."""
    if isinstance(encoding, type):
        return True
    try:
        limit = type(encoding)(replace(encoding.dimensions, length=256), encoding.config).max_length
    except UserError:
        return False
    return limit is None or limit >= 256


@check("P19", "logits factorise", claim="factorises", tolerance=0, applies=_long_enough)
def factorisation(subject: Subject) -> float:
    """Growth of the rank of the logits from 128 to 256 tokens, as a share of it, beyond a fifth.

    A series of slow waves reaches its rank late: sandwich gains 18 % there, what does not factorise about 100 %.

    A causal bias that counts steps back, such as alibi's, has the rank of its signed form, which the mask leaves as it
    is: such an encoding states its decay, and then the error is that of the bias against it.
    """
    dimensions = replace(subject.dimensions, length=256)
    layer = Layer(subject.encoding(dimensions=dimensions))
    if subject.causal and overrides(layer.encoding, "decay"):
        at = subject.at(subject.length)
        back = at.offsets().clamp(max=0)[:, None]
        stated = -layer.encoding.decay()[:, None, None].double() * back
        seen = at.visible()
        assert seen is not None
        bias = layer.encoding.bias(at).double()
        error = relative(stated.masked_fill(~seen, 0), bias.masked_fill(~seen, 0))
        return 0.0 if error <= 1e-6 else error
    ranks = []
    for length in (128, 256):
        logits = layer.logits(subject.inputs(1, length), subject.at(length))[0]
        if not logits.isfinite().all():
            return math.nan
        ranks.append(max(int(torch.linalg.matrix_rank(head, rtol=RANK)) for head in logits.detach()))
    return max(0.0, ranks[1] / ranks[0] - 1 - SLOW)


@check("P22", "linear attention equals its quadratic form", kinds=("linear",), shapes=SHAPES, tolerance=1e-5)
def sums(subject: Subject) -> float:
    """Sums over keys give what all pairs of tokens give, to 1e-5 in float32."""
    model, tokens = subject.model(torch.float32), subject.tokens()
    at = subject.at(subject.length)
    # Packed documents take the quadratic form; all tokens belong to one.
    one = torch.zeros_like(at.q)
    return relative(subject.read(model, tokens, at=replace(at, documents=(one, one))),
                    subject.read(model, tokens, at=at))
