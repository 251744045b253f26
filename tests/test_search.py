"""The search: equal points, replay after a kill, fixed pruning, and a choice that no reported score reaches."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import statistics
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from posbench.reports.scoreboard import REPORT
from scipy.stats import qmc

from posbench import outcome, tuning, workers
from posbench.chain import Chain, configured
from posbench.config import StudyConfig, build, override, to_plain
from posbench.errors import UserError
from posbench.execute import Here
from posbench.report import Document
from posbench.runner import run
from posbench.search import Proposals
from posbench.space import Point, RangeConfig, SearchConfig, Space
from posbench.store import Record, Store
from posbench.study import Plan, from_preset, known, plan
from posbench.study import run as run_study
from posbench.suite import TaskData
from posbench.tables import Table
from posbench.track import Tracker
from posbench.trial import Trial, load_rows, resolve
from posbench.workers import Processes

SMALL = {
    "train.steps": "8", "train.evaluations": "4", "model.width": "16", "model.heads": "2", "model.layers": "1",
    "model.feedforward": "16", "baseline": "nope",
}
RATE = {"train.learning_rate": {"low": 1e-4, "high": 1e-1, "log": True}}
Score = Callable[[Trial], Sequence[float] | str]


def study(encodings: str = "nope,rope", tasks: str = "rte", suite: str = "glue", **search: Any) -> StudyConfig:
    """A small study; what is not said of its search is one of four points."""
    asked = {"trials": 4, "space": RATE, **search}
    return from_preset(suite, "mini", {
        **SMALL, "encodings": [{"name": name} for name in encodings.split(",")], "tasks": tasks.split(","),
        "seeds": [0, 1], "search": asked, "baseline": encodings.split(",")[0],
    })


def rate(trial: Trial) -> float:
    return trial.config.train.learning_rate


def record_of(trial: Trial, courses: Score) -> Record:
    """What a training that followed the course of scores would leave, stopped where a threshold says so."""
    told = courses(trial)
    metric = trial.task.primary_metric
    fields: dict[str, Any] = {"fingerprint": trial.fingerprint, "label": trial.config.encoding.label,
                              "config": to_plain(trial.config)}
    if isinstance(told, str):
        return Record(**fields, status=told)
    limits = trial.config.tuning.thresholds if trial.config.tuning else ()
    curves: list[dict[str, Any]] = []
    for place, value in enumerate(told):
        curves.append({"step": place, "metric": f"validation/{metric.name}", "value": value})
        limit = limits[place] if place < len(limits) else None
        if limit is not None and (value < limit if metric.higher_is_better else value > limit):
            return Record(**fields, status="pruned", curves=curves)
    row = {"split": "validation", "length": None, "metric": metric.name, "value": told[-1], "n": 10,
           "higher_is_better": metric.higher_is_better, "primary": True}
    return Record(**fields, status="done", rows=[row], curves=curves)


class Faked:
    """An executor in the place of training: what a function says of each trial; counts what ran."""

    def __init__(self, store: Store, courses: Score, limit: float = math.inf) -> None:
        self.store, self.courses, self.limit = store, courses, limit
        self.ran: list[Trial] = []

    def results(self, trials: Sequence[Trial]) -> Generator[Record]:
        for trial in trials:
            if len(self.ran) >= self.limit:
                raise KeyboardInterrupt
            self.ran.append(trial)
            record = record_of(trial, self.courses)
            self.store.keep(record, {})
            yield record

    def close(self) -> None:
        pass


@pytest.fixture
def tuned(tmp_path: Path) -> Callable[..., tuple[Plan, Faked]]:
    def tune(wanted: StudyConfig, courses: Score, *, root: Path = tmp_path,
             limit: float = math.inf) -> tuple[Plan, Faked]:
        store = Store(root)
        faked = Faked(store, courses, limit)
        return tuning.tune(plan(wanted), store, executor=faked, tracker=Tracker(), watch=lambda *told: None), faked

    return tune


def peak(trial: Trial) -> list[float]:
    """Best at a rate of 0.01, and differently hard for each encoding and seed."""
    shift = 0.1 * (trial.config.encoding.name == "rope") + 0.001 * trial.config.seed
    return [round(share * (1 - abs(math.log10(rate(trial)) + 2) / 4) + shift, 9) for share in (0.5, 0.7, 0.9, 1.0)]


def settings(whole: Plan) -> list[tuple[str, str, float]]:
    return [(trial.config.encoding.label, trial.config.task, rate(trial)) for trial in whole.trials]


def test_every_encoding_gets_the_same_scrambled_sobol_points() -> None:
    whole = plan(study(space={**RATE, "train.warmup": {"low": 0.1, "high": 0.3}}))
    assert whole.tuned is not None
    one, two = (chain.points for chain in whole.tuned.chains)
    assert one == two and len(one) == 4
    # The closed form of the sequence: scipy's, on the unit square in the order of the names.
    unit = qmc.Sobol(2, scramble=True, seed=0).random(4)
    low, high = map(math.log, (1e-4, 1e-1))
    for point, (first, second) in zip(one, unit, strict=True):
        assert point.shared["train.learning_rate"] == pytest.approx(math.exp(low + first * (high - low)), rel=1e-3)
        assert point.shared["train.warmup"] == pytest.approx(0.1 + 0.2 * second, rel=1e-3)


@pytest.mark.parametrize("sampler", ["qmc", "random", "tpe"])
def test_options_of_its_own_leave_an_encoding_the_shared_points(sampler: str) -> None:
    own = {"rope": {"base": {"low": 10, "high": 1000, "log": True}}}
    whole = plan(study(own=own, sampler=sampler, trials=8, startup=4))
    assert whole.tuned is not None
    nope, rope = whole.tuned.chains
    # TPE's first point is known alone until it is told of.
    assert [point.shared for point in nope.points] == [point.shared for point in rope.points]
    bases = [point.own["base"] for point in rope.points]
    assert all(10 <= float(str(base)) <= 1000 for base in bases) and len(set(bases)) == len(bases)
    assert not nope.points[0].own
    assert {trial.config.encoding.label for trial in whole.tuning} == {"nope", "rope"}, "the label stays"


def test_shared_and_own_coordinates_together_still_fill_the_space() -> None:
    space = Space(shared={"a": RangeConfig(low=0, high=1)}, own={"b": RangeConfig(low=0, high=1)})
    proposals = Proposals(SearchConfig(trials=16, space={}, own={"x": {"b": RangeConfig(low=0, high=1)}}), space)
    points = [proposals.ask(index) for index in range(16)]
    quarters = {(int(4 * float(str(p.shared["a"]))), int(4 * float(str(p.own["b"])))) for p in points}
    assert len(quarters) == 16, "a (0, m, s)-net in base 2 has one point in each of 4 x 4 boxes"


def test_a_small_space_of_choices_and_whole_numbers_stays_within_it() -> None:
    space = Space(shared={"a": RangeConfig(choices=("x", "y")), "b": RangeConfig(low=1, high=4),
                          "c": RangeConfig(low=0, high=1, step=0.25)}, whole=frozenset({"b"}))
    for sampler in ("qmc", "random", "tpe"):
        proposals = Proposals(SearchConfig(trials=16, sampler=sampler, startup=15), space)
        points = [proposals.ask(index) for index in range(15)]
        assert {p.shared["a"] for p in points} == {"x", "y"} and {p.shared["b"] for p in points} == {1, 2, 3, 4}
        assert {p.shared["c"] for p in points} <= {0, 0.25, 0.5, 0.75, 1}


def test_the_best_mean_over_tuning_seeds_is_chosen_and_reported_with_other_seeds(tuned: Any) -> None:
    whole, faked = tuned(study(trials=8, seeds=[7, 8]), peak)
    assert len(faked.ran) == 2 * 8 * 2 and {trial.config.seed for trial in faked.ran} == {7, 8}
    rates = sorted({rate(trial) for trial in faked.ran}, key=lambda value: abs(math.log10(value) + 2))
    assert {entry for *_, entry in settings(whole)} == {rates[0]}
    assert [trial.config.seed for trial in whole.trials] == [0, 0, 1, 1] and not whole.open
    assert all(trial.config.tuning is None for trial in whole.trials)
    plain = override(study().trial(whole.trials[0].config.encoding, "rte", 0), {"train.learning_rate": rates[0]})
    assert whole.trials[0].fingerprint == resolve(plain).fingerprint, "a chosen trial is the ordinary one"


def test_equal_scores_go_to_the_earlier_point_and_lower_is_better_where_it_is(tuned: Any, tmp_path: Path) -> None:
    whole, faked = tuned(study(), lambda trial: [0.5] * 4)
    assert {entry for *_, entry in settings(whole)} == {rate(faked.ran[0])}
    bits, faked = tuned(study(suite="lm", tasks="docs", encodings="rope"), peak, root=tmp_path / "lm")
    rates = sorted({rate(trial) for trial in faked.ran}, key=lambda value: abs(math.log10(value) + 2))
    assert not faked.ran[0].task.primary_metric.higher_is_better
    assert {entry for *_, entry in settings(bits)} == {rates[-1]}


CHAINS = [{}, {"sampler": "random"}, {"sampler": "tpe", "trials": 8}, {"pruning": "median", "trials": 8, "startup": 2},
          {"sampler": "tpe", "pruning": "median", "trials": 8, "startup": 3, "seeds": [5, 6]}]


@pytest.mark.parametrize("search", CHAINS, ids=lambda search: "-".join(map(str, search.values())))
def test_killed_after_any_trial_it_goes_on_and_repeats_nothing(search: dict[str, Any], tuned: Any,
                                                               tmp_path: Path) -> None:
    wanted = study(**search)
    whole, undisturbed = tuned(wanted, peak, root=tmp_path / "whole")
    everything = sorted(trial.fingerprint for trial in undisturbed.ran)
    assert len(set(everything)) == len(everything) == 2 * wanted.search.trials * len(wanted.search.seeds)
    for done in range(0, len(everything), 3 if len(everything) < 10 else 7):
        root = tmp_path / str(done)
        with pytest.raises(KeyboardInterrupt):
            tuned(wanted, peak, root=root, limit=done)
        again, rest = tuned(wanted, peak, root=root)
        assert settings(again) == settings(whole)
        assert len(rest.ran) == len(everything) - done
        seen = {trial.fingerprint for trial in rest.ran}
        assert seen | {file.parent.name for file in root.rglob("manifest.json")} == set(everything)
    assert tuned(wanted, peak, root=tmp_path / "whole")[1].ran == []


def test_tpe_looks_at_results_after_the_first_points(tuned: Any, tmp_path: Path) -> None:
    search = {"sampler": "tpe", "trials": 12, "startup": 4}
    one, _ = tuned(study(**search), peak, root=tmp_path / "1")
    two, _ = tuned(study(**search), lambda trial: [-value for value in peak(trial)], root=tmp_path / "2")
    first, second = ([point.shared for point in whole.tuned.chains[0].points] for whole in (one, two))
    assert first[:4] == second[:4] and first[4:] != second[4:]


def test_a_threshold_is_the_median_of_the_earlier_points_at_the_same_evaluation(tuned: Any) -> None:
    whole, faked = tuned(study(pruning="median", trials=8, startup=3, stop_from=2), peak)
    for chain in whole.tuned.chains:
        tried = chain.tried(whole.tuned.records)
        for index, entry in enumerate(tried):
            limits = entry.trials[0].config.tuning.thresholds
            if index < 3:
                assert limits == ()
                continue
            courses = [[point["value"] for point in other.records[0].curves] for other in tried[:index]]
            naive = [statistics.median(found[place] if place < len(found) else -9 for found in courses)
                     for place in range(3)]
            # Evaluation 1 is before the declared one, and the last is left to every trial that reaches it.
            assert limits == tuple(None if place < 1 or value == -9 else value for place, value in enumerate(naive))
        states = [entry.status for entry in tried]
        assert "pruned" in states and states[:3] == ["scored"] * 3
    assert {entry for *_, entry in settings(whole)} == {
        min((rate(trial) for trial in faked.ran), key=lambda value: abs(math.log10(value) + 2))}


def test_points_without_a_score_rank_last_and_a_cell_without_any_says_so(tuned: Any, tmp_path: Path) -> None:
    def courses(trial: Trial) -> Sequence[float] | str:
        return "diverged" if trial.config.encoding.name == "rope" or rate(trial) > 1e-3 else [0.1] * 4

    whole, _ = tuned(study(), courses)
    nope = [trial for trial in whole.trials if trial.config.encoding.name == "nope"]
    assert all(rate(trial) <= 1e-3 for trial in nope) and not whole.open
    lost = known(whole, Store(tmp_path))
    assert [record.label for record in lost.values()] == ["rope", "rope"]
    assert all(record.status == "diverged" and "4 diverged" in record.reason for record in lost.values())


def test_what_failed_is_tried_once_more_and_then_counted(tuned: Any, tmp_path: Path) -> None:
    def flaky(trial: Trial) -> Sequence[float] | str:
        return "failed" if rate(trial) > 1e-2 else peak(trial)

    _, first = tuned(study(), flaky)
    broken = {trial.fingerprint for trial in first.ran if rate(trial) > 1e-2}
    again, second = tuned(study(), flaky)
    assert broken and {trial.fingerprint for trial in second.ran} == broken and not again.open
    mended, third = tuned(study(), peak)
    assert {trial.fingerprint for trial in third.ran} == broken
    assert settings(mended) == settings(tuned(study(), peak, root=tmp_path / "other")[0])


WRONG = [
    ({"seeds": [0]}, "seed 0 both tunes and reports: give search.seeds others"),
    ({"seeds": []}, "give one or more, each once"),
    ({"space": {"train.lr": {"low": 1, "high": 2}}}, "'train.lr' is no setting that a search may choose"),
    ({"space": {"train.steps": {"low": 1, "high": 2}}}, "'train.steps' is no setting that a search may choose"),
    ({"space": {"train.learning_rate": {"low": 2, "high": 1}}}, "low 2 is not below high 1"),
    ({"space": {"train.learning_rate": {"low": 0, "high": 1, "log": True}}}, "log asks for a low above 0, not 0"),
    ({"space": {"train.learning_rate": {"low": 1, "hihg": 2}}}, "unknown setting"),
    ({"space": {"train.learning_rate": {"low": "x", "high": 2}}}, "low = 'x'"),
    ({"space": {"train.learning_rate": {"low": 0.1}}}, "give low and high, or choices"),
    ({"space": {"train.learning_rate": {"choices": [0.1]}}}, "choices are two or more different values"),
    ({"space": {"train.learning_rate": {"low": 0.1, "high": 1, "choices": [1, 2]}}}, "exclude each other"),
    ({"space": {"train.learning_rate": {"low": 0.1, "high": 1, "step": 2}}}, "step goes without log"),
    ({"space": {"train.warmup": {"low": 0.1, "high": 1.5}}}, "train.warmup = 1.5"),
    ({"space": {"train.schedule": {"choices": ["linear", "cosine"]}}}, "train.schedule = 'cosine'"),
    ({"space": {}}, "space is empty"),
    ({"trials": 1}, "search.trials = 1"),
    ({"sampler": "tpe", "trials": 4}, "startup 4 leaves none of 4 points"),
    ({"pruning": "median", "trials": 8, "stop_from": 4}, "leaves no evaluation of task 'rte' before the last (4)"),
    ({"sampler": "grid"}, "search.sampler = 'grid'"),
    ({"trails": 3}, "unknown setting 'search.trails', did you mean 'trials'"),
    ({"own": {"alibi": {"x": {"low": 1, "high": 2}}}}, "'alibi' is no encoding of the study"),
    ({"own": {"rope": {"bas": {"low": 1, "high": 2}}}}, "unknown option 'bas', did you mean 'base'"),
    ({"own": {"rope": {"base": {"low": -1, "high": 2}}}}, "base = -1"),
]


@pytest.mark.parametrize(("search", "told"), WRONG, ids=[told for _, told in WRONG])
def test_a_wrong_search_is_refused_in_one_line(search: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError) as error:
        plan(study(**search))
    assert told in str(error.value) and "\n" not in str(error.value)


def test_what_an_encoding_fixes_is_not_searched() -> None:
    changes = {**SMALL, "tasks": ["rte"], "encodings": [{"name": "nope"}, {"name": "rope", "options": {"base": 50}}]}
    own = {"rope:base=50": {"base": {"low": 10, "high": 100}}}
    with pytest.raises(UserError, match="fixes the option 'base', which is searched too"):
        plan(from_preset("glue", "mini", {**changes, "search": {"own": own}}))
    changes |= {"encodings": [{"name": "nope", "model": {"dropout": 0.1}}], "baseline": "nope+dropout=0.1"}
    with pytest.raises(UserError, match=r"fixes 'model\.dropout', which is searched too"):
        plan(from_preset("glue", "mini", {**changes, "search": {"space": {"model.dropout": {"low": 0, "high": 0.5}}}}))


def test_texts_of_a_command_line_make_a_search_around_the_preset() -> None:
    wanted = from_preset("glue", "mini", {**SMALL, "tasks": ["rte"], "encodings": [{"name": "nope"}],
                                          "search.trials": "3", "search.seeds": "40,41"})
    search = plan(wanted).study.search
    assert search is not None and (search.trials, search.seeds) == (3, (40, 41)) and search.space is not None
    middle = wanted.train.learning_rate
    found = search.space["train.learning_rate"]
    assert (found.low, found.high, found.log) == (pytest.approx(0.3 * middle), pytest.approx(3 * middle), True)
    assert set(search.space) == {"train.learning_rate", "train.warmup", "train.weight_decay"}


def test_a_study_without_a_search_has_the_trials_that_it_had() -> None:
    wanted = override(study(), {"search": None})
    whole = plan(wanted)
    assert whole.tuned is None and not whole.tuning and whole.planned == len(whole.trials) == 4
    plain = to_plain(wanted)
    del plain["search"]
    assert build(StudyConfig, plain, where="study.json") == wanted
    config = whole.trials[0].config
    assert resolve(config).fingerprint == whole.trials[0].fingerprint
    point = Point(shared={}, own={"base": 123.0})
    rope = next(encoding for encoding in wanted.encodings if encoding.name == "rope")
    searched = resolve(configured(wanted, rope, "rte", 0, point))
    named = dataclasses.replace(rope, options={"base": "123"})
    assert searched.fingerprint == resolve(wanted.trial(named, "rte", 0)).fingerprint
    assert searched.config.encoding.label == "rope" and searched.options.base == 123


def test_open_cells_have_no_result_until_something_is_chosen(tuned: Any, tmp_path: Path) -> None:
    wanted = study()
    for trial in plan(override(wanted, {"search": None})).trials:
        Store(tmp_path).keep(record_of(trial, peak), {})
    whole = tuning.settled(plan(wanted), Store(tmp_path))
    assert len(whole.open) == 4 and not known(whole, Store(tmp_path)) and whole.planned == 8 + 4
    with pytest.raises(ValueError, match="tune the plan"):
        run_study(whole, Store(tmp_path), executor=Here(Store(tmp_path)), tracker=Tracker(), watch=lambda *told: None)
    after, _ = tuned(wanted, peak)
    assert settings(tuning.settled(plan(wanted), Store(tmp_path))) == settings(after)


def real(wanted: StudyConfig, root: Path, jobs: int = 1) -> Plan:
    store = Store(root)
    with closing(Here(store) if jobs == 1 else Processes(store, jobs)) as place:
        common: dict[str, Any] = {"executor": place, "tracker": Tracker(), "watch": lambda *told: None}
        whole = tuning.tune(plan(wanted), store, **common)
        assert run_study(whole, store, **common).keys() == {trial.fingerprint for trial in whole.trials}
        return whole


def test_a_rate_of_a_million_diverges_and_is_not_chosen(tmp_path: Path) -> None:
    wanted = study(encodings="rope", trials=2, space={"train.learning_rate": {"choices": [1e-3, 1e30]}})
    whole = real(wanted, tmp_path)
    assert whole.tuned is not None
    states = {rate(entry.trials[0]): entry.status for entry in whole.tuned.chains[0].tried(whole.tuned.records)}
    assert states == {1e-3: "scored", 1e30: "diverged"}
    assert {entry for *_, entry in settings(whole)} == {1e-3}


def test_the_number_of_jobs_changes_nothing_and_no_round_of_a_search_starts_workers_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, rounds, start, results = [], [], workers._Worker.__init__, Processes.results
    monkeypatch.setattr(workers._Worker, "__init__", lambda own, *given: [started.append(own), start(own, *given)][1])
    monkeypatch.setattr(Processes, "results", lambda own, trials: [rounds.append(trials), results(own, trials)][1])
    wanted = study(pruning="median", trials=4, startup=2)
    one, two = real(wanted, tmp_path / "1"), real(wanted, tmp_path / "2", jobs=2)
    assert len(rounds) > 3 and len(started) == 2
    assert not any(worker.process.is_alive() for worker in started)
    assert settings(one) == settings(two)
    assert [trial.fingerprint for trial in one.tuning] == [trial.fingerprint for trial in two.tuning]
    assert one.tuned is not None and two.tuned is not None
    for print_, record in one.tuned.records.items():
        other = two.tuned.records[print_]
        assert (record.rows, record.curves, record.status) == (other.rows, other.curves, other.status)
    reported = [[(record.rows, record.curves) for record in known(whole, Store(tmp_path / name)).values()]
                for name, whole in (("1", one), ("2", two))]
    assert len(reported[0]) == 4 and reported[0] == reported[1]


def test_the_reported_split_is_never_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test labels of another world change no choice, and a tuning trial that scored them would be seen."""
    from posbench import objective
    from posbench import runner as loop
    from posbench import trial as trials

    wanted = study(encodings="rope")
    before = real(wanted, tmp_path / "1")
    whole = load_rows

    def poisoned(suite: str, task: str, data: Any) -> tuple[TaskData, str]:
        rows, content = whole(suite, task, data)
        splits = {name: dataclasses.replace(split, labels=[1 - label for label in split.labels]) if name == "test"
                  else split for name, split in rows.splits.items()}
        return dataclasses.replace(rows, splits=splits), content + "poisoned"

    assert "test" in whole("glue", "rte", wanted.data)[0].scored
    for module in (trials, objective, loop):
        monkeypatch.setattr(module, "load_rows", poisoned)
    trials.load_encoded.cache_clear()
    after = real(wanted, tmp_path / "2")
    trials.load_encoded.cache_clear()
    assert settings(after) == settings(before)
    assert after.tuned is not None and before.tuned is not None
    assert set(after.tuned.records).isdisjoint(before.tuned.records), "other data are another trial"
    for record in after.tuned.records.values():
        assert {row["split"] for row in record.rows} == {"validation"}


