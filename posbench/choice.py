"""EncodingChoice: what one row of a study's tables is: an encoding, its options, and settings of its own."""

from __future__ import annotations

import dataclasses
import re

from pydantic.dataclasses import dataclass

from posbench.errors import UserError
from posbench.settings import STRICT, Scalar

SECTIONS = ("model", "train", "data", "evaluation", "decode", "search")
OWN_DATA = ("data.max_length", "data.vocabulary", "data.train_rows")
"""Settings of the data that one choice may have to itself: what is scored stays the same."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EncodingChoice:
    """An encoding by name or by the path of its file, with the options that differ from its defaults.

    A study may also change settings for one of its choices, as an ablation does: `model` holds those of the template
    that differ from the study's, such as {'attention': 'linear'}, and `settings` others by their dotted names, such as
    {'train.steps': 2000}.
    """

    name: str
    options: dict[str, Scalar] = dataclasses.field(default_factory=dict)
    model: dict[str, Scalar] = dataclasses.field(default_factory=dict)
    settings: dict[str, Scalar] = dataclasses.field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> EncodingChoice:
        """From 'rope', 'rope:base=500000:layout=half', 'path/to/mine.py:option=value', 'rope+attention=linear' or
        'rope+train.steps=2000'; 'model.' before a setting of the template may be left out."""
        text, *parts = re.split(r"\+(?=[a-z_]+(?:\.[a-z_0-9]+)?=)", text.strip())
        model: dict[str, Scalar] = {}
        settings: dict[str, Scalar] = {}
        for name, _, value in (part.removeprefix("model.").partition("=") for part in parts):
            if name in model or name in settings:
                raise UserError(f"encoding '{text}': setting '{name}' is given twice: give it once")
            (settings if "." in name else model)[name] = value
        name, *pairs = re.split(r":(?=[A-Za-z_][A-Za-z0-9_]*=)", text)
        options: dict[str, Scalar] = {}
        for pair in pairs:
            option, _, value = pair.partition("=")
            if option in options:
                raise UserError(f"encoding '{text}': option '{option}' is given twice: give it once")
            options[option] = value
        return cls(name=name, options=options, model=model, settings=settings)

    @property
    def label(self) -> str:
        """How tables name it: the name alone, or with the options and the settings that were set."""
        stem = re.sub(r"^.*[/\\]|\.py$", "", self.name)
        options = "".join(f":{key}={value}" for key, value in sorted(self.options.items()))
        return stem + options + "".join(f"+{key}={value}" for own in (self.model, self.settings)
                                        for key, value in sorted(own.items()))

    def changes(self) -> dict[str, Scalar]:
        """The settings that are this choice's own, by their dotted names.

        Raises:
            UserError: one that every choice of a study must share, or that is no setting.
        """
        for name in self.settings:
            section, _, last = name.partition(".")
            may = f"a choice may have its own of model, of train, and {', '.join(OWN_DATA)}"
            if section not in SECTIONS:
                raise UserError(f"encoding '{self.label}': '{name}' is no setting, and options are written "
                                f"{self.name}:OPTION=VALUE; {may}")
            if section == "model":
                raise UserError(f"encoding '{self.label}': '{name}' stands among settings of other parts: write it as "
                                f"model: {{{last}: ...}}")
            if name not in OWN_DATA and (section != "train" or name in ("train.device", "train.threads")):
                raise UserError(f"encoding '{self.label}': '{name}' is one for all encodings of a study; {may}")
        return {f"model.{name}": value for name, value in self.model.items()} | self.settings
