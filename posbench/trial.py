"""From a TrialConfig to something that can run: plugin, options, the task's rows, and the fingerprint of all."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from posbench.config import (
    DataConfig,
    DecodeConfig,
    EncodingChoice,
    EvaluationConfig,
    TrainConfig,
    TrialConfig,
    digest,
    to_plain,
)
from posbench.data import data_hash
from posbench.encoding import Encoding
from posbench.errors import UserError, nearest, reason_of
from posbench.numerals import counted
from posbench.options import build_options, encoding_class
from posbench.registry import ENCODINGS, SUITES, Plugin
from posbench.suite import Suite, Task, TaskData
from posbench.tokens import TRAINED, WORDS, Encoded, encode, tokenizer_from_file, trained_tokenizer

LATER = ("schedule", "average", "label_smoothing", "batch_tokens")
"""Settings of training that came after the first results: at its default each leaves a trial the one that it was."""


@dataclass(frozen=True)
class Variant:
    """An encoding that takes the trained one's place at scoring: its label, its file and its complete Config."""

    label: str
    plugin: Plugin
    options: Any


@dataclass(frozen=True)
class Trial:
    """A trial whose every part was found: nothing about it can be mistaken any more.

    Attributes:
        config: what the user asked for. plugin: the encoding's file. options: its complete Config.
        suite, task: what is trained. fingerprint: SHA-256 of everything that the result depends on.
        variants: what the trained model is scored with beside its own encoding.
    """

    config: TrialConfig
    plugin: Plugin
    options: Any
    suite: Suite
    task: Task
    fingerprint: str
    variants: tuple[Variant, ...] = ()

    @property
    def encoding(self) -> type[Encoding]:
        return self.plugin.value

    @property
    def sources(self) -> str:
        """SHA-256 of the encoding's file and of those it is built on, one after the other."""
        return _sources(self.plugin, self.options)


def resolve(config: TrialConfig) -> Trial:
    """Finds the parts of a trial and computes its fingerprint.

    Paths, labels and the device's name are not in the fingerprint, contents are: the same trial is the same wherever
    its files lie, and changed data, plugin source, option or setting is another trial.

    Raises:
        UserError: an unknown name, a wrong option, unreadable data.
    """
    plugin, options, named = _chosen(
        dataclasses.replace(config.encoding, options={**config.encoding.options, **config.searched})
    )
    suite = load_suite(config.suite)
    if config.task not in suite.tasks:
        raise UserError(f"suite '{suite.name}' has no task '{config.task}', {nearest(config.task, suite.tasks)}")
    task = _with_primary(suite, config)
    plain = to_plain(config)
    del plain["primary"]
    if task.primary != suite.tasks[config.task].primary and (not task.labelled or config.train.select == "best"):
        # Elsewhere it only says which of the scores, all of which are kept, a table shows.
        plain["primary"] = task.primary
    plain["encoding"] = named
    plain["suite"] = {"name": suite.name, "version": suite.version}
    for place in ("path", "revision", "source"):
        del plain["data"][place]
    plain["data"]["hash"] = load_rows(config.suite, config.task, config.data)[1]
    if config.data.tokenizer not in TRAINED:
        place = config.data.tokenizer.removeprefix(WORDS)
        plain["data"]["tokenizer"] = config.data.tokenizer.removesuffix(place) + _file_hash(place)
    # What a search chose is among the options; a trial that is in no search is the one that it was.
    del plain["searched"]
    if config.tuning is None:
        del plain["tuning"]
    variants = [(choice.label, *_chosen(_inheriting(choice, config.encoding)))
                for choice in config.evaluation.variants_of(config.encoding.label)]
    plain["evaluation"]["variants"] = [name for *_, name in variants]
    usual = TrainConfig(steps=1)
    for name in LATER:
        if getattr(config.train, name) == getattr(usual, name):
            del plain["train"][name]
    if config.evaluation == EvaluationConfig():
        del plain["evaluation"]
    if config.decode == DecodeConfig():
        del plain["decode"]
    return Trial(config, plugin, options, suite, task, digest(plain), tuple(Variant(*parts) for *parts, _ in variants))


