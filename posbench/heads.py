"""Heads: what a model answers.

Shapes: B batch, L tokens, D model width, C outputs of the head, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from posbench.blocks import Dropout
from posbench.config import ModelConfig
from posbench.positions import Positions


@dataclass(frozen=True, kw_only=True)
class Head:
    """What the model answers: one of `outputs` classes or a number a sequence, or one of `outputs` classes a token."""

    kind: Literal["classification", "regression", "token"]
    outputs: int = 1


class SequenceHead(nn.Module):
    """Pools the tokens and maps them to C outputs, by way of a tanh layer as in BERT."""

    def __init__(self, model: ModelConfig, outputs: int) -> None:
        super().__init__()
        self.pool = model.pool
        self.inner = nn.Linear(model.width, model.width)
        self.out = nn.Linear(model.width, outputs)
        self.dropout = Dropout(model.dropout)

    def forward(self, x: Tensor, at: Positions) -> Tensor:
        """(B, L, D) -> (B, C)."""
        return self.out(self.dropout(self.inner(self.pooled(x, at)).tanh()))

    def pooled(self, x: Tensor, at: Positions) -> Tensor:
        """(B, L, D) -> (B, D) over real tokens only, so that padding changes nothing."""
        real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if at.keys is None else at.keys
        if self.pool == "mean":
            return (x * real[..., None]).sum(1) / real.sum(1, keepdim=True).clamp(min=1)
        # The first or last real token; where the padding is on the left the first is not at index 0.
        index = real.long().argmax(1) if self.pool == "cls" else real.shape[1] - 1 - real.flip(1).long().argmax(1)
        return x[torch.arange(len(x), device=x.device), index]


class TiedHead(nn.Module):
    """Logits over the vocabulary by the token embeddings themselves, which stay the embeddings' parameter."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor, embeddings: Tensor) -> Tensor:
        """(B, L, D), (V, D) -> (B, L, V)."""
        return functional.linear(x, embeddings, self.bias)


def head_of(model: ModelConfig, head: Head) -> nn.Module:
    """The module for a kind of answer."""
    if head.kind != "token":
        return SequenceHead(model, head.outputs)
    return TiedHead(head.outputs) if model.tied_embeddings else nn.Linear(model.width, head.outputs)
