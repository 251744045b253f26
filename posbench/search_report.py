"""What a report says of a search: its budget and space, what became of its points, what it chose, and how safely."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from posbench import plots
from posbench.chain import Chain, Tried, course, final
from posbench.config import StudyConfig
from posbench.numerals import NONE, counted
from posbench.report import Figure
from posbench.signs import Signs
from posbench.space import EDGE, SearchConfig
from posbench.stats import expected_best
from posbench.store import Record
from posbench.tables import Table
from posbench.trial import load_rows
from posbench.tuning import Tuned

STATES = ("scored", "pruned", "diverged", "refused", "failed")
"""What becomes of a point, in the order of columns."""

SAMPLERS = {"qmc": "scrambled Sobol", "random": "independent random", "tpe": "TPE after scrambled Sobol"}
ENDS = {"lower": "↓", "upper": "↑"}
LISTED = 12
"""Chosen values at an end of their range, and ties, that a warning names; the table has all of them."""


def budget(search: SearchConfig) -> str:
    """The search in one sentence, which stands below every table."""
    alike = "" if search.own else " alike"
    own = (f"; shared settings alike, and in the same points options of its own for {', '.join(search.own)}"
           if search.own else "")
    return (f"Settings were searched for each encoding and task{alike}: {counted(search.trials, 'point')}, "
            f"{SAMPLERS[search.sampler]}, sampler seed {search.sampler_seed}, tuning seeds {_numbers(search.seeds)}"
            f"{own}.")


def header(study: StudyConfig, tuned: Tuned) -> dict[str, str]:
    """Facts above the tables, by name."""
    search = tuned.search
    shared = " in the settings that all share" if search.own else ""
    alike = f"the same points for every encoding{shared}" if search.sampler != "tpe" else (
        f"the first {search.startup} the same for every encoding{shared}, the others from its own results")
    optimistic = [task for task in study.tasks if _also_scored(study, task)]
    splits = sorted({chain.selection for chain in tuned.chains})
    stop = "no point is stopped early" if search.pruning == "none" else (
        f"from point {search.startup + 1} and evaluation {search.stop_from} on, before the last, a trial stops that is "
        "worse than the median of the earlier points at the same evaluation, for every encoding alike")
    return {
        "search": f"{counted(search.trials, 'point')} for each encoding and task ({SAMPLERS[search.sampler]}, sampler "
                  f"seed {search.sampler_seed}, {alike}; Optuna {version('optuna')}); {stop}",
        "search space": search.told_space,
        "tuned on": f"{' / '.join(splits)}, seeds {_numbers(search.seeds)}, none of which reports; best mean of the "
                    "primary metric"
                    + (f"; the same split is reported for {', '.join(optimistic)}, where scores are optimistic for "
                       "every encoding" if optimistic else "; no scored split was looked at"),
        "points": "; ".join(f"{label}: {_shares(counts)}" for label, counts in _states(tuned).items()),
    }


def warnings(tuned: Tuned) -> tuple[str, ...]:
    """What must be read before the numbers."""
    told = []
    if missing := tuned.planned - sum(trial.fingerprint in tuned.records for chain in tuned.chains
                                      for trials in chain.trials for trial in trials):
        told.append(f"The search is not finished: {missing} of {counted(tuned.planned, 'tuning trial')} "
                    f"{'is' if missing == 1 else 'are'} missing. The same command goes on.")
    if tuned.search.own:
        own = "; ".join(f"{label}: {options}" for label, options in tuned.search.own_options.items())
        told.append(f"Not searched alike: {own}, in the same number of points as the encodings without "
                    "own options. Their differences are those of encodings with their options tuned.")
    states = _states(tuned)
    if lost := [f"{label} {counts['diverged']} of {counts.total()}" for label, counts in states.items()
                if counts["diverged"]]:
        told.append(f"Points that diverged, which rank last: {', '.join(lost)}.")
    if lost := [f"{label} {counts['failed'] + counts['refused']} of {counts.total()}"
                for label, counts in states.items() if counts["failed"] + counts["refused"]]:
        told.append(f"The budget is not equal, because points failed or were refused: {', '.join(lost)}.")
    if ties := [f"{chain.encoding.label} on {chain.task} ({count} of {chain.search.trials})"
                for chain, best in _chosen(tuned) if best and (count := _equal(chain, best, tuned)) > 1]:
        told.append(f"Points that tie for the best, the first of which is chosen: {_listed(ties, ', ')}.")
    ends = [f"{chain.encoding.label} on {chain.task}: {name} {_shown(value)} ({end} end)"
            for chain, best in _chosen(tuned) if best for name, value, end in _edges(chain, best)]
    if ends:
        told.append(f"Chosen within {EDGE:.0%} of an end of its range, beyond which it may be better: "
                    f"{_listed(ends, '; ')}. Widen search.space.")
    return tuple(told)


def _listed(entries: list[str], between: str) -> str:
    more = f", and {len(entries) - LISTED} more" if len(entries) > LISTED else ""
    return between.join(entries[:LISTED]) + more


def parts(tuned: Tuned, best: pd.DataFrame, *, signs: Signs, note: str) -> tuple[Table | Figure, ...]:
    """What became of the points, what was chosen, and the figure of `expected`'s table; a note ends each.

    The figure has its signs; tables get theirs like all others of a report.
    """
    common = tuple(filter(None, (budget(tuned.search), note)))
    caption = f"{signs.caption(best['encoding'])} {note}"
    figure = Figure(title="Expected best of n points", name="search",
                    draw=partial(draw, signs.frame(best), note=caption))
    return *_tables(tuned, common), *(() if best.empty else (figure,))


def _tables(tuned: Tuned, common: tuple[str, ...]) -> tuple[Table, ...]:
    search = tuned.search
    names = sorted(search.space or {})
    rows = []
    for label, counts in _states(tuned).items():
        chains = [chain for chain in tuned.chains if chain.encoding.label == label]
        own = len(chains[0].space.own)
        at_ends = sum(bool(_edges(chain, best)) for chain, best in _chosen(tuned) if best and chain in chains)
        rows.append((label, str(len(names) + own) + (f" ({own} own)" if own else ""),
                     *map(str, (counts.total(), *(counts[state] for state in STATES), counts["missing"], at_ends))))
    chosen = []
    for chain, best in _chosen(tuned):
        row = [chain.encoding.label, chain.task]
        if best is None:
            states = Counter(entry.status for entry in chain.tried(tuned.records))
            why = _shares(states) if chain.whole(tuned.records) else "not finished"
            chosen.append((*row, f"none: {why}", *[NONE] * (len(names) + 2)))
            continue
        marks = {name: ENDS[end] for name, _, end in _edges(chain, best)}
        cells = {name: f"{_shown(value)}{marks.get(name, '')}"
                 for name, value in (*best.point.shared.items(), *best.point.own.items())}
        options = ", ".join(f"{name}={cells[name]}" for name in best.point.own) or NONE
        chosen.append((*row, _place(chain, best, tuned), f"{best.score:.4g} ({chain.metric.name})",
                       *(cells[name] for name in names), options))
    return (
        Table(title="Search", columns=("encoding", "dimensions", "points", *STATES, "missing", "cells at an end"),
              rows=tuple(rows), notes=("Points of all tasks. A point that was stopped, diverged, failed or was refused "
                                       "with any tuning seed has no score and is never chosen.", *common)),
        Table(title="Chosen settings", rows=tuple(chosen), texts=(1, 2),
              columns=("encoding", "task", "point", "score in tuning", *names, "own options"),
              notes=("The score is the mean over tuning seeds; as the best of several it is optimistic. All points: "
                     "search.csv.", *_ends_told(tuned), *common)),
    )


def _equal(chain: Chain, best: Tried, tuned: Tuned) -> int:
    """Number of points with exactly the score of the chosen one, itself among them."""
    return sum(entry.score == best.score for entry in chain.tried(tuned.records))


def _place(chain: Chain, best: Tried, tuned: Tuned) -> str:
    ties = _equal(chain, best, tuned)
    return f"{best.index + 1} of {chain.search.trials}" + (f", first of {ties} equal" if ties > 1 else "")


def _ends_told(tuned: Tuned) -> tuple[str, ...]:
    """The legend of the arrows behind chosen values, of those that there are."""
    found = {end for chain, best in _chosen(tuned) if best for _, _, end in _edges(chain, best)}
    return tuple(f"{ENDS[end]} within {EDGE:.0%} of the {end} end of the range." for end in ENDS if end in found)


def points(tuned: Tuned) -> pd.DataFrame:
    """One row for each point and tuning seed that is known."""
    best = {(chain.encoding.label, chain.task): entry for chain, entry in _chosen(tuned) if entry}
    return pd.DataFrame([
        {
            "encoding": chain.encoding.label, "task": chain.task, "point": entry.index + 1, "seed": trial.config.seed,
            "status": record.status, "reason": record.reason or None, "split": chain.selection,
            "metric": chain.metric.name, "higher_is_better": chain.metric.higher_is_better,
            "score": final(record, chain.selection) if record.rows else None, "point_score": entry.score,
            "chosen": (top := best.get((chain.encoding.label, chain.task))) is not None and top.index == entry.index,
            "equal_to_chosen": top is not None and top.score == entry.score,
            **entry.point.shared,
            **{f"own {name}": value for name, value in entry.point.own.items()},
            "fingerprint": record.fingerprint,
        }
        for chain in tuned.chains
        for entry in chain.tried(tuned.records)
        for trial, record in zip(entry.trials, entry.records, strict=True)
    ])


def expected(tuned: Tuned) -> pd.DataFrame:
    """The expected best score in tuning of 1, 2, ... points, for each encoding and task whose search is finished.

    A point without a score counts as the worst score of its task, a stopped one as its last score.
    """
    by_task: dict[str, dict[str, tuple[Chain, list[float | None]]]] = {}
    for chain in tuned.chains:
        if chain.whole(tuned.records):
            values = [_value(chain, entry) for entry in chain.tried(tuned.records)]
            by_task.setdefault(chain.task, {})[chain.encoding.label] = chain, values
    rows = []
    for task, encodings in by_task.items():
        known = [value for _, values in encodings.values() for value in values if value is not None]
        for label, (chain, values) in encodings.items() if known else ():
            higher = chain.metric.higher_is_better
            worst = min(known) if higher else max(known)
            whole = [worst if value is None else value for value in values]
            rows += [{"encoding": label, "task": task, "metric": chain.metric.name, "points": n,
                      "expected_best": expected_best(whole, n=n, higher_is_better=higher), "of": len(whole)}
                     for n in range(1, len(whole) + 1)]
    return pd.DataFrame(rows, columns=["encoding", "task", "metric", "points", "expected_best", "of"])


def draw(frame: pd.DataFrame, path: Path, *, note: str = "") -> list[Path]:
    """One panel for each task of `expected`'s table, a line an encoding, as PATH.png and PATH.svg; a note ends it."""
    encodings = list(dict.fromkeys(frame["encoding"]))
    chosen = plots.looks(encodings)

    def fill(axis: Any, key: tuple[str, str], rows: pd.DataFrame) -> None:
        for place, (encoding, look) in enumerate(chosen.items()):
            own = rows[rows["encoding"] == encoding]
            plots.line(axis, own["points"].to_numpy(), own["expected_best"].to_numpy(), encoding, look,
                       place / len(chosen))
        most = int(rows["points"].max())
        axis.set_xticks(range(1, most + 1, max(1, math.ceil(most / 8))))

    caption = ("Expected best score in tuning of so many points (unbiased, without replacement). A point without a "
               f"score counts as the worst of its task, a stopped one as its last. {note}")
    return plots.panelled(list(frame.groupby(["task", "metric"], sort=False)), encodings, fill, path,
                          across="points of the search", caption=caption)


