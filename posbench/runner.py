"""run(trial): the only training loop.

Everything random in it has its own stream: first weights, order of rows, dropout. Two trials that differ in the
encoding alone therefore share all three.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from posbench import environment
from posbench.config import TrainConfig, to_plain
from posbench.objective import Scores, objective_of
from posbench.positions import Positions
from posbench.seeds import number
from posbench.store import Record
from posbench.suite import TaskData
from posbench.transformer import Transformer
from posbench.trial import Trial, load_rows

# Training loss is averaged, and looked at for NaN, over intervals of which a trial has about this many.
INTERVALS = 40
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
        self.objective = objective_of(trial, self.device)
        self.model = Transformer(
            config.model,
            trial.encoding,
            trial.options,
            vocabulary=self.objective.vocabulary,
            length=config.data.max_length,
            head=self.objective.head(trial.task, self.objective.vocabulary),
        )
        self.model.initialise(config.seed)
        self.curves: list[dict[str, Any]] = []
        self.step_seconds: list[float] = []
        self.updates = 0

    def result(self) -> tuple[Record, dict[str, np.ndarray]]:
        began = time.time()
        status, reason = "done", ""
        rows: list[dict[str, Any]] = []
        apart: list[dict[str, Any]] = []
        predictions: dict[str, np.ndarray] = {}
        try:
            self._fit()
            for split in self.rows.scored:
                scores = self._score(split)
                predictions |= scores.arrays
                # An undefined score, such as the correlation with a constant, counts as 0 and is told.
                rows += [row | {"value": 0.0 if math.isnan(row["value"]) else row["value"]} for row in scores.rows]
                apart += scores.apart
                rows += scores.timed
                if scores.degenerate:
                    status, reason = "degenerate", scores.degenerate
        except Diverged as error:
            status, reason, rows, apart, predictions = "diverged", str(error), [], [], {}
        ended = time.time()
        facts = {
            "data_hash": self.data_hash,
            "notes": self.rows.notes,
            "vocabulary": self.objective.vocabulary,
            "rows": self.objective.counts,
            "cut_rows": self.objective.cut,
            "plugin_origin": self.trial.plugin.origin,
            "plugin_source": self.trial.plugin.source_hash,
            "suite_version": self.trial.suite.version,
            "stated": self.objective.stated(),
            "device": str(self.device),
            "threads": self.train.threads,
            "updates": self.updates,
            "position_rms": self._position_rms(),
            "began": began,
            "ended": ended,
            **environment.facts(),
        }
        if apart:
            facts["apart"] = apart
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
        total = self.updates = updates(train, self.objective.counts["train"])
        optimizer = torch.optim.AdamW(
            self.model.parameter_groups(train.weight_decay),
            lr=train.learning_rate,
            betas=(0.9, train.beta2),
            fused=True,
        )
        self.model, optimizer = self.accelerator.prepare(self.model, optimizer)
        schedule = LambdaLR(optimizer.optimizer, lambda step: learning_rate(step, total, train.warmup, train.schedule))
        # Dropout draws from the default generator and is the only thing that does.
        torch.manual_seed(number(self.trial.config.seed, "dropout"))
        batches = self.objective.batches(self.trial.config.seed)
        interval = max(1, total // INTERVALS)
        evaluations = {math.ceil(total * part / train.evaluations) for part in range(1, train.evaluations + 1)}
        best: tuple[float, dict[str, Tensor]] | None = None
        latest: deque[dict[str, Tensor]] = deque(maxlen=train.average)
        losses: list[Tensor] = []
        self.model.train()
        for step in range(1, total + 1):
            began = time.perf_counter()
            loss = self.objective.loss(self.model, next(batches))
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
                if train.average > 1:
                    latest.append({name: value.clone() for name, value in self.model.state_dict().items()})
        if best is not None:
            self.model.load_state_dict(best[1])
        if latest:
            # A mean of random features of before and after a redraw would be neither.
            self.model.load_state_dict(averaged(latest, {name for name, _ in self.model.named_buffers()}))

    @torch.no_grad()
    def _score(self, split: str) -> Scores:
        self.model.eval()
        scores = self.objective.score(self.model, split)
        self.model.train()
        if any(math.isinf(row["value"]) for row in scores.rows):
            raise Diverged(f"the model's output on {split} is not finite")
        return scores

    def _evaluate(self, step: int) -> float:
        """Scores the selection split, adds its points to the curves, and returns the primary score, larger is better.

        An undefined score is never the best one.
        """
        rows = self._score(self.rows.selection).rows
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
            vocabulary=self.objective.vocabulary,
            length=self.trial.config.data.max_length,
            head=self.objective.head(self.trial.task, self.objective.vocabulary),
        )
        model.initialise(self.trial.config.seed)
        tokens = model.tokens(self.objective.sample())
        added = model.encodings[0].embed(tokens, Positions.first(tokens.shape[1])) - tokens  # type: ignore[operator]
        return float((added.pow(2).mean() / tokens.pow(2).mean()).sqrt())


def updates(train: TrainConfig, rows: int) -> int:
    """Optimizer updates of a trial with so many training rows."""
    if train.steps is not None:
        return train.steps
    assert train.epochs is not None
    return max(1, math.ceil(train.epochs * rows / train.batch_size))


def learning_rate(step: int, total: int, warmup: float, schedule: str = "linear") -> float:
    """Share of the peak rate for update `step` (from 0): linear up, then down.

    Linear schedules come to 0 after the last update. An inverse-sqrt one (Vaswani et al. 2017, section 5.3) falls as
    1 / sqrt(update) and does not depend on the number of updates but for its warm-up.
    """
    rising = max(1, round(total * warmup))
    if step < rising:
        return (step + 1) / rising
    return math.sqrt(rising / (step + 1)) if schedule == "inverse-sqrt" else (total - step) / max(1, total - rising)


def averaged(states: Iterable[Mapping[str, Tensor]], buffers: Collection[str] = ()) -> dict[str, Tensor]:
    """The mean of several states of one model, summed in float64; its buffers are taken from the last."""
    kept = list(states)
    return {name: last if name in buffers else torch.stack([state[name].double() for state in kept]).mean(0).to(
        last.dtype) for name, last in kept[-1].items()}
