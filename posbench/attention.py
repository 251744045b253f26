"""Softmax attention: the only caller of the attention hooks of an encoding.

Shapes: B batch, H heads, Q queries, K keys, d head width. There is one definition, `dense`; `softmax_attention` takes
the fastest kernel that is exactly the same function for the encoding at hand.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from posbench.encoding import Encoding, Side, overrides
from posbench.errors import ContextLengthExceeded, EncodingFault
from posbench.maths import hankel, toeplitz
from posbench.positions import Positions

LONG = 512
"""Tokens from which on a bias is read along its diagonals and not laid out."""


def drop(x: Tensor, probability: float) -> Tensor:
    """Zeroes elements of x with the given probability and scales the rest up; probabilities are multiples of 1/256.

    Whole random words are drawn and their bytes compared, as the library's mask costs a third of a training step on a
    CPU. It draws from the default generator alone and the same amount whatever the encoding, so that masks stay paired.
    """
    threshold = min(round(probability * 256), 255)
    if threshold == 0:
        return x
    words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64, device=x.device).random_(-(2**63), None)
    keep = words.view(torch.uint8)[: x.numel()].view(x.shape) >= threshold
    return x * keep.to(x.dtype).mul_(256 / (256 - threshold))


def placed(encoding: Encoding, at: Positions) -> Positions:
    """Positions as the encoding restates them for the whole stack.

    Raises:
        ContextLengthExceeded: a position lies beyond the encoding's last.
    """
    # A copy forgets the tables that an earlier pass with the same positions made from older weights.
    at = encoding.positions(replace(at))
    limit = encoding.max_length
    if limit is not None and at.end > limit:
        raise ContextLengthExceeded(encoding.spelled(), limit, at.end)
    return at


def rotated(encoding: Encoding | None, x: Tensor, at: Positions, side: Side) -> Tensor:
    """x (B, H, L, d) after the encoding's rotation of this side."""
    if encoding is None or not overrides(encoding, "rotate"):
        return x
    return checked(encoding, "rotate", encoding.rotate(x, at, side), x.shape, x.dtype)


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, encoding: Encoding | None, at: Positions, *,
                      dropout: float = 0.0) -> Tensor:
    """(B, H, Q, d), (B, H, K, d) twice -> (B, H, Q, d), the sides being rotated already.

    Equal to `dense` within rounding, forward and backward. A float mask that needs a gradient would send the fused
    kernel to its slow path, and dropout inside it draws other numbers than outside: both take the explicit form.
    """
    content = encoding is not None and overrides(encoding, "scores", "values")
    if encoding is not None and not content and not dropout and _lies_on_diagonals(encoding, at, q):
        if (values := _diagonals(encoding, at, q.dtype)) is not None:
            view = hankel(values, at.queries, at.length)[None]
            return functional.scaled_dot_product_attention(q, k.flip(-2), v.flip(-2), attn_mask=view)
    bias = _bias(encoding, at, q.dtype)
    if content or dropout or (bias is not None and bias.requires_grad):
        return dense(q, k, v, encoding, at, dropout=dropout)
    if bias is None and at.causal and at.regular and at.keys is None and at.queries == at.length:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    mask = seen = at.visible()
    if bias is not None and seen is not None:
        mask = at.once((encoding, "masked bias", q.dtype), lambda: bias.masked_fill(~seen, float("-inf")))
    elif bias is not None:
        mask = bias
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def dense(q: Tensor, k: Tensor, v: Tensor, encoding: Encoding | None, at: Positions, *, dropout: float = 0.0) -> Tensor:
    """The reference: softmax((q.k + scores) / sqrt(d) + bias, over visible keys).v + values."""
    weights = attention_weights(logits(q, k, encoding, at), at)
    weights = drop(weights, dropout)
    output = weights @ v
    if encoding is not None and overrides(encoding, "values"):
        output = output + checked(encoding, "values", encoding.values(weights, at), output.shape, output.dtype)
    return output


