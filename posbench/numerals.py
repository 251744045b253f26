"""Numerals: numbers as tables and figures print them."""

from __future__ import annotations

import math
from collections.abc import Sequence

NONE = "-"
"""In place of a number that does not exist."""


def number(value: float, digits: int, *, sign: bool = False) -> str:
    """So many decimals; with three, as papers print scores up to 1, without the zero before the point."""
    if not math.isfinite(value):
        return NONE
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    if digits == 3:
        text = text.replace("0.", ".", 1) if text.lstrip("+-").startswith("0.") else text
    return text


def counted(count: float, noun: str, plural: str = "") -> str:
    """'1 trial', '24 trials', '0.5 epochs'; the plural where it is not the noun with an s."""
    return f"{f'{count:g}' if isinstance(count, float) else count} {noun if count == 1 else plural or noun + 's'}"


def p_value(value: float) -> str:
    """'.012', or '< .001' for all that is smaller."""
    return "< .001" if value < 0.001 else f"{value:.3f}".replace("0.", ".", 1)


def compared(value: float) -> str:
    """'= .012', to stand behind a p."""
    return p_value(value) if value < 0.001 else f"= {p_value(value)}"


def span(counts: Sequence[int]) -> str:
    """'3' where all agree, and '2 to 3' otherwise."""
    known = sorted(set(counts))
    return NONE if not known else str(known[0]) if len(known) == 1 else f"{known[0]} to {known[-1]}"


def amount(value: object, scale: float, form: str) -> str:
    """A number in another unit; NONE for what is none."""
    return NONE if not isinstance(value, int | float) or math.isnan(value) else form.format(value * scale)
