"""How many updates a trial makes, and the learning rate of each."""

from __future__ import annotations

import math

from posbench.config import TrainConfig


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
