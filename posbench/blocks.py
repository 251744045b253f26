"""Blocks: attention to oneself and to a source, and the network behind them.

Shapes: B batch, L new tokens, S tokens of the source, K keys, D model width, H heads, d head width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from posbench.attention import drop, rotated, softmax_attention
from posbench.cache import LayerCache, Sums
from posbench.config import ModelConfig
from posbench.encoding import Encoding
from posbench.linear import LinearAttention
from posbench.positions import Positions


class Dropout(nn.Module):
    """`attention.drop`, active in training."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        return drop(x, self.probability) if self.training else x


class Attention(nn.Module):
    """Self-attention of H heads; positions come from the encoding that the caller hands in."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.heads, self.dropout = model.heads, model.attention_dropout
        self.qkv = nn.Linear(model.width, 3 * model.width)
        self.out = nn.Linear(model.width, model.width)
        self.linear = _linear(model)

    def forward(self, x: Tensor, encoding: Encoding, at: Positions, new: Positions | None = None,
                cache: LayerCache | None = None) -> Tensor:
        """(B, L, D) -> (B, L, D).

        Args:
            x: new tokens.
            encoding: of this layer.
            at: positions of the new tokens as queries, and of all keys.
            new: positions of the new tokens as keys, where `cache` holds earlier ones; `at` by default.
            cache: keys and values, or their sums, of earlier tokens; takes in the new ones.
        """
        new = at if new is None else new
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.linear is None:
            q, k = rotated(encoding, q, at, "query"), rotated(encoding, k, new, "key")
            v = rotated(encoding, v, new, "value")
            if cache is not None:
                k, v = cache.append(k, v)
            y = softmax_attention(q, k, v, encoding, at, dropout=self.dropout if self.training else 0.0)
        else:
            v = rotated(encoding, v, new, "value")
            with torch.autocast(x.device.type, enabled=False):
                y, sums = self.linear(q, k, v, encoding, at, new, cache and cache.sums, keep=cache is not None)
            if cache is not None:
                cache.sums = sums
        y = rotated(encoding, y, at, "output")
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


@dataclass(frozen=True)
class Source:
    """What cross attention reads.

    Attributes:
        states: (B, S, D) outputs of the encoder; None where a cache holds keys and values already.
        at: positions of the decoder's new tokens as queries, and of the source as keys.
        keys: positions of the source alone.
    """

    states: Tensor | None
    at: Positions
    keys: Positions


class CrossAttention(nn.Module):
    """Attention of a decoder's tokens to a source; without positions, unless an encoding is handed in."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.heads, self.dropout = model.heads, model.attention_dropout
        self.q = nn.Linear(model.width, model.width)
        self.kv = nn.Linear(model.width, 2 * model.width)
        self.out = nn.Linear(model.width, model.width)
        self.linear = _linear(model)

    def forward(self, x: Tensor, source: Source, encoding: Encoding | None, cache: LayerCache | None = None) -> Tensor:
        """(B, L, D) -> (B, L, D); `cache` keeps what is made of the source, which is then made once."""
        batch, length, width = x.shape
        kept = self._kept(source, encoding) if cache is None or cache.cross is None else cache.cross
        if cache is not None:
            cache.cross = kept
        q = self.q(x).view(batch, length, self.heads, -1).transpose(1, 2)
        if self.linear is None:
            k, v = cast(tuple[Tensor, ...], kept)
            q = rotated(encoding, q, source.at, "query")
            y = softmax_attention(q, k, v, encoding, source.at, dropout=self.dropout if self.training else 0.0)
        else:
            with torch.autocast(x.device.type, enabled=False):
                y = self.linear.look_up(q, cast(tuple[Sums, ...], kept), encoding, source.at)
        y = rotated(encoding, y, source.at, "output")
        return self.out(y.transpose(1, 2).reshape(batch, length, width))

    def _kept(self, source: Source, encoding: Encoding | None) -> tuple[Tensor, ...] | tuple[Sums, ...]:
        assert source.states is not None, "neither a source nor a cache of one"
        batch, length, _ = source.states.shape
        k, v = self.kv(source.states).view(batch, length, 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        v = rotated(encoding, v, source.keys, "value")
        if self.linear is None:
            return rotated(encoding, k, source.keys, "key"), v
        with torch.autocast(k.device.type, enabled=False):
            return self.linear.summary(k, v, encoding, source.keys)


def _linear(model: ModelConfig) -> LinearAttention | None:
    if model.attention == "softmax":
        return None
    return LinearAttention(model.width // model.heads, model.feature_map, model.features, model.rotation)


class FeedForward(nn.Module):
    """The two-layer network of a block."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(model.width, model.feedforward)
        self.outer = nn.Linear(model.feedforward, model.width)
        self.activation = functional.gelu if model.activation == "gelu" else functional.relu

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.activation(self.inner(x)))


class Block(nn.Module):
    """Attention, cross attention in a decoder that has a source, and network, each with its residual sum and norm."""

    def __init__(self, model: ModelConfig, *, cross: bool = False) -> None:
        super().__init__()
        self.pre = model.norm == "pre"
        self.attention = Attention(model)
        self.attention_norm = nn.LayerNorm(model.width)
        self.cross = CrossAttention(model) if cross else None
        self.cross_norm = nn.LayerNorm(model.width) if cross else None
        self.feedforward = FeedForward(model)
        self.feedforward_norm = nn.LayerNorm(model.width)
        self.dropout = Dropout(model.dropout)

    def forward(self, x: Tensor, encoding: Encoding, at: Positions, new: Positions | None = None,
                cache: LayerCache | None = None, source: Source | None = None,
                cross_encoding: Encoding | None = None) -> Tensor:
        """(B, L, D) -> (B, L, D); the arguments are those of `Attention` and `CrossAttention`."""
        x = self._added(x, self.attention_norm, lambda x: self.attention(x, encoding, at, new, cache))
        if self.cross is not None and self.cross_norm is not None:
            assert source is not None
            cross = self.cross
            x = self._added(x, self.cross_norm, lambda x: cross(x, source, cross_encoding, cache))
        return self._added(x, self.feedforward_norm, self.feedforward)

    def _added(self, x: Tensor, norm: nn.LayerNorm, part: Callable[[Tensor], Tensor]) -> Tensor:
        """x plus what one part makes of it, normed before that part or after the sum."""
        if self.pre:
            return x + self.dropout(part(norm(x)))
        return norm(x + self.dropout(part(x)))
