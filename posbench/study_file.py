"""Study files: a study as YAML, in the form of a suite's presets; read with the line of every mistake, and written."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posbench import ablation, tuning
from posbench.config import EncodingChoice, StudyConfig, override, to_plain
from posbench.errors import UserError, is_file, nearest, one_line
from posbench.placed import Placed, mapping, unknown
from posbench.safe_yaml import Parsed, Path_, canonical, read
from posbench.settings import RIVALS, both_given, layered, name_of, told_both
from posbench.study import from_preset
from posbench.tokens import TRAINED, WORDS
from posbench.trial import load_suite

SECTIONS = ("model", "train", "data", "evaluation", "decode")
OWN = ("suite", "suites", "lengths", "budget", "ablations")
"""Keys of a file that are no fields of a StudyConfig by themselves."""
FIELDS = tuple(field.name for field in dataclasses.fields(StudyConfig))
PARTS = ("name", "options", "model", "settings")
ABLATION = ("choice", "vary", "grid")
PRESET = "mini"
# A file of an encoding is given by a path of plain names, which no shell and no browser takes for something else.
PLAIN_PATH = re.compile(r"(?:/|\.{1,2}/)*(?:[A-Za-z0-9_.-]+/)*[A-Za-z0-9_][A-Za-z0-9_.-]*\.py")


def is_study_file(text: str) -> bool:
    """Whether an argument means a study file, and not a suite's name or the Python file of one."""
    return text.endswith((".yaml", ".yml")) or ("/" in text and not text.endswith(".py") and is_file(Path(text)))


def studies_of(file: Path, changes: Mapping[str, Any]) -> dict[str, StudyConfig]:
    """The studies of a file, one for each of its suites, by the name of the folder that each writes into.

    Args:
        changes: dotted settings of the command line, which win over those of the file.

    Raises:
        UserError: whatever is wrong, with the file and, where it is known, the line.
    """
    parsed = read(file)
    top = mapping(parsed, parsed.value, ())
    try:
        name = name_of(file.stem)
    except ValueError as error:
        raise UserError(f"study file '{one_line(str(file), 300)}': its name becomes a folder's: {error}") from None
    if "suites" not in top:
        if "suite" not in top:
            raise UserError(f"{file}: names no suite: begin with 'suite: glue', or 'suites:'")
        return {name: _Block(parsed, {(key,): value for key, value in top.items()}).study(top["suite"], changes)}
    if "suite" in top:
        raise UserError(f"{parsed.where(('suites',))}: 'suite' and 'suites' are both given: leave one out")
    found = {}
    for suite, own in mapping(parsed, top["suites"], ("suites",)).items():
        own = {} if own is None else mapping(parsed, own, ("suites", suite))
        # What a suite says for itself takes the place of what is said for all.
        entries: dict[Path_, Any] = {(key,): value for key, value in top.items() if key not in ("suites", *own)}
        entries |= {("suites", suite, key): value for key, value in own.items()}
        found[f"{name}-{suite}"] = _Block(parsed, entries).study(suite, changes)
    if not found:
        raise UserError(f"{parsed.where(('suites',))}: suites names none")
    return found


