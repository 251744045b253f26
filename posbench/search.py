"""Where a search looks: points from Optuna's samplers, which propose and keep nothing. The only importer of optuna.

The points that an encoding shares with all others come from one sequence, and those of its own options from further
coordinates of another, so that an encoding with options to search has the same shared points as one without. Numbers
are rounded to four digits: a table then shows exactly what was trained, and the last bit of a logarithm, which differs
between machines, names no other trial.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, QMCSampler, RandomSampler, TPESampler
from optuna.trial import TrialState

from posbench.settings import Scalar
from posbench.space import Point, RangeConfig, SearchConfig, Space

DIGITS = 4


class Proposals:
    """The points of one encoding and task, in order; each is asked for once and told once its result is known."""

    def __init__(self, search: SearchConfig, space: Space) -> None:
        self.space = space
        self.known = _unseen(search, space, search.trials if search.sampler != "tpe" else search.startup)
        self.study: optuna.Study | None = None
        self.asked: list[optuna.Trial] = []
        if search.sampler == "tpe":
            with _quiet():
                sampler = TPESampler(seed=search.sampler_seed, n_startup_trials=search.startup, multivariate=True,
                                     constant_liar=False)
            self.study = _study(sampler)
            for values in self.known:
                self.study.enqueue_trial(_named(values))

    def ask(self, index: int) -> Point:
        """The point of this index; with TPE the results of all earlier ones have been told."""
        if self.study is None:
            return self._point(self.known[index])
        trial = self.study.ask(_distributions(self.space))
        self.asked.append(trial)
        return self._point([trial.params[name] for name in sorted(trial.params)])

    def tell(self, index: int, value: float | None) -> None:
        """The score of a point, larger is better; None for one that has no score and ranks last."""
        if self.study is not None:
            # A pruned trial without intermediate values is what TPE ranks below all others; a failed one it forgets.
            if value is None:
                self.study.tell(self.asked[index], state=TrialState.PRUNED)
            else:
                self.study.tell(self.asked[index], value)

    def _point(self, values: Sequence[Any]) -> Point:
        entries = [
            (name, _value(bounds, value, name in self.space.whole))
            for (name, bounds), value in zip(self.space.parts, values, strict=True)
        ]
        cut = len(self.space.shared)
        return Point(shared=dict(entries[:cut]), own=dict(entries[cut:]))


def _unseen(search: SearchConfig, space: Space, count: int) -> list[list[Any]]:
    """`count` points that look at no result, as values in the order of the space's parts."""
    shared = Space(shared=space.shared, whole=space.whole)
    cut = len(space.shared)
    first = _sequence(search, shared, count, search.sampler_seed) if cut else [[] for _ in range(count)]
    if not space.own:
        return first
    # The last coordinates of a whole sequence: shared and own ones together still fill the space evenly.
    second = _sequence(search, space, count, search.sampler_seed + 1)
    return [one + other[cut:] for one, other in zip(first, second, strict=True)]


def _sequence(search: SearchConfig, space: Space, count: int, seed: int) -> list[list[Any]]:
    distributions = _distributions(space)
    with _quiet():
        sampler = RandomSampler(seed=seed) if search.sampler == "random" else QMCSampler(seed=seed, scramble=True)
        study = _study(sampler)
        # A sampler of sequences draws its first trial at random, because it does not know the space yet: it is told.
        study.add_trial(optuna.trial.create_trial(value=0.0, distributions=distributions,
                                                  params={name: _least(part) for name, part in distributions.items()}))
        found = []
        for _ in range(count):
            params = study.ask(distributions).params
            found.append([params[name] for name in sorted(params)])
        return found


def _distributions(space: Space) -> dict[str, BaseDistribution]:
    """By '000', '001', ...: the order of names is the order of the parts."""
    return {f"{place:03d}": _distribution(bounds, name in space.whole)
            for place, (name, bounds) in enumerate(space.parts)}


def _named(values: Sequence[Any]) -> dict[str, Any]:
    return {f"{place:03d}": value for place, value in enumerate(values)}


def _distribution(bounds: RangeConfig, whole: bool) -> BaseDistribution:
    if bounds.choices is not None:
        return CategoricalDistribution(tuple(range(len(bounds.choices))))
    assert bounds.low is not None and bounds.high is not None
    if whole:
        return IntDistribution(int(bounds.low), int(bounds.high), log=bounds.log, step=int(bounds.step or 1))
    return FloatDistribution(bounds.low, bounds.high, log=bounds.log, step=bounds.step)


def _least(distribution: Any) -> Any:
    return 0 if isinstance(distribution, CategoricalDistribution) else distribution.low


def _value(bounds: RangeConfig, value: Any, whole: bool) -> Scalar:
    if bounds.choices is not None:
        return bounds.choices[int(value)]
    if whole:
        return int(value)
    assert bounds.low is not None and bounds.high is not None
    return min(max(float(f"{value:.{DIGITS}g}"), bounds.low), bounds.high)


def _study(sampler: BaseSampler) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with _quiet():
        return optuna.create_study(direction="maximize", sampler=sampler, pruner=optuna.pruners.NopPruner())


def _quiet() -> warnings.catch_warnings:
    """Without Optuna's word on what is experimental; the versions in use are stated with every result."""
    return warnings.catch_warnings(action="ignore")
