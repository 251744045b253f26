"""Values of a study file, each read for what it must be, and every mistake told with the file and the line."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from posbench.arguments import SEEDS, path_of
from posbench.errors import UserError, nearest, one_line
from posbench.safe_yaml import Parsed, Path_, canonical
from posbench.settings import name_of, shown


class Placed:
    """The values of a file by their paths, and where in it settings stand.

    Attributes:
        parsed: the file. places: by dotted setting or key, the path under which the file says it.
    """

    def __init__(self, parsed: Parsed) -> None:
        self.parsed = parsed
        self.places: dict[str, Path_] = {}

    def error(self, path: Path_, told: str) -> UserError:
        """A mistake of the value at the path."""
        return UserError(f"{self.parsed.where(path)}: {told}")

    def mapped(self, value: Any, path: Path_) -> dict[str, Any]:
        """Names with values."""
        return mapping(self.parsed, value, path)

    def listed(self, value: Any, path: Path_) -> list[Any]:
        """Several values, or the one of a list that is not written as one."""
        if value == []:
            raise self.error(path, f"'{_key(path)}' is empty: name at least one")
        return value if isinstance(value, list) else [value]

    def plain(self, value: Any, path: Path_) -> Any:
        """One text, number, truth value or nothing."""
        if isinstance(value, dict | list):
            raise self.error(path, f"'{path[-1]}' holds several values where one is needed")
        return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value

    def flag(self, value: Any, path: Path_) -> bool:
        """True or false."""
        if not isinstance(value, bool):
            raise self.error(path, f"'{_key(path)}' has {_what(value)} where true or false is needed")
        return value

    def text(self, value: Any, path: Path_) -> str:
        """A name."""
        if not isinstance(value, str) or not value:
            raise self.error(path, f"'{_key(path)}' has {_what(value)} where a name is needed")
        return value

    def name(self, value: Any, what: str, path: Path_) -> str:
        """A name that may become part of a path."""
        try:
            return name_of(self.text(value, path))
        except ValueError as error:
            raise self.error(path, f"{what} '{one_line(str(value), 80)}': {error}") from None

    def beside(self, text: str, path: Path_) -> Path:
        """A path of the file, from the folder in which the file lies."""
        return path_of(self.parsed.file.absolute().parent / Path(text).expanduser(), self.parsed.where(path))

    def seeds(self, value: Any, path: Path_) -> list[int]:
        """So many, or these."""
        seeds = list(range(value)) if type(value) is int and 1 <= value <= SEEDS else value
        if not isinstance(seeds, list) or not 1 <= len(seeds) <= SEEDS or any(type(seed) is not int for seed in seeds):
            raise self.error(path, f"seeds: give how many, from 1 to {SEEDS}, or which, such as [0, 1, 2]")
        for place, seed in enumerate(seeds):
            if not 0 <= seed < 2**31:
                raise self.error((*path, place), f"seeds: {seed} is no seed: give whole numbers from 0 on")
        return self.once(seeds, "seed", path)

    def once(self, values: list[Any], what: str, path: Path_) -> list[Any]:
        """The values, of which none comes twice."""
        for place, value in enumerate(values):
            if value in values[:place]:
                raise self.error((*path, place), f"the study names {what} {one_line(str(value), 80)} twice: name each "
                                                 "once")
        return values

    @contextlib.contextmanager
    def at(self, path: Path_ = ()) -> Iterator[None]:
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
        # What belongs to a section may be told as 'model: width 30 is no multiple of heads 4'.
        dotted = [*self.places.items(), *((str(path[-1]), path) for path in self.parsed.lines if path)]
        parts = [path for name, path in dotted if "." in name
                 and all(re.search(rf"\b{re.escape(part)}\b", told) for part in name.split("."))]
        # A message names what holds a thing before the thing.
        values = [path for value in reversed(re.findall("'([^']*)'", told)) for path in self.parsed.lines
                  if self.parsed.at(path) == value or path[-1:] == (value,)]
        keys = [path for path in self.parsed.lines if path and re.search(rf"\b{re.escape(str(path[-1]))}\b", told)]
        return next(iter([*whole, *values, *parts, *sorted(keys, key=len, reverse=True)]), ())


def mapping(parsed: Parsed, value: Any, path: Path_) -> dict[str, Any]:
    """Names with values, at a path of the file."""
    if not isinstance(value, dict):
        what = f"'{_key(path)}'" if path else "the file"
        form = "'suites: {glue: {tasks: [rte]}, lm: {}}'" if path == ("suites",) else "'KEY: VALUE', one a line"
        raise UserError(f"{parsed.where(path)}: {what} holds no keys with values: write {form}")
    return value


def unknown(key: str, known: tuple[str, ...]) -> str:
    """What is said of a key that a file may not have."""
    return f"unknown key '{one_line(key, 80)}', {nearest(key, known)}"


def _key(path: Path_) -> str:
    """The name of a value, or of the list in which it is."""
    return str(next((part for part in reversed(path) if isinstance(part, str)), "the file"))


def _what(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        return "several values"
    return str(canonical(value)) if isinstance(value, float | int) else shown(value)
