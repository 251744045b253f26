"""Names and lazy loading of plugins: files of the plugin folders, then entry points, then a path on the command line.

A plugin is a module with one agreed name. Listing imports nothing but this file; a plugin is imported when it is asked
for, and one that fails to import breaks nothing else.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import re
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from posbench.errors import UserError, is_file, nearest, reason_of

AGREED = {"encodings": "ENCODING", "suites": "SUITE", "reports": "REPORT"}
NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


@dataclass(frozen=True)
class Plugin:
    """A loaded plugin: its name, what it offers, where it came from, and the SHA-256 of its source file."""

    name: str
    value: Any
    origin: str
    source_hash: str


@dataclass(frozen=True)
class Found:
    """A plugin that was found and not imported."""

    name: str
    origin: str
    file: Path | None = None
    entry: EntryPoint | None = None


class Registry:
    """All plugins of one kind: 'encodings', 'suites' or 'reports'."""

    def __init__(self, kind: str) -> None:
        self.kind, self.attribute = kind, AGREED[kind]
        self.singular = kind.removesuffix("s")

    def found(self) -> dict[str, list[Found]]:
        """By name, everything that claims it; more than one claim is an error as soon as the name is asked for."""
        claims: dict[str, list[Found]] = {}
        package = importlib.import_module(f"posbench.{self.kind}")
        files = {file.resolve() for folder in package.__path__ for file in Path(folder).glob("*.py")}
        for file in sorted(files):
            if not file.name.startswith("_"):
                claims.setdefault(file.stem, []).append(
                    Found(file.stem, f"posbench {self.kind}/{file.name}", file=file)
                )
        for entry in _offered(f"posbench.{self.kind}", tuple(sys.path)):
            owner = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unnamed distribution"
            claims.setdefault(entry.name, []).append(Found(entry.name, f"{owner} ({entry.value})", entry=entry))
        return dict(sorted(claims.items()))

    def own(self, name: str) -> bool:
        """Whether the name means a plugin of posbench itself, and not a file or another package's."""
        return not name.endswith(".py") and any(claim.file is not None for claim in self.found().get(name, []))

    def load(self, name: str) -> Plugin:
        """The plugin of this name, or in this file when the name ends with '.py'.

        Raises:
            UserError: unknown name (with the near ones), two plugins of one name (with both origins), a plugin that
                fails to import or lacks the agreed name (with the reason).
        """
        if name.endswith(".py"):
            return self._load_file(Path(name))
        claims = self.found()
        if name not in claims:
            beside = f"./{name}.py" if is_file(Path(f"{name}.py")) else f"./{self.kind}/mine.py"
            raise UserError(
                f"unknown {self.singular} '{name}', {nearest(name, claims)} "
                f"(a file is given by its path, such as {beside})"
            )
        first, *others = claims[name]
        if others:
            raise UserError(
                f"{self.singular} '{name}' is claimed by {first.origin} and by "
                + " and by ".join(other.origin for other in others)
                + ": rename one of them"
            )
        if first.entry is None:
            return self._plugin(name, self._imported(f"posbench.{self.kind}.{name}", first.origin), first.origin)
        module = self._imported(first.entry.module, first.origin)
        return self._plugin(name, module, first.origin, first.entry.attr or self.attribute)

    def _load_file(self, path: Path) -> Plugin:
        if not is_file(path):
            raise UserError(f"{self.singular} file '{path}' does not exist: give the path of a Python file")
        name = path.stem
        if not NAME.fullmatch(name):
            raise UserError(
                f"{self.singular} file '{path}': a plugin's name is its file name, in lower-case letters, "
                "digits and '_': rename the file"
            )
        if name in self.found():
            origin = self.found()[name][0].origin
            raise UserError(f"{self.singular} file '{path}': the name '{name}' belongs to {origin}: rename the file")
        content = path.read_bytes()
        module_name = f"posbench_file_{self.kind}_{name}_{hashlib.sha256(content).hexdigest()[:16]}"
        if module_name not in sys.modules:
            spec = importlib.util.spec_from_file_location(module_name, path.resolve())
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[module_name] = module
            try:
                spec.loader.exec_module(module)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # SystemExit too: a plugin must not end the program
                del sys.modules[module_name]
                raise UserError(self._broken(str(path), error)) from error
        return self._plugin(name, sys.modules[module_name], f"file {path}")

    def _imported(self, module: str, origin: str) -> ModuleType:
        try:
            return importlib.import_module(module)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too: a plugin must not end the program
            raise UserError(self._broken(origin, error)) from error

    def _broken(self, origin: str, error: BaseException) -> str:
        return f"{self.singular} {origin} cannot be imported: {reason_of(error)}"

    def _plugin(self, name: str, module: ModuleType, origin: str, attribute: str | None = None) -> Plugin:
        attribute = attribute or self.attribute
        if not hasattr(module, attribute):
            raise UserError(f"{self.singular} {origin} has no '{attribute}': end the file with {attribute} = YourClass")
        source = Path(module.__file__ or "").read_bytes() if module.__file__ else b""
        return Plugin(name, getattr(module, attribute), origin, hashlib.sha256(source).hexdigest())


@functools.cache
def _offered(group: str, paths: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """What installed packages offer; the metadata of all of them are read once, and not for each of many trials."""
    return tuple(sorted(entry_points(group=group), key=lambda entry: (entry.name, entry.value)))


ENCODINGS, SUITES, REPORTS = (Registry(kind) for kind in AGREED)
