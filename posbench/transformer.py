"""The one template: a transformer whose position encoding is the only thing that a study exchanges.

Shapes: B batch, L tokens, D model width, H heads, d head width, C outputs of the head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from posbench.attention import checked, drop, placed, rotated, softmax_attention
from posbench.config import ModelConfig
from posbench.encoding import Dimensions, Encoding, overrides
from posbench.errors import UserError
from posbench.positions import Positions
from posbench.seeds import generator


@dataclass(frozen=True, kw_only=True)
class Head:
    """What the model answers: one of `outputs` classes or a number a sequence, or one of `outputs` classes a token."""

    kind: Literal["classification", "regression", "token"]
    outputs: int = 1


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

    def forward(self, x: Tensor, encoding: Encoding, at: Positions) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = rotated(encoding, q, at, "query"), rotated(encoding, k, at, "key")
        v = rotated(encoding, v, at, "value")
        y = softmax_attention(q, k, v, encoding, at, dropout=self.dropout if self.training else 0.0)
        y = rotated(encoding, y, at, "output")
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


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
    """Attention and feed-forward network, each with its residual sum and norm."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.pre = model.norm == "pre"
        self.attention = Attention(model)
        self.attention_norm = nn.LayerNorm(model.width)
        self.feedforward = FeedForward(model)
        self.feedforward_norm = nn.LayerNorm(model.width)
        self.dropout = Dropout(model.dropout)

    def forward(self, x: Tensor, encoding: Encoding, at: Positions) -> Tensor:
        if self.pre:
            x = x + self.dropout(self.attention(self.attention_norm(x), encoding, at))
            return x + self.dropout(self.feedforward(self.feedforward_norm(x)))
        x = self.attention_norm(x + self.dropout(self.attention(x, encoding, at)))
        return self.feedforward_norm(x + self.dropout(self.feedforward(x)))


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


