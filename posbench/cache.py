"""Cache: what decoding keeps of earlier tokens, so that a step costs one token's work.

Shapes: B batch (1 when all rows agree), H heads, N new tokens, K keys so far, d head width, m features, c channels.

Positions are kept as they were given, before the encoding's own `positions` hook, which sees all of them at each step;
keys are kept after `rotate`, which therefore sees the positions of new tokens alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from posbench.positions import Positions


@dataclass(frozen=True)
class Sums:
    """What linear attention keeps of its keys, whatever their number: sum_j e^(t_j - top) f(k_j) v_j.

    Attributes:
        values: (B, H, m, c) the sums.
        top: (B, H) logarithm of the factor that the sums were divided by.
        last: (B|1,) position that decays are counted from.
    """

    values: Tensor
    top: Tensor
    last: Tensor

    def reordered(self, index: Tensor) -> Sums:
        values, top = (tensor.index_select(0, index) for tensor in (self.values, self.top))
        return Sums(values, top, _shared(self.last, index))


@dataclass
class LayerCache:
    """One layer's share.

    Attributes:
        sums: of self-attention, if that is linear; one entry, or numerator and denominator apart.
        cross: of cross attention, made once for each source: keys and values, or sums.
        length: tokens in the store of keys and values.
    """

    sums: tuple[Sums, ...] | None = None
    cross: tuple[Tensor, ...] | tuple[Sums, ...] | None = None
    length: int = 0
    _store: tuple[Tensor, Tensor] | None = field(default=None, repr=False)

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """New (B, H, N, d) keys and values -> all of them (B, H, K, d).

        The store doubles when it is full, so that a step copies one token. No gradient flows to what is kept.
        """
        end = self.length + keys.shape[2]
        if self._store is None or end > self._store[0].shape[2]:
            grown = [x.new_empty(*x.shape[:2], max(2 * end, 32), x.shape[3]) for x in (keys, values)]
            if self._store is not None:
                for new, old in zip(grown, self._store, strict=True):
                    new[:, :, : self.length] = old[:, :, : self.length]
            self._store = grown[0], grown[1]
        for store, x in zip(self._store, (keys, values), strict=True):
            store[:, :, self.length : end] = x.detach()
        self.length = end
        return self._store[0][:, :, :end], self._store[1][:, :, :end]

    def reorder(self, index: Tensor) -> None:
        """Row i becomes what row index[i] was."""
        if self._store is not None:
            self._store = self._store[0].index_select(0, index), self._store[1].index_select(0, index)
        if self.sums is not None:
            self.sums = tuple(sums.reordered(index) for sums in self.sums)
        if self.cross is not None:
            self.cross = tuple(  # type: ignore[assignment]
                x.reordered(index) if isinstance(x, Sums) else x.index_select(0, index) for x in self.cross
            )


class Cache:
    """Everything that a model keeps of one batch of sequences while it decodes them. Make a new one for each batch.

    Attributes:
        seen: positions of all tokens so far as keys; their `q` are those of the latest tokens. None before the first.
        source: positions of the encoder's tokens, in an encoder-decoder.
    """

    def __init__(self) -> None:
        self.seen: Positions | None = None
        self.source: Positions | None = None
        self._layers: list[LayerCache] = []
        # Where the next token of each row stands and the document it belongs to; and one past the furthest of them.
        self._next: Tensor | None = None
        self._document: Tensor | None = None
        self._reach = 0

    @property
    def length(self) -> int:
        """Tokens so far, with padding."""
        return 0 if self.seen is None else self.seen.length

    def layer(self, index: int) -> LayerCache:
        while len(self._layers) <= index:
            self._layers.append(LayerCache())
        return self._layers[index]

    def following(self, count: int, mask: Tensor | None = None, *, device: torch.device | None = None) -> Positions:
        """Positions of the next `count` tokens of a causal model, which carry on where the real tokens of a row ended.

        Args:
            count: new tokens.
            mask: (B, N), true at the real ones among the new tokens; padding of earlier calls is remembered.
            device: where the first positions are made.
        """
        if self.seen is None or self._next is None:
            first = Positions.first(count, causal=True, device=device)
            return first if mask is None else Positions.from_mask(mask, causal=True)
        steps = torch.arange(count, device=self._next.device)[None]
        if mask is not None:
            steps = (mask.long().cumsum(-1) - 1).clamp(min=0)
        index = self._next[:, None] + steps
        documents = None
        if self._document is not None:
            number = self._document[:, None].expand(-1, count)
            documents = number, number
        end = self._reach + count if mask is None else int(index.max()) + 1
        regular = self.seen.regular and self.seen.keys is None and mask is None
        return Positions(q=index, k=index, end=end, causal=True, keys=None if mask is None else mask.bool(),
                         documents=documents, regular=regular, ordered=True)

    def extend(self, new: Positions) -> Positions:
        """Takes in new tokens: positions with `new.q` as queries, and all tokens so far as keys."""
        seen = self.seen
        if seen is None:
            at = replace(new)
        else:
            documents = None
            if new.documents is not None or seen.documents is not None:
                mine = _or_zeros(new.documents, new.q)
                documents = mine, _joined(_or_zeros(seen.documents, seen.k), mine)
            keys = None
            if new.keys is not None or seen.keys is not None:
                keys = _joined(*(torch.ones_like(at.k, dtype=torch.bool) if at.keys is None else at.keys
                                 for at in (seen, new)))
            # A run of consecutive tokens that this one carries on: known from plain numbers, without a copy.
            regular = seen.regular and new.regular and new.end - new.length == seen.end
            at = Positions(q=new.q, k=_joined(seen.k, new.k), end=max(seen.end, new.end), causal=new.causal, keys=keys,
                           documents=documents, regular=regular, ordered=seen.ordered and new.ordered)
        self._carry_on(new, at)
        self.seen = at
        return at

    def _carry_on(self, new: Positions, at: Positions) -> None:
        last = torch.full_like(new.q[:, :1], new.queries - 1)
        real = None
        if new.keys is not None:
            last = new.queries - 1 - new.keys.flip(1).long().argmax(1, keepdim=True)
            real = new.keys.any(1)
        following = new.q.expand(len(last), -1).gather(1, last)[:, 0] + 1
        if real is not None:
            following = torch.where(real, following, 0 if self._next is None else self._next)
        self._next = following
        if at.documents is not None:
            numbers = at.documents[0]
            latest = numbers.gather(1, last.expand(len(numbers), 1))[:, 0]
            if real is not None and self._document is not None:
                latest = torch.where(real, latest, self._document)
            self._document = latest
        plain = new.keys is None and new.regular
        self._reach = new.end if plain else int(following.max())

    def reorder(self, index: Tensor) -> None:
        """Row i goes on from what row index[i] was: (B',) int64, for beam search; rows may be repeated or left out."""
        for layer in self._layers:
            layer.reorder(index)

        def moved(at: Positions | None) -> Positions | None:
            if at is None:
                return None
            keys = None if at.keys is None else _shared(at.keys, index)
            documents = at.documents and (_shared(at.documents[0], index), _shared(at.documents[1], index))
            return replace(at, q=_shared(at.q, index), k=_shared(at.k, index), keys=keys, documents=documents)

        self.seen, self.source = moved(self.seen), moved(self.source)
        self._next = None if self._next is None else _shared(self._next, index)
        self._document = None if self._document is None else _shared(self._document, index)


def _shared(tensor: Tensor, index: Tensor) -> Tensor:
    """(B|1, ...) rows by index; one row in which all agree stays the one."""
    return tensor if len(tensor) == 1 else tensor.index_select(0, index)


def _joined(first: Tensor, second: Tensor) -> Tensor:
    """(B|1, K), (B|1, N) -> (B|1, K + N)."""
    rows = max(len(first), len(second))
    return torch.cat([first.expand(rows, -1), second.expand(rows, -1)], dim=1)


def _or_zeros(documents: tuple[Tensor, Tensor] | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if documents is None else documents[1]
