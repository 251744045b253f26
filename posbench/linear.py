"""Linear attention: kernel feature maps in place of the softmax, with position encodings that can live there.

    y_i = sum_j w_ij f(q_i).f(k_j) v_j / sum_j w_ij f(q_i).f(k_j)

w_ij is 1, or the encoding's decay e^(a_h (p_i - p_j)) in causal models. Work and memory grow with the length, not its
square, as sums over keys are formed first (Katharopoulos et al. 2020, arXiv 2006.16236, Eq. 4 to 12).

Rotations act before the feature map; or after it in the numerator alone, which leaves the denominator a sum of positive
numbers (RoFormer, arXiv 2104.09864, Eq. 19); or after it in both, where the denominator may vanish.

Shapes: B batch, H heads, Q queries, K keys, L tokens, d head width, m features, c channels of values.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from posbench.attention import checked, rotated
from posbench.cache import Sums
from posbench.encoding import Encoding, Side, overrides
from posbench.errors import UserError
from posbench.features import Elu, Favor
from posbench.positions import Positions

Placement = Literal["before", "numerator", "both"]
# Tokens that are treated at once in causal sums: their products form a square, everything before them is one matrix.
CHUNK = 128


def refuse_misfits(encoding: Encoding, *, causal: bool, bidirectional: bool) -> None:
    """Refuses an encoding that linear attention cannot express, in a model with such stacks.

    Raises:
        UserError: with the reason.
    """
    told = f"encoding '{encoding.spelled()}' cannot live in linear attention: "
    use = "use model.attention=softmax, or an encoding that adds to the input or rotates"
    pairs = [hook for hook in ("scores", "values") if overrides(encoding, hook)]
    biases = [hook for hook in ("bias", "offset_bias") if overrides(encoding, hook)]
    if not overrides(encoding, "decay"):
        pairs += biases
    if pairs:
        need = "need" if len(pairs) > 1 else "needs"
        raise UserError(f"{told}its {' and '.join(pairs)} {need} a number for each pair of tokens, which is never "
                        f"formed there: {use}")
    if overrides(encoding, "decay") and bidirectional:
        stack = "the model's encoder" if causal else "this model"
        raise UserError(f"{told}its decay counts steps back, but {stack} looks both ways: use model.shape=decoder, or "
                        "model.attention=softmax")


class LinearAttention(nn.Module):
    """Self and cross attention by sums over keys.

    Args:
        width: d.
        feature_map: 'favor' or 'elu'.
        features: m of FAVOR+.
        placement: where rotations act.
    """

    def __init__(self, width: int, feature_map: Literal["favor", "elu"], features: int | None,
                 placement: Placement) -> None:
        super().__init__()
        self.map = Favor(width, features) if feature_map == "favor" else Elu()
        self.placement = placement

    def forward(self, q: Tensor, k: Tensor, v: Tensor, encoding: Encoding | None, at: Positions,
                new: Positions | None = None, before: tuple[Sums, ...] | None = None, *,
                keep: bool = False) -> tuple[Tensor, tuple[Sums, ...] | None]:
        """Tokens that attend to each other, (B, H, L, d) thrice -> (B, H, L, d), and what decoding carries on from.

        Args:
            q: not yet rotated, nor are k and v.
            encoding: of this layer.
            at: positions of the queries.
            new: positions of the keys, if `at` holds earlier ones too.
            before: sums over earlier keys.
            keep: also return the sums, `before` included.

        Raises:
            UserError: sums are asked of packed documents, or of positions that do not rise.
        """
        new = at if new is None else new
        queries, keys, scale = self._queries(q, encoding, at), *self._keys(k, encoding, new)
        decay = None
        if encoding is not None and overrides(encoding, "decay"):
            decay = checked(encoding, "decay", encoding.decay(), (q.shape[1],), None).to(q.device, scale.dtype)
        if keep and (new.documents is not None or not new.ordered):
            raise UserError("linear attention decodes one document a row, at positions that rise: decode packed "
                            "documents as rows of their own, or use model.attention=softmax")
        values = self._values(v, keys)
        sums: list[Sums] = []
        parts = []
        for index, (a, b, c) in enumerate(zip(queries, keys, values, strict=True)):
            if new.documents is not None or (at.causal and not new.ordered):
                parts.append(squared(a, b, c, scale, new, decay))
            elif not at.causal:
                parts.append(read(a, total(b, c, scale, new)))
            else:
                part, left = causal_sums(a, b, c, scale, new, decay, before[index] if before else None)
                parts.append(part)
                sums.append(left)
        return ratio(parts).to(q.dtype), tuple(sums) if keep else None

    def summary(self, k: Tensor, v: Tensor, encoding: Encoding | None, at: Positions) -> tuple[Sums, ...]:
        """Sums over all keys of a source, for cross attention."""
        keys, scale = self._keys(k, encoding, at)
        return tuple(total(b, c, scale, at) for b, c in zip(keys, self._values(v, keys), strict=True))

    def look_up(self, q: Tensor, sums: tuple[Sums, ...], encoding: Encoding | None, at: Positions) -> Tensor:
        """(B, H, Q, d) -> (B, H, Q, d): queries against the sums of a source."""
        queries = self._queries(q, encoding, at)
        return ratio([read(a, b) for a, b in zip(queries, sums, strict=True)]).to(q.dtype)

    def _queries(self, q: Tensor, encoding: Encoding | None, at: Positions) -> tuple[Tensor, ...]:
        # A factor of a query's own cancels in its ratio.
        return self._mapped(q, encoding, at, "query")[0]

    def _keys(self, k: Tensor, encoding: Encoding | None, at: Positions) -> tuple[tuple[Tensor, ...], Tensor]:
        features, scale = self._mapped(k, encoding, at, "key")
        return features, scale if at.keys is None else scale.masked_fill(~at.keys[:, None], float("-inf"))

    def _mapped(self, x: Tensor, encoding: Encoding | None, at: Positions,
                side: Side) -> tuple[tuple[Tensor, ...], Tensor]:
        """Features for both sums, or for numerator and denominator apart, and their logarithmic scale."""
        x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        turns = encoding is not None and overrides(encoding, "rotate")
        if turns and self.placement == "before":
            x = rotated(encoding, x, at, side)
        features, scale = self.map(x)
        if not turns or self.placement == "before":
            return (features,), scale
        # Groups as wide as a head: the encoding's frequencies and tables are made for that width.
        turned = torch.cat([rotated(encoding, part, at, side) for part in features.split(x.shape[-1], dim=-1)], dim=-1)
        return ((turned,) if self.placement == "both" else (turned, features)), scale

    @staticmethod
    def _values(v: Tensor, keys: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What each sum adds up: values, and a one for the denominator."""
        v = v.to(keys[0].dtype)
        ones = v.new_ones(*v.shape[:-1], 1)
        return (torch.cat([v, ones], dim=-1),) if len(keys) == 1 else (v, ones)


