"""Pure functions that several encodings share: frequencies, rotation, slopes, buckets, Toeplitz layouts.

Angles, slopes and buckets are formed in float64 or float32, whatever the model's or the default dtype is; only finished
values are rounded. bfloat16 tells 257 from 256 no more, so an angle formed in it belongs to another position.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

Layout = Literal["interleaved", "half"]


def inverse_frequencies(width: int, base: float, device: torch.device | None = None) -> Tensor:
    """base^(-2i/width) for i = 0 ... width/2 - 1, as (width/2,) float64 (RoFormer Eq. 15; the first is exactly 1)."""
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)


def angles(positions: Tensor, frequencies: Tensor) -> Tensor:
    """(..., L) integer positions, (f,) frequencies -> (..., L, f) float64 angles in radians."""
    return positions.to(torch.float64)[..., None] * frequencies


def sinusoids(positions: Tensor, width: int, base: float = 10000.0) -> Tensor:
    """(..., L) -> (..., L, width) float32: sine at even and cosine at odd channels (Vaswani et al. 2017, section 3.5).

    An odd width has one sine more than cosines.
    """
    phase = angles(positions, inverse_frequencies(width + width % 2, base, positions.device))
    table = torch.stack([phase.sin(), phase.cos()], dim=-1).flatten(-2)
    return table[..., :width].float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    """Turns pairs of channels of x (..., L, d) by angles given as cos, sin (..., L, d/2) in x's dtype.

    Pairs are (2i, 2i+1) when interleaved (RoFormer Eq. 34), (i, i + d/2) in the half layout: the same rotation up to a
    permutation of the channels.
    """
    if layout == "interleaved" and x.dtype in (torch.float32, torch.float64) and x.stride(-1) == 1:
        # A pair is a complex number; one product in place of six passes over x, and nothing but the table is kept.
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(-2)
    if layout == "interleaved":
        first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1).flatten(-2)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def alibi_slopes(heads: int, device: torch.device | None = None) -> Tensor:
    """(heads,) float32 slopes of Press et al. 2022, section 3; other than powers of two as in their released code.

    For n heads, the slopes of the next lower power of two come first, then every other slope of the next higher one.
    """

    def powers(n: int) -> list[float]:
        return [2.0 ** (-8.0 * (i + 1) / n) for i in range(n)]

    whole = 2 ** math.floor(math.log2(heads))
    slopes = powers(whole) + powers(2 * whole)[0::2][: heads - whole]
    return torch.tensor(slopes, dtype=torch.float32, device=device)


def t5_buckets(distance: Tensor, buckets: int, max_distance: int, *, bidirectional: bool) -> Tensor:
    """(...) key minus query positions -> (...) int64 buckets of Raffel et al. 2020, section 2.1.

    Half of the buckets hold one distance each, the other half grow logarithmically up to max_distance; the last holds
    all beyond. Bidirectional: the upper half of the numbers is for keys ahead. Causal: keys ahead share bucket 0.
    """
    offset = torch.zeros_like(distance)
    if bidirectional:
        buckets //= 2
        offset = (distance > 0).long() * buckets
        back = distance.abs()
    else:
        back = (-distance).clamp(min=0)
    exact = buckets // 2
    # float64 settles what float32 leaves to the compiler: distances whose logarithm falls on a bucket's border.
    growth = torch.log(back.clamp(min=1).double() / exact) / math.log(max_distance / exact) * (buckets - exact)
    large = (exact + (growth + 1e-9).long()).clamp(max=buckets - 1)
    return offset + torch.where(back < exact, back, large)


def deberta_buckets(distance: Tensor, buckets: int, max_distance: int) -> Tensor:
    """(...) query minus key positions -> (...) int64 signed buckets of DeBERTa's released code, versions 2 and 3.

    Distances up to buckets/2 keep their value; from there on buckets grow logarithmically, and max_distance - 1 falls
    in the last one, buckets - 1. Beyond it numbers go on growing: whoever has a table of rows clamps them.
    """
    exact = buckets // 2
    far = distance.abs().clamp(min=exact).double()
    growth = torch.log(far / exact) / math.log((max_distance - 1) / exact) * (exact - 1)
    # As in t5_buckets, logarithms that fall on a border are settled by exact arithmetic.
    large = exact + torch.ceil(growth - 1e-9).long()
    return torch.where(distance.abs() <= exact, distance, large * distance.sign())


def relative_shift(x: Tensor, keys: int) -> Tensor:
    """(..., Q, Q+K-1) by offset from 1-K to Q-1 -> (..., Q, K), entry (i, j) being column j - i + Q - 1 of row i.

    The counterpart of `toeplitz` for rows that differ. Right for any Q and K, and above the diagonal too, where the
    common trick that pads one column and drops one row reads the next row.
    """
    queries, columns = x.shape[-2:]
    flat = functional.pad(x, (0, 1)).flatten(-2)
    # Rows of one column more, read back as rows of the old width, begin one column earlier each.
    rows = flat[..., queries - 1 : queries - 1 + queries * columns]
    return rows.unflatten(-1, (queries, columns))[..., :keys]


def precise(x: Tensor) -> Tensor:
    """x in float32, or in float64 if that is what it is: for logarithms, powers and sums that bfloat16 cannot hold."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def drawn_places(ids: Tensor, size: Tensor, order: Tensor) -> Tensor:
    """(B|1, L) ids among (B|1, L|1) tokens -> the same: token i of n stands at the i-th smallest of n drawn places.

    `order` (N,) int64 is a random permutation cut after the largest n; its first n places are drawn without
    replacement. Ids behind the last token, as padding has them, stand where the last one does.
    """
    sizes, row = size.unique(return_inverse=True)
    unused = torch.arange(len(order), device=order.device) >= sizes[:, None]
    table = order.expand_as(unused).masked_fill(unused, torch.iinfo(order.dtype).max).sort(-1).values
    return table[row, ids.minimum(size - 1)]


