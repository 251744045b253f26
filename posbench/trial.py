"""From a TrialConfig to something that can run: plugin, options, the task's rows, and the fingerprint of all."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posbench.config import DataConfig, DecodeConfig, TrainConfig, TrialConfig, digest, to_plain
from posbench.data import data_hash
from posbench.encoding import Encoding
from posbench.errors import UserError, nearest, reason_of
from posbench.options import build_options, encoding_class
from posbench.registry import ENCODINGS, SUITES, Plugin
from posbench.suite import Suite, Task, TaskData
from posbench.tokens import Encoded, encode, tokenizer_from_file, trained_tokenizer

TRAINED = ("wordpiece", "bpe")
LATER = ("schedule", "average", "label_smoothing", "batch_tokens")
"""Settings of training that came after the first results: at its default each leaves a trial the one that it was."""


@dataclass(frozen=True)
class Trial:
    """A trial whose every part was found: nothing about it can be mistaken any more.

    Attributes:
        config: what the user asked for. plugin: the encoding's file. options: its complete Config.
        suite, task: what is trained. fingerprint: SHA-256 of everything that the result depends on.
    """

    config: TrialConfig
    plugin: Plugin
    options: Any
    suite: Suite
    task: Task
    fingerprint: str

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
    plugin = ENCODINGS.load(config.encoding.name)
    encoding = encoding_class(plugin.name, plugin.value)
    try:
        options = build_options(plugin.name, encoding, config.encoding.options)
        plain_options = dataclasses.asdict(options)
        digest(plain_options)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"encoding '{plugin.name}': its Config is no frozen dataclass of plain values ({reason_of(error)})"
        ) from error
    suite = load_suite(config.suite)
    if config.task not in suite.tasks:
        raise UserError(f"suite '{suite.name}' has no task '{config.task}', {nearest(config.task, suite.tasks)}")
    plain = to_plain(config)
    plain["encoding"] = {"name": plugin.name, "options": plain_options, "source": _sources(plugin, options)}
    plain["suite"] = {"name": suite.name, "version": suite.version}
    for place in ("path", "revision", "source"):
        del plain["data"][place]
    plain["data"]["hash"] = load_rows(config.suite, config.task, config.data)[1]
    usual = TrainConfig(steps=1)
    for name in LATER:
        if getattr(config.train, name) == getattr(usual, name):
            del plain["train"][name]
    if config.decode == DecodeConfig():
        del plain["decode"]
    if config.data.tokenizer not in TRAINED:
        plain["data"]["tokenizer"] = _file_hash(config.data.tokenizer)
    return Trial(config, plugin, options, suite, suite.tasks[config.task], digest(plain))


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
        if name in rows.scored and owner.tasks[task].labelled and len(set(split.labels)) < 2:
            raise UserError(
                f"task {task}: all {len(split.labels)} labels of the split '{name}' are equal, so that no answer can "
                "be told from another: give rows of every class"
            )
    return rows, data_hash(rows)


@functools.lru_cache(maxsize=4)
def load_encoded(suite: str, task: str, data: DataConfig) -> tuple[dict[str, Encoded], int]:
    """Every split as token ids, and the number of ids. The vocabulary comes from the training rows alone."""
    rows, _ = load_rows(suite, task, data)
    if data.tokenizer in TRAINED:
        texts = (text for row in rows.splits["train"].texts for text in row)
        tokenizer = trained_tokenizer(data.tokenizer, texts, data.vocabulary)
    else:
        tokenizer = tokenizer_from_file(Path(data.tokenizer))
    whole = load_suite(suite).tasks[task].kind == "classification"
    splits = {
        name: encode(tokenizer, split.texts, split.labels, data.max_length, whole=whole)
        for name, split in rows.splits.items()
    }
    return splits, tokenizer.get_vocab_size()


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