def test_a_trial_stops_at_its_threshold(tmp_path: Path) -> None:
    chain = Chain(study(encodings="rope"), study(encodings="rope").encodings[0], "rte")
    chain.advance({})
    config = chain.trials[0][0].config
    limits = dataclasses.replace(config.tuning, thresholds=(None, 1.1))  # type: ignore[type-var]
    stopped = resolve(dataclasses.replace(config, tuning=limits))
    assert stopped.fingerprint != chain.trials[0][0].fingerprint
    record, arrays = run(stopped)
    assert record.status == "pruned" and "at update 4 is worse than 1.1" in record.reason
    assert len([point for point in record.curves if point["metric"] == "validation/accuracy"]) == 2
    assert not record.rows and not arrays
    free, _ = run(chain.trials[0][0])
    assert free.status in ("done", "degenerate") and {row["split"] for row in free.rows} == {"validation"}


def test_values_at_the_ends_of_their_range_are_seen() -> None:
    log = RangeConfig(low=1e-4, high=1e-1, log=True)
    # 5 % of three decades is 10 ** 0.15 = 1.41.
    assert [log.edge(value) for value in (1e-4, 1.40e-4, 1.42e-4, 1e-2, 0.0707, 0.0709)] == [
        "lower", "lower", "", "", "", "upper"]
    flat = RangeConfig(low=0.0, high=1.0)
    assert [flat.edge(value) for value in (0.05, 0.051, 0.949, 0.95)] == ["lower", "", "", "upper"]
    assert RangeConfig(choices=(1, 2)).edge(1) == ""


