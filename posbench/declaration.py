"""Declarations: what a study says before its first trial, under a hash, and how that changed in its folder since.

The family of comparisons, the primary metrics, the lengths, alpha, the seeds and the search are said before there is a
result to choose them by. A study may grow; then the table says when, and from what to what.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from posbench.config import EncodingChoice, Scalar, StudyConfig, build, digest, to_plain
from posbench.numerals import counted
from posbench.safe_yaml import canonical
from posbench.space import SearchConfig
from posbench.trial import load_suite

# Where results were made and where files lie is no part of what was declared.
ELSEWHERE = {"data": ("path", "source", "revision"), "train": ("device", "threads")}
GROWS = ("encodings", "tasks", "seeds", "baseline", "alpha")
"""What may grow from one call to the next in the same folder; all else makes another study."""


def declare(study: StudyConfig) -> dict[str, Any]:
    """The declaration of a study as plain values, with its hash.

    Equal studies have equal hashes, whatever the order of their encodings, tasks and seeds, and however their values
    are spelled.
    """
    tasks = load_suite(study.suite).tasks
    plain = to_plain(study)
    settings = {name: value for name, value in plain.items() if name not in GROWS}
    for section, names in ELSEWHERE.items():
        settings[section] = {name: value for name, value in plain[section].items() if name not in names}
    said: dict[str, Any] = {
        "primary": {task: study.primary.get(task, tasks[task].primary) for task in sorted(study.tasks)},
        "lengths": {task: _lengths(study, task) for task in sorted(study.tasks)},
        "encodings": sorted(_spelled(choice) for choice in study.encodings),
        "baseline": _spelled(EncodingChoice.parse(study.baseline)),
        "alpha": study.alpha,
        "seeds": sorted(study.seeds),
    }
    if plain.get("search"):
        said["search"] = plain["search"]
    return said | {"hash": digest(said | {"settings": settings, "version": load_suite(study.suite).version})}


def _spelled(choice: EncodingChoice) -> str:
    """The label with its values in one spelling: base=5e5 and base=500000 are one choice."""
    options, model, settings = map(_canonical, (choice.options, choice.model, choice.settings))
    return replace(choice, options=options, model=model, settings=settings).label


def _canonical(values: Mapping[str, Scalar]) -> dict[str, Scalar]:
    return {name: canonical(value) for name, value in values.items()}


def _lengths(study: StudyConfig, task: str) -> list[int]:
    config = study.trial(study.encodings[0], task, 0)
    times = 1 if load_suite(study.suite).tasks[task].labelled else config.evaluation.longest
    return [config.data.max_length * 2**power for power in range(times.bit_length())]


def declared(history: Sequence[Mapping[str, Any]], study: StudyConfig, *, seen: bool = True) -> list[dict[str, Any]]:
    """The declarations of a folder with that of the study, which is added where it says something else, and dated.

    Args:
        seen: whether there were results when it was said.
    """
    now, known = declare(study), [dict(entry) for entry in history]
    # A hash is of everything, also of settings that a later posbench has more of: what is said decides.
    if not known or any(known[-1].get(name, value) != value for name, value in now.items() if name != "hash"):
        known.append(now | {"when": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()), "seen": seen})
    return known


def told(history: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What a table's header says of the declarations of its folder."""
    if not history:
        return {"declared": "nothing before the first trial"}
    last = history[-1]
    metrics = _grouped(last["primary"], str)
    lengths = _grouped(last["lengths"], lambda own: ", ".join(map(str, own)) + " tokens")
    family = _family(last)
    search = f"; a search: {_searched(last['search'])}" if last.get("search") else ""
    before = "before the first trial" if len(history) == 1 else f"{last['when']}, after earlier ones (see below)"
    lines = {"declared": f"{before}, hash {last['hash'][:16]}: primary metric {metrics}; lengths {lengths}; "
                         f"{family} at alpha {last['alpha']:g}; "
                         f"{counted(len(last['seeds']), 'seed')}{search}"}
    if changes := [f"{new['when']} {told}" for old, new in itertools.pairwise(history) if (told := _change(old, new))]:
        lines["declaration changed"] = f"{'; '.join(changes)} (first hash {history[0]['hash'][:16]})"
    return lines


