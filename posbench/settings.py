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

from posbench.errors import UserError, nearest

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
C = TypeVar("C")
Scalar = bool | int | float | str | None


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
        raise UserError(f"{where}: " + "; ".join(_told(cls, entry) for entry in error.errors())) from None


def _told(cls: type, entry: Any) -> str:
    path = [str(part) for part in entry["loc"]]
    if entry["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        owner: Any = cls
        for part in path[:-1]:
            owner = _within(owner, part)
        known = [field.name for field in dataclasses.fields(owner)]
        return f"unknown setting '{'.'.join(path)}', {nearest(path[-1], known)}"
    told = entry["msg"].removeprefix("Value error, ")
    # Settings that do not fit each other are told without all the others beside them.
    shown = "" if isinstance(entry["input"], Mapping) else f" = {entry['input']!r}"
    return f"{'.'.join(path)}{shown}: {told}" if path else told


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
        # Length of training has two units; stating one takes the other's place.
        if name in ("train.steps", "train.epochs"):
            node["epochs" if last == "steps" else "steps"] = None
    return build(type(settings), plain, where=where)


def to_plain(settings: Any) -> dict[str, Any]:
    """Nested dicts of JSON values."""
    return TypeAdapter(type(settings)).dump_python(settings, mode="json")


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON of a plain value; equal values have equal digests whatever their order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