def ratio(parts: list[Tensor]) -> Tensor:
    """Numerator (B, H, Q, d) over denominator (B, H, Q, 1); 0 for a query that sees no key."""
    whole = torch.cat(parts, dim=-1)
    above, below = whole[..., :-1], whole[..., -1:]
    return above / torch.where(below.abs() > torch.finfo(below.dtype).tiny, below, 1)


def squared(q: Tensor, k: Tensor, v: Tensor, scale: Tensor, at: Positions, decay: Tensor | None) -> Tensor:
    """The definition, for every mask: features (B, H, Q, m), (B, H, K, m) and values (B, H, K, c) -> (B, H, Q, c)."""
    weights = scale[:, :, None, :]
    seen = at.visible()
    if seen is not None:
        weights = torch.where(seen, weights, float("-inf"))
    weights = weights - _finite(weights.amax(-1, keepdim=True))
    if decay is not None:
        weights = weights + decay[:, None, None] * at.offsets()[:, None].neg()
    return (q @ k.transpose(-1, -2) * weights.exp()) @ v


def total(k: Tensor, v: Tensor, scale: Tensor, at: Positions) -> Sums:
    """Sums over all real keys, whatever their order."""
    top = _finite(scale.amax(-1))
    values = (k * (scale - top[..., None]).exp()[..., None]).transpose(-1, -2) @ v
    return Sums(values, top, at.k[:, -1])


def read(q: Tensor, sums: Sums) -> Tensor:
    """(B, H, Q, m) -> (B, H, Q, c)."""
    return q @ sums.values


def causal_sums(q: Tensor, k: Tensor, v: Tensor, scale: Tensor, at: Positions, decay: Tensor | None,
                before: Sums | None = None, chunk: int | None = None) -> tuple[Tensor, Sums]:
    """Each of L tokens with itself and those before it -> (B, H, L, c), and the sums over all of them.

    Logarithms of weights are taken relative to the largest that the query has seen so far, so that nothing overflows
    and no query learns of keys behind it.

    Args:
        at: positions that rise along each row, of the L tokens.
        decay: (H,) logarithm of the weight for each step back.
        before: sums over tokens that came earlier.
    """
    batch, heads, _, width = k.shape
    chunk = CHUNK if chunk is None else chunk
    sums = before
    if sums is None:
        lowest, first = torch.finfo(k.dtype).min, torch.zeros_like(at.k[:, 0])
        sums = Sums(k.new_zeros(batch, heads, width, v.shape[-1]), k.new_full((batch, heads), lowest), first)
    # Padding stands where the last real token does: decays must not run on over it.
    places = at.k if at.keys is None else at.k.masked_fill(~at.keys, 0).cummax(1).values
    places = torch.maximum(places, sums.last[:, None])
    outputs = []
    # Split and not sliced: the gradient of each slice would be a tensor of the whole length.
    parts = zip(places.split(chunk, 1), *(x.split(chunk, 2) for x in (scale, q, k, v)), strict=True)
    for place, logs, a, b, c in parts:
        tops = torch.maximum(logs.cummax(-1).values, sums.top[..., None])
        inside = logs[:, :, None, :] - tops[..., None]
        outside, onward, rest = sums.top[..., None] - tops, logs - tops[..., -1:], sums.top - tops[..., -1]
        if decay is not None:
            rate = decay[:, None]
            inside = inside + rate[..., None] * (place[:, None, :, None] - place[:, None, None, :])
            outside = outside + rate * (place - sums.last[:, None])[:, None]
            onward = onward + rate * (place[:, -1:] - place)[:, None]
            rest = rest + decay * (place[:, -1] - sums.last)[:, None]
        hidden = torch.ones(inside.shape[-2:], dtype=torch.bool, device=k.device).triu(1)
        inside = inside.masked_fill(hidden, float("-inf")).exp()
        outputs.append((a @ b.transpose(-1, -2) * inside) @ c + outside.exp()[..., None] * (a @ sums.values))
        values = sums.values * rest.exp()[..., None, None] + (b * onward.exp()[..., None]).transpose(-1, -2) @ c
        sums = Sums(values, tops[..., -1], place[:, -1])
    return torch.cat(outputs, dim=2), sums


def _finite(top: Tensor) -> Tensor:
    """A maximum over nothing, as a number that can be subtracted."""
    return top.clamp(min=torch.finfo(top.dtype).min)
