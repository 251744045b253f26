"""Objective: what a kind of task asks of the training loop, which is one and the same for all of them.

The loop knows batches, a loss and scores; what they are made of is said here for sequences with one label each, and by
a suite's own objective for anything else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from posbench.positions import Positions
from posbench.store import Record
from posbench.suite import Rows, Task
from posbench.tables import Table
from posbench.tokens import Encoded, scoring_batches, training_batches
from posbench.transformer import Head
from posbench.trial import Trial, load_encoded, load_rows

SCORING_BATCH = 256


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What came out of one split.

    Attributes:
        rows: measurements, each with split, length, metric, value (NaN where undefined), n, higher_is_better, primary.
        arrays: per-example arrays by '<split>/<what>'.
        degenerate: why the scores say nothing, such as one answer throughout; empty otherwise.
        apart: measurements under another label than the trial's, or without a value: as rows, with 'variant' (what
            took the encoding's place, or None) and, where it was refused, status and reason.
        timed: further measurements of the same form that a clock made, and that no second run repeats.
    """

    rows: list[dict[str, Any]]
    arrays: dict[str, np.ndarray]
    degenerate: str = ""
    apart: list[dict[str, Any]] = field(default_factory=list)
    timed: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What the store has of one trial: its record, and its per-example arrays, which are read when asked for."""

    trial: Trial
    record: Record
    arrays: Callable[[], Mapping[str, np.ndarray]]


class Objective(ABC):
    """A task of one trial, with its data, as the loop sees it.

    Attributes:
        trial, device: what is run, and where batches go.
        vocabulary: number of token ids.
        counts: rows by split. cut: how many of them lost tokens to the length limit.
    """

    def __init__(self, trial: Trial, device: torch.device) -> None:
        self.trial, self.device = trial, device
        self.vocabulary: int = 0
        self.counts: dict[str, int] = {}
        self.cut: dict[str, int] = {}

    @classmethod
    @abstractmethod
    def head(cls, task: Task, vocabulary: int) -> Head:
        """What the model answers."""

    @abstractmethod
    def batches(self, seed: int) -> Iterator[Any]:
        """Training batches without end; their order depends on the seed alone and on no encoding."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """() the mean loss of a batch."""

    @classmethod
    def loss_drawn(cls, trial: Trial) -> tuple[str, float]:
        """The unit in which curves show the training loss, and what it is multiplied by for that."""
        return "nats per token", 1.0

    def weight(self, batch: Any) -> float:
        """How many things the mean loss of a batch is over: its rows, unless a kind of task counts something else."""
        return len(batch)

    @abstractmethod
    def score(self, model: nn.Module, split: str) -> Scores:
        """Scores a split whole, with the model in evaluation and without gradients.

        Outputs that are not finite come back as rows whose value is infinite: the loop calls that divergence.
        """

    @abstractmethod
    def sample(self) -> Tensor:
        """(1, L) int64 token ids of one training row."""

    def constant(self, split: str) -> float | None:
        """The primary score of the best answer that looks at no input; None where there is no such thing."""
        return None

    def stated(self) -> dict[str, str]:
        """What a reader must know of how this task was trained and scored, by name: signatures, decoding, cuts."""
        return {}

    @classmethod  # noqa: B027 - most kinds have nothing to refuse
    def check(cls, trial: Trial, limit: int | None) -> None:
        """Refuses settings that do not fit the task, before anything runs.

        Args:
            limit: positions after which the trial's encoding ends; None where it does not.

        Raises:
            UserError: what does not fit, and what to change.
        """

    @classmethod
    def extras(cls, kept: Sequence[Kept], *, baseline: str, alpha: float) -> tuple[Table, ...]:
        """Tables of one task beside those that every task has, from its finished trials.

        Args:
            kept: trials of all encodings and seeds, in the order of the study.
            baseline, alpha: the study's.
        """
        return ()


class Sequences(Objective):
    """A class, or a number, for each sequence."""

    def __init__(self, trial: Trial, device: torch.device) -> None:
        super().__init__(trial, device)
        config = trial.config
        self.splits, self.vocabulary = load_encoded(config.suite, config.task, config.data)
        self.counts = {name: len(split) for name, split in self.splits.items()}
        self.cut = {name: split.cut for name, split in self.splits.items()}

    @classmethod
    def head(cls, task: Task, vocabulary: int) -> Head:
        if task.kind == "classification":
            return Head(kind="classification", outputs=len(task.labels))
        return Head(kind="regression", outputs=1)

    def batches(self, seed: int) -> Iterator[np.ndarray]:
        return training_batches(self.splits["train"].lengths, self.trial.config.train.batch_size, seed)

    def loss(self, model: nn.Module, batch: np.ndarray) -> Tensor:
        data, task = self.splits["train"], self.trial.task
        output, labels = self._output(model, data, batch), torch.from_numpy(data.labels[batch]).to(self.device)
        if task.kind == "regression":
            low, high = task.bounds
            return functional.mse_loss(output.float(), (labels - low) / (high - low))
        return functional.cross_entropy(output.float(), labels)

    def score(self, model: nn.Module, split: str) -> Scores:
        task, data = self.trial.task, self.splits[split]
        output = self.predict(model, data)
        finite = bool(np.isfinite(output).all())
        predicted, gold = predicted_of(task, output), data.labels
        rows = [
            {
                "split": split,
                "length": self.trial.config.data.max_length,
                "metric": metric.name,
                "value": float(metric.function(gold=gold, predicted=predicted)) if finite else float("inf"),
                "n": len(gold),
                "higher_is_better": metric.higher_is_better,
                "primary": metric.name == task.primary,
            }
            for metric in task.metrics
        ]
        degenerate = f"{split}: all {len(gold)} predictions are equal" if np.ptp(predicted) == 0 else ""
        arrays = {f"{split}/gold": gold, f"{split}/predicted": predicted, f"{split}/output": output}
        return Scores(rows=rows, arrays=arrays, degenerate=degenerate)

    def sample(self) -> Tensor:
        data = self.splits["train"]
        return torch.from_numpy(data.ids[:1, : data.lengths[0]]).long()

    def constant(self, split: str) -> float:
        config = self.trial.config
        rows = load_rows(config.suite, config.task, config.data)[0].splits
        return constant_score(self.trial.task, rows["train"], rows[split])

    def predict(self, model: nn.Module, data: Encoded) -> np.ndarray:
        """(N,) or (N, C) float32 outputs, every row once and in its own place."""
        order = list(scoring_batches(data.lengths, SCORING_BATCH))
        outputs = torch.cat([self._output(model, data, index).float() for index in order]).cpu().numpy()
        restored = np.empty_like(outputs)
        restored[np.concatenate(order)] = outputs
        return restored

    def _output(self, model: nn.Module, data: Encoded, index: np.ndarray) -> Tensor:
        lengths = data.lengths[index]
        width = int(lengths.max())
        ids = torch.from_numpy(data.ids[index, :width]).long().to(self.device)
        types = torch.from_numpy(data.types[index, :width]).long().to(self.device)
        causal = self.trial.config.model.shape != "encoder"
        if (lengths == width).all():
            at = Positions.first(width, causal=causal, device=self.device)
        else:
            at = Positions.right_padded(torch.from_numpy(lengths).to(self.device), width, causal=causal)
        return model(ids, token_type_ids=types, at=at)


def kind_of(trial: Trial) -> type[Objective]:
    """The objective of the trial's task: the suite's own, or sequences."""
    return trial.suite.objective(trial.task) or Sequences


def objective_of(trial: Trial, device: torch.device | str = "cpu") -> Objective:
    """The trial's task with its data."""
    return kind_of(trial)(trial, torch.device(device))


def predicted_of(task: Task, output: np.ndarray) -> np.ndarray:
    """Classes, or numbers on the task's scale and within its bounds."""
    if task.kind == "classification":
        return output.argmax(-1)
    low, high = task.bounds
    return (output * (high - low) + low).clip(low, high)


def constant_score(task: Task, train: Rows, split: Rows) -> float:
    """What the most frequent class of the training rows, or their mean, scores as the only answer; 0 if undefined."""
    if task.kind == "classification":
        constant = Counter(train.labels).most_common(1)[0][0]
    else:
        constant = float(np.mean(train.labels))
    value = task.primary_metric.function(gold=np.array(split.labels), predicted=np.full(len(split.labels), constant))
    return 0.0 if np.isnan(value) else float(value)
