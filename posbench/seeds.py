"""Named random streams: every random choice has a name, and depends on the seed and that name alone.

Two modules never share a stream, so drawing more numbers in one cannot change another: switching the position encoding
leaves every other weight, the order of the data and the dropout masks as they were.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def number(seed: int, *names: str | int) -> int:
    """A 63-bit number for (seed, names): the first bytes of a SHA-256, equal on every machine and in every release."""
    text = "\x1f".join([str(int(seed)), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: str | int) -> torch.Generator:
    """A CPU torch generator for the stream called `names`."""
    return torch.Generator().manual_seed(number(seed, *names))


def numpy_generator(seed: int, *names: str | int) -> np.random.Generator:
    """A numpy generator for the stream called `names`."""
    return np.random.default_rng(number(seed, *names))
