"""The one template: a transformer whose position encoding is the only thing that a study exchanges.

Shapes: B batch, L tokens, S tokens of a source, D model width, C outputs of the head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from posbench.attention import checked, placed
from posbench.blocks import Block, Dropout, Source
from posbench.cache import Cache
from posbench.config import ModelConfig
from posbench.encoding import HOOKS, Dimensions, Encoding, overrides
from posbench.errors import UserError
from posbench.features import Favor, Redraw
from posbench.heads import Head, SequenceHead, TiedHead, head_of
from posbench.linear import refuse_misfits
from posbench.positions import Positions
from posbench.seeds import generator

__all__ = ["Head", "Memory", "SequenceHead", "Transformer"]
Stack = Literal["target", "source", "cross"]
INPUT_HOOKS = ("positions", "embed")


@dataclass(frozen=True)
class Memory:
    """What the encoder of an encoder-decoder made of a source: (B, S, D) states, and the positions of its tokens."""

    states: Tensor
    at: Positions


class Transformer(nn.Module):
    """Encoder, decoder or both, with one position encoding and one head.

    Exchanging the encoding changes no other weight, scale or dropout: parameters that are not the encoding's have the
    same names, and the same values from `initialise`, whatever the encoding.

    An encoder-decoder has instances of the encoding for its decoder, for its encoder, and for cross attention where the
    encoding acts there. Those of cross attention are bidirectional and have parameters of their own: a position of the
    target minus one of the source is another thing than an offset within either. All are in `encodings`, in that order.

    Args:
        model: the template's settings.
        encoding: class of the position encoding.
        options: its Config; defaults if None.
        vocabulary: number of token ids, which source and target share.
        length: longest training sequence in tokens.
        head: what the model answers.

    Raises:
        UserError: encoding, settings and head do not fit together.
    """

    def __init__(self, model: ModelConfig, encoding: type[Encoding], options: Any = None, *, vocabulary: int,
                 length: int, head: Head) -> None:
        super().__init__()
        self.model, self.head_kind = model, head.kind
        self.dimensions = Dimensions(
            width=model.width, heads=model.heads, layers=model.layers, length=length, causal=model.shape != "encoder",
            embedding_std=model.embedding_std,
        )
        first = encoding(self.dimensions, options)
        _refuse(model, first, vocabulary, head)
        self.paired = model.shape == "encoder-decoder"
        self.encoded_cross = self.paired and (first.in_cross or model.cross_encoding)
        self.tokens = nn.Embedding(vocabulary, model.width)
        self.token_types = nn.Embedding(model.token_types, model.width) if model.token_types else None
        both_ways = replace(self.dimensions, causal=False)
        stacks = [self.dimensions, *[both_ways] * (self.paired + self.encoded_cross)]
        self.instances = model.layers if first.scope == "layer" else 1
        made = [[encoding(dimensions, options) for _ in range(self.instances)] for dimensions in stacks]
        for instances in made:
            for later in instances[1:]:
                later.tie(instances[0])
        self.encodings = nn.ModuleList(instance for instances in made for instance in instances)
        self.source_blocks = nn.ModuleList(Block(model) for _ in range(model.layers)) if self.paired else None
        self.source_norm = nn.LayerNorm(model.width) if self.paired else None
        self.blocks = nn.ModuleList(Block(model, cross=self.paired) for _ in range(model.layers))
        self.norm = nn.LayerNorm(model.width)
        self.dropout = Dropout(model.dropout)
        self.head = head_of(model, head)
        favor = model.attention == "linear" and model.feature_map == "favor"
        self.redraw = Redraw(model.redraw) if favor else None

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None,
                position_ids: Tensor | None = None, *, at: Positions | None = None, source_ids: Tensor | None = None,
                source_mask: Tensor | None = None, memory: Memory | None = None, cache: Cache | None = None) -> Tensor:
        """Logits of the head: (B, C) of classes, (B,) of a regression, (B, L, C) of tokens.

        Args:
            input_ids: (B, L) int64 token ids: the target's in an encoder-decoder, and new ones alone with `cache`.
            attention_mask: (B, L), true at real tokens; padding may be on either side.
            token_type_ids: (B, L) int64 segment of each token; the first segment by default.
            position_ids: (B, L) int64; counted over the real tokens by default.
            at: positions made before, in place of the mask and the ids.
            source_ids, source_mask: (B, S) the encoder's tokens, and true at the real ones.
            memory: what `encode` made of them, in their place.
            cache: of earlier tokens, which takes in the new ones; the source is needed with the first of them alone.

        Raises:
            ContextLengthExceeded: a position lies beyond the encoding's table.
            UserError: a source is missing or has no place, or a cache is given to a model that looks both ways.
        """
        if self.redraw is not None and self.training:
            self.redraw.advance({name: part for name, part in self.named_modules() if isinstance(part, Favor)})
        if cache is not None and not self.dimensions.causal:
            raise UserError("an encoder has no cache, as its tokens see later ones: use model.shape=decoder")
        if at is None:
            at = self.positions(input_ids, attention_mask, position_ids, cache)
        if source_ids is not None:
            memory = self.encode(source_ids, source_mask)
        x = self.hidden(input_ids, token_type_ids, at, memory, cache)
        if isinstance(self.head, TiedHead):
            return self.head(x, self.tokens.weight)
        if self.head_kind == "token":
            return self.head(x)
        answer = self.head(x, at)
        return answer.squeeze(-1) if self.head_kind == "regression" else answer

    def positions(self, input_ids: Tensor, mask: Tensor | None, ids: Tensor | None,
                  cache: Cache | None = None) -> Positions:
        """Positions of a batch from what Hugging Face models take; of new tokens alone where there is a cache."""
        causal = self.dimensions.causal
        if ids is not None:
            return Positions.given(ids, causal=causal, keys=None if mask is None else mask.bool())
        if cache is not None:
            return cache.following(input_ids.shape[1], mask, device=input_ids.device)
        if mask is not None:
            return Positions.from_mask(mask, causal=causal)
        return Positions.first(input_ids.shape[1], causal=causal, device=input_ids.device)

    def encode(self, source_ids: Tensor, source_mask: Tensor | None = None, *, at: Positions | None = None) -> Memory:
        """The encoder of an encoder-decoder: (B, S) -> what its decoder reads, of which one source needs one."""
        if self.source_blocks is None or self.source_norm is None:
            raise UserError(f"a model of shape '{self.model.shape}' reads no source: use model.shape=encoder-decoder")
        if at is None:
            at = (Positions.first(source_ids.shape[1], device=source_ids.device) if source_mask is None
                  else Positions.from_mask(source_mask))
        there = placed(self.encoding(0, "source"), at)
        x = self._embedded(source_ids, None, there, "source", self.source_norm)
        for index, block in enumerate(self.source_blocks):
            x = block(x, self.encoding(index, "source"), there)
        return Memory(self.source_norm(x) if self.model.norm == "pre" else x, at)

    def hidden(self, input_ids: Tensor, token_type_ids: Tensor | None, at: Positions, memory: Memory | None = None,
               cache: Cache | None = None) -> Tensor:
        """(B, L) -> (B, L, D), the normed output of the last block."""
        first = self.encoding(0)
        new = placed(first, at)
        source = self._source(at, memory, cache) if self.paired else None
        seen = new if cache is None else placed(first, cache.extend(at))
        x = self._embedded(input_ids, token_type_ids, seen, "target", self.norm)
        for index, block in enumerate(self.blocks):
            layer = None if cache is None else cache.layer(index)
            cross = self.encoding(index, "cross") if self.encoded_cross else None
            x = block(x, self.encoding(index), seen, new, layer, source, cross)
        return self.norm(x) if self.model.norm == "pre" else x

    def _embedded(self, ids: Tensor, types: Tensor | None, at: Positions, stack: Stack, norm: nn.LayerNorm) -> Tensor:
        """(B, L) -> (B, L, D), what the first block reads."""
        encoding = self.encoding(0, stack)
        x = self.tokens(ids)
        if self.token_types is not None:
            x = x + self.token_types(torch.zeros_like(ids) if types is None else types)
        if overrides(encoding, "embed"):
            x = checked(encoding, "embed", encoding.embed(x, at), x.shape, x.dtype)
        return self.dropout(norm(x) if self.model.norm == "post" else x)

    def _source(self, at: Positions, memory: Memory | None, cache: Cache | None) -> Source:
        """What cross attention reads: positions of the decoder as queries, of the encoder as keys."""
        kept = None if cache is None else cache.source
        if memory is None and kept is None:
            raise UserError("an encoder-decoder needs a source: pass source_ids, or memory, with the first tokens")
        keys = kept if kept is not None else memory.at  # type: ignore[union-attr]
        if cache is not None:
            cache.source = keys
        documents = None
        if at.documents is not None and keys.documents is not None:
            documents = at.documents[0], keys.documents[1]
        both = Positions(q=at.q, k=keys.k, end=max(at.end, keys.end), keys=keys.keys, documents=documents)
        if self.encoded_cross:
            both, keys = (placed(self.encoding(0, "cross"), positions) for positions in (both, keys))
        return Source(None if memory is None else memory.states, both, keys)

    def encoding(self, layer: int, stack: Stack = "target") -> Encoding:
        """The instance that acts in this layer: its own, or the one that all layers of its stack share."""
        first = self.instances * ("target", "source", "cross").index(stack)
        encoding = self.encodings[first + layer % self.instances]
        assert isinstance(encoding, Encoding)
        return encoding

    def initialise(self, seed: int) -> None:
        """Gives every parameter and persistent buffer its first value, from a stream named after it.

        What layers share is named after the first of them and filled once.
        """
        filled: set[int] = set()
        for path, module in self.named_modules():
            owner, local = self._owner(path)
            for name, tensor in _own_state(module):
                if id(tensor) in filled:
                    continue
                filled.add(id(tensor))
                value = torch.empty(tensor.shape, dtype=torch.float32 if tensor.is_floating_point() else tensor.dtype)
                stream = generator(seed, "initial", f"{path}.{name}")
                if owner is not None:
                    owner.initial(f"{local}{name}", value, stream)
                elif isinstance(module, Favor | Redraw):
                    module.initial(name, value, stream)
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
        encoding = self.encodings[int(parts[1])]
        assert isinstance(encoding, Encoding)
        return encoding, "".join(f"{part}." for part in parts[2:])

    def parameter_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """AdamW's groups by kind of module: matrices decay; norms, biases and whatever belongs to positions do not."""
        decayed: list[nn.Parameter] = []
        kept: list[nn.Parameter] = []
        # named_parameters gives what layers share once; the optimiser refuses a parameter that comes twice.
        for full, parameter in self.named_parameters():
            path, _, name = full.rpartition(".")
            matrix = isinstance(self.get_submodule(path), nn.Linear | nn.Embedding) and name == "weight"
            (decayed if matrix and self._owner(path)[0] is None else kept).append(parameter)
        return [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]


