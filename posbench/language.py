"""Language models: decoders that are scored at lengths beyond those of training; here, on answers behind a prompt.

Lengths are counted in tokens that the model reads. A length at which the encoding refuses to work is told as a row of
its own, beside the scores at the others: nothing is cut, and no position wraps around.

Shapes: B batch, L tokens, V vocabulary.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from posbench.errors import ContextLengthExceeded, UserError
from posbench.lengths import AREA, REACH
from posbench.numerals import counted
from posbench.objective import Objective, Scores
from posbench.positions import Positions
from posbench.suite import Task
from posbench.tokens import training_batches
from posbench.transformer import Head, Transformer
from posbench.trial import Trial, load_rows
from posbench.variants import exchanged

# Tokens of one scoring batch: bounds the memory that long windows take.
SCORING_TOKENS = 16384


class Language(Objective):
    """What both kinds share: a head over the vocabulary, lengths, and variants of the trained encoding.

    Attributes:
        length: tokens of a training row at most. lengths: those at which the test is scored, the first is `length`.
    """

    def __init__(self, trial: Trial, device: torch.device) -> None:
        super().__init__(trial, device)
        if trial.config.model.shape != "decoder":
            raise UserError(f"task {trial.task.name} is for causal models, not for model.shape="
                            f"{trial.config.model.shape}: use decoder")
        self.length = trial.config.data.max_length
        self.lengths = lengths(self.length, trial.config.evaluation.longest)
        self.data, _ = load_rows(trial.config.suite, trial.config.task, trial.config.data)

    @classmethod
    def head(cls, task: Task, vocabulary: int) -> Head:
        return Head(kind="token", outputs=vocabulary)

    def stated(self) -> dict[str, str]:
        return {"evaluation": self.told()}

    def told(self) -> str:
        """How the task is scored."""
        return f"trained on up to {self.length} tokens, scored at {', '.join(map(str, self.lengths))}"

    @abstractmethod
    def measure(self, model: nn.Module, split: str, length: int) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
        """Rows and per-example arrays of a split at one length."""

    def summaries(self, split: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Rows that sum up the scores at all lengths."""
        return []

    def score(self, model: nn.Module, split: str) -> Scores:
        # Weights are chosen, and curves drawn, at the trained length.
        if split == self.data.selection:
            rows, arrays = self.measure(model, split, self.length)
            return Scores(rows=rows, arrays=arrays)
        rows, apart, arrays = self._at_all_lengths(model, split, None)
        for variant in self.trial.variants:
            with exchanged(cast(Transformer, model), variant, vocabulary=self.vocabulary, length=self.length,
                           head=self.head(self.trial.task, self.vocabulary)):
                scored, refused, own = self._at_all_lengths(model, split, variant.label)
            apart += [row | {"variant": variant.label} for row in scored] + refused
            arrays |= {f"{name}, {variant.label}": value for name, value in own.items()}
        return Scores(rows=rows, arrays=arrays, apart=apart)

    def _at_all_lengths(self, model: nn.Module, split: str, variant: str | None
                        ) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, np.ndarray]]:
        """Measured rows, refused rows, and arrays."""
        rows: list[dict[str, Any]] = []
        refused: list[dict[str, Any]] = []
        arrays: dict[str, np.ndarray] = {}
        for length in self.lengths:
            try:
                own, examples = self.measure(model, split, length)
            except ContextLengthExceeded as error:
                primary = self.trial.task.primary_metric
                refused.append(row_of(split, length, primary.name, None, None, higher=primary.higher_is_better,
                                      primary=True) | {
                    "variant": variant, "status": "refused",
                    "reason": f"refused at length {length}: the encoding ends at {counted(error.limit, 'position')}"})
                continue
            rows += own
            arrays |= examples
        return rows + self.summaries(split, rows), refused, arrays

    def _logits(self, model: nn.Module, ids: np.ndarray, sizes: np.ndarray | None = None) -> Tensor:
        """(B, L) token ids -> (B, L, V) float32; `sizes` (B,) are real tokens where rows are padded on the right."""
        at = None
        if sizes is not None and (sizes != ids.shape[1]).any():
            at = Positions.right_padded(torch.from_numpy(sizes).to(self.device), ids.shape[1], causal=True)
        return model(torch.from_numpy(ids).long().to(self.device), at=at).float()


