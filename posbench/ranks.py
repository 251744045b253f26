"""Encodings ranked over several tasks (Demsar 2006, Statistical Comparisons of Classifiers over Multiple Data Sets)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from posbench.stats import holm

RESAMPLES = 10_000
"""Random orders of ranks for the p of Friedman's test; fewer possible orders than this are all tried."""


@dataclass(frozen=True, kw_only=True)
class Friedman:
    """Friedman's test of 'all encodings rank alike'.

    Attributes:
        chi2: 12 N / (k (k+1)) [sum R_j^2 - k (k+1)^2 / 4], without a correction for ties (scipy's has one).
        chi2_p: p of chi2 by its asymptotic distribution.
        f: Iman and Davenport's (N-1) chi2 / (N (k-1) - chi2); infinite where all tasks agree.
        f_p: p of f by its asymptotic distribution.
        p: p by permuting ranks within tasks. The one to print: the asymptotic ones are wrong for few tasks (with two
            tasks and two encodings f_p is 0 half of the time).
        k, n: number of encodings and of tasks.
        form: which statistic this is, in words.
    """

    chi2: float
    chi2_p: float
    f: float
    f_p: float
    p: float
    k: int
    n: int
    form: str = "untied form of Demsar (2006), p by permutation within tasks"


@dataclass(frozen=True, kw_only=True)
class Control:
    """Encodings against a control by average ranks, in the order given.

    Attributes:
        z: (R_i - R_0) / sqrt(k (k+1) / 6N); NaN for the control itself. Positive: worse than the control.
        p: two-sided, normal.
        p_holm: adjusted over the k - 1 comparisons.
    """

    z: tuple[float, ...]
    p: tuple[float, ...]
    p_holm: tuple[float, ...]


def rank_rows(scores: np.ndarray, *, higher_is_better: Sequence[bool] | bool = True) -> np.ndarray:
    """Ranks within each task, 1 is best, ties averaged.

    A cell without a score (NaN) ranks last: an encoding that diverged is worse than any that did not.

    Args:
        scores: (N, k), one row a task and one column an encoding.
        higher_is_better: one direction, or one a task.
    """
    scores = np.asarray(scores, dtype=float)
    direction = np.broadcast_to(np.asarray(higher_is_better, dtype=bool), (len(scores),))
    worse = np.where(direction[:, None], -scores, scores)
    return np.asarray(stats.rankdata(np.where(np.isnan(worse), np.inf, worse), axis=1))


def friedman(ranks: np.ndarray, *, seed: int = 0) -> Friedman:
    """Friedman's and Iman-Davenport's statistics of an (N, k) table of ranks, N and k at least 2."""
    n, k = ranks.shape
    if n < 2 or k < 2:
        raise ValueError(f"ranks of {k} encodings on {n} tasks cannot be tested, two of each are the least")
    chi2 = float(_chi2(*ranks.T))
    rest = n * (k - 1) - chi2
    f = (n - 1) * chi2 / rest if rest > 1e-9 else math.inf
    test = stats.permutation_test(tuple(ranks.T), _chi2, permutation_type="samples", vectorized=True, batch=2_000,
                                  n_resamples=RESAMPLES, alternative="greater", rng=np.random.default_rng(seed))
    return Friedman(chi2=chi2, chi2_p=float(stats.chi2.sf(chi2, k - 1)), f=f,
                    f_p=float(stats.f.sf(f, k - 1, (k - 1) * (n - 1))), p=float(test.pvalue), k=k, n=n)


def critical_difference(*, k: int, n: int, alpha: float) -> float:
    """Nemenyi's distance of two average ranks: q sqrt(k (k+1) / 6N), q the studentized range over sqrt 2."""
    return float(stats.studentized_range.ppf(1 - alpha, k, np.inf)) / math.sqrt(2) * _rank_error(k, n)


def against_control(average_ranks: Sequence[float], *, control: int, n: int) -> Control:
    """Compares each encoding with one of them, the control.

    Args:
        average_ranks: over the n tasks, one an encoding.
        control: index of the control in it.
    """
    error = _rank_error(len(average_ranks), n)
    z = [math.nan if place == control else float(rank - average_ranks[control]) / error
         for place, rank in enumerate(average_ranks)]
    p = [math.nan if math.isnan(score) else float(2 * stats.norm.sf(abs(score))) for score in z]
    adjusted = iter(holm([value for place, value in enumerate(p) if place != control]))
    return Control(z=tuple(z), p=tuple(p),
                   p_holm=tuple(math.nan if place == control else next(adjusted) for place in range(len(p))))


def _rank_error(k: int, n: int) -> float:
    return math.sqrt(k * (k + 1) / (6 * n))


def _chi2(*ranks: np.ndarray, axis: int = -1) -> np.ndarray:
    means = np.stack([np.mean(column, axis=axis) for column in ranks])
    n, k = ranks[0].shape[axis], len(ranks)
    return 12 * n / (k * (k + 1)) * (np.sum(means**2, axis=0) - k * (k + 1) ** 2 / 4)