def test_the_expected_best_is_the_mean_over_all_subsets(tuned: Any) -> None:
    from posbench.search_report import expected

    whole, _ = tuned(study(trials=6), lambda trial: "diverged" if rate(trial) > 3e-2 else peak(trial))
    table = expected(whole.tuned)
    values = {chain.encoding.label: [entry.score for entry in chain.tried(whole.tuned.records)]
              for chain in whole.tuned.chains}
    worst = min(value for found in values.values() for value in found if value is not None)
    assert any(None in found for found in values.values())
    for label, found in values.items():
        scores = [worst if value is None else value for value in found]
        for n in range(1, 7):
            brute = np.mean([max(some) for some in itertools.combinations(scores, n)])
            row = table[(table["encoding"] == label) & (table["points"] == n)]
            assert row["expected_best"].item() == pytest.approx(brute)


def reported(whole: Plan, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Document, dict[str, pd.DataFrame]]:
    """The report of a search whose chosen trials have not run."""
    monkeypatch.setattr(outcome, "_costs", lambda *_: [])
    given = outcome.study_results(whole, {}, folder)
    return REPORT.document(given), REPORT.data(given)


@pytest.mark.parametrize("sampler", ["qmc", "tpe"])
@pytest.mark.parametrize("own", [{}, {"rope": {"base": {"low": 100.0, "high": 1e5, "log": True}}}], ids=["-", "own"])
def test_a_report_calls_alike_what_was_searched_alike(
    tuned: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: dict[str, Any], sampler: str
) -> None:
    whole, _ = tuned(study(own=own, sampler=sampler, startup=2), peak)
    document, _ = reported(whole, tmp_path, monkeypatch)
    tables = [part for part in document.parts if isinstance(part, Table)]
    facts, shared = dict(document.header), "the same for every encoding in the settings that all share"
    told = [note for part in tables for note in part.notes if note.startswith("Settings were searched")]
    assert len(told) >= 3 and len(set(told)) == 1
    assert ("encoding and task alike:" in told[0]) == (not own)
    assert ("shared settings alike, and in the same points options of its own for rope." in told[0]) == bool(own)
    assert (shared.replace("the same for", "the same points for" if sampler == "qmc" else "the same for")
            in facts["search"]) == bool(own)
    assert ("of rope alone: base 100 to 100000 (log)" in facts["search space"]) == bool(own)
    assert any(text.startswith("Not searched alike: rope: base") for text in document.warnings) == bool(own)
    for part in tables:
        names = {row[0] for row in part.rows} if part.columns[0] == "encoding" else set()
        legends = [note for note in part.notes if "§" in note]
        assert len(legends) == ("§ rope" in names) == bool(own and names), part.title
        assert "‡" not in "".join([*part.notes, *names])


