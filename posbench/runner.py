"""run(trial): the only training loop.

Everything random in it has its own stream: first weights, order of rows, dropout. Two trials that differ in the
encoding alone therefore share all three.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGTERM
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import LambdaLR

from posbench import distributed, environment
from posbench.checkpoint import Checkpoints, pause
from posbench.config import TrainConfig, to_plain
from posbench.errors import Terminated
from posbench.interrupt import Deferred
from posbench.objective import Scores, objective_of
from posbench.positions import Positions
from posbench.registry import SUITES
from posbench.schedule import learning_rate, updates
from posbench.seeds import number
from posbench.stopwatch import Stopwatch
from posbench.store import Record
from posbench.suite import TaskData
from posbench.training import Training, averaged
from posbench.transformer import Transformer
from posbench.trial import Trial, load_rows

# Training loss is averaged, and looked at for NaN, over intervals of which a trial has about this many.
INTERVALS = 40
Progress = Callable[[int, int], None]


class Diverged(Exception):
    """The loss is no finite number any more."""


class Pruned(Exception):
    """A search's trial is worse than its threshold."""


def run(trial: Trial, progress: Progress | None = None,
        checkpoints: Checkpoints | None = None) -> tuple[Record, dict[str, np.ndarray]]:
    """Trains and scores one trial.

    Args:
        trial: what to run.
        progress: called with the number of updates done and planned.
        checkpoints: where training is put down from time to time, and taken up again; see `checkpoints_of`. A signal
            to end then waits for the step at work and a checkpoint.

    Returns:
        The record for the store, and per-example arrays by '<split>/gold', '<split>/predicted' and '<split>/output'.
    """
    return _Run(trial, progress or (lambda done, planned: None), checkpoints).result()


def checkpoints_of(trial: Trial, folder: Path, tell: Callable[[str], None] = lambda line: None) -> Checkpoints:
    """Checkpoints of a trial in a folder; those of other code, libraries or another kind of device are not this one's.

    Args:
        tell: called with a line for the user, when none can be written.
    """
    versions = environment.facts()["versions"]
    identity = {
        "fingerprint": trial.fingerprint,
        "encoding": trial.plugin.name,
        "suite": SUITES.load(trial.suite.name).source_hash,
        "code": environment.code_hash(),
        "torch": versions["torch"],
        "numpy": versions["numpy"],
        "device": "cuda" if distributed.on_gpu(trial.config.train.device) else "cpu",
        "processes": str(distributed.world()),
    }
    return Checkpoints(folder, identity, pause=pause(), tell=tell)


