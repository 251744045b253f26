"""run(trial): the only training loop.

Everything random in it has its own stream: first weights, order of rows, dropout. Two trials that differ in the
encoding alone therefore share all three.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR

from posbench import environment
from posbench.config import TrainConfig, to_plain
from posbench.positions import Positions
from posbench.seeds import number
from posbench.store import Record
from posbench.suite import Task, TaskData
from posbench.tokens import Encoded, scoring_batches, training_batches
from posbench.transformer import Head, Transformer
from posbench.trial import Trial, load_encoded, load_rows

# Training loss is averaged, and looked at for NaN, over intervals of which a trial has about this many.
INTERVALS = 40
SCORING_BATCH = 256
Progress = Callable[[int, int], None]


class Diverged(Exception):
    """The loss is no finite number any more."""


def run(trial: Trial, progress: Progress | None = None) -> tuple[Record, dict[str, np.ndarray]]:
    """Trains and scores one trial.

    Args:
        trial: what to run.
        progress: called with the number of updates done and planned.

    Returns:
        The record for the store, and per-example arrays by '<split>/gold', '<split>/predicted' and '<split>/output'.
    """
    return _Run(trial, progress or (lambda done, planned: None)).result()


class _Run:
    """One trial under way."""

    def __init__(self, trial: Trial, progress: Progress) -> None:
        self.trial, self.progress = trial, progress
        config = trial.config
        self.train: TrainConfig = config.train
        torch.set_num_threads(self.train.threads)
        on_gpu = self.train.device != "cpu" and torch.cuda.is_available()
        self.accelerator = Accelerator(cpu=not on_gpu, mixed_precision="bf16" if on_gpu else "no")
        self.device = self.accelerator.device
        self.rows: TaskData
        self.rows, self.data_hash = load_rows(config.suite, config.task, config.data)
        self.splits, self.vocabulary = load_encoded(config.suite, config.task, config.data)
        self.model = Transformer(
            config.model,
            trial.encoding,
            trial.options,
            vocabulary=self.vocabulary,
            length=config.data.max_length,
            head=head_of(trial.task),
        )
        self.model.initialise(config.seed)
        self.curves: list[dict[str, Any]] = []
        self.step_seconds: list[float] = []
        self.updates = 0

    def result(self) -> tuple[Record, dict[str, np.ndarray]]:
        began = time.time()
        status, reason = "done", ""
        rows: list[dict[str, Any]] = []
        predictions: dict[str, np.ndarray] = {}
        try:
            self._fit()
            for split in self.rows.scored:
                scores, arrays = self._score(split)
                predictions |= arrays
                # An undefined score, such as the correlation with a constant, counts as 0 and is told.
                rows += [row | {"value": 0.0 if math.isnan(row["value"]) else row["value"]} for row in scores]
                if np.ptp(arrays[f"{split}/predicted"]) == 0:
                    status, reason = "degenerate", f"{split}: all {scores[0]['n']} predictions are equal"
        except Diverged as error:
            status, reason, rows, predictions = "diverged", str(error), [], {}
        ended = time.time()
        facts = {
            "data_hash": self.data_hash,
            "notes": self.rows.notes,
            "vocabulary": self.vocabulary,
            "rows": {name: len(split) for name, split in self.splits.items()},
            "cut_rows": {name: split.cut for name, split in self.splits.items()},
            "plugin_origin": self.trial.plugin.origin,
            "plugin_source": self.trial.plugin.source_hash,
            "suite_version": self.trial.suite.version,
            "device": str(self.device),
            "threads": self.train.threads,
            "updates": self.updates,
            "position_rms": self._position_rms(),
            "began": began,
            "ended": ended,
            **environment.facts(),
        }
        if self.device.type == "cuda":
            facts["peak_memory"] = torch.cuda.max_memory_allocated()
        record = Record(
            fingerprint=self.trial.fingerprint,
            label=self.trial.config.encoding.label,
            config=to_plain(self.trial.config),
            status=status,
            reason=reason,
            rows=rows,
            curves=self.curves,
            parameters=sum(p.numel() for p in self.model.parameters() if p.requires_grad),
            seconds=ended - began,
            step_seconds=statistics.median(self.step_seconds) if self.step_seconds else 0.0,
            facts=facts,
        )
        return record, predictions

    def _fit(self) -> None:
        train = self.train
        data = self.splits["train"]
        total = self.updates = updates(train, len(data))
        optimizer = torch.optim.AdamW(
            self.model.parameter_groups(train.weight_decay),
            lr=train.learning_rate,
            betas=(0.9, train.beta2),
            fused=True,
        )
        self.model, optimizer = self.accelerator.prepare(self.model, optimizer)
        schedule = LambdaLR(optimizer.optimizer, lambda step: learning_rate(step, total, train.warmup))
        # Dropout draws from the default generator and is the only thing that does.
        torch.manual_seed(number(self.trial.config.seed, "dropout"))
        batches = training_batches(data.lengths, train.batch_size, self.trial.config.seed)
        interval = max(1, total // INTERVALS)
        evaluations = {math.ceil(total * part / train.evaluations) for part in range(1, train.evaluations + 1)}
        best: tuple[float, dict[str, Tensor]] | None = None
        losses: list[Tensor] = []
        self.model.train()
        for step in range(1, total + 1):
            began = time.perf_counter()
            loss = self._loss(data, next(batches))
            self.accelerator.backward(loss)
            self.accelerator.clip_grad_norm_(self.model.parameters(), train.clip)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            self.step_seconds.append(time.perf_counter() - began)
            losses.append(loss.detach())
            if step % interval == 0 or step == total:
                mean = float(torch.stack(losses).mean())
                losses.clear()
                if not math.isfinite(mean):
                    raise Diverged(f"the training loss is {mean} at update {step} of {total}")
                self._point("train/loss", step, mean)
                self.progress(step, total)
            if step in evaluations:
                score = self._evaluate(step)
                if train.select == "best" and (best is None or score > best[0]):
                    best = score, {name: value.clone() for name, value in self.model.state_dict().items()}
        if best is not None:
            self.model.load_state_dict(best[1])

    def _loss(self, data: Encoded, index: np.ndarray) -> Tensor:
        output, labels = self._output(data, index), torch.from_numpy(data.labels[index]).to(self.device)
        if self.trial.task.kind == "regression":
            low, high = self.trial.task.bounds
            return functional.mse_loss(output.float(), (labels - low) / (high - low))
        return functional.cross_entropy(output.float(), labels)

    def _output(self, data: Encoded, index: np.ndarray) -> Tensor:
        lengths = data.lengths[index]
        width = int(lengths.max())
        ids = torch.from_numpy(data.ids[index, :width]).long().to(self.device)
        types = torch.from_numpy(data.types[index, :width]).long().to(self.device)
        causal = self.trial.config.model.shape != "encoder"
        if (lengths == width).all():
            at = Positions.first(width, causal=causal, device=self.device)
        else:
            at = Positions.right_padded(torch.from_numpy(lengths).to(self.device), width, causal=causal)
        return self.model(ids, token_type_ids=types, at=at)

    @torch.no_grad()
    def _predict(self, data: Encoded) -> np.ndarray:
        """(N,) or (N, C) float32 outputs, every row once and in its own place."""
        self.model.eval()
        order = list(scoring_batches(data.lengths, SCORING_BATCH))
        outputs = torch.cat([self._output(data, index).float() for index in order]).cpu().numpy()
        self.model.train()
        restored = np.empty_like(outputs)
        restored[np.concatenate(order)] = outputs
        return restored

    def _score(self, split: str) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
        task, data = self.trial.task, self.splits[split]
        output = self._predict(data)
        if not np.isfinite(output).all():
            raise Diverged(f"the model's output on {split} is not finite")
        predicted, gold = predicted_of(task, output), data.labels
        rows = [
            {
                "split": split,
                "length": self.trial.config.data.max_length,
                "metric": metric.name,
                "value": float(metric.function(gold=gold, predicted=predicted)),
                "n": len(gold),
                "higher_is_better": metric.higher_is_better,
                "primary": metric.name == task.primary,
            }
            for metric in task.metrics
        ]
        return rows, {f"{split}/gold": gold, f"{split}/predicted": predicted, f"{split}/output": output}

    def _evaluate(self, step: int) -> float:
        """Scores the selection split, adds its points to the curves, and returns the primary score, larger is better.

        An undefined score is never the best one.
        """
        rows, _ = self._score(self.rows.selection)
        for row in rows:
            self._point(f"{self.rows.selection}/{row['metric']}", step, row["value"])
        primary = next(row for row in rows if row["primary"])
        if math.isnan(primary["value"]):
            return -math.inf
        return primary["value"] if primary["higher_is_better"] else -primary["value"]

    def _point(self, metric: str, step: int, value: float) -> None:
        self.curves.append({"step": step, "metric": metric, "value": value})

    @torch.no_grad()
    def _position_rms(self) -> float:
        """Root mean square of what the encoding adds to the token embeddings, over theirs, with the first weights."""
        model = Transformer(
            self.trial.config.model,
            self.trial.encoding,
            self.trial.options,
            vocabulary=self.vocabulary,
            length=self.trial.config.data.max_length,
            head=head_of(self.trial.task),
        )
        model.initialise(self.trial.config.seed)
        data = self.splits["train"]
        tokens = model.tokens(torch.from_numpy(data.ids[:1, : data.lengths[0]]).long())
        added = model.encodings[0].embed(tokens, Positions.first(tokens.shape[1])) - tokens  # type: ignore[operator]
        return float((added.pow(2).mean() / tokens.pow(2).mean()).sqrt())


def head_of(task: Task) -> Head:
    """The head that a task asks for."""
    return Head(kind=task.kind, outputs=len(task.labels) if task.kind == "classification" else 1)


def predicted_of(task: Task, output: np.ndarray) -> np.ndarray:
    """Classes, or numbers on the task's scale and within its bounds."""
    if task.kind == "classification":
        return output.argmax(-1)
    low, high = task.bounds
    return (output * (high - low) + low).clip(low, high)


def updates(train: TrainConfig, rows: int) -> int:
    """Optimizer updates of a trial with so many training rows."""
    if train.steps is not None:
        return train.steps
    assert train.epochs is not None
    return max(1, math.ceil(train.epochs * rows / train.batch_size))


def learning_rate(step: int, total: int, warmup: float) -> float:
    """Share of the peak rate for update `step` (from 0): linear up, then linear down to 0 after the last update."""
    rising = max(1, round(total * warmup))
    return (step + 1) / rising if step < rising else (total - step) / max(1, total - rising)