class Answers(Language):
    """Rows of a prompt and its answer, both texts of one-character tokens; loss and scores on the answer alone.

    The model reads a start token, the prompt, and the answer but for its last token. It is told how long the answer
    is: no end token is learned. Answers are read with the right tokens before each; that all of them are right then is
    the same as that the greedy answer is right.
    """

    START, PAD = 0, 1

    def __init__(self, trial: Trial, device: torch.device) -> None:
        super().__init__(trial, device)
        symbols = sorted({symbol for row in self.data.splits["train"].texts for text in row for symbol in text})
        self.ids = {symbol: place for place, symbol in enumerate(symbols, start=2)}
        self.vocabulary = len(symbols) + 2
        self.encoded = {name: self._encoded(name, rows.texts) for name, rows in self.data.splits.items()}
        for name in self.data.scored:
            for length in self.lengths:
                self._of_length(name, length)
        self.counts = {name: len(ids) for name, (ids, _, _) in self.encoded.items()}
        self.cut = dict.fromkeys(self.counts, 0)

    def _encoded(self, split: str, texts: Sequence[tuple[str, ...]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(N, L+1) ids padded on the right, (N,) real tokens that are read, (N,) tokens of the answer.

        Rows of a scored split that are longer than all scored lengths are left out.
        """
        if split in self.data.scored and split != self.data.selection:
            texts = [row for row in texts if sum(map(len, row)) <= self.lengths[-1]]
            if not texts:
                raise UserError(f"task {self.trial.task.name}, {split}: no row of {self.lengths[-1]} tokens or fewer: "
                                "raise data.max_length or evaluation.longest")
        sizes = np.array([len(prompt) + len(answer) for prompt, answer in texts])
        answers = np.array([len(answer) for _, answer in texts])
        ids = np.full((len(texts), sizes.max() + 1), self.PAD, dtype=np.int32)
        ids[:, 0] = self.START
        for row, (prompt, answer) in enumerate(texts):
            try:
                ids[row, 1 : sizes[row] + 1] = [self.ids[symbol] for symbol in prompt + answer]
            except KeyError as error:
                raise UserError(f"task {self.trial.task.name}, {split}, row {row + 1}: the symbol {error} occurs in no "
                                "training row: add it there, or remove the row") from None
        if split in ("train", self.data.selection) and sizes.max() > self.length:
            raise UserError(f"task {self.trial.task.name}, {split}: a row of {sizes.max()} tokens where {self.length} "
                            "are the most: shorten it, or raise data.max_length")
        return ids, sizes, answers

    def told(self) -> str:
        return (f"{super().told()}, prompt and answer together; of the answer alone, each token with the right ones "
                f"before it; effective length: {self.trial.task.primary} of at least "
                f"{self.trial.config.evaluation.threshold:g}")

    def batches(self, seed: int) -> Iterator[np.ndarray]:
        return training_batches(self.encoded["train"][1], self.trial.config.train.batch_size, seed)

    def loss(self, model: nn.Module, batch: np.ndarray) -> Tensor:
        logits, targets = self._answered(model, "train", batch)
        return functional.cross_entropy(logits, targets)

    @classmethod
    def loss_drawn(cls, trial: Trial) -> tuple[str, float]:
        return "nats per token of the answer", 1.0

    def weight(self, batch: np.ndarray) -> float:
        return int(self.encoded["train"][2][batch].sum())

    def sample(self) -> Tensor:
        ids, sizes, _ = self.encoded["train"]
        return torch.from_numpy(ids[:1, : sizes[0]]).long()

    def measure(self, model: nn.Module, split: str, length: int) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
        chosen, answers = self._of_length(split, length), self.encoded[split][2]
        gold = np.full((len(chosen), answers[chosen].max()), -1, dtype=np.int32)
        predicted = gold.copy()
        rows = max(1, SCORING_TOKENS // length)
        for start in range(0, len(chosen), rows):
            batch = chosen[start : start + rows]
            logits, targets = self._answered(model, split, batch)
            if not torch.isfinite(logits).all():
                return [row_of(split, length, self.trial.task.primary, math.inf, len(chosen), primary=True)], {}
            there = np.arange(gold.shape[1]) < answers[batch, None]
            gold[start : start + rows][there] = targets.cpu().numpy()
            predicted[start : start + rows][there] = logits.argmax(-1).cpu().numpy()
        task = self.trial.task
        scored = [row_of(split, length, metric.name, float(metric.function(gold=gold, predicted=predicted)),
                         len(chosen), primary=metric.name == task.primary) for metric in task.metrics]
        return scored, {f"{split}/gold, {length}": gold, f"{split}/predicted, {length}": predicted}

    def _of_length(self, split: str, length: int) -> np.ndarray:
        """(N,) the rows of a split that are scored at one length: longer than the length before."""
        sizes = self.encoded[split][1]
        shorter = max((other for other in self.lengths if other < length), default=0)
        chosen = np.flatnonzero((sizes > shorter) & (sizes <= length))
        if not len(chosen):
            raise UserError(f"task {self.trial.task.name}, {split}: no row of {shorter + 1} to {length} tokens: "
                            "lower evaluation.longest, or give such rows")
        return chosen

    def summaries(self, split: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        # Infinite where a variant's output is: no score, and none that a threshold is reached with.
        values = {row["length"]: row["value"] for row in rows if row["primary"] and math.isfinite(row["value"])}
        threshold = self.trial.config.evaluation.threshold
        return [row_of(split, None, REACH, float(effective_length(values, threshold)), None),
                row_of(split, None, AREA, area(values, self.lengths), None)]

    def _answered(self, model: nn.Module, split: str, batch: np.ndarray) -> tuple[Tensor, Tensor]:
        """(T, V) logits and (T,) right tokens of all answers of a batch, row by row."""
        ids, sizes, answers = (part[batch] for part in self.encoded[split])
        width = int(sizes.max())
        place = np.arange(width)
        asked = (place >= (sizes - answers)[:, None]) & (place < sizes[:, None])
        logits = self._logits(model, ids[:, :width], sizes)
        mask = torch.from_numpy(asked).to(self.device)
        return logits[mask], torch.from_numpy(ids[:, 1 : width + 1]).long().to(self.device)[mask]


def lengths(trained: int, longest: int) -> tuple[int, ...]:
    """The trained length, doubled as often as it stays within `longest` times it."""
    return tuple(trained * 2**power for power in range(int(math.log2(longest)) + 1))


def effective_length(values: dict[int, float], threshold: float) -> int:
    """The largest length whose score reaches the threshold; 0 if none does."""
    return max((length for length, value in values.items() if value >= threshold), default=0)


def area(values: dict[int, float], scored: Sequence[int]) -> float:
    """Area under the score over log2 of the length, as a share of the whole; a refused length counts as 0."""
    heights = [values.get(length, 0.0) for length in scored]
    if len(heights) == 1:
        return heights[0]
    return math.fsum((one + two) / 2 for one, two in itertools.pairwise(heights)) / (len(heights) - 1)


def row_of(split: str, length: int | None, metric: str, value: float | None, n: int | None, *,
           higher: bool = True, primary: bool = False) -> dict[str, Any]:
    """A measurement as the store keeps it."""
    return {"split": split, "length": length, "metric": metric, "value": value, "n": n, "higher_is_better": higher,
            "primary": primary}
