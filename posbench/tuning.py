"""Tuning: the trials of a search, and the settings that it chooses for each encoding and task.

The store is the truth. A chain of points is walked again from its beginning whenever a study is called: each point's
trials are ordinary ones, whose results are there or are run, so that a search which was killed loses and repeats
nothing. What a point is depends on the sampler's seed and on the results of earlier points of its own chain alone,
never on the number of jobs.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from posbench.ablation import options_of
from posbench.chain import Chain, Tried, configured
from posbench.checkpoint import clear
from posbench.config import EncodingChoice, StudyConfig, override, to_plain
from posbench.errors import UserError, nearest
from posbench.execute import Executor
from posbench.space import Point, RangeConfig, SearchConfig
from posbench.store import Record, Store
from posbench.study import OPEN, Plan, Watch, fits, stored
from posbench.track import Tracker
from posbench.trial import Trial, resolve

At = Callable[..., contextlib.AbstractContextManager[None]]


def default_space(study: StudyConfig) -> dict[str, dict[str, Any]]:
    """Around the study's own values: the rate from 0.3 to 3 times, the warm-up by 2, the decay by 10 either way."""
    trains = [study.trial(dataclasses.replace(study.encodings[0], model={}), task, 0).train for task in study.tasks]
    rates = [train.learning_rate for train in trains]
    space: dict[str, dict[str, Any]] = {
        "train.learning_rate": {"low": _short(0.3 * min(rates)), "high": _short(3 * max(rates)), "log": True}
    }
    if warmups := [train.warmup for train in trains if train.warmup]:
        space["train.warmup"] = {"low": _short(min(warmups) / 2), "high": _short(min(2 * max(warmups), 0.9))}
    if decays := [train.weight_decay for train in trains if train.weight_decay]:
        space["train.weight_decay"] = {"low": _short(min(decays) / 10), "high": _short(10 * max(decays)), "log": True}
    return space


def _short(value: float) -> float:
    return float(f"{value:.4g}")


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """A search as far as it is known: its chains, and the records of their trials by fingerprint."""

    chains: tuple[Chain, ...]
    records: Mapping[str, Record] = field(default_factory=dict)

    @property
    def search(self) -> SearchConfig:
        """What was asked for."""
        return self.chains[0].search

    @property
    def planned(self) -> int:
        """Number of tuning trials of the whole budget."""
        return sum(chain.search.trials * len(chain.search.seeds) for chain in self.chains)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Those determined so far, in the order in which they run, each once: a small space repeats points."""
        longest = max((len(chain.trials) for chain in self.chains), default=0)
        found = [trial for index in range(longest) for chain in self.chains if index < len(chain.trials)
                 for trial in chain.trials[index]]
        return tuple({trial.fingerprint: trial for trial in found}.values())

    def anew(self) -> Tuned:
        """Nothing known: a chain remembers what it was told, and other records make another chain."""
        return Tuned(chains=tuple(Chain(chain.study, chain.encoding, chain.task) for chain in self.chains))


def opened(plan: Plan) -> Plan:
    """The plan of a study that searches, with no result known: its tuning trials, and cells whose settings are open.

    Raises:
        UserError: a range, an option or a label that does not fit, told before anything runs.
    """
    study = plan.study
    assert study.search is not None
    if study.search.space is None:
        study = override(study, {"search.space": default_space(study)}, where="search.space")
    check(study)
    _check_fits(study)
    chains = tuple(Chain(study, encoding, task) for task in study.tasks for encoding in study.encodings)
    return _planned(dataclasses.replace(plan, study=study, cells=plan.trials), Tuned(chains=chains))


def settled(plan: Plan, store: Store) -> Plan:
    """The plan with everything that the store's results determine; one without a search comes back as it is."""
    if plan.tuned is None:
        return plan
    return _planned(plan, _walked(plan.tuned.anew(), store, lambda record: True))


def tune(plan: Plan, store: Store, *, executor: Executor, tracker: Tracker, watch: Watch) -> Plan:
    """Runs the tuning trials that the store lacks and those that failed before, and fills in what is chosen."""
    if plan.tuned is None:
        return plan
    tuned, tried = plan.tuned.anew(), set[str]()
    while True:
        before = set(tuned.records)
        # What failed before is tried once more, and is what it is when it fails again.
        tuned = _walked(tuned, store, lambda record: record.status != "failed" or record.fingerprint in tried)
        for name in tuned.records.keys() - before:
            clear(store.folder(name))
            store.release(name)
            tracker.trial(tuned.records[name], {})
        missing = [trial for trial in tuned.trials if trial.fingerprint not in tuned.records]
        if not missing:
            return _planned(plan, tuned)
        records = dict(tuned.records)
        with contextlib.closing(executor.results(missing)) as running:
            for record in running:
                records[record.fingerprint] = record
                tried.add(record.fingerprint)
                tracker.trial(record, {})
                watch(len(records), tuned.planned, record)
        tuned = dataclasses.replace(tuned, records=records)