def expected_places(ids: Tensor, size: Tensor, limit: int) -> Tensor:
    """The means of what `drawn_places` answers for places 0 ... limit - 1, rounded down to whole places.

    The i-th smallest of n, counted from 0, lies at (i + 1)(limit + 1)/(n + 1) - 1 in the mean.
    """
    return (ids.minimum(size - 1) + 1) * (limit + 1) // (size + 1) - 1


class _Toeplitz(torch.autograd.Function):
    """(H, Q+K-1) values by offset -> (H, Q, K), entry (i, j) being value j - i + Q - 1; the gradient sums diagonals."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, queries: int, keys: int) -> Tensor:
        ctx.queries, ctx.keys = queries, keys
        values = values.contiguous()
        hankel = values.as_strided((values.shape[0], queries, keys), (values.shape[1], 1, 1))
        return hankel.flip(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        queries, keys = ctx.queries, ctx.keys
        heads = gradients[0].shape[0]
        # Rows padded to Q + K and read back as rows of Q + K - 1 are each one further to the right: diagonals line up.
        padded = functional.pad(gradients[0].flip(1), (0, queries)).reshape(heads, -1)
        skewed = padded[:, : queries * (queries + keys - 1)].view(heads, queries, queries + keys - 1)
        return skewed.sum(1), None, None


def toeplitz(values: Tensor, queries: int, keys: int) -> Tensor:
    """(H, Q+K-1) values for the offsets -(Q-1) ... K-1 -> (H, Q, K) with entry (i, j) = value of offset j - i."""
    return _Toeplitz.apply(values, queries, keys)


def hankel(values: Tensor, queries: int, keys: int) -> Tensor:
    """What `toeplitz` gives, for keys in reversed order: (H, Q+K-1) -> (H, Q, K), a view of one row for each head.

    Against reversed keys the offset depends on the sum of both indices, so that rows begin one number later each.
    """
    turned = values.flip(-1).contiguous()
    return turned.as_strided((values.shape[0], queries, keys), (turned.shape[1], 1, 1))
