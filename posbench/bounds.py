"""Bounds: the fields of an encoding's Config, each with its default, its meaning and its limits in one place."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from posbench.errors import UserError


def option(default: Any, meaning: str, *, above: float | None = None, at_least: float | None = None,
           at_most: float | None = None) -> Any:
    """A field of an encoding's Config: its default, its meaning with the unit, and its bounds, in one place."""
    return dataclasses.field(
        default=default,
        metadata={"meaning": meaning, "above": above, "at_least": at_least, "at_most": at_most},
    )


def within_bounds(encoding: str, config: Any) -> None:
    """Refuses options outside the bounds of their fields, in one line that names encoding, option, value and bound."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        told = f"encoding '{encoding}': {field.name} = {value!r}, but it must be"
        above, at_least, at_most = (field.metadata.get(bound) for bound in ("above", "at_least", "at_most"))
        if not math.isfinite(value):
            raise UserError(f"{told} a finite number")
        if above is not None and not value > above:
            raise UserError(f"{told} above {above:g}")
        if at_least is not None and value < at_least:
            raise UserError(f"{told} at least {at_least:g}")
        if at_most is not None and value > at_most:
            raise UserError(f"{told} at most {at_most:g}")
