"""The folder of a study: whose it is, what was declared in it, and what may change there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posbench.config import StudyConfig, build, to_plain
from posbench.declaration import GROWS, declared, told
from posbench.errors import StorageError, UserError, is_file, reason_of
from posbench.store import Store, write_atomically
from posbench.study import Plan, plan
from posbench.tuning import settled

IDENTITY = "study.json"
DECLARED = "declarations"


def claim(folder: Path, study: StudyConfig, *, seen: bool = False) -> None:
    """Makes the folder this study's own, or refuses it.

    Args:
        seen: whether there are results of the study already, so that what is declared now is not said before them.

    Raises:
        UserError: the folder holds another study, or files that are no study's. Of two studies that ask for one folder
            at one moment the first has it.
        StorageError: it cannot be written.
    """
    mine = to_plain(study)
    known = folder / IDENTITY
    history: list[dict[str, Any]] = []
    if there := is_file(known):
        history = declarations(folder)
        theirs = _completed(read_identity(folder))
        if differences := _differences(_settings(theirs), _settings(mine)):
            raise UserError(
                f"folder '{folder}' belongs to another study ({'; '.join(differences[:3])}): "
                "choose another with --out, or remove it"
            )
    try:
        if not there and folder.exists() and (not folder.is_dir() or any(map(_foreign, folder.iterdir()))):
            raise UserError(f"folder '{folder}' holds something that is no study: choose another with --out")
        folder.mkdir(parents=True, exist_ok=True)
        # What reports wrote shows results too, though they be of trials that the study has no more.
        seen = seen or any(map(_foreign, folder.iterdir()))
        whole = mine | {DECLARED: declared(history, study, seen=seen)}
        write_atomically(known, json.dumps(whole, indent=1, sort_keys=True).encode(), fresh=not there)
    except FileExistsError as error:
        if not is_file(known):  # nor will it be one when it is asked again
            place = error.filename or known
            raise StorageError(f"folder '{folder}' cannot be a study's: {place} is in the way: remove it") from None
        claim(folder, study, seen=seen)
    except OSError as error:
        raise StorageError(f"folder '{folder}' cannot be written: {error.strerror}") from error


def _foreign(file: Path) -> bool:
    """Whether a file of an unclaimed folder is none that another study is just claiming it with."""
    return file.name != IDENTITY and not (file.name.startswith(f".{IDENTITY}.") and file.suffix == ".tmp")


def read_identity(folder: Path) -> dict[str, Any]:
    """The plain StudyConfig that a study folder holds."""
    return {name: value for name, value in _identity(folder).items() if name != DECLARED}


def kept_in(folder: Path) -> StudyConfig:
    """The study that a folder holds."""
    return build(StudyConfig, read_identity(folder), where=f"{folder / IDENTITY}")


def taken_up(folder: Path, store: Store) -> Plan:
    """The plan of the study that a folder holds, with everything that the store's results determine."""
    return settled(plan(kept_in(folder), skip_missing=True), store)


def declarations(folder: Path) -> list[dict[str, Any]]:
    """What was declared in a study folder, the first first; nothing in one that is older than declarations."""
    history = _identity(folder).get(DECLARED, []) if is_file(folder / IDENTITY) else []
    try:
        if not isinstance(history, list):
            raise TypeError(f"they are a {type(history).__name__}")
        told(history)  # what a table can say of them is whole
    except (KeyError, TypeError, ValueError, AttributeError, UserError) as error:
        raise UserError(
            f"folder '{folder}': {DECLARED} of {IDENTITY} are damaged ({reason_of(error)}): remove the folder, its "
            "trials stay"
        ) from None
    return history


def _identity(folder: Path) -> dict[str, Any]:
    file = folder / IDENTITY
    try:
        plain = json.loads(file.read_text())
        if not isinstance(plain, dict):
            raise ValueError(f"it holds a {type(plain).__name__} in place of settings by name")
    except (OSError, ValueError, RecursionError) as error:
        mend = ("remove the folder and run the study again, its trials stay" if file.exists()
                else "give one that `posbench study` wrote, such as out/glue-mini")
        raise UserError(f"folder '{folder}' is no study's: it has no readable {IDENTITY} ({error}): {mend}") from None
    return plain


def _completed(plain: dict[str, Any]) -> dict[str, Any]:
    """With the settings that came after the folder was written, which stand at their defaults there."""
    try:
        return to_plain(build(StudyConfig, plain, where=IDENTITY))
    except UserError:
        return plain


def _settings(plain: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in plain.items() if name not in GROWS}


def _differences(theirs: Any, mine: Any, path: str = "") -> list[str]:
    if isinstance(theirs, dict) and isinstance(mine, dict):
        return [
            line
            for name in sorted(theirs.keys() | mine.keys())
            for line in _differences(theirs.get(name), mine.get(name), f"{path}.{name}" if path else name)
        ]
    return [] if theirs == mine else [f"{path} is {theirs} there and {mine} here"]
