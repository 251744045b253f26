"""Properties of one attention layer: symmetries, decoding, precision, and the equality of its forms.

f is one layer around the encoding, L its logits, T the number of tokens. Everything is in float64 where not stated
otherwise, so that what remains is the encoding's own error; encodings may form angles and tables in float32, and the
tolerances allow for that where positions differ between the two sides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from posbench import attention
from posbench.contract import check
from posbench.encoding import Encoding, overrides
from posbench.positions import Positions
from posbench.probe import SEED, Layer, Subject, numbers, relative, worst
from posbench.seeds import generator


@check("P1", "permutation equivariance", shapes=("encoder",), claim="permutation", tolerance=1e-10)
def permutation(subject: Subject) -> float:
    """f(PX) = P f(X) for a permutation P of the tokens."""
    f, x, at = subject.layer(), subject.inputs(), subject.at(subject.length)
    order = torch.randperm(subject.length, generator=generator(SEED, "permutation"))
    return relative(f(x, at)[:, order], f(x[:, order], at))


@check("P2", "reversal equivariance", shapes=("encoder",), claim="reversal", tolerance=1e-10)
def reversal(subject: Subject) -> float:
    """f(JX) = J f(X) for the reversal J: blind to direction."""
    f, x, at = subject.layer(), subject.inputs(), subject.at(subject.length)
    return relative(f(x, at).flip(1), f(x.flip(1), at))


@check("P3", "logits unchanged by a prefix", shapes=("decoder",), claim="shift", tolerance=1e-6)
def prefix(subject: Subject) -> float:
    """L([Z; X]) at (s+i, s+j) = L(X) at (i, j) for prefixes Z of s = 1, 7, T and as many tokens as were trained on."""
    f, length, trained = subject.layer(), subject.length, subject.dimensions.length
    x, z = subject.inputs(), numbers(2, max(length, trained), subject.dimensions.width, name="prefix")
    alone = f.logits(x, subject.at(length))
    errors = []
    for s in [s for s in (1, 7, length, trained) if subject.fits(s + length)]:
        behind = f.logits(torch.cat([z[:, :s], x], dim=1), subject.at(s + length))[..., s:, s:]
        errors.append(seen(alone, behind, subject))
    return worst(errors)


@check("P4", "logits unchanged by a shift of all positions", claim="shift", tolerance=1e-6)
def shift(subject: Subject) -> float:
    """L(X; p + s) = L(X; p) for s = 1, 9, 50 and 10^4.

    Angles in float32 lose 5e-9 radians for each position that they are further out; errors are divided by that growth.
    """
    f, x, at = subject.layer(), subject.inputs(), subject.at(subject.length)
    first = f.logits(x, at)
    shifts = [s for s in (1, 9, 50, 10_000) if subject.fits(subject.length + s)] or [1]
    return worst(seen(first, f.logits(x, at.shifted(s)), subject) / (1 + 5e-3 * s) for s in shifts)


def seen(a: Tensor, b: Tensor, subject: Subject) -> float:
    """Relative difference of logits (..., T, T) where the query may look."""
    mask = subject.at(a.shape[-1]).visible()
    return relative(a, b) if mask is None else relative(a.masked_fill(~mask, 0), b.masked_fill(~mask, 0))


@check("P5", "lengths of queries and keys unchanged", claim="norm", tolerance=1e-6)
def norm(subject: Subject) -> float:
    """|q'| / |q| = 1, and the same for keys, near and far out, q' being what the encoding makes of q."""
    x, errors = subject.inputs(), []
    for start in [start for start in (0, 1000) if subject.fits(start + subject.length)]:
        at = subject.at(subject.length, start)
        plain = Layer(Encoding(subject.dimensions)).project(x, at)
        encoded = subject.layer().project(x, at)
        ratios = [a.norm(dim=-1) / b.norm(dim=-1) for a, b in zip(encoded[:2], plain[:2], strict=True)]
        errors += [(ratio - 1).abs().max().item() for ratio in ratios]
    return worst(errors)


def one_by_one(subject: Subject) -> float:
    """The last query against keys that earlier calls turned, one token each, gives the row of the full pass."""
    f, x = subject.layer(), subject.inputs(length=subject.long)
    full = f(x, subject.at(subject.long))
    keys, values, rows = [], [], []
    for t in range(subject.long):
        index = torch.arange(t + 1)[None]
        new, step = (f.encoding.positions(Positions(q=index[:, t:], k=k, end=t + 1, causal=True))
                     for k in (index[:, t:], index))
        q, k, v = f.project(x[:, t : t + 1], new, step)
        keys.append(k)
        values.append(v)
        rows.append(f.attend(q, torch.cat(keys, dim=2), torch.cat(values, dim=2), step))
    return relative(full, torch.cat(rows, dim=1))


@check("P11", "bfloat16 is no worse far out than near", tolerance=3 * 2**-8)
def precision(subject: Subject) -> float:
    """Error of the logits in bfloat16, in units of |q||k|/sqrt(d) plus their size, at positions 0, 256, ... 16384.

    Rounding of finished values is allowed for, and nothing else: from 257 on, an angle formed in bfloat16 belongs to
    another position. Queries and keys that the encoding leaves alone are rounded on both sides: multiplied with its
    random parameters they would tell more of the probe than of the encoding.
    """
    low = Layer(subject.encoding(torch.bfloat16), torch.bfloat16)
    high = subject.layer()
    with torch.no_grad():
        high.weights = low.weights.double()
        for ours, rounded in zip(high.encoding.parameters(), low.encoding.parameters(), strict=True):
            ours.copy_(rounded)
        x = subject.inputs(dtype=torch.bfloat16)
        errors = []
        layer = high if overrides(low.encoding, "embed", "rotate") else low
        for start in (0, 256, 1024, 4096, 16384):
            if subject.fits(start + subject.length):
                at = subject.at(subject.length, start)
                placed = high.encoding.positions(at)
                q, k, _ = (part.double() for part in layer.project(x.to(layer.weights.dtype), placed))
                exact = attention.logits(q, k, high.encoding, placed)
                sizes = q.norm(dim=-1)[..., None] * k.norm(dim=-1)[..., None, :] * q.shape[-1] ** -0.5
                errors.append(((low.logits(x, at).double() - exact) / (sizes + exact.abs())).abs().max().item())
    return worst(errors)


@check("P20", "one key gives its value alone", claim="single_key", tolerance=1e-10)
def single_key(subject: Subject) -> float:
    """With T = 1 the output is the projected value, at positions 0 and 7."""
    f, x = subject.layer(), subject.inputs(length=1)
    return worst(relative(x @ f.weights[2], f(x, subject.at(1, start))) for start in (0, 7))


@check("P21", "all forms of the bias agree", tolerance=1e-6,
       applies=lambda encoding: overrides(encoding, "bias", "offset_bias"))
def forms(subject: Subject) -> float:
    """The Toeplitz layout and the flex form equal the bias looked up pair by pair, with padding and without."""
    encoding, length = subject.encoding(), subject.length
    regular = subject.at(length)
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[1, : length // 3] = False
    errors = []
    for at in (regular, Positions.from_mask(mask, causal=subject.causal)):
        bias = encoding.bias(at)
        batch, heads, queries, keys = (torch.arange(n) for n in (bias.shape[0], *bias.shape[1:]))
        flex = encoding.score_mod(at)(torch.zeros((), dtype=bias.dtype), batch[:, None, None, None],
                                      heads[:, None, None], queries[:, None], keys)
        errors.append(relative(bias, flex))
        if at is regular and not overrides(encoding, "bias"):
            errors.append(relative(bias, attention._toeplitz_bias(encoding, at)))
    return worst(errors)


@check("P22", "fast kernels equal the reference", tolerance=1e-5)
def kernels(subject: Subject) -> float:
    """softmax_attention = dense in float32: outputs and gradients, in training and in evaluation, padded or not."""
    f, x = subject.layer(torch.float32), subject.inputs(dtype=torch.float32).requires_grad_()
    lengths = torch.tensor([subject.length, subject.length // 2])
    wanted = [x, *f.encoding.parameters()]
    errors = []
    for at in (subject.at(subject.length), Positions.right_padded(lengths, subject.length, causal=subject.causal)):
        at = f.encoding.positions(at)
        with torch.no_grad():
            errors.append(relative(*(kernel(*f.project(x, fresh), f.encoding, fresh) for kernel, fresh in pairs(at))))
        results = []
        for kernel, fresh in pairs(at):
            y = kernel(*f.project(x, fresh), f.encoding, fresh)
            weights = numbers(*y.shape, name="cotangent", dtype=torch.float32)
            results.append((y, *torch.autograd.grad((y * weights).sum(), wanted, allow_unused=True, retain_graph=True)))
        errors += [relative(a, b) for a, b in zip(*results, strict=True) if a is not None and b is not None]
    return worst(errors)


def pairs(at: Positions) -> list[tuple[Callable[..., Tensor], Positions]]:
    """The reference and the fast form of attention, each with positions that keep nothing from an earlier pass."""
    return [(kernel, replace(at)) for kernel in (attention.dense, attention.softmax_attention)]
