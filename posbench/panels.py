"""What of a study's scores a panel of a figure shows: which points, how far its axis reaches, and bands within it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from posbench.stats import t_interval

Ranges = Mapping[tuple[str, str], tuple[float, float]]
"""By task and metric the smallest and largest value that a score can have."""

UNLIMITED = (-math.inf, math.inf)


def limits(values: pd.Series) -> tuple[float, float]:
    """Ends of an axis: those of the values of single seeds, and a twentieth beyond.

    Bands of few seeds reach far outside of what a score can be, and would press the lines together.
    """
    low, high = float(values.min()), float(values.max())
    room = 0.05 * (high - low) or 0.05
    return low - room, high + room


def band(values: pd.Series, within: tuple[float, float]) -> tuple[float, float]:
    """The 95 % t interval of the mean, as far as it lies within the metric's range."""
    estimate = t_interval(values.tolist())
    return max(estimate.low, within[0]), min(estimate.high, within[1])


def whole(points: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, int]]:
    """The points of each encoding up to the first step at which one of its seeds has no finite value.

    A mean over the seeds that are left would jump where one leaves, and a later step with all seeds would bridge the
    gap.

    Args:
        points: columns encoding, seed, step and value.

    Returns:
        The points, and by encoding the last step of a line that ends before its longest seed.
    """
    kept, ends = [], {}
    for encoding, own in points.groupby("encoding", sort=False, dropna=False):
        finite = own[np.isfinite(own["value"])]
        complete = finite.groupby("step")["seed"].nunique() == own["seed"].nunique()
        steps = sorted(own["step"].unique())
        lost = next((place for place, step in enumerate(steps) if not complete.get(step, False)), len(steps))
        kept.append(finite[finite["step"].isin(steps[:lost])])
        if 0 < lost < len(steps):
            ends[str(encoding)] = int(steps[lost - 1])
    return pd.concat(kept), ends


def repeats(panel: tuple[tuple, pd.DataFrame], earlier: tuple[tuple, pd.DataFrame]) -> bool:
    """Whether a panel shows what another of its task does, as token accuracy does where answers are one token."""
    if panel[0][0] != earlier[0][0]:
        return False
    names = ["encoding", "seed", "length"]
    one, two = (part[1].set_index(names)["value"].sort_index() for part in (panel, earlier))
    return one.equals(two)


def seeds(points: pd.DataFrame) -> str:
    """'3 seeds', or '2 to 3 seeds' where encodings differ."""
    counts = sorted(set(points.groupby("encoding", dropna=False)["seed"].nunique()))
    span = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{span} seed{'' if counts == [1] else 's'}"
