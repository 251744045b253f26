"""A study written as a file that reads as the same study: its preset, and what differs from it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from posbench.config import EncodingChoice, StudyConfig, to_plain
from posbench.errors import StorageError, UserError
from posbench.safe_yaml import written
from posbench.store import write_atomically
from posbench.study import from_preset
from posbench.study_file import SECTIONS, is_study_file
from posbench.tokens import TRAINED, WORDS


def text_of(study: StudyConfig, folder: Path) -> str:
    """The study as YAML; paths are told from `folder`, in which the file is to lie."""
    preset, mine = from_preset(study.suite, study.preset, {}), to_plain(study)
    base = to_plain(preset)
    # What the study takes from single tasks of its preset must be said, though it equals what the preset says for all.
    taken = {name for task, settings in base["per_task"].items() for name in settings
             if name not in mine["per_task"].get(task, {})}
    told: dict[str, Any] = {
        "suite": study.suite,
        "preset": study.preset,
        "encodings": [_choice(choice, folder) for choice in study.encodings],
        "tasks": mine["tasks"],
        "seeds": mine["seeds"],
        "baseline": study.baseline,
        "alpha": study.alpha,
    }
    for section in SECTIONS:
        own = {name: value for name, value in mine[section].items()
               if value != base[section][name] or f"{section}.{name}" in taken}
        # A length in steps leaves none in epochs: saying so would say it twice.
        told[section] = {name: value for name, value in own.items()
                         if value is not None or name not in ("steps", "epochs")}
    if data := told["data"]:
        if data.get("path"):
            data["path"] = _path(data["path"], folder)
        if data.get("tokenizer", TRAINED[0]) not in TRAINED:
            kind, file = (WORDS, data["tokenizer"].removeprefix(WORDS)) if data["tokenizer"].startswith(WORDS) else (
                "", data["tokenizer"])
            data["tokenizer"] = kind + _path(file, folder)
    said = {name: value for name, value in told.items() if value != {}}
    changes = {f"{section}.{name}": value for section in SECTIONS for name, value in told[section].items()}
    usual = to_plain(from_preset(study.suite, study.preset, changes))["per_task"]
    own = {task: {name: value for name, value in settings.items() if usual.get(task, {}).get(name) != value}
           for task, settings in mine["per_task"].items()}
    said |= {"per_task": {task: settings for task, settings in own.items() if settings}}
    # Whatever else a study has is written as it is where it is not the default.
    known = {"per_task", *told}
    said |= {name: value for name, value in mine.items() if name not in known and value != base[name]}
    return written({name: value for name, value in said.items() if value != {}})


def write(study: StudyConfig, file: Path) -> None:
    """Writes the study as a new file.

    Raises:
        UserError: the name is none of a study file, or there is something already.
        StorageError: it cannot be written.
    """
    if not is_study_file(file.name):
        raise UserError(f"--write {file}: a study file's name ends in .yaml")
    if file.exists():
        raise UserError(f"--write {file}: exists already: choose another name, or remove it")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, text_of(study, file.parent).encode())
    except OSError as error:
        raise StorageError(f"--write {file}: cannot be written: {error.strerror}") from error


def _choice(choice: EncodingChoice, folder: Path) -> str:
    """As on a command line, which is what its label is made of too."""
    name = _path(choice.name, folder) if choice.name.endswith(".py") else choice.name
    options = "".join(f":{key}={value}" for key, value in choice.options.items())
    return name + options + "".join(f"+{key}={value}" for own in (choice.model, choice.settings)
                                    for key, value in own.items())


def _path(path: str, folder: Path) -> str:
    return os.path.relpath(Path(path).absolute(), folder.absolute())