def logits(q: Tensor, k: Tensor, encoding: Encoding | None, at: Positions) -> Tensor:
    """(B, H, Q, K) before mask and softmax; every encoding has the same scale 1/sqrt(d)."""
    # Queries are scaled and sums made in place: every pass over Q x K numbers costs as much as a tenth of a step.
    scale = q.shape[-1] ** -0.5
    scaled = (q * scale) @ k.transpose(-1, -2)
    if encoding is not None and overrides(encoding, "scores"):
        scores = checked(encoding, "scores", encoding.scores(q, k, at), scaled.shape, scaled.dtype)
        scaled = scaled.add_(scores, alpha=scale)
    bias = _bias(encoding, at, q.dtype)
    return scaled if bias is None else scaled.add_(bias)


def attention_weights(scaled: Tensor, at: Positions) -> Tensor:
    """Softmax over visible keys. A query that sees no key at all gets zeros, not NaN."""
    mask = at.visible()
    if mask is None:
        return scaled.softmax(-1)
    return scaled.masked_fill(~mask, torch.finfo(scaled.dtype).min).softmax(-1) * mask


def _bias(encoding: Encoding | None, at: Positions, dtype: torch.dtype) -> Tensor | None:
    """(B|1, H, Q, K) in the dtype of the logits, made once for each pass and shared by the layers that share it."""
    if encoding is None or not overrides(encoding, "bias", "offset_bias"):
        return None

    def make() -> Tensor:
        if at.regular and not overrides(encoding, "bias"):
            return _toeplitz_bias(encoding, at)
        bias = encoding.bias(at)
        return checked(encoding, "bias", bias, (bias.shape[0], encoding.dimensions.heads, at.queries, at.length), None)

    return at.once((encoding, "bias", dtype), lambda: make().to(dtype))


def _toeplitz_bias(encoding: Encoding, at: Positions) -> Tensor:
    """(1, H, Q, K) from the Q+K-1 offsets that occur."""
    return toeplitz(_by_offset(encoding, at), at.queries, at.length)[None]


def _by_offset(encoding: Encoding, at: Positions) -> Tensor:
    """(H, Q+K-1): the newest query sees offsets up to 0, the first up to K-1."""
    values = encoding.offset_bias(_offsets(at))
    return checked(encoding, "offset_bias", values, (encoding.dimensions.heads, at.queries + at.length - 1), None)


def _offsets(at: Positions) -> Tensor:
    oldest = 1 - at.length
    return torch.arange(oldest, oldest + at.queries + at.length - 1, device=at.k.device)


def _lies_on_diagonals(encoding: Encoding, at: Positions, q: Tensor) -> bool:
    """Whether the bias can be read from one number an offset, so that no Q x K matrix is in memory.

    Keys and values are turned round for it, which shorter sequences do not repay; kernels of other devices want masks
    of their own layout.
    """
    return (at.length >= LONG and at.regular and at.keys is None and at.documents is None and q.device.type == "cpu"
            and overrides(encoding, "offset_bias") and not overrides(encoding, "bias"))


def _diagonals(encoding: Encoding, at: Positions, dtype: torch.dtype) -> Tensor | None:
    """(H, Q+K-1) bias by offset with the causal mask in it; None for a bias that is trained and needs its gradient."""

    def make() -> Tensor:
        values = _by_offset(encoding, at).to(dtype)
        return values.masked_fill(_offsets(at) > 0, float("-inf")) if at.causal else values

    values = at.once((encoding, "diagonals", dtype), make)
    return None if values.requires_grad else values


def checked(encoding: Encoding, hook: str, result: Tensor, shape: tuple[int, ...], dtype: torch.dtype | None) -> Tensor:
    """The result of a hook, after a look at its shape and dtype (skipped under python -O)."""
    if __debug__ and (tuple(result.shape) != tuple(shape) or (dtype is not None and result.dtype != dtype)):
        raise EncodingFault(
            f"encoding '{type(encoding).__name__}': {hook} returned {tuple(result.shape)} {result.dtype}, "
            f"but the interface asks for {tuple(shape)} {dtype or 'floats'}: return that shape and dtype"
        )
    return result
