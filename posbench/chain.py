"""The points of one encoding and task: what they are, what became of them, and which of them is best."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, get_args, get_type_hints

from posbench.config import EncodingChoice, StudyConfig, TrialConfig, override
from posbench.space import Point, SearchConfig, Space, TuningConfig
from posbench.store import Record
from posbench.trial import Trial, load_rows, resolve

if TYPE_CHECKING:
    from posbench.search import Proposals

SCORED = ("done", "degenerate")
"""Statuses of trials that have a score."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A point with its trials, one for each tuning seed, and what is known of them."""

    index: int
    point: Point
    trials: tuple[Trial, ...]
    records: tuple[Record, ...]
    selection: str

    @property
    def status(self) -> str:
        """'scored', or what became of the worst of its trials."""
        found = {record.status for record in self.records}
        return next((name for name in ("failed", "refused", "diverged", "pruned") if name in found), "scored")

    @property
    def score(self) -> float | None:
        """Mean score on the selection split over the tuning seeds; None unless every one of them has it."""
        if self.status != "scored":
            return None
        return statistics.fmean(final(record, self.selection) for record in self.records)


class Chain:
    """All points of one encoding and task.

    Attributes:
        encoding, task: what is tuned. trials: by point, one for each tuning seed, as far as they are determined.
    """

    def __init__(self, study: StudyConfig, encoding: EncodingChoice, task: str) -> None:
        assert study.search is not None
        self.study, self.encoding, self.task, self.search = study, encoding, task, study.search
        self.points: list[Point] = []
        self.trials: list[tuple[Trial, ...]] = []
        self.told = 0
        plain = resolve(study.trial(encoding, task, self.search.seeds[0]))
        self.metric = plain.task.primary_metric
        self.evaluations = plain.config.train.evaluations
        self.selection = load_rows(plain.config.suite, task, plain.config.data)[0].selection
        self.space = space_of(self.search, encoding, plain)

    @cached_property
    def proposals(self) -> Proposals:
        from posbench.search import Proposals

        return Proposals(self.search, self.space)

    def advance(self, records: Mapping[str, Record]) -> None:
        """Determines every point that the records, by fingerprint, allow."""
        while len(self.points) < self.search.trials and (self.search.free or self._all_told(records)):
            point = self.proposals.ask(len(self.points))
            trials = tuple(resolve(self._config(point, seed, records)) for seed in self.search.seeds)
            self.points.append(point)
            self.trials.append(trials)

    def _all_told(self, records: Mapping[str, Record]) -> bool:
        tried = self.tried(records)
        for entry in tried[self.told:]:
            self.proposals.tell(entry.index, None if entry.score is None else self._upward(entry.score))
            self.told += 1
        return self.told == len(self.points)

    def tried(self, records: Mapping[str, Record]) -> list[Tried]:
        """The points whose trials are all known, in order; none after the first whose are not."""
        found: list[Tried] = []
        for index, (point, trials) in enumerate(zip(self.points, self.trials, strict=True)):
            if not all(trial.fingerprint in records for trial in trials):
                if self.search.free:
                    continue
                break
            found.append(Tried(index=index, point=point, trials=trials, selection=self.selection,
                               records=tuple(records[trial.fingerprint] for trial in trials)))
        return found

    def chosen(self, records: Mapping[str, Record]) -> Tried | None:
        """The point with the best mean score, the earlier one of equals; None where no point has a score."""
        scored = [entry for entry in self.tried(records) if entry.score is not None]
        return max(scored, key=lambda entry: (self._upward(entry.score or 0.0), -entry.index), default=None)

    def whole(self, records: Mapping[str, Record]) -> bool:
        """Whether every point of the budget is known."""
        return len(self.tried(records)) == self.search.trials

    def _upward(self, score: float) -> float:
        return score if self.metric.higher_is_better else -score

    def _config(self, point: Point, seed: int, records: Mapping[str, Record]) -> TrialConfig:
        config = configured(self.study, self.encoding, self.task, seed, point)
        # What is scored beside the selection split says nothing here.
        return dataclasses.replace(override(config, {"evaluation.variants": ""}),
                                   tuning=TuningConfig(thresholds=self._thresholds(seed, records)))

    def _thresholds(self, seed: int, records: Mapping[str, Record]) -> tuple[float | None, ...]:
        """By evaluation but the last, the median of the same seed's earlier points; who was not there was worst."""
        if self.search.pruning == "none" or len(self.points) < self.search.startup:
            return ()
        earlier = [record for entry in self.tried(records) for record in entry.records
                   if record.config["seed"] == seed]
        courses = [[self._upward(value) for value in course(record, self.selection, self.metric.name)]
                   for record in earlier]
        medians = [statistics.median(found[place] if place < len(found) else -math.inf for found in courses)
                   for place in range(self.evaluations - 1)]
        kept = [self._upward(value) if math.isfinite(value) and place + 1 >= self.search.stop_from else None
                for place, value in enumerate(medians)]
        return tuple(kept) if any(value is not None for value in kept) else ()


def final(record: Record, selection: str) -> float:
    """The primary score on the selection split, and on no other, with which a trial of a search ended."""
    return next(float(row["value"]) for row in record.rows if row["primary"] and row["split"] == selection)


def course(record: Record, selection: str, metric: str) -> list[float]:
    """The primary score on the selection split at each evaluation that the trial reached; an undefined one is worst."""
    by_step: dict[int, float] = {}
    for entry in record.curves:
        if entry["metric"] == f"{selection}/{metric}":
            by_step.setdefault(entry["step"], entry["value"])
    return list(by_step.values())


def space_of(search: SearchConfig, encoding: EncodingChoice, trial: Trial) -> Space:
    """The dimensions of one encoding: the shared ones, and its own with those that are whole numbers named."""
    own = search.own.get(encoding.label, {})
    hints = get_type_hints(type(trial.options))
    kinds = {name: {hints.get(name), *get_args(hints.get(name))} for name in own}
    whole = frozenset(name for name, kind in kinds.items() if int in kind and float not in kind)
    return Space(shared=search.space or {}, own=own, whole=whole)


def configured(study: StudyConfig, encoding: EncodingChoice, task: str, seed: int, point: Point) -> TrialConfig:
    """The trial of a cell with a point's values in place of the study's and the task's."""
    config = override(study.trial(encoding, task, seed), point.shared, where="search.space")
    return dataclasses.replace(config, searched=dict(point.own))