def _refuse(model: ModelConfig, encoding: Encoding, vocabulary: int, head: Head) -> None:
    """Refuses what does not fit together, with the reason, before anything is built."""
    name = encoding.spelled()
    if encoding.needs_causal and model.shape != "decoder":
        raise UserError(f"encoding '{name}' is for causal models, and shape '{model.shape}' has a stack that looks "
                        "both ways: use model.shape=decoder")
    if model.cross_encoding and not overrides(encoding, *(hook for hook in HOOKS if hook not in INPUT_HOOKS)):
        raise UserError(f"encoding '{name}' does nothing in attention, so that model.cross_encoding=true would change "
                        "nothing: leave it false, or set it for some alone, as in rope+cross_encoding=true")
    if model.attention == "linear":
        refuse_misfits(encoding, causal=model.shape != "encoder", bidirectional=model.shape != "decoder")
    if model.tied_embeddings and (head.kind, head.outputs) != ("token", vocabulary):
        raise UserError(f"model.tied_embeddings asks for a head over the vocabulary of {vocabulary} tokens, and this "
                        f"one is for {head.kind} (outputs: {head.outputs}): set it to false")


def _own_state(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and persistent buffers that are this module's own."""
    yield from module.named_parameters(recurse=False)
    for name, buffer in module.named_buffers(recurse=False):
        if name not in module._non_persistent_buffers_set:
            yield name, buffer
