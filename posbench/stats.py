"""Statistics of a few seeds: numbers in, numbers out. What scipy has is scipy's.

Deviations are those of a sample (ddof = 1). Values that are not finite are refused: what to do with a run that has no
score is a decision for the caller, and never an omission in here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

EXACT = 14
"""Up to this many pairs all 2^n assignments of signs are tried."""

DRAWS = 100_000
"""Random assignments beyond that."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean and how well it is known.

    Attributes:
        mean: in the values' own unit, as are sd, error and half_width.
        sd: sample standard deviation (ddof = 1); NaN for one value.
        error: standard error of the mean, sd / sqrt(n); NaN for one value.
        half_width: half of the Student-t interval; NaN for one value, which has no interval.
        n: number of values.
    """

    mean: float
    sd: float
    error: float
    half_width: float
    n: int

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.mean + self.half_width


def t_interval(values: Sequence[float], *, confidence: float = 0.95) -> Estimate:
    """Mean with its Student-t interval, which keeps its coverage at 3 seeds; a bootstrap covers 73 % there."""
    sample = _finite(values, least=1)
    n = len(sample)
    if n == 1:
        return Estimate(mean=float(sample[0]), sd=math.nan, error=math.nan, half_width=math.nan, n=1)
    sd = float(np.std(sample, ddof=1))
    error = sd / math.sqrt(n)
    half_width = float(stats.t.ppf((1 + confidence) / 2, n - 1)) * error
    return Estimate(mean=float(np.mean(sample)), sd=sd, error=error, half_width=half_width, n=n)


def paired_difference(*, treatment: Sequence[float], baseline: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Mean of treatment - baseline over pairs in the same order, with the t interval of the differences."""
    if len(treatment) != len(baseline):
        raise ValueError(f"{len(treatment)} values against {len(baseline)}: pairs need equally many")
    return t_interval(_finite(treatment, least=1) - _finite(baseline, least=1), confidence=confidence)


def sign_flip_p(differences: Sequence[float], *, draws: int = DRAWS, seed: int = 0) -> float:
    """Two-sided p of the paired permutation test that flips signs of differences (Dror et al. 2018, section 3.2).

    Exact up to 2^14 assignments, so the smallest possible p of n pairs is 2 / 2^n; beyond that (r + 1) / (R + 1) over
    `draws` random assignments drawn from `seed`. Differences that are all zero give 1.
    """
    sample = _finite(differences, least=1)
    largest = float(np.max(np.abs(sample)))
    if largest == 0:
        return 1.0
    if len(sample) == 1:
        return 1.0  # both assignments of one pair are equally far from zero
    # Whole numbers add up without rounding, so assignments that tie with the one observed are counted as ties.
    steps = np.round(sample / largest * 2.0**36)
    exact = len(sample) <= EXACT
    test = stats.permutation_test((steps,), _total, permutation_type="samples", vectorized=True, batch=10_000,
                                  n_resamples=2**EXACT if exact else draws, rng=np.random.default_rng(seed))
    return float(test.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given (Holm 1979).

    A comparison that was declared and could not be made (NaN) stays in the family: it counts as p = 1 and comes back
    as NaN, so that a run that failed makes nobody else's result easier to reach.
    """
    # Four lines, because statsmodels' multipletests collects the interpreter's garbage at every call (40 ms); the tests
    # hold them against it.
    raw = np.asarray(p_values, dtype=float)
    order = np.argsort(raw)  # NaN last, where p = 1 belongs
    stepped = np.maximum.accumulate(np.nan_to_num(raw[order], nan=1.0) * np.arange(len(raw), 0, -1))
    adjusted = np.empty(len(raw))
    adjusted[order] = np.minimum(stepped, 1.0)
    return [math.nan if math.isnan(p) else float(a) for p, a in zip(raw, adjusted, strict=True)]


def seeds_needed(*, comparisons: int, alpha: float) -> int:
    """Fewest pairs at which the sign-flip test can reach alpha after Holm: ceil(log2(2 m / alpha))."""
    # The rounding keeps a logarithm that is a whole number, such as that of 2 / 0.0625, from being raised by one.
    return math.ceil(round(math.log2(2 * comparisons / alpha), 9))


def detectable_difference(*, sd: float, n: int, alpha: float, power: float = 0.8) -> float:
    """Smallest true paired difference that a two-sided paired t test finds with the given power, in the unit of sd.

    Args:
        sd: sample standard deviation of the paired differences.
        n: number of pairs; one pair detects nothing, and the answer is infinite.
    """
    if n < 2:
        return math.inf
    if sd == 0:
        return 0.0
    # Upper tail alone: the lower one adds nothing visible at this power, and both scipy's and statsmodels' value of it
    # is NaN for the large effects that 2 or 3 pairs with a small alpha need.
    critical = float(stats.t.ppf(1 - alpha / 2, n - 1))
    found = optimize.brentq(lambda shift: float(stats.nct.sf(critical, n - 1, shift)) - power, 0, 10 * (critical + 3))
    return float(found) / math.sqrt(n) * sd


def probability_of_improvement(*, treatment: Sequence[float], baseline: Sequence[float]) -> float:
    """P(A > B) over all pairs of runs, ties one half (Agarwal et al. 2021, section 4.3)."""
    a, b = _finite(treatment, least=1), _finite(baseline, least=1)
    return float(stats.mannwhitneyu(a, b).statistic) / (len(a) * len(b))


def interquartile_mean(values: Sequence[float]) -> float:
    """Mean of the middle half (Agarwal et al. 2021, section 4.3)."""
    return float(stats.trim_mean(_finite(values, least=1), 0.25))


def expected_best(values: Sequence[float], *, n: int, higher_is_better: bool = True, biased: bool = False) -> float:
    """Expected best score of n of the N trials at hand.

    Unbiased, over draws without replacement: sum_i v_(i) C(i-1, n-1) / C(N, n) (Tang et al. 2020, equation 3); with
    `biased` over draws with replacement (Dodge et al. 2019, equation 5), which is too low.

    Raises:
        ValueError: n is larger than N: the best of more trials than were run is not known.
    """
    sample = np.sort(_finite(values, least=1) if higher_is_better else -_finite(values, least=1))
    total = len(sample)
    if not 1 <= n <= total:
        raise ValueError(f"the best of {n} trials cannot be told from {total}: choose n from 1 to {total}")
    if biased:
        cumulative = (np.arange(total + 1) / total) ** n
        weights = np.diff(cumulative)
    else:
        weights = np.array([math.comb(place, n - 1) / math.comb(total, n) for place in range(total)])
    best = float(weights @ sample)
    return best if higher_is_better else -best


def _total(sample: np.ndarray, axis: int) -> np.ndarray:
    return np.sum(sample, axis=axis)


def _finite(values: Sequence[float], *, least: int) -> np.ndarray:
    sample = np.asarray(values, dtype=float)
    if sample.ndim != 1 or sample.size < least:
        raise ValueError(f"expected {least} or more values in one dimension, got shape {sample.shape}")
    if not np.isfinite(sample).all():
        raise ValueError(f"values must be finite, got {values}")
    return sample
