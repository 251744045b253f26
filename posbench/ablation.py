"""Ablations: choices that vary one of them, and in what the choices of a study differ beyond the encoding."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from posbench.choice import SECTIONS
from posbench.config import EncodingChoice, StudyConfig, digest, to_plain
from posbench.errors import UserError
from posbench.options import build_options, encoding_class
from posbench.registry import ENCODINGS

CHOICES = 1000
"""Most choices of one ablation."""
BUDGET = ("model.width", "model.layers", "model.heads", "model.feedforward", "train.steps", "train.epochs",
          "train.batch_size", "train.batch_tokens", "data.max_length", "data.train_rows")
"""Settings with which a choice trains a larger model, or longer, or on more: no comparison of encodings any more."""
PLACES = ("data.path", "data.revision", "train.device", "train.threads")
"""Settings that say where rows lie and trials run, and nothing of what is trained."""


def varied(base: EncodingChoice, factors: Mapping[str, Sequence[str]], *, grid: bool) -> list[EncodingChoice]:
    """The choice with one factor at a time at each of its values, or with every combination of them.

    Args:
        factors: values by 'options.base' or, for a choice named rope, 'rope.base', or by a setting: 'model.layers'.

    Raises:
        UserError: a name that is neither, or too many combinations.
    """
    steps: list[dict[str, str]]
    if grid:
        combinations = itertools.islice(itertools.product(*factors.values()), CHOICES + 1)
        steps = [dict(zip(factors, values, strict=True)) for values in combinations]
    else:
        steps = [{name: value} for name, values in factors.items() for value in values]
    if len(steps) > CHOICES:
        raise UserError(f"ablations: more than {CHOICES} choices")
    return [_changed(base, step) for step in steps]


def _changed(base: EncodingChoice, step: Mapping[str, str]) -> EncodingChoice:
    stem = EncodingChoice(name=base.name).label
    parts: dict[str, dict[str, str]] = {"options": {}, "model": {}, "settings": {}}
    for name, value in step.items():
        owner, dot, own = name.partition(".")
        if not dot:
            raise UserError(f"ablations: '{name}' is neither an option (options.{name}) nor a setting (model.{name})")
        if owner in ("options", stem):
            part, key = "options", own
        elif owner == "model":
            part, key = "model", own
        elif owner in SECTIONS:
            part, key = "settings", name
        else:
            whose = f"is of encoding '{owner}'" if owner in ENCODINGS.found() else "is of nothing here"
            raise UserError(f"ablations: '{name}' {whose}, and what is varied is '{base.label}': write {stem}.{own} "
                            "for an option of its own, or a setting, such as model.layers")
        if key in parts[part]:
            raise UserError(f"ablations: '{name}' is varied twice, under another name too: leave one out")
        parts[part][key] = value
    return EncodingChoice(name=base.name, options={**base.options, **parts["options"]},
                          model={**base.model, **parts["model"]}, settings={**base.settings, **parts["settings"]})


def options_of(choice: EncodingChoice) -> Any:
    """The complete Config of a choice's encoding.

    Raises:
        UserError: an unknown encoding, or a wrong option.
    """
    plugin = ENCODINGS.load(choice.name)
    return build_options(plugin.name, encoding_class(plugin.name, plugin.value), choice.options)


def distinct(study: StudyConfig, choices: Sequence[EncodingChoice]) -> list[EncodingChoice]:
    """The choices without those that are another one in other words, such as an option at its default."""
    found: dict[str, EncodingChoice] = {}
    for choice in choices:
        found.setdefault(meaning(study, choice), choice)
    return list(found.values())


def meaning(study: StudyConfig, choice: EncodingChoice) -> str:
    """A digest of what a choice trains: encoding, options and settings, however they are spelled."""
    trials = [to_plain(study.trial(choice, task, 0)) for task in study.tasks]
    for trial in trials:
        del trial["encoding"]
    return digest([ENCODINGS.load(choice.name).name, dataclasses.asdict(options_of(choice)), trials])


def beyond(study: StudyConfig, label: str) -> dict[str, tuple[Any, Any]]:
    """Settings in which a choice differs from the baseline, with the baseline's value and its own.

    Args:
        label: of the choice; one that is not in the study, such as a variant's, differs in nothing.
    """
    choices = {choice.label: choice for choice in study.encodings}
    if study.baseline not in choices or label not in choices:
        return {}
    found: dict[str, tuple[Any, Any]] = {}
    for task in study.tasks:
        sides = [_flat(to_plain(study.trial(choices[name], task, 0))) for name in (study.baseline, label)]
        found |= {name: (value, sides[1][name]) for name, value in sides[0].items() if sides[1][name] != value}
    return found


def changed(study: StudyConfig, original: StudyConfig, task: str) -> list[str]:
    """Settings of a task in which a study is not another one, whatever its choices; where it runs is none of them."""
    sides = []
    for one in (study, original):
        plain = dataclasses.replace(study.encodings[0], model={}, settings={})
        sides.append(_flat(to_plain(one.trial(plain, task, 0))) | {"search": one.search is not None})
    # Files of a folder and of the hub are one data set, which its numbers of rows tell from others.
    if "generated" not in (study.data.source, original.data.source):
        sides[0]["data.source"] = sides[1]["data.source"]
    return [name for name, value in sides[1].items() if name not in PLACES and sides[0][name] != value]


def _flat(trial: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{section}.{name}": value for section, own in trial.items()
            if isinstance(own, Mapping) and section != "encoding" for name, value in own.items()}


def budgets(study: StudyConfig) -> dict[str, str]:
    """By label, in what a choice's budget is not the baseline's: 'train.steps 2000 in place of 300'."""
    told = {choice.label: _told({name: values for name, values in beyond(study, choice.label).items()
                                 if name in BUDGET}) for choice in study.encodings}
    return {label: text for label, text in told.items() if text}


def differences(study: StudyConfig) -> dict[str, str]:
    """By label, in what a choice differs from the baseline beyond the encoding."""
    told = {choice.label: _told(beyond(study, choice.label)) for choice in study.encodings}
    return {label: text for label, text in told.items() if text}


def _told(values: Mapping[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{name} {new} in place of {old}" for name, (old, new) in values.items())