class _Run:
    """One trial under way."""

    def __init__(self, trial: Trial, progress: Progress, checkpoints: Checkpoints | None = None) -> None:
        self.trial, self.progress, self.checkpoints = trial, progress, checkpoints
        config = trial.config
        self.train: TrainConfig = config.train
        self.accelerator = distributed.accelerator(self.train.device)
        torch.set_num_threads(self.train.threads)
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
        self.updates = updates(self.train, self.objective.counts["train"])
        optimizer = torch.optim.AdamW(
            self.model.parameter_groups(self.train.weight_decay),
            lr=self.train.learning_rate,
            betas=(0.9, self.train.beta2),
            fused=True,
        )
        # What trains may be wrapped; it shares its weights with the model, which scores.
        self.wrapped, self.optimizer = self.accelerator.prepare(self.model, optimizer)
        self.schedule = LambdaLR(optimizer, lambda step: learning_rate(step, self.updates, self.train.warmup,
                                                                       self.train.schedule))
        self.state = Training(self.model, optimizer, self.schedule, average=self.train.average)
        self.watch = Stopwatch()

    def result(self) -> tuple[Record, dict[str, np.ndarray]]:
        status, reason = "done", ""
        rows: list[dict[str, Any]] = []
        apart: list[dict[str, Any]] = []
        predictions: dict[str, np.ndarray] = {}
        try:
            self._fit()
            # A trial that tunes never sees a split that reports.
            for split in self.rows.scored if self.trial.config.tuning is None else (self.rows.selection,):
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
        except Pruned as error:
            status, reason = "pruned", str(error)
        dates = self.watch.dates()
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
            "processes": distributed.world(),
            "updates": self.updates,
            "position_rms": self._position_rms(),
            **dates,
            "resumed": self.state.resumed,
            **environment.facts(),
        }
        if events := self.state.events:
            facts["checkpoints"] = events
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
            curves=self.state.curves,
            parameters=sum(p.numel() for p in self.model.parameters() if p.requires_grad),
            seconds=self._spent(),
            step_seconds=statistics.median(self.state.step_seconds) if self.state.step_seconds else 0.0,
            facts=facts,
        )
        return record, predictions

    def _fit(self) -> None:
        train, total, state = self.train, self.updates, self.state
        # Dropout draws from the default generator and is the only thing that does.
        torch.manual_seed(number(self.trial.config.seed, "dropout"))
        if self.checkpoints is not None:
            self.checkpoints.restore(state.restore)
            state.events += self.checkpoints.events
            self.checkpoints.events = state.events
        distributed.same_start(state, self.trial.config.seed)
        # Rows depend on the seed alone: those of updates that were done before are passed over, not trained on.
        batches = itertools.islice(self.objective.batches(self.trial.config.seed), state.step, None)
        interval = max(1, total // INTERVALS)
        steps = {math.ceil(total * part / train.evaluations) for part in range(1, train.evaluations + 1)}
        evaluations = {step: place for place, step in enumerate(sorted(steps))}
        self.model.train()
        with Deferred(active=self.checkpoints is not None or distributed.world() > 1) as signals:
            for step in range(state.step + 1, total + 1):
                began = time.perf_counter()
                rows, share = distributed.part(next(batches), self.objective)
                loss = self.objective.loss(self.wrapped, rows) * share
                self.accelerator.backward(loss)
                self.accelerator.clip_grad_norm_(self.model.parameters(), train.clip)
                self.optimizer.step()
                self.schedule.step()
                self.optimizer.zero_grad()
                state.step_seconds.append(time.perf_counter() - began)
                state.losses.append(loss.detach())
                if step % interval == 0 or step == total:
                    mean = float(self.accelerator.reduce(torch.stack(state.losses).mean(), "mean"))
                    state.losses.clear()
                    if not math.isfinite(mean):
                        raise Diverged(f"the training loss is {mean} at update {step} of {total}")
                    self._point("train/loss", step, mean)
                    self.progress(step, total)
                if step in evaluations:
                    score = self._evaluate(step)
                    self._stop_if_worse(score, evaluations[step], step)
                    if train.select == "best" and (state.best is None or score > state.best[0]):
                        state.best = score, state.weights()
                    if train.average > 1:
                        state.latest.append(state.weights())
                state.step = step
                # A signal that comes from here on waits for the next step, and its checkpoint.
                stop = distributed.any_of_us(signals.asked)
                if self.checkpoints is not None and (stop or self.checkpoints.due()):
                    self.checkpoints.write(step, lambda: state.capture(self._spent()))
                if stop:
                    signals.obey()
                    raise Terminated(128 + SIGTERM)  # another process of this trial was asked
        if state.best is not None:
            self.model.load_state_dict(state.best[1])
        if state.latest:
            # A mean of random features of before and after a redraw would be neither.
            self.model.load_state_dict(averaged(state.latest, {name for name, _ in self.model.named_buffers()}))

    def _spent(self) -> float:
        """Seconds of this trial up to now, those of processes that were interrupted included."""
        return self.state.spent + self.watch.seconds

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

    def _stop_if_worse(self, score: float, place: int, step: int) -> None:
        """Ends a search's trial whose score, larger is better, is below its threshold of this evaluation (from 0)."""
        tuning = self.trial.config.tuning
        threshold = tuning.thresholds[place] if tuning and place < len(tuning.thresholds) else None
        if threshold is not None and score < (
                threshold if self.trial.task.primary_metric.higher_is_better else -threshold):
            raise Pruned(f"{self.trial.task.primary} {abs(score):.4g} at update {step} is worse than {threshold:.4g}, "
                         "the median of earlier points")

    def _point(self, metric: str, step: int, value: float) -> None:
        self.state.curves.append({"step": step, "metric": metric, "value": value})

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
