"""Options of an encoding: plain values, or texts from a command line, made into its Config."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from posbench.config import Scalar
from posbench.encoding import Encoding, within_bounds
from posbench.errors import UserError, nearest
from posbench.settings import said, shown


def encoding_class(plugin_name: str, value: Any) -> type[Encoding]:
    """The value that a plugin offers, if it is an encoding.

    Raises:
        UserError: it is something else.
    """
    if not (isinstance(value, type) and issubclass(value, Encoding)):
        raise UserError(f"encoding '{plugin_name}': {value!r} is no subclass of posbench.encoding.Encoding: "
                        "derive it from that")
    return value


def build_options(plugin_name: str, encoding_class: type[Encoding], options: Mapping[str, Scalar] | None = None) -> Any:
    """The encoding's Config, a frozen dataclass: `dataclasses.asdict` gives all of its options as plain values.

    Texts become the field's type, so that '16' from a command line is 16; 'none' is None where the field allows it.

    Args:
        plugin_name: what the user called the encoding, for messages.
        encoding_class: the class that carries the Config.
        options: those that differ from the defaults.

    Raises:
        UserError: an unknown option (with the near names), a value of another type, or one outside the field's bounds.
    """
    fields = {field.name: field for field in dataclasses.fields(encoding_class.Config)}
    types = get_type_hints(encoding_class.Config)
    values = {}
    for name, given in (options or {}).items():
        if name not in fields:
            hint = nearest(name, fields) if fields else "it takes none"
            raise UserError(f"encoding '{plugin_name}': unknown option '{name}', {hint}")
        values[name] = _converted(plugin_name, name, given, types[name])
    missing = [name for name, field in fields.items()
               if name not in values and field.default is dataclasses.MISSING
               and field.default_factory is dataclasses.MISSING]
    if missing:
        raise UserError(f"encoding '{plugin_name}': option '{missing[0]}' has no default: "
                        f"write {plugin_name}:{missing[0]}=VALUE")
    config = encoding_class.Config(**values)
    within_bounds(plugin_name, config)
    return config


def _converted(plugin_name: str, name: str, given: Scalar, kind: Any) -> Any:
    if isinstance(given, str) and given.lower() == "none" and type(None) in get_args(kind):
        return None
    if isinstance(given, bool) and bool not in (kind, *get_args(kind)):
        # A YAML 'yes' would otherwise pass as the number 1.
        raise UserError(f"encoding '{plugin_name}': {name} = {given!r}, but it must not be true or false")
    try:
        return TypeAdapter(kind).validate_python(given)
    except ValidationError as error:
        told = said(error.errors()[0])
        raise UserError(f"encoding '{plugin_name}': {name} = {shown(given)}, but it {told}") from None
