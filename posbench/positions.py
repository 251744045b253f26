"""Positions: absolute indices of queries and keys, and the masks made from them.

Shapes: B batch (1 when all rows agree), Q queries, K keys. Encodings read positions from here and never from a
tensor's length, so that padding, packing, caches and altered position ids need no code of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Positions:
    """Where queries and keys stand.

    Attributes:
        q: (B|1, Q) int64, absolute positions of the queries.
        k: (B|1, K) int64, absolute positions of the keys.
        end: one past the largest position; a plain number, so that checks need no copy from a device.
        causal: a query sees only keys at its own position or before it.
        keys: (B, K) bool, True at real tokens; None when every key is real.
        documents: (B, Q) and (B, K) int64 numbers of packed documents; a query sees only its own document.
        regular: q and k are runs of consecutive integers that end together, alike in every row; Toeplitz forms apply.
        ordered: along a row, each real token stands behind the one before it, so that order in storage is order.
    """

    q: Tensor
    k: Tensor
    end: int
    causal: bool = False
    keys: Tensor | None = None
    documents: tuple[Tensor, Tensor] | None = None
    regular: bool = False
    ordered: bool = False
    _kept: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def first(cls, length: int, *, causal: bool = False, device: torch.device | str | None = None, start: int = 0,
              keys: Tensor | None = None) -> Positions:
        """Positions start, start+1, ... of `length` tokens that attend to each other; `keys` marks the real ones."""
        index = torch.arange(start, start + length, device=device)[None]
        return cls(q=index, k=index, end=start + length, causal=causal, keys=keys, regular=True, ordered=True)

    @classmethod
    def right_padded(cls, lengths: Tensor, width: int, *, causal: bool = False) -> Positions:
        """Rows of `lengths` (B,) real tokens, padded on the right to `width`. Nothing is copied from the device."""
        at = cls.first(width, causal=causal, device=lengths.device)
        return replace(at, keys=at.k < lengths[:, None])

    @classmethod
    def from_mask(cls, mask: Tensor, *, causal: bool = False) -> Positions:
        """Positions counted over real tokens only, for a mask (B, L) that is padded on either side.

        The first real token stands at 0 whatever the side and whatever the padding id.
        """
        real = mask.bool()
        # Where the longest row is padded too, its padding must not use up a table: those positions are not counted on.
        if bool((real[:, 1:] <= real[:, :-1]).all()) and bool(real[:, -1].any()):
            return replace(cls.first(mask.shape[1], causal=causal, device=mask.device), keys=real)
        index = (real.long().cumsum(-1) - 1).clamp(min=0)
        return cls(q=index, k=index, end=int(index.max()) + 1, causal=causal, keys=real, ordered=True)

    @classmethod
    def given(cls, ids: Tensor, *, causal: bool = False, keys: Tensor | None = None,
              documents: Tensor | None = None) -> Positions:
        """Positions stated outright: `ids` (B|1, L) int64."""
        pair = None if documents is None else (documents, documents)
        real = torch.ones_like(ids, dtype=torch.bool) if keys is None else keys
        before = torch.where(real, ids, -1).cummax(1).values[:, :-1]
        ordered = bool(((ids[:, 1:] > before) | ~real[:, 1:]).all())
        return cls(q=ids, k=ids, end=int(ids.max()) + 1, causal=causal, keys=keys, documents=pair, ordered=ordered)

    @property
    def queries(self) -> int:
        return self.q.shape[1]

    @property
    def length(self) -> int:
        """Number of keys."""
        return self.k.shape[1]

    @property
    def unmasked(self) -> bool:
        """Every query sees every key."""
        ahead = self.causal and not (self.regular and self.queries == 1)  # in decoding the one query is the newest
        return not ahead and self.keys is None and self.documents is None

    def sizes(self) -> tuple[Tensor, Tensor]:
        """(B|1, Q|1), (B|1, K|1) int64: tokens of the sequence that each query, and each key, belongs to.

        One past the largest position among the real keys of the same row and document, so that neither padding nor
        the mates in a batch or a pack change it. Whatever depends on the current length reads it here.
        """
        return self.once("sizes", self._sizes)

    def _sizes(self) -> tuple[Tensor, Tensor]:
        ends = self.k + 1 if self.keys is None else torch.where(self.keys, self.k + 1, 1)
        if self.documents is None:
            size = ends.amax(-1, keepdim=True)
            return size, size
        numbers = torch.cat(self.documents, dim=1).unique(return_inverse=True)[1]
        rows = max(len(ends), len(numbers))
        numbers = numbers.expand(rows, -1)
        longest = ends.new_ones(rows, int(numbers.max()) + 1)
        longest = longest.scatter_reduce(1, numbers[:, self.queries :], ends.expand(rows, -1), "amax")
        sizes = longest.gather(1, numbers)
        return sizes[:, : self.queries], sizes[:, self.queries :]

    def offsets(self) -> Tensor:
        """(B|1, Q, K) int64: key position minus query position, negative for keys that lie behind."""
        return self.once("offsets", lambda: self.k[:, None, :] - self.q[:, :, None])

    def visible(self) -> Tensor | None:
        """(B|1, 1, Q, K) bool, True where the query may look; None when it may look everywhere."""
        if self.unmasked:
            return None
        return self.once("visible", self._visible)

    def _visible(self) -> Tensor:
        seen = (self.offsets() <= 0) if self.causal else torch.ones_like(self.offsets(), dtype=torch.bool)
        if self.keys is not None:
            seen = seen & self.keys[:, None, :]
        if self.documents is not None:
            seen = seen & (self.documents[0][:, :, None] == self.documents[1][:, None, :])
        return seen[:, None]

    def shifted(self, by: int) -> Positions:
        """All positions moved by `by`; masks stay."""
        return replace(self, q=self.q + by, k=self.k + by, end=self.end + by)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returns, computed once for these positions.

        Tables derived from positions live exactly as long as the pass that uses them: no state stays in a module, so
        a long input cannot change the answer to a later short one, and nothing has to survive a cast or a reload.
        Keys should begin with the module that asks.
        """
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]