def _value(chain: Chain, entry: Tried) -> float | None:
    if entry.status != "pruned":
        return entry.score
    ends = [_last(chain, record) for record in entry.records]
    return sum(end for end in ends if end is not None) / len(ends) if None not in ends else None


def _last(chain: Chain, record: Record) -> float | None:
    seen = course(record, chain.selection, chain.metric.name)
    return seen[-1] if seen and seen[-1] == seen[-1] else None


def _edges(chain: Chain, best: Tried) -> list[tuple[str, object, str]]:
    """Name, value and 'lower' or 'upper' of the chosen values at an end of their range."""
    bounds = {**chain.space.shared, **chain.space.own}
    return [(name, value, end) for name, value in (*best.point.shared.items(), *best.point.own.items())
            if (end := bounds[name].edge(value))]


def _chosen(tuned: Tuned) -> list[tuple[Chain, Tried | None]]:
    """Each chain with its choice; a chain that is not finished has none."""
    return [(chain, chain.chosen(tuned.records) if chain.whole(tuned.records) else None) for chain in tuned.chains]


def _states(tuned: Tuned) -> Mapping[str, Counter[str]]:
    """What became of the points, by encoding."""
    found: dict[str, Counter[str]] = {}
    for chain in tuned.chains:
        counts = found.setdefault(chain.encoding.label, Counter())
        tried = chain.tried(tuned.records)
        counts.update(entry.status for entry in tried)
        counts["missing"] += chain.search.trials - len(tried)
    return found


def _shares(counts: Counter[str]) -> str:
    total = counts.total()
    return ", ".join(f"{counts[state]} of {total} {state}" + (f" ({counts[state] / total:.0%})" if state != "scored"
                                                             else "")
                     for state in (*STATES, "missing") if counts[state] or state in ("scored", "diverged"))


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _numbers(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))


def _also_scored(study: StudyConfig, task: str) -> bool:
    rows = load_rows(study.suite, task, study.trial(study.encodings[0], task, 0).data)[0]
    return rows.selection in rows.scored

