"""Corpus: a causal language model over the bytes of a running text.

Bits per byte are summed nats over the number of bytes, never a mean of means over windows.

Shapes: B batch, L bytes, W bytes of a window, N scored bytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from posbench.errors import UserError
from posbench.language import SCORING_TOKENS, Language, row_of
from posbench.seeds import numpy_generator
from posbench.trial import Trial

BY_PLACE = "bits by place in window"
SLIDING = "bits per byte, sliding"
BYTES = 256
FIRST = 8  # bytes of the first bin of places; later ones double. Fewer would be a mean over hardly any bytes.


class Corpus(Language):
    """Running text as bytes, one text a split; every byte is predicted from those before it in its window.

    A window of W reads W bytes, the first of them the one before its first target, so that all windows are built alike
    and no start symbol is needed. The same bytes are scored at every length, each once, in windows that do not overlap
    and in windows that slide on by `stride` and score their last bytes alone. Bits are summed nats over the number of
    bytes.
    """

    def __init__(self, trial: Trial, device: torch.device) -> None:
        super().__init__(trial, device)
        self.vocabulary = BYTES
        self.bytes = {name: np.frombuffer(rows.texts[0][0].encode("latin-1"), dtype=np.uint8).copy()
                      for name, rows in self.data.splits.items()}
        self.stride = trial.config.evaluation.stride or max(1, self.length // 2)
        if self.length % self.stride:
            stated = "" if trial.config.evaluation.stride else ", half of the length by default,"
            raise UserError(f"evaluation.stride = {self.stride}{stated} does not divide data.max_length = "
                            f"{self.length}, so that windows of different lengths would score different bytes: choose "
                            f"a divisor ({', '.join(str(n) for n in _divisors(self.length)[-4:])})")
        for name, text in self.bytes.items():
            needed = self.length + 1 if name == "train" else 2 * self.widest(name) + 1
            if len(text) < needed:
                raise UserError(f"task {trial.task.name}: the split '{name}' has {len(text)} bytes and needs {needed}: "
                                "give a longer text, or lower data.max_length or evaluation.longest")
        # A row is a window of the trained length.
        self.counts = {name: len(text) // self.length for name, text in self.bytes.items()}
        self.cut = dict.fromkeys(self.counts, 0)

    def widest(self, split: str) -> int:
        """Bytes of the longest window in which a split is scored."""
        return self.length if split == self.data.selection else self.lengths[-1]

    def scored(self, split: str) -> tuple[int, int]:
        """First scored byte and one past the last: the same at all lengths, a full window of context before them."""
        widest, text = self.widest(split), self.bytes[split]
        most = len(text) - widest
        if (limit := self.trial.config.evaluation.tokens) is not None:
            most = min(most, max(limit, widest))
        return widest, widest + most // widest * widest

    def told(self) -> str:
        first, end = self.scored(self.data.scored[0])
        windows = ", ".join(map(str, self.lengths))
        return (f"trained on windows of {self.length} bytes, scored in windows of {windows}, the same "
                f"{end - first:,} bytes each time: non-overlapping (stride = window, each after 1 to window bytes) and "
                f"sliding (stride {self.stride}, each byte after more than window - {self.stride} bytes)")

    def batches(self, seed: int) -> Iterator[np.ndarray]:
        text, size = self.bytes["train"], self.trial.config.train.batch_size
        random = numpy_generator(seed, "order")
        while True:
            starts = random.integers(0, len(text) - self.length, size)
            yield text[starts[:, None] + np.arange(self.length + 1)]

    def loss(self, model: nn.Module, batch: np.ndarray) -> Tensor:
        targets = torch.from_numpy(batch[:, 1:]).long().to(self.device)
        return functional.cross_entropy(self._logits(model, batch[:, :-1]).flatten(0, 1), targets.flatten())

    @classmethod
    def loss_drawn(cls, trial: Trial) -> tuple[str, float]:
        """In bits, as the scores beside it are."""
        return "bits per byte", 1 / math.log(2)

    def sample(self) -> Tensor:
        return torch.from_numpy(self.bytes["train"][: self.length]).long()[None]

    def nats(self, model: nn.Module, split: str, window: int, stride: int) -> np.ndarray:
        """(N,) float64 nats of every scored byte, each once: of its window the last `stride` bytes are scored."""
        text = self.bytes[split]
        first, end = self.scored(split)
        ends = np.arange(first + stride, end + 1, stride)
        places = ends[:, None] - window - 1 + np.arange(window + 1)
        found = []
        rows = max(1, SCORING_TOKENS // window)
        for start in range(0, len(ends), rows):
            part = text[places[start : start + rows]]
            logits = self._logits(model, part[:, :-1])[:, -stride:]
            targets = torch.from_numpy(part[:, -stride:]).long().to(self.device)
            nats = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
            found.append(nats.double().cpu().numpy())
        return np.concatenate(found)

    def measure(self, model: nn.Module, split: str, length: int) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
        task = self.trial.task
        metric = task.primary_metric
        nats = self.nats(model, split, length, length)
        if not np.isfinite(nats).all():
            return [row_of(split, length, metric.name, math.inf, len(nats), higher=False, primary=True)], {}

        def bits(costs: np.ndarray) -> float:
            return float(metric.function(gold=np.empty(len(costs)), predicted=costs))

        rows = [row_of(split, length, metric.name, bits(nats), len(nats), higher=False, primary=True)]
        if split == self.data.selection:
            return rows, {}
        sliding = self.nats(model, split, length, self.stride)
        rows.append(row_of(split, length, SLIDING, bits(sliding), len(sliding), higher=False))
        arrays = {f"{split}/nats, {length}": nats, f"{split}/nats sliding, {length}": sliding}
        # Each place from the shortest windows that have it. In the longest ones alone the first places would be a few
        # bytes, and others than an encoding with an end is scored on.
        by_place = nats.reshape(-1, length)
        for start, stop in itertools.pairwise(places(self.lengths, length)):
            part = by_place[:, start:stop].ravel()
            rows.append(row_of(split, stop, BY_PLACE, bits(part), len(part), higher=False))
        return rows, arrays


def places(lengths: Sequence[int], length: int) -> list[int]:
    """Borders of the bins of places that windows of one of these lengths are the shortest to have.

    The first length has bins of 8, 8, 16, 32, ... places, every other one the places behind the length before.
    """
    if length != lengths[0]:
        return [max(other for other in lengths if other < length), length]
    borders = [0]
    while borders[-1] < length:
        borders.append(min(2 * borders[-1] or FIRST, length))
    return borders


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