def test_a_search_without_shared_settings_says_what_was_searched(
    tuned: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = tuned(study(space={}, own={"rope": {"base": {"low": 100.0, "high": 1e5}}}), peak)
    facts = dict(reported(whole, tmp_path, monkeypatch)[0].header)
    assert facts["search space"] == "of rope alone: base 100 to 100000"


def test_points_that_tie_with_the_chosen_one_are_told(
    tuned: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tie = [0.5] * 4
    whole, faked = tuned(study(), lambda trial: tie if trial.config.encoding.name == "nope" else peak(trial))
    document, sheets = reported(whole, tmp_path, monkeypatch)
    (chosen,) = [part for part in document.parts if part.title == "Chosen settings"]
    assert isinstance(chosen, Table)
    places = {row[0]: row[2] for row in chosen.rows}
    assert places["nope"] == "1 of 4, first of 4 equal" and re.fullmatch(r"[1-4] of 4", places["rope"])
    assert "Points that tie for the best, the first of which is chosen: nope on rte (4 of 4)." in document.warnings
    equal = sheets["search"].groupby("encoding")["equal_to_chosen"].sum()
    assert (equal["nope"], equal["rope"]) == (4, 1) and len(faked.ran) == 8


def test_arrows_at_ends_of_a_range_are_explained_where_there_are_any(
    tuned: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, best, sign in (("low", 1e-4, "↓"), ("middle", 3e-3, ""), ("high", 1e-1, "↑")):
        whole, _ = tuned(study(trials=64), lambda trial, best=best: [1 - abs(math.log10(rate(trial) / best)) / 9] * 4,
                         root=tmp_path / name)
        document, _ = reported(whole, tmp_path, monkeypatch)
        (chosen,) = [part for part in document.parts if part.title == "Chosen settings"]
        assert isinstance(chosen, Table)
        shown = "".join(cell for row in chosen.rows for cell in row)
        for arrow in "↓↑":
            assert (arrow in shown) == (arrow == sign) == any(note.startswith(arrow) for note in chosen.notes)
