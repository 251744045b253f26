"""What a search of hyper-parameters depends on: its points, seeds, sampler, pruning and ranges."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from posbench.errors import nearest
from posbench.numerals import counted
from posbench.settings import STRICT, Scalar, setting

SEARCHABLE = (
    "train.learning_rate",
    "train.warmup",
    "train.weight_decay",
    "train.beta2",
    "train.clip",
    "train.schedule",
    "train.label_smoothing",
    "model.dropout",
    "model.attention_dropout",
    "model.initial_std",
    "model.embedding_std",
)
"""Settings that leave data, model size and budget alone, so that points which differ in them cost alike."""

EDGE = 0.05
"""Share of a range next to its ends in which a chosen value says that the range was too narrow."""

Seed = Annotated[int, Field(ge=0, lt=2**31)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RangeConfig:
    """The values of one setting: from low to high, or one of the choices."""

    low: float | None = setting(None, "smallest value")
    high: float | None = setting(None, "largest value")
    log: bool = setting(False, "equal steps are equal factors; for what spans magnitudes")
    step: float | None = setting(None, "distance of the values, from low on", gt=0)
    choices: tuple[Scalar, ...] | None = setting(None, "values without an order, in place of low and high")

    def __post_init__(self) -> None:
        if self.choices is not None:
            if self.low is not None or self.high is not None or self.step is not None or self.log:
                raise ValueError("choices and a range exclude each other: give low and high, or choices")
            if len(set(map(repr, self.choices))) < max(2, len(self.choices)):
                raise ValueError("choices are two or more different values")
            return
        if self.low is None or self.high is None:
            raise ValueError("give low and high, or choices")
        if self.low >= self.high:
            raise ValueError(f"low {self.low:g} is not below high {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"log asks for a low above 0, not {self.low:g}")
        if self.step is not None and (self.log or self.step > self.high - self.low):
            raise ValueError("step goes without log, and is at most high - low")

    @property
    def ends(self) -> tuple[Scalar, ...]:
        """Values that must all be possible: the two ends, or every choice."""
        return (self.low, self.high) if self.choices is None else self.choices

    def edge(self, value: Scalar) -> str:
        """'lower' or 'upper' where the value lies within EDGE of that end, on a logarithmic scale if it is one."""
        if self.choices is not None or isinstance(value, str) or value is None:
            return ""
        assert self.low is not None and self.high is not None
        scale = math.log if self.log else float
        place = (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low))
        return "lower" if place <= EDGE else "upper" if place >= 1 - EDGE else ""

    def told(self) -> str:
        """As a header prints it."""
        if self.choices is not None:
            return "one of " + ", ".join(map(str, self.choices))
        kind = " (log)" if self.log else f" in steps of {self.step:g}" if self.step else ""
        return f"{self.low:g} to {self.high:g}{kind}"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SearchConfig:
    """A search at an equal budget: for every encoding and task as many points, from the same space and sampler.

    What is searched are nuisance settings, which `space` gives alike to all encodings. Options of one encoding in `own`
    are further dimensions, and its comparison with others that have none is marked.
    """

    trials: int = setting(8, "points for each encoding and task", ge=2, le=10000)
    seeds: tuple[Seed, ...] = setting((1000,), "seeds of tuning; none of them may report")
    sampler: Literal["qmc", "random", "tpe"] = setting(
        "qmc", "scrambled Sobol points; independent ones; or, from the same first points on, those that TPE proposes"
    )
    sampler_seed: Seed = setting(0, "the same for every encoding and task")
    pruning: Literal["none", "median"] = setting(
        "none", "stop a trial that is worse on validation than the median of the earlier points at the same evaluation"
    )
    startup: int = setting(4, "points before TPE looks at results and before a point may be stopped", ge=2)
    stop_from: int = setting(1, "first evaluation at which a trial may be stopped", ge=1)
    space: dict[str, RangeConfig] | None = setting(None, "range by setting; around the preset's values by default")
    own: dict[str, dict[str, RangeConfig]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds: give one or more, each once")
        if self.space is not None and not (self.space or self.own):
            raise ValueError("space is empty: name a setting with its range, or leave space out")
        for name in self.space or {}:
            if name not in SEARCHABLE:
                raise ValueError(f"space: '{name}' is no setting that a search may choose without changing data, size "
                                 f"or budget, {nearest(name, SEARCHABLE)}")
        if not self.free and self.startup >= self.trials:
            raise ValueError(f"startup {self.startup} leaves none of {counted(self.trials, 'point')} to the sampler "
                             "and pruning that look at results: raise trials")

    @property
    def free(self) -> bool:
        """Whether no point depends on the result of another, so that all are known from the start."""
        return self.sampler != "tpe" and self.pruning == "none"


    @property
    def own_options(self) -> dict[str, str]:
        """By label, the options of an encoding's own that are searched, with their ranges."""
        return {label: ", ".join(f"{name} {bounds.told()}" for name, bounds in options.items())
                for label, options in self.own.items() if options}

    @property
    def told_space(self) -> str:
        """All that is searched, as a header prints it."""
        return "; ".join((
            *(f"{name} {bounds.told()}" for name, bounds in sorted((self.space or {}).items())),
            *(["around the preset's values"] if self.space is None else []),
            *(f"of {label} alone: {told}" for label, told in self.own_options.items()),
        ))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TuningConfig:
    """Makes a trial one of a search: it is scored on the selection split alone, and may be stopped early.

    `thresholds` has the score, by evaluation in order, below which (above, where lower is better) the trial stops; None
    where it does not. They come from earlier points and are known before the trial starts.
    """

    thresholds: tuple[float | None, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Space:
    """Ranges by name in a fixed order: shared ones by setting, own ones by option; `whole` are those of integers."""

    shared: Mapping[str, RangeConfig]
    own: Mapping[str, RangeConfig] = dataclasses.field(default_factory=dict)
    whole: frozenset[str] = frozenset()

    @property
    def parts(self) -> list[tuple[str, RangeConfig]]:
        """All dimensions, the shared ones first, both in the order of their names."""
        return [*sorted(self.shared.items()), *sorted(self.own.items())]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """One choice of values: settings that all encodings share, and options of the encoding's own."""

    shared: Mapping[str, Scalar]
    own: Mapping[str, Scalar]