class Transformer(nn.Module):
    """Encoder or decoder with one position encoding and one head.

    Exchanging the encoding changes no other weight, scale or dropout: parameters that are not the encoding's have the
    same names, and the same values from `initialise`, whatever the encoding.

    Args:
        model: the template's settings.
        encoding: class of the position encoding.
        options: its Config; defaults if None.
        vocabulary: number of token ids.
        length: longest training sequence in tokens.
        head: what the model answers.

    Raises:
        UserError: the encoding needs a causal model and the template is an encoder.
    """

    def __init__(self, model: ModelConfig, encoding: type[Encoding], options: Any = None, *, vocabulary: int,
                 length: int, head: Head) -> None:
        super().__init__()
        if encoding.needs_causal and model.shape == "encoder":
            raise UserError(f"encoding '{encoding.__name__.lower()}' is for causal models: use model.shape=decoder")
        self.model, self.head_kind = model, head.kind
        self.dimensions = Dimensions(
            width=model.width, heads=model.heads, layers=model.layers, length=length, causal=model.shape == "decoder",
            embedding_std=model.embedding_std,
        )
        self.tokens = nn.Embedding(vocabulary, model.width)
        self.token_types = nn.Embedding(model.token_types, model.width) if model.token_types else None
        instances = model.layers if encoding.scope == "layer" else 1
        self.encodings = nn.ModuleList(encoding(self.dimensions, options) for _ in range(instances))
        self.blocks = nn.ModuleList(Block(model) for _ in range(model.layers))
        self.norm = nn.LayerNorm(model.width)
        self.dropout = Dropout(model.dropout)
        self.head = (nn.Linear(model.width, head.outputs) if head.kind == "token"
                     else SequenceHead(model, head.outputs))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None,
                position_ids: Tensor | None = None, *, at: Positions | None = None) -> Tensor:
        """Logits of the head: (B, C) of classes, (B,) of a regression, (B, L, C) of tokens.

        Args:
            input_ids: (B, L) int64 token ids.
            attention_mask: (B, L), true at real tokens; padding may be on either side.
            token_type_ids: (B, L) int64 segment of each token; the first segment by default.
            position_ids: (B, L) int64; counted over the real tokens by default.
            at: positions made before, in place of the mask and the ids.

        Raises:
            ContextLengthExceeded: a position lies beyond the encoding's table.
        """
        if at is None:
            at = self.positions(input_ids, attention_mask, position_ids)
        x = self.hidden(input_ids, token_type_ids, at)
        if self.head_kind == "token":
            return self.head(x)
        answer = self.head(x, at)
        return answer.squeeze(-1) if self.head_kind == "regression" else answer

    def positions(self, input_ids: Tensor, mask: Tensor | None, ids: Tensor | None) -> Positions:
        """Positions of a batch from what Hugging Face models take."""
        causal = self.dimensions.causal
        if ids is not None:
            return Positions.given(ids, causal=causal, keys=None if mask is None else mask.bool())
        if mask is not None:
            return Positions.from_mask(mask, causal=causal)
        return Positions.first(input_ids.shape[1], causal=causal, device=input_ids.device)

    def hidden(self, input_ids: Tensor, token_type_ids: Tensor | None, at: Positions) -> Tensor:
        """(B, L) -> (B, L, D), the normed output of the last block."""
        first = self.encoding(0)
        at = placed(first, at)
        x = self.tokens(input_ids)
        if self.token_types is not None:
            types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
            x = x + self.token_types(types)
        if overrides(first, "embed"):
            x = checked(first, "embed", first.embed(x, at), x.shape, x.dtype)
        x = self.norm(x) if self.model.norm == "post" else x
        x = self.dropout(x)
        for index, block in enumerate(self.blocks):
            x = block(x, self.encoding(index), at)
        return self.norm(x) if self.model.norm == "pre" else x

    def encoding(self, layer: int) -> Encoding:
        """The instance that acts in this layer: its own, or the one that all layers share."""
        encoding = self.encodings[layer % len(self.encodings)]
        assert isinstance(encoding, Encoding)
        return encoding

    def initialise(self, seed: int) -> None:
        """Gives every parameter and persistent buffer its first value, from a stream named after it."""
        for path, module in self.named_modules():
            owner, local = self._owner(path)
            for name, tensor in _own_state(module):
                value = torch.empty(tensor.shape, dtype=torch.float32)
                stream = generator(seed, "initial", f"{path}.{name}")
                if owner is not None:
                    owner.initial(f"{local}{name}", value, stream)
                elif isinstance(module, nn.LayerNorm):
                    value.fill_(1.0 if name == "weight" else 0.0)
                elif name == "bias":
                    value.zero_()
                else:
                    std = self.model.embedding_std if isinstance(module, nn.Embedding) else self.model.initial_std
                    value.normal_(0.0, std, generator=stream)
                with torch.no_grad():
                    tensor.copy_(value)

    def _owner(self, path: str) -> tuple[Encoding | None, str]:
        """The encoding that a module belongs to, and the module's name inside it with a trailing dot."""
        parts = path.split(".")
        if parts[0] != "encodings" or len(parts) < 2:
            return None, ""
        return self.encoding(int(parts[1])), "".join(f"{part}." for part in parts[2:])

    def parameter_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """AdamW's groups by kind of module: matrices decay; norms, biases and whatever belongs to positions do not."""
        decayed: list[nn.Parameter] = []
        kept: list[nn.Parameter] = []
        for path, module in self.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                matrix = isinstance(module, nn.Linear | nn.Embedding) and name == "weight"
                (decayed if matrix and self._owner(path)[0] is None else kept).append(parameter)
        return [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]


def _own_state(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and persistent buffers that are this module's own."""
    yield from module.named_parameters(recurse=False)
    for name, buffer in module.named_buffers(recurse=False):
        if name not in module._non_persistent_buffers_set:
            yield name, buffer
