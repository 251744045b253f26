"""Contract: what a check is, and how its measurement is judged against what the encoding declares."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from posbench.encoding import Encoding
from posbench.probe import ContractError, Kind, Shape, Subject, isolated

# What is declared not to hold must fail by this much, so that rounding cannot pass for a property.
VISIBLE = 1e-2
Claim = Literal["permutation", "reversal", "shift", "norm", "single_key", "cached", "beyond", "monotone", "factorises"]


@dataclass(frozen=True)
class Verdict:
    """One check of one encoding.

    Attributes:
        check: its short name, such as 'P4'.
        title: what it is about.
        shape: the kind of model it was made in.
        attention: the kind of attention in it.
        declared: whether the encoding claims that the property holds; True for what every encoding owes, None where it
            makes no claim and the measurement is shown and not judged.
        measured: the error, in the unit of the tolerance; NaN when nothing could be measured.
        tolerance: the largest error at which the property counts as holding.
        passed: measurement and declaration agree.
        reason: why not; empty when passed.
    """

    check: str
    title: str
    shape: Shape
    attention: Kind
    declared: bool | None
    measured: float
    tolerance: float
    passed: bool
    reason: str = ""


@dataclass(frozen=True)
class Check:
    """A property: how its error is measured, where it applies, and which claim it holds the encoding to.

    Attributes:
        name: its short name, such as 'P4'.
        title: what it is about.
        measure: a subject's error; raises `ContractError` for what no tolerance excuses.
        tolerance: the largest error at which the property counts as holding.
        shapes, kinds: the models, and the kinds of attention in them, in which it has a meaning.
        claim: the field of Properties that it tests; None for what every encoding owes.
        applies: whether it has a meaning for this encoding, read off its hooks; the class answers where the plugin
            is too broken to give an instance.
    """

    name: str
    title: str
    measure: Callable[[Subject], float]
    tolerance: float
    shapes: tuple[Shape, ...]
    kinds: tuple[Kind, ...]
    claim: Claim | None
    applies: Callable[[Encoding | type[Encoding]], bool]

    def declared(self, encoding: Encoding) -> bool | None:
        """What this encoding, with its options, claims of the property."""
        if self.claim is None:
            return True
        claim = getattr(encoding.properties, self.claim)
        return None if claim is None else claim in (True, "defined")

    def judge(self, encoding: type[Encoding], config: Any, shape: Shape, attention: Kind = "softmax") -> Verdict:
        """The verdict on an encoding class with its options. Never raises: a plugin's fault is a failed verdict."""
        declared: bool | None = True
        measured = math.nan
        try:
            with isolated():
                subject = Subject(encoding, config, shape, attention)
                declared = self.declared(subject.bare())
                measured = self.measure(subject)
                reason = self._disagreement(declared, measured)
        except ContractError as broken:
            reason = str(broken)
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return Verdict(self.name, self.title, shape, attention, declared, measured, self.tolerance, not reason, reason)

    def _disagreement(self, declared: bool | None, measured: float) -> str:
        if declared is None:
            return "" if math.isfinite(measured) else f"measured {measured}, which is no number"
        claim = f"properties.{self.claim}" if self.claim else "every encoding"
        if declared and not measured <= self.tolerance:
            return f"{claim} says that it holds within {self.tolerance:.2g}, measured {measured:.2g}"
        if not declared and not measured >= VISIBLE:
            return f"{claim} says that it does not hold, but the error is {measured:.2g} and not at least {VISIBLE:g}"
        return ""


def check(
    name: str, title: str, *, tolerance: float, shapes: tuple[Shape, ...] = ("encoder", "decoder"),
    kinds: tuple[Kind, ...] = ("softmax",),
    claim: Claim | None = None, applies: Callable[[Encoding | type[Encoding]], bool] = lambda encoding: True,
) -> Callable[[Callable[[Subject], float]], Check]:
    """Makes a Check of the function that measures it."""

    def wrap(measure: Callable[[Subject], float]) -> Check:
        return Check(name, title, measure, tolerance, shapes, kinds, claim, applies)

    return wrap
