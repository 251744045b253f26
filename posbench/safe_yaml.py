"""YAML as settings need it: plain values with the lines on which they stand, and nothing that a file could do to us.

A loader of YAML 1.1 reads 1e-3 as a text, 'no' as false, 012 as ten and a date as an object, takes the last of two
equal keys in silence, makes objects of tags, and lets a few hundred bytes of aliases grow to gigabytes. Here numbers
are decimal, true, false and null are themselves, all else is a text, and the rest is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yaml.events import AliasEvent
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from posbench.errors import UserError, one_line

BYTES = 1_000_000
"""Largest file."""
DEPTH = 12
"""Deepest nesting."""
ALIASES = 32
"""Most references to an anchor."""
VALUES = 20_000
"""Most values, those that aliases repeat counted each time."""
# Longer ones are no number of a setting, and Python refuses to read them.
DIGITS = 40

WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
DECIMAL = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
NAMED = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
         "null": None, "Null": None, "NULL": None, "~": None, "": None}
Path_ = tuple[str | int, ...]


@dataclass(frozen=True)
class Parsed:
    """What a file says.

    Attributes:
        value: mappings, lists, texts, numbers, truth values and None. file: where it stands.
        lines: line, from 1, of each value by its path, such as ('train', 'steps') or ('encodings', 0).
    """

    value: Any
    file: Path
    lines: dict[Path_, int] = field(default_factory=dict)

    def where(self, path: Path_ = ()) -> str:
        """'FILE, line N' of a value, or of the nearest one around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.file}, line {self.lines[path]}" if path else str(self.file)

    def at(self, path: Path_) -> Any:
        """The value of a path."""
        value = self.value
        for part in path:
            value = value[part]
        return value


class _Loader(yaml.SafeLoader):
    """Composes nodes within the limits; it never constructs anything."""

    yaml_implicit_resolvers: Any = {}

    def __init__(self, text: str, file: Path) -> None:
        super().__init__(text)
        self.file, self.aliases, self.nesting = file, 0, 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        event = self.peek_event()
        where = f"{self.file}, line {event.start_mark.line + 1}"
        if isinstance(event, AliasEvent):
            self.aliases += 1
            if self.aliases > ALIASES:
                raise UserError(f"{where}: more than {ALIASES} aliases: write the values out")
        elif getattr(event, "tag", None) is not None:
            raise UserError(f"{where}: the tag '{one_line(str(event.tag), 80)}': tags are not read, leave it out")
        self.nesting += 1
        if self.nesting > DEPTH:
            raise UserError(f"{where}: nested more than {DEPTH} deep")
        try:
            return super().compose_node(parent, index)
        finally:
            self.nesting -= 1


def read(file: Path) -> Parsed:
    """The one document of a file.

    Raises:
        UserError: it cannot be read, is too large, no UTF-8 or no YAML, or holds a tag, a key twice, a key that is no
            text, or too much nesting or too many aliases; with the line.
    """
    try:
        with file.open("rb") as stream:
            content = stream.read(BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"study file '{file}' cannot be read: {reason}") from None
    if len(content) > BYTES:
        raise UserError(f"{file}: larger than {BYTES:,} bytes, which no study needs")
    try:
        return parse(content.decode("utf-8-sig"), file)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{file}, line {line}: not UTF-8 (byte {content[error.start]:#04x})") from None


def parse(text: str, file: Path) -> Parsed:
    """The one document of a text that stands in `file`."""
    loader: _Loader | None = None
    try:
        loader = _Loader(text, file)
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{file}, line {mark.line + 1}" if mark else str(file)
        told = one_line(": ".join(filter(None, (error.context, error.problem))), 200)
        raise UserError(f"{place}: no YAML: {told}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, int(error.position)) + 1
        raise UserError(f"{file}, line {line}: the character U+{int(error.character):04X} is not allowed") from None
    finally:
        if loader is not None:
            loader.dispose()
    parsed = Parsed(None, file, {})
    return parsed if node is None else Parsed(_Plain(parsed).value(node, (), 0), file, parsed.lines)


class _Plain:
    """Nodes made into plain values; those behind aliases once for each alias, and counted so."""

    def __init__(self, parsed: Parsed) -> None:
        self.parsed, self.count = parsed, 0

    def value(self, node: Node, path: Path_, depth: int) -> Any:
        line = node.start_mark.line + 1
        self.parsed.lines.setdefault(path, line)
        self.count += 1
        if self.count > VALUES or depth > DEPTH:
            raise UserError(f"{self.parsed.file}, line {line}: aliases repeat values without measure: write them out")
        if isinstance(node, ScalarNode):
            return scalar(node.value) if node.style is None else node.value
        if isinstance(node, SequenceNode):
            return [self.value(entry, (*path, place), depth + 1) for place, entry in enumerate(node.value)]
        assert isinstance(node, MappingNode)
        found: dict[str, Any] = {}
        for key, entry in node.value:
            place = f"{self.parsed.file}, line {key.start_mark.line + 1}"
            if not isinstance(key, ScalarNode):
                raise UserError(f"{place}: a key is no name")
            name = key.value
            if name in found:
                first = self.parsed.lines[*path, name]
                raise UserError(f"{place}: '{one_line(name, 80)}' is given twice, first in line {first}: give it once")
            self.parsed.lines[*path, name] = key.start_mark.line + 1
            found[name] = self.value(entry, (*path, name), depth + 1)
        return found


def scalar(text: str) -> Any:
    """What a text without quotes means: a number, true, false, nothing, or itself."""
    if text in NAMED:
        return NAMED[text]
    if len(text) <= DIGITS:
        if WHOLE.fullmatch(text):
            return int(text)
        if DECIMAL.fullmatch(text):
            return float(text)
    return text


def canonical(value: Any) -> str | None:
    """A plain value as settings and options are written on a command line, one text for equal values.

    1e-3 and 0.001 give '0.001', 1e3 and 1000 give '1000'; nothing, also as the word 'none', is None.
    """
    if isinstance(value, str):
        read_as = scalar(value)
        return None if value in ("", "none") else canonical(read_as) if isinstance(read_as, int | float) else value
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def written(value: dict[str, Any]) -> str:
    """Plain values as YAML that `read` reads as the same values."""
    return "".join(_lines(value, ""))


def _lines(value: dict[str, Any], indent: str) -> list[str]:
    lines = []
    for name, entry in value.items():
        if isinstance(entry, dict) and entry:
            lines += [f"{indent}{_spelled(name)}:\n", *_lines(entry, f"{indent}  ")]
        else:
            lines.append(f"{indent}{_spelled(name)}: {_inline(entry)}\n")
    return lines


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_spelled(name)}: {_inline(entry)}" for name, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return _spelled(value) if isinstance(value, str) else "null" if value is None else str(canonical(value))


def _spelled(text: str) -> str:
    """A text bare where YAML of any version reads it as that text, else within double quotes."""
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_./-]*", text) and text.lower() not in (
        "true", "false", "null", "yes", "no", "on", "off", "y", "n"
    ):
        return text
    escaped = "".join(char if char.isprintable() and char not in '"\\' else f"\\U{ord(char):08X}" for char in text)
    return f'"{escaped}"'
