"""Token ids of sets that are too large for a padded table: one row behind the other, in as few bytes as they need."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from posbench.tokens import encode

# Texts that are made into tokens at once: what the library says of each takes a hundred times its ids.
CHUNK = 10_000


@dataclass(frozen=True, kw_only=True)
class Ragged:
    """N rows of T tokens together.

    Attributes:
        ids: (T,) uint16, or uint32 for larger vocabularies. starts: (N + 1,) int64, where each row begins, and T.
        full: (N,) int64 tokens that each row would have without the limit.
    """

    ids: np.ndarray
    starts: np.ndarray
    full: np.ndarray

    def __len__(self) -> int:
        return len(self.full)

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """(N,) int64 real tokens of each row, special tokens included."""
        return np.diff(self.starts)

    def padded(self, rows: np.ndarray, pad: int) -> np.ndarray:
        """(B, S) int64 ids of these rows, padded on the right to the longest of them."""
        lengths = self.lengths[rows]
        places = np.arange(lengths.max())
        real = places < lengths[:, None]
        ids = np.full(real.shape, pad, dtype=np.int64)
        ids[real] = self.ids[(self.starts[:-1][rows][:, None] + places)[real]]
        return ids

    def part(self, kept: np.ndarray) -> Ragged:
        """The rows where `kept`, (N,) bool, is true."""
        return Ragged(ids=self.ids[np.repeat(kept, self.lengths)], full=self.full[kept],
                      starts=np.concatenate([[0], self.lengths[kept].cumsum()]))


def encode_ragged(tokenizer: Tokenizer, texts: Sequence[str], limit: int) -> Ragged:
    """[CLS] text [SEP] for each text, as `encode` gives it, of at most `limit` tokens."""
    kind = np.uint16 if tokenizer.get_vocab_size() <= 2**16 else np.uint32
    ids, lengths, full = [np.empty(0, dtype=kind)], [np.zeros(1, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for begin in range(0, len(texts), CHUNK):
        part = encode(tokenizer, [(text,) for text in texts[begin : begin + CHUNK]], [], limit, whole=True)
        ids.append(part.ids[np.arange(part.ids.shape[1]) < part.lengths[:, None]].astype(kind))
        lengths.append(part.lengths)
        full.append(part.full)
    return Ragged(ids=np.concatenate(ids), starts=np.concatenate(lengths).cumsum(), full=np.concatenate(full))