def warnings(history: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """What must be read before the numbers: what was chosen anew when there may have been results to choose it by."""
    changes = [f"{new['when']} {', '.join(parts)}" for old, new in itertools.pairwise(history)
               if new.get("seen", True) and (parts := _decisive(old, new))]
    return (f"Declared anew after earlier results: {'; '.join(changes)}. What is tested was not all said before there "
            "was a result to choose it by.",) if changes else ()


def _searched(search: Mapping[str, Any]) -> str:
    """The search of a declaration, as a header tells one."""
    config = build(SearchConfig, search, where="declarations")
    stop = "" if config.pruning == "none" else f", {config.pruning} pruning"
    return (f"{counted(config.trials, 'point')} for each encoding and task ({config.sampler}, sampler seed "
            f"{config.sampler_seed}, tuning seeds {', '.join(map(str, config.seeds))}{stop}) in {config.told_space}")


def _family(declaration: Mapping[str, Any]) -> str:
    """How many comparisons each column has: every encoding with the baseline, and none without one."""
    encodings, baseline = declaration["encodings"], declaration["baseline"]
    if baseline not in encodings:
        return f"no comparisons, as {baseline} is not among the encodings,"
    return f"{len(encodings) - 1} comparison{'s' * (len(encodings) != 2)} with {baseline}"


def _grouped(values: Mapping[str, Any], shown: Any) -> str:
    groups: dict[str, list[str]] = {}
    for task, value in values.items():
        groups.setdefault(shown(value), []).append(task)
    return ", ".join(text if len(groups) == 1 else f"{text} ({' '.join(tasks)})" for text, tasks in groups.items())


def _change(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Everything in which a declaration is not the one before it, each in its own words."""
    parts = _decisive(old, new)
    for name, of in (("tasks", lambda entry: list(entry["primary"])), ("seeds", lambda entry: entry["seeds"])):
        if told := _members(name, of(old), of(new)):
            parts.append(told)
    if old.get("search") != new.get("search"):
        sides = [_searched(entry["search"]) if entry.get("search") else "none" for entry in (old, new)]
        parts.append(f"the search from {sides[0]} to {sides[1]}")
    return ", ".join(parts)


def _decisive(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Changes of what decides whether a difference counts: the family of comparisons, alpha, metric and lengths."""
    parts = []
    if family := _members("encodings", old["encodings"], new["encodings"]):
        parts.append(f"family of comparisons {family}")
    if old["baseline"] != new["baseline"]:
        parts.append(f"baseline from {old['baseline']} to {new['baseline']}")
    if old["alpha"] != new["alpha"]:
        way = "loosened" if new["alpha"] > old["alpha"] else "tightened"
        parts.append(f"alpha {way} from {old['alpha']:g} to {new['alpha']:g}")
    for what, name in (("primary metric", "primary"), ("lengths", "lengths")):
        for task in old[name].keys() & new[name].keys():
            before, after = (", ".join(map(str, side)) if isinstance(side, list) else side
                             for side in (old[name][task], new[name][task]))
            if before != after:
                parts.append(f"{what} of {task} from {before} to {after}")
    return parts


def _members(name: str, before: Sequence[Any], after: Sequence[Any]) -> str:
    """How a set grew or shrank; empty where it did neither."""
    more, less = ([str(value) for value in one if value not in other] for one, other in ((after, before),
                                                                                        (before, after)))
    if not (more or less):
        return ""
    changes = [f"with {', '.join(more)}"] * bool(more) + [f"without {', '.join(less)}"] * bool(less)
    count = f"from {len(before)} to {len(after)}" if len(before) != len(after) else f"still {len(after)}"
    return f"{count} {name} ({'; '.join(changes)})"