def _walked(tuned: Tuned, store: Store, wanted: Callable[[Record], bool]) -> Tuned:
    """With the records of all trials that results in the store determine one after the other."""
    records, asked = dict(tuned.records), set(tuned.records)
    while True:
        for chain in tuned.chains:
            chain.advance(records)
        new = [trial for trial in tuned.trials if trial.fingerprint not in asked]
        if not new:
            return dataclasses.replace(tuned, records=records)
        asked |= {trial.fingerprint for trial in new}
        records |= {name: record for name, record in stored(new, store).items() if wanted(record)}


def _planned(plan: Plan, tuned: Tuned) -> Plan:
    """Cells whose search has chosen become trials; where no point has a score, that is the cell's outcome."""
    for chain in tuned.chains:
        chain.advance(tuned.records)
    by_cell = {(chain.encoding.label, chain.task): chain for chain in tuned.chains}
    trials, outcomes = [], {}
    for cell in plan.cells:
        config = cell.config
        chain = by_cell[config.encoding.label, config.task]
        # Under this name the store has nothing, whatever else was run with the settings that stand here now.
        cell = dataclasses.replace(cell, fingerprint=OPEN + cell.fingerprint)
        if chain.whole(tuned.records):
            if best := chain.chosen(tuned.records):
                cell = resolve(configured(plan.study, config.encoding, config.task, config.seed, best.point))
            else:
                outcomes[cell.fingerprint] = _without(cell, chain.tried(tuned.records))
        trials.append(cell)
    return dataclasses.replace(plan, trials=tuple(trials), tuning=tuned.trials, tuned=tuned, outcomes=outcomes)


def _without(cell: Trial, tried: Iterable[Tried]) -> Record:
    """The outcome of a cell for which no point has a score."""
    counts = Counter(entry.status for entry in tried)
    told = ", ".join(f"{count} {status}" for status, count in counts.items())
    status = "diverged" if counts["diverged"] else next(iter(counts))
    return Record(fingerprint=cell.fingerprint, label=cell.config.encoding.label, config=to_plain(cell.config),
                  status=status, reason=f"no point of the search has a score: {told}")


def check(study: StudyConfig, *, at: At = lambda *path: contextlib.nullcontext()) -> None:
    """Refuses what cannot be searched, in one line: every end of every range is tried in every cell, without data.

    Args:
        at: what is entered around the check of a part, by its path within the search, such as ('own', 'rope', 'base');
            it may add to a mistake where that stands.
    """
    if study.search and study.search.space is None:
        study = override(study, {"search.space": default_space(study)}, where="search.space")
    search = study.search
    assert search is not None and search.space is not None
    labels = {encoding.label: encoding for encoding in study.encodings}
    for label, own in search.own.items():
        with at("own", label):
            if label not in labels:
                raise UserError(f"search.own: '{label}' is no encoding of the study, {nearest(label, labels)}")
        for name in own:
            with at("own", label, name):
                _check_own(labels[label], name, own[name])
    for name, bounds in search.space.items():
        with at("space", name):
            _check_shared(study, name, bounds)
    for encoding in study.encodings:
        for task in study.tasks:
            evaluations = study.trial(encoding, task, study.seeds[0]).train.evaluations
            if search.pruning == "median" and search.stop_from >= evaluations:
                with at("stop_from"):
                    raise UserError(f"search.stop_from {search.stop_from} leaves no evaluation of task '{task}' before "
                                    f"the last ({evaluations}) to stop at: raise train.evaluations")


def _check_own(encoding: EncodingChoice, name: str, bounds: RangeConfig) -> None:
    if name in encoding.options:
        raise UserError(f"search.own: encoding '{encoding.label}' fixes the option '{name}', which is searched too: "
                        "leave one out")
    for value in bounds.ends:
        options_of(dataclasses.replace(encoding, options={**encoding.options, name: value}))


def _check_shared(study: StudyConfig, name: str, bounds: RangeConfig) -> None:
    for encoding in study.encodings:
        if name in encoding.changes():
            raise UserError(f"search.space: encoding '{encoding.label}' fixes '{name}', which is searched too: "
                            "leave one out")
        for task in study.tasks:
            for value in bounds.ends:
                configured(study, encoding, task, study.seeds[0], Point(shared={name: value}, own={}))


def _check_fits(study: StudyConfig) -> None:
    """Builds the template with every end of every encoding's own ranges."""
    assert study.search is not None
    for encoding in study.encodings:
        for name, bounds in study.search.own.get(encoding.label, {}).items():
            for task in study.tasks:
                for value in bounds.ends:
                    fits(resolve(configured(study, encoding, task, study.seeds[0],
                                            Point(shared={}, own={name: value}))))
