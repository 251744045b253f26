"""Settings: how classes of them are made, read from plain values, changed by dotted names, and told apart."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from posbench.errors import UserError, nearest, one_line

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
C = TypeVar("C")
Scalar = bool | int | float | str | None
# What Pydantic puts behind the place of a Scalar that is none of them.
TYPES = ("bool", "int", "float", "str")


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# Names of devices, which some systems open in place of a file, whatever follows the dot.
DEVICES = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)


def name_of(text: str) -> str:
    """The text, if it may become part of a path.

    Raises:
        ValueError: it is none of 1 to 64 letters, digits, '.', '_' and '-', begins or ends with a sign, has two dots
            in a row, or means a device.
    """
    if not NAME.fullmatch(text) or ".." in text or text.endswith(".") or DEVICES.fullmatch(text):
        raise ValueError("a name is 1 to 64 letters, digits, '.', '_' and '-', begins with a letter or digit, and is "
                         "no path and no device")
    return text


def setting(default: Any, meaning: str, **bounds: Any) -> Any:
    """A field with its default, meaning and bounds."""
    return Field(default=default, description=meaning, **bounds)


def build(cls: type[C], values: Mapping[str, Any], *, where: str) -> C:
    """An instance of a settings class from plain values; mistakes are told in one line with the near names."""
    try:
        return TypeAdapter(cls).validate_python(dict(values))
    except ValidationError as error:
        # What may be of several types has a mistake for each of them: the value has one.
        told = dict.fromkeys(_told(cls, entry) for entry in error.errors())
        raise UserError(f"{where}: " + "; ".join(told)) from None


def _told(cls: type, entry: Any) -> str:
    path = [str(part) for part in entry["loc"]]
    if entry["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        owner: Any = cls
        for part in path[:-1]:
            owner = _within(owner, part)
        known = [field.name for field in dataclasses.fields(owner)]
        return f"unknown setting '{'.'.join(path)}', {nearest(path[-1], known)}"
    told = said(entry)
    if path[-1:] and path[-1] in TYPES and len(path) > 1:
        path, told = path[:-1], "must be one text, number or truth value"
    # Settings that do not fit each other are told without all the others beside them.
    value = "" if isinstance(entry["input"], Mapping) else f" = {shown(entry['input'])}"
    return f"{'.'.join(path)}{value}: {told}" if path else told


def shown(value: Any) -> str:
    """A value in a message: as Python writes it, but nothing and truth values as settings are written."""
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else one_line(repr(value), 80)


# In place of Pydantic's English, by its name of the mistake; what stands in braces is of the mistake's own.
WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "a text",
    "list": "a list",
    "tuple": "a list",
    "dict": "names with values",
    "mapping": "names with values",
    "dataclass": "names with values",
    "none": "nothing",
}
SAID = {
    "greater_than": "above {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "below {lt:g}",
    "less_than_equal": "at most {le:g}",
    "literal_error": "{expected}",
    "finite_number": "a finite number",
    "string_pattern_mismatch": "of the form {pattern}",
    "too_short": "of at least {min_length}",
    "too_long": "of at most {max_length}",
}


def said(entry: Any) -> str:
    """What one of Pydantic's mistakes means in the words of posbench: 'must be a whole number'."""
    kind, context = entry["type"], entry.get("ctx", {})
    if kind in SAID:
        return "must be " + SAID[kind].format(**context)
    if kind == "missing":
        return "must be given"
    word, _, how = kind.partition("_")
    if word in WORDS and how in ("type", "parsing", "from_float", "exact_type"):
        return f"must be {WORDS[word]}"
    if kind == "int_parsing_size":
        return "must be a whole number of less than 4300 digits"
    return str(entry["msg"]).removeprefix("Value error, ")


def _within(owner: Any, part: str) -> Any:
    """The class of what a settings class, or a mapping or tuple of them, holds under a name or number."""
    held = get_type_hints(owner)[part] if dataclasses.is_dataclass(owner) else get_args(owner)[-1 if get_origin(owner)
                                                                                               is dict else 0]
    # A setting that may be absent holds one class beside None.
    kinds = [kind for kind in get_args(held) if kind is not type(None)]
    return kinds[0] if get_origin(held) in (Union, UnionType) else held


def override(settings: C, changes: Mapping[str, Any], *, where: str = "setting") -> C:
    """A copy with dotted names changed, such as {'train.steps': 100}."""
    plain = to_plain(settings)
    if both := both_given(changes):
        raise UserError(f"{where}: {told_both(*both)}")
    for name, value in changes.items():
        *parents, last = name.split(".")
        node = plain
        for parent in parents:
            if not isinstance(node.get(parent), dict):
                raise UserError(f"{where}: unknown setting '{name}', {nearest(parent, node)}")
            node = node[parent]
        if last not in node:
            raise UserError(f"{where}: unknown setting '{name}', {nearest(last, node)}")
        node[last] = value
        if name in RIVALS and value is not None and name != "train.batch_tokens":
            node[RIVALS[name].rpartition(".")[2]] = None
    return build(type(settings), plain, where=where)


RIVALS = {"train.steps": "train.epochs", "train.epochs": "train.steps",
          "train.batch_size": "train.batch_tokens", "train.batch_tokens": "train.batch_size"}
"""Two units of one quantity: stating one takes the other's place."""


def layered(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted names of which later ones win, also over the other unit of what they state."""
    whole: dict[str, Any] = {}
    for layer in layers:
        taken = {RIVALS[name] for name, value in layer.items() if name in RIVALS and value is not None}
        whole = {name: value for name, value in whole.items() if name not in taken} | dict(layer)
    return whole


def both_given(changes: Mapping[str, Any]) -> tuple[str, str] | None:
    """Two settings of which one would be dropped in silence."""
    return next(((name, rival) for name, rival in RIVALS.items()
                 if changes.get(name) is not None and changes.get(rival) is not None), None)


def told_both(first: str, second: str, place: str = "") -> str:
    """What is said of them."""
    return f"'{first}'{place} and '{second}' are both given, and only one of them can hold: leave one out"


def to_plain(settings: Any) -> dict[str, Any]:
    """Nested dicts of JSON values."""
    return TypeAdapter(type(settings)).dump_python(settings, mode="json")


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON of a plain value; equal values have equal digests whatever their order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
