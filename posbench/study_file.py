"""Study files: a study as YAML, in the form of a suite's presets; read with the line of every mistake, and written."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from posbench import ablation
from posbench.arguments import SEEDS, path_of
from posbench.config import EncodingChoice, StudyConfig, override, to_plain
from posbench.errors import UserError, is_file, nearest, one_line
from posbench.safe_yaml import Parsed, Path_, canonical, read
from posbench.settings import name_of
from posbench.study import from_preset
from posbench.tokens import TRAINED, WORDS
from posbench.trial import load_suite

SECTIONS = ("model", "train", "data", "evaluation", "decode")
OWN = ("suite", "suites", "lengths", "budget", "ablations")
"""Keys of a file that are no fields of a StudyConfig by themselves."""
FIELDS = tuple(field.name for field in dataclasses.fields(StudyConfig))
PARTS = ("name", "options", "model", "settings")
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
    top = _mapping(parsed, parsed.value, ())
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
    for suite, own in _mapping(parsed, top["suites"], ("suites",)).items():
        own = {} if own is None else _mapping(parsed, own, ("suites", suite))
        # What a suite says for itself takes the place of what is said for all.
        entries: dict[Path_, Any] = {(key,): value for key, value in top.items() if key not in ("suites", *own)}
        entries |= {("suites", suite, key): value for key, value in own.items()}
        found[f"{name}-{suite}"] = _Block(parsed, entries).study(suite, changes)
    if not found:
        raise UserError(f"{parsed.where(('suites',))}: suites names none")
    return found


class _Block:
    """What a file says of one suite: entries by their path, whose last part is the key."""

    def __init__(self, parsed: Parsed, entries: Mapping[Path_, Any]) -> None:
        self.parsed, self.entries = parsed, entries
        self.changes: dict[str, Any] = {}
        self.places: dict[str, Path_] = {}
        self.said: dict[str, Any] = {}

    def study(self, suite: Any, changes: Mapping[str, Any]) -> StudyConfig:
        """The study with the changes of the command line."""
        for path, value in self.entries.items():
            self._read(path, value)
        with self._placed():
            suite = load_suite(self._name(suite, "suite"))
            preset = self._name(self.said.get("preset", PRESET), "preset")
            if (lengths := self.said.get("lengths")) is not None:
                self._lengths(lengths)
            # What is said later wins, and of two units of a length the last.
            every = {name: value for name, value in self.changes.items() if name not in changes} | dict(changes)
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
            return study

    def _read(self, path: Path_, value: Any) -> None:
        key = str(path[-1])
        section, dot, _ = key.partition(".")
        if key in SECTIONS:
            for own, entry in ({} if value is None else self._mapped(value, path)).items():
                self._put(f"{key}.{own}", entry, (*path, own))
        elif dot and section in SECTIONS:
            self._put(key, value, path)
        elif key == "budget":
            for own, entry in self._mapped(value, path).items():
                if own not in ("steps", "epochs"):
                    raise self._error((*path, own), f"unknown budget '{own}': it is counted in steps or in epochs")
                self._put(f"train.{own}", entry, (*path, own))
        elif key == "seeds":
            self._keep(key, self._seeds(value, path), path)
        elif key == "tasks":
            listed = value if isinstance(value, list) else [value]
            self._keep(key, [self._text(task, (*path, place)) for place, task in enumerate(listed)], path)
        elif key == "encodings":
            listed = value if isinstance(value, list) else [value]
            self._keep(key, [to_plain(self._choice(entry, (*path, place))) for place, entry in enumerate(listed)], path)
        elif key == "baseline":
            self._keep(key, self._choice(value, path).label, path)
        elif key == "alpha":
            self._put(key, value, path)
        elif key == "per_task":
            tasks = self._mapped(value, path)
            self._keep(key, {task: {name: self._plain(entry, (*path, task, name)) for name, entry in
                                    self._mapped(own, (*path, task)).items()} for task, own in tasks.items()}, path)
        elif key in ("suite", "preset", "primary", "lengths", "ablations"):
            self.said[key], self.places[key] = value, path
        elif key == "search" and key in FIELDS:
            self._keep(key, value, path)
        else:
            raise self._error(path, f"unknown key '{one_line(key, 80)}', {nearest(key, [*OWN, *FIELDS])}")

    def _put(self, name: str, value: Any, path: Path_) -> None:
        """A setting, in the form that it has on a command line."""
        value = canonical(self._plain(value, path))
        if value and name == "data.path":
            value = str(self._beside(value, path))
        if value and name == "data.tokenizer" and value not in TRAINED:
            kind, file = (WORDS, value.removeprefix(WORDS)) if value.startswith(WORDS) else ("", value)
            value = kind + str(self._beside(file, path))
        self._keep(name, value, path)

    def _keep(self, name: str, value: Any, path: Path_) -> None:
        if name in self.changes:
            first = self.parsed.where(self.places[name]).rpartition("line ")[2]
            raise self._error(path, f"'{name}' is given twice, first in line {first}: give it once")
        self.changes[name], self.places[name] = value, path

    def _plain(self, value: Any, path: Path_) -> Any:
        if isinstance(value, dict | list):
            raise self._error(path, f"'{path[-1]}' holds several values where one is needed")
        return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value

    def _beside(self, text: str, path: Path_) -> Path:
        """A path of the file, from the folder in which the file lies."""
        return path_of(self.parsed.file.absolute().parent / Path(text).expanduser(), self.parsed.where(path))

    def _seeds(self, value: Any, path: Path_) -> list[int]:
        seeds = list(range(value)) if type(value) is int and value <= SEEDS else value
        if not isinstance(seeds, list) or len(seeds) > SEEDS or any(type(seed) is not int for seed in seeds):
            raise self._error(path, f"seeds: give how many, up to {SEEDS}, or which, such as [0, 1, 2]")
        return seeds

    def _choice(self, value: Any, path: Path_) -> EncodingChoice:
        """From 'rope:base=500', {rope: {base: 500}} or {name: rope, options: ..., model: ..., settings: ...}."""
        if isinstance(value, dict):
            if "name" not in value:
                if len(value) != 1:
                    raise self._error(path, "an encoding is a text, {NAME: {OPTION: VALUE}} or {name: NAME, ...}")
                ((name, options),) = value.items()
                value = {"name": name, "options": options}
            if unknown := [key for key in value if key not in PARTS]:
                raise self._error(path, f"unknown key '{one_line(unknown[0], 80)}', {nearest(unknown[0], PARTS)}")
            parts = {key: self._mapped(value.get(key) or {}, path) for key in PARTS if key != "name"}
            texts: dict[str, Any] = {key: {name: canonical(self._plain(entry, (*path, key, name))) or "none"
                                           for name, entry in own.items()} for key, own in parts.items()}
            choice = EncodingChoice(name=self._text(value["name"], path), **texts)
        else:
            with self._placed(path):
                choice = EncodingChoice.parse(self._text(value, path))
        if choice.name.endswith(".py"):
            if not PLAIN_PATH.fullmatch(choice.name) or len(choice.name) > 255:
                raise self._error(path, f"encoding file '{one_line(choice.name, 80)}': a path of letters, digits, '.', "
                                        "'_' and '-' is needed")
            choice = dataclasses.replace(choice, name=str(self._beside(choice.name, path)))
        else:
            self._name(choice.name, "encoding", path)
        return self._checked(choice, path)

    def _primary(self, study: StudyConfig) -> dict[str, str]:
        tasks, said = load_suite(study.suite).tasks, self.said["primary"]
        wanted = said if isinstance(said, dict) else dict.fromkeys(study.tasks, said)
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
        for place, entry in enumerate(said if isinstance(said, list) else [said]):
            here = (*path, place) if isinstance(said, list) else path
            own = self._mapped(entry, here)
            if unknown := [key for key in own if key not in ("choice", "vary", "grid")]:
                raise self._error((*here, unknown[0]), f"unknown key '{unknown[0]}', known: choice, vary, grid")
            bases.append(self._choice(own.get("choice"), (*here, "choice")))
            factors = {name: [canonical(self._plain(value, (*here, "vary", name))) or "none" for value in
                              (values if isinstance(values, list) else [values])]
                       for name, values in self._mapped(own.get("vary"), (*here, "vary")).items()}
            with self._placed(here):
                varied = ablation.varied(bases[-1], factors, grid=own.get("grid", False) is True)
            for choice in varied:
                self._checked(choice, (*here, "vary"))
            choices += [bases[-1], *varied]
        return ablation.distinct(study, choices), bases[0].label if bases else ""

    def _checked(self, choice: EncodingChoice, path: Path_) -> EncodingChoice:
        """The choice, if there is such an encoding with such options."""
        with self._placed(path):
            ablation.options_of(choice)
        return choice

    def _mapped(self, value: Any, path: Path_) -> dict[str, Any]:
        return _mapping(self.parsed, value, path)

    def _text(self, value: Any, path: Path_) -> str:
        if not isinstance(value, str) or not value:
            raise self._error(path, f"{value!r} where a name is needed")
        return value

    def _name(self, value: Any, what: str, path: Path_ = ()) -> str:
        try:
            return name_of(self._text(value, path or (what,)))
        except ValueError as error:
            raise self._error(path or (what,), f"{what} '{one_line(str(value), 80)}': {error}") from None

    def _error(self, path: Path_, told: str) -> UserError:
        return UserError(f"{self.parsed.where(path)}: {told}")

    @contextlib.contextmanager
    def _placed(self, path: Path_ = ()) -> Iterator[None]:
        """Puts file and line before a mistake: those of the path, or of the key or value that it names."""
        try:
            yield
        except UserError as error:
            told = str(error)
            if told.startswith(str(self.parsed.file)):
                raise
            where = self.parsed.where(path or self._named(told))
            raise UserError(f"{where}: {told.removeprefix('setting: ')}") from None

    def _named(self, told: str) -> Path_:
        """Where the file says what a message speaks of; the empty path where that cannot be seen."""
        told = re.split(r", (?:did you mean|known:)", told)[0]
        whole = [path for name, path in self.places.items() if "." in name and name in told]
        # A message names what holds a thing before the thing.
        values = [path for value in reversed(re.findall("'([^']*)'", told)) for path in self.parsed.lines
                  if self.parsed.at(path) == value]
        keys = [path for path in self.parsed.lines if path and re.search(rf"\b{re.escape(str(path[-1]))}\b", told)]
        return next(iter([*whole, *values, *sorted(keys, key=len, reverse=True)]), ())


def _mapping(parsed: Parsed, value: Any, path: Path_) -> dict[str, Any]:
    if not isinstance(value, dict):
        what = f"'{path[-1]}'" if path else "the file"
        form = "'suites: {glue: {tasks: [rte]}, lm: {}}'" if path == ("suites",) else "'KEY: VALUE', one a line"
        raise UserError(f"{parsed.where(path)}: {what} holds no keys with values: write {form}")
    return value