class _Block(Placed):
    """What a file says of one suite: entries by their path, whose last part is the key."""

    def __init__(self, parsed: Parsed, entries: Mapping[Path_, Any]) -> None:
        super().__init__(parsed)
        self.entries = entries
        self.changes: dict[str, Any] = {}
        self.said: dict[str, Any] = {}

    def study(self, suite: Any, changes: Mapping[str, Any]) -> StudyConfig:
        """The study with the changes of the command line."""
        for path, value in self.entries.items():
            self._read(path, value)
        with self.at():
            suite = load_suite(self.name(suite, "suite", self.places.get("suite", ("suites", str(suite)))))
            preset = self.name(self.said.get("preset", PRESET), "preset", self.places.get("preset", ()))
            lengths = self.said.get("lengths")
            if "lengths" in self.said:
                self._lengths(lengths)
            # Who says on the command line where rows come from means none of the file's places.
            moved = ("data.path", "data.revision") if "data.source" in changes else ()
            every = layered({name: value for name, value in self.changes.items() if name not in moved}, changes)
            if "per_task" in self.changes:
                # Options of the command line win over what the file says of one task, too.
                won = {*changes, *(RIVALS[name] for name in changes if name in RIVALS)}
                every["per_task"] = {task: {name: value for name, value in own.items() if name not in won}
                                     for task, own in self.changes["per_task"].items()}
            base = {name: value for name, value in every.items() if name != "baseline"}
            if "ablations" in self.said:
                choices, named = self._ablations(from_preset(suite.name, preset, base))
                if "encodings" not in changes:
                    every["encodings"] = [to_plain(choice) for choice in choices]
                study = from_preset(suite.name, preset, {**base, "encodings": every["encodings"]})
                labels = [choice.label for choice in study.encodings]
                if "baseline" not in every and study.baseline not in labels and named in labels:
                    every["baseline"] = named
            study = from_preset(suite.name, preset, every)
            if "primary" in self.said:
                study = override(study, {"primary": self._primary(study)})
            labelled = [task for task in study.tasks if suite.tasks[task].labelled]
            if isinstance(lengths, list) and len(lengths) > 1 and labelled:
                raise UserError(f"lengths: rows of {', '.join(labelled)} have one length: give a single number")
            for task in study.tasks:
                # Settings of single tasks and choices show their mistakes here, where the line is known.
                for choice in study.encodings:
                    study.trial(choice, task, study.seeds[0])
            if study.search:
                tuning.check(study, at=lambda *path: self.at(self._searched(path)))
            return study

    def _searched(self, path: Path_) -> Path_:
        """Where the file says something of its search; the empty path for what a command line says."""
        return (*self.places["search"], *path) if "search" in self.places else ()

    def _read(self, path: Path_, value: Any) -> None:
        key = str(path[-1])
        section, dot, _ = key.partition(".")
        if key in SECTIONS:
            for own, entry in ({} if value is None else self.mapped(value, path)).items():
                self._put(f"{key}.{own}", entry, (*path, own))
        elif dot and section in SECTIONS:
            self._put(key, value, path)
        elif key == "budget":
            for own, entry in self.mapped(value, path).items():
                if own not in ("steps", "epochs"):
                    raise self.error((*path, own), f"unknown budget '{one_line(own, 80)}': it is counted in steps or "
                                                   "in epochs")
                self._put(f"train.{own}", entry, (*path, own))
        elif key == "seeds":
            self._keep(key, self.seeds(value, path), path)
        elif key == "tasks":
            tasks = [self.text(task, (*path, place)) for place, task in enumerate(self.listed(value, path))]
            self._keep(key, self.once(tasks, "task", path), path)
        elif key == "encodings":
            choices = [self._choice(entry, (*path, place)) for place, entry in enumerate(self.listed(value, path))]
            self.once([choice.label for choice in choices], "encoding", path)
            self._keep(key, [to_plain(choice) for choice in choices], path)
        elif key == "baseline":
            self._keep(key, self._choice(value, path).label, path)
        elif key == "alpha":
            self._put(key, value, path)
        elif key == "per_task":
            self._keep(key, {task: self._of_task(own, (*path, task)) for task, own in self.mapped(value, path).items()},
                       path)
        elif key in ("suite", "preset", "primary", "lengths", "ablations"):
            self.said[key], self.places[key] = value, path
        elif key == "search":
            self._keep(key, self.mapped(value, path), path)
        else:
            raise self.error(path, unknown(key, (*OWN, *FIELDS)))

    def _of_task(self, value: Any, path: Path_) -> dict[str, Any]:
        """What one task has of its own, by dotted settings."""
        own = {name: self.plain(entry, (*path, name)) for name, entry in self.mapped(value, path).items()}
        if both := both_given(own):
            raise self.error((*path, both[1]), f"per_task: {told_both(*both)}")
        return own

    def _put(self, name: str, value: Any, path: Path_) -> None:
        """A setting, in the form that it has on a command line."""
        value = canonical(self.plain(value, path))
        if value and name == "data.path":
            value = str(self.beside(value, path))
        if value and name == "data.tokenizer" and value not in TRAINED:
            kind, file = (WORDS, value.removeprefix(WORDS)) if value.startswith(WORDS) else ("", value)
            value = kind + str(self.beside(file, path))
        self._keep(name, value, path)

    def _keep(self, name: str, value: Any, path: Path_) -> None:
        if name in self.changes:
            first = self.parsed.where(self.places[name]).rpartition("line ")[2]
            raise self.error(path, f"'{name}' is given twice, first in line {first}: give it once")
        self.changes[name], self.places[name] = value, path
        if both := both_given(self.changes):
            other = both[0] if both[1] == name else both[1]
            first = self.parsed.where(self.places[other]).rpartition("line ")[2]
            raise self.error(path, told_both(other, name, f" (line {first})"))

    def _choice(self, value: Any, path: Path_) -> EncodingChoice:
        """From 'rope:base=500', {rope: {base: 500}} or {name: rope, options: ..., model: ..., settings: ...}."""
        if isinstance(value, dict):
            if "name" not in value:
                if len(value) != 1:
                    raise self.error(path, "an encoding is a text, {NAME: {OPTION: VALUE}} or {name: NAME, ...}")
                ((name, options),) = value.items()
                value = {"name": name, "options": options}
            if strange := [key for key in value if key not in PARTS]:
                raise self.error(path, unknown(strange[0], PARTS))
            parts = {key: self.mapped(value.get(key) or {}, path) for key in PARTS if key != "name"}
            texts: dict[str, Any] = {key: {name: canonical(self.plain(entry, (*path, key, name))) or "none"
                                           for name, entry in own.items()} for key, own in parts.items()}
            choice = EncodingChoice(name=self.text(value["name"], path), **texts)
        else:
            with self.at(path):
                choice = EncodingChoice.parse(self.text(value, path))
        if choice.name.endswith(".py"):
            if not PLAIN_PATH.fullmatch(choice.name) or len(choice.name) > 255:
                raise self.error(path, f"encoding file '{one_line(choice.name, 80)}': a path of letters, digits, '.', "
                                        "'_' and '-' is needed")
            choice = dataclasses.replace(choice, name=str(self.beside(choice.name, path)))
        else:
            self.name(choice.name, "encoding", path)
        return self._checked(choice, path)

    def _primary(self, study: StudyConfig) -> dict[str, str]:
        tasks, said = load_suite(study.suite).tasks, self.said["primary"]
        place = self.places["primary"]
        wanted = {task: self.text(metric, (*place, task)) for task, metric in said.items()} if isinstance(said, dict) \
            else dict.fromkeys(study.tasks, self.text(said, place))
        for task, metric in wanted.items():
            if task not in study.tasks:
                raise UserError(f"primary: the study has no task '{task}', {nearest(task, study.tasks)}")
            known = [own.name for own in tasks[task].metrics]
            if metric not in known:
                raise UserError(f"primary: task {task} has no metric '{metric}', known: {', '.join(known)}")
        return {task: metric for task, metric in wanted.items() if metric != tasks[task].primary}

    def _lengths(self, lengths: Any) -> None:
        """The trained length, and those at which a language model is scored: 1, 2, 4, ... times it."""
        listed = lengths if isinstance(lengths, list) else [lengths]
        if not listed or any(type(length) is not int or length < 1 for length in listed) or any(
            b != 2 * a for a, b in itertools.pairwise(listed)
        ):
            raise UserError("lengths: give the trained length, or it and 2, 4, 8, ... times it: [32, 64, 128]")
        self._put("data.max_length", listed[0], self.places["lengths"])
        if len(listed) > 1:
            self._put("evaluation.longest", listed[-1] // listed[0], self.places["lengths"])

    def _ablations(self, study: StudyConfig) -> tuple[list[EncodingChoice], str]:
        """The choices of the study with those of its ablations, and the label of the first that is varied."""
        path, said = self.places["ablations"], self.said["ablations"]
        choices = list(study.encodings) if "encodings" in self.changes else []
        bases = []
        for place, entry in enumerate(self.listed(said, path)):
            here = (*path, place) if isinstance(said, list) else path
            own = self.mapped(entry, here)
            if strange := [key for key in own if key not in ABLATION]:
                raise self.error((*here, strange[0]), unknown(strange[0], ABLATION))
            if missing := [key for key in ABLATION[:2] if key not in own]:
                raise self.error(here, f"ablations: '{missing[0]}' is missing: write choice: rope, and vary: "
                                       "{rope.base: [1000, 500000]}")
            base = self._choice(own["choice"], (*here, "choice"))
            factors = self._factors(own["vary"], (*here, "vary"))
            grid = self.flag(own.get("grid", False), (*here, "grid"))
            with self.at(here):
                varied = ablation.varied(base, factors, grid=grid)
            for choice in varied:
                self._checked(choice, (*here, "vary"))
            with self.at((*here, "vary")):
                if len(ablation.distinct(study, [base, *varied])) == 1:
                    raise UserError(f"ablations: every value is that of '{base.label}' as it is: name others")
            bases.append(base)
            choices += [base, *varied]
        return ablation.distinct(study, choices), bases[0].label

    def _factors(self, value: Any, path: Path_) -> dict[str, list[str]]:
        """By name the values that an ablation takes in turn."""
        named = self.mapped(value, path)
        if not named:
            raise self.error(path, "ablations: vary is empty: name what is varied, such as rope.base: [1000, 500000]")
        return {name: [canonical(self.plain(each, (*path, name))) or "none" for each in self.listed(own, (*path, name))]
                for name, own in named.items()}

    def _checked(self, choice: EncodingChoice, path: Path_) -> EncodingChoice:
        """The choice, if there is such an encoding with such options, and a choice may have such settings."""
        with self.at(path):
            ablation.options_of(choice)
            if both := both_given(choice.changes()):
                raise UserError(f"encoding '{choice.label}': {told_both(*both)}")
        return choice