def _with_primary(suite: Suite, config: TrialConfig) -> Task:
    """The task with the metric that the study declared."""
    task = suite.tasks[config.task]
    known = [metric.name for metric in task.metrics]
    if config.primary is not None and config.primary not in known:
        raise UserError(f"task {task.name} has no metric '{config.primary}', {nearest(config.primary, known)}")
    return dataclasses.replace(task, primary=config.primary or task.primary)


def _inheriting(variant: EncodingChoice, trained: EncodingChoice) -> EncodingChoice:
    """The variant with the options that were stated for the trained encoding, and that it has and does not state.

    The weights were trained with them: another base or layout by default would be another encoding in silence.
    """
    if not trained.options:
        return variant
    plugin = ENCODINGS.load(variant.name)
    known = {field.name for field in dataclasses.fields(encoding_class(plugin.name, plugin.value).Config)}
    own = {name: value for name, value in trained.options.items() if name in known}
    return dataclasses.replace(variant, options=own | variant.options)


def _chosen(choice: EncodingChoice) -> tuple[Plugin, Any, dict[str, Any]]:
    """An encoding's file, its complete Config, and both as plain values for a fingerprint."""
    plugin = ENCODINGS.load(choice.name)
    encoding = encoding_class(plugin.name, plugin.value)
    try:
        options = build_options(plugin.name, encoding, choice.options)
        plain_options = dataclasses.asdict(options)
        digest(plain_options)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"encoding '{plugin.name}': its Config is no frozen dataclass of plain values ({reason_of(error)})"
        ) from error
    return plugin, options, {"name": plugin.name, "options": plain_options, "source": _sources(plugin, options)}


@functools.cache
def load_suite(name: str) -> Suite:
    """The suite of this name."""
    plugin = SUITES.load(name)
    if not isinstance(plugin.value, Suite):
        raise UserError(f"suite {plugin.origin}: SUITE is no instance of a subclass of posbench.suite.Suite")
    return plugin.value


@functools.lru_cache(maxsize=16)
def load_rows(suite: str, task: str, data: DataConfig) -> tuple[TaskData, str]:
    """The labelled splits of a task and the hash of their content; read once in a process."""
    owner = load_suite(suite)
    rows = owner.load(task, data)
    for name, split in rows.splits.items():
        if not split.texts:
            raise UserError(f"task {task}: the split '{name}' is empty: give more rows")
        if name in ("train", *rows.scored) and owner.tasks[task].labelled and len(set(split.labels)) < 2:
            raise UserError(
                f"task {task}: the split '{name}' has one label alone ({counted(len(split.labels), 'row')}), so that "
                "no answer can be told from another: give rows of every class"
            )
    return rows, data_hash(rows)


@functools.lru_cache(maxsize=4)
def load_encoded(suite: str, task: str, data: DataConfig) -> tuple[dict[str, Encoded], int]:
    """Every split as token ids, and the number of ids. The vocabulary comes from the training rows alone."""
    rows, _ = load_rows(suite, task, data)
    tokenizer = tokenizer_of(rows, data)
    whole = load_suite(suite).tasks[task].kind == "classification"
    splits = {
        name: encode(tokenizer, split.texts, split.labels, data.max_length, whole=whole)
        for name, split in rows.splits.items()
    }
    return splits, tokenizer.get_vocab_size()


def tokenizer_of(rows: TaskData, data: DataConfig) -> Tokenizer:
    """The tokenizer that the settings name, from the training rows where it is made and not brought."""
    if data.tokenizer in TRAINED:
        texts = (text for row in rows.splits["train"].texts for text in row)
        return trained_tokenizer(data.tokenizer, texts, data.vocabulary)
    return tokenizer_from_file(Path(data.tokenizer.removeprefix(WORDS)), words=data.tokenizer.startswith(WORDS))


def _sources(plugin: Plugin, options: Any) -> str:
    return "".join([plugin.source_hash, *(ENCODINGS.load(name).source_hash for name in plugin.value.built_on(options))])


def _file_hash(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(
            f"tokenizer file '{path}' cannot be read ({error.strerror}): "
            "give 'wordpiece', 'bpe' or the path of a vocabulary file"
        ) from None
