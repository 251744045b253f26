"""Parallel text from files: two line-aligned files, or one with both languages, tab-separated; no pair goes astray.

    train.en train.de val.en val.de test_2016_flickr.en ...     as Multi30k names them
    newstest2012.en newstest2012.de newstest2013.en ...          years of one test set
    tatoeba-test.en tatoeba-test.de, or pairs.en-de.tsv          one set, of which parts are held out

Each name may end with .gz. A line ends with a line feed (or CR and line feed) and with nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from posbench.config import DataConfig
from posbench.data import MissingTask, held_out, read_text, stratified_part
from posbench.errors import UserError
from posbench.numerals import counted
from posbench.suite import Rows, TaskData

# One part for all trials: which pairs are held out must not change with the seed of a trial.
SEED = 0
VALIDATION = ("val", "valid", "validation", "dev")
# What WMT14 takes for validation and for test; other years of the same set are for training.
NEWS_VALIDATION, NEWS_TEST = "newstest2013", "newstest2014"


# Ends of names that are as short as a language's, and are none.
OTHER_ENDINGS = ("txt", "tsv", "csv", "md", "py", "sh", "zip", "tar", "tgz", "bz", "xz", "log", "pdf", "xml", "sgm")


class Pair(NamedTuple):
    """One row: both sides, and where it stands in its files."""

    source: str
    target: str
    row: int


def lines(path: Path) -> list[str]:
    """The lines of a file, empty ones too; a line feed at the end of the file opens no further line.

    Raises:
        UserError: the file cannot be read, or its lines end with CR alone, which would make one line of them all.
    """
    text = read_text(path).replace("\r\n", "\n")
    if "\r" in text.rstrip() and "\n" not in text:
        raise UserError(f"{path}: one line, with {counted(text.count(chr(13)), 'carriage return')} in it: end its "
                        "lines with line feeds")
    return text.removesuffix("\n").split("\n")


def aligned(source: Path, target: Path) -> list[Pair]:
    """Line i of one file with line i of the other.

    Raises:
        UserError: a file is empty, they have not equally many lines, or they are one and the same text.
    """
    sides = [lines(path) for path in (source, target)]
    for path, side in zip((source, target), sides, strict=True):
        if not any(text.strip() for text in side):
            raise UserError(f"{path}: the file is empty: give the side that belongs to it")
    if len(sides[0]) != len(sides[1]):
        raise UserError(f"{source} has {counted(len(sides[0]), 'line')} and {target} has {len(sides[1])}: they cannot "
                        f"be translations line by line; by their lengths they part at line {parting(*sides)}")
    if sides[0] == sides[1]:
        raise UserError(f"{source} and {target} hold the same text: give each language its own file")
    return [Pair(*pair, row) for row, pair in enumerate(zip(*sides, strict=True), start=1)]


def parting(one: Sequence[str], other: Sequence[str]) -> int:
    """The line (from 1) at which lines went missing on the shorter side, as far as lengths of lines tell.

    Before it, line i belongs to line i; from there on the longer side is ahead by the difference. The place is the one
    at which the lengths of lines that then stand side by side agree best.
    """
    short, long = sorted((one, other), key=len)
    ahead = len(long) - len(short)
    lengths = [np.log1p([len(text.strip()) for text in side]) for side in (short, long)]
    before = np.abs(lengths[0] - lengths[1][: len(short)])
    after = np.abs(lengths[0] - lengths[1][ahead:])
    cost = np.concatenate([[0.0], before.cumsum()]) + np.concatenate([after[::-1].cumsum()[::-1], [0.0]])
    return int(cost.argmin()) + 1


def tabbed(path: Path, order: tuple[str, str], source: str) -> list[Pair]:
    """Pairs of a tab-separated file whose first two columns are the languages in this order; others are left out.

    Quotes are text. Where the first column holds nothing but numbers, as in Tatoeba's own sentence pairs, the file has
    a number before each text.

    Raises:
        UserError: a row has one column, or another number of columns than the first row: a tab within a text would cut
            it there, and put its rest in the other language's place.
    """
    rows = [line.split("\t") for line in lines(path)]
    for row, fields in enumerate(rows, start=1):
        if len(fields) < 2:
            raise UserError(f"{path}, row {row}: one column, two are needed ({' and '.join(order)}, tab-separated)")
        if len(fields) != len(rows[0]):
            raise UserError(f"{path}, row {row}: {counted(len(fields), 'column')}, row 1 has {len(rows[0])}: "
                            "mend or remove the row")
    places = (0, 1)
    if all(fields[0].isdigit() for fields in rows):
        if len(rows[0]) < 4 or not all(fields[2].isdigit() for fields in rows):
            raise UserError(f"{path}: the first column holds numbers alone: give {' and '.join(order)}, or number, "
                            f"{order[0]}, number, {order[1]}")
        places = (1, 3)
    first, second = places if order[0] == source else places[::-1]
    return [Pair(fields[first], fields[second], row) for row, fields in enumerate(rows, start=1)]


def load_folder(root: Path, source: str, target: str, data: DataConfig) -> TaskData:
    """Training, validation and test pairs of a folder.

    Raises:
        UserError: no such folder, a language without files, files that do not fit together, or a pair that is scored
            and lacks a side.
    """
    if not root.is_dir():
        raise UserError(f"data folder '{root}' does not exist: give the folder that holds train.{source} and the like")
    found = _found(root, source, target)
    roles = _roles(list(found))
    splits: dict[str, list[Pair]] = {}
    notes: dict[str, str] = {}
    for split, names in roles.items():
        gone = 0
        splits[split] = []
        for name in names:
            pairs = found[name](source)
            whole = [pair for pair in pairs if pair.source.strip() and pair.target.strip()]
            if split != "train" and len(whole) < len(pairs):
                first = next(pair for pair in pairs if not pair.source.strip() or not pair.target.strip())
                side = source if not first.source.strip() else target
                raise UserError(f"{root / name}, row {first.row}: the {side} side is empty, and the pair is scored: "
                                "mend it, or remove it on both sides")
            gone += len(pairs) - len(whole)
            splits[split] += whole
        notes[split] = ", ".join(names) + (f", {counted(gone, 'pair')} with an empty side left out" if gone else "")
    if len(splits["train"]) > 1:
        _hold_out(splits, notes, data)
    if not splits["train"] or "validation" not in splits:
        raise UserError(f"data folder '{root}': {len(splits['train'])} training pairs of {source} and {target} are "
                        "left, which is too few: give more")
    rows = {name: Rows(texts=[(pair.source, pair.target) for pair in pairs], labels=[])
            for name, pairs in splits.items()}
    scored = tuple(name for name in rows if name not in ("train", "validation")) or ("validation",)
    return TaskData(splits=capped(rows, notes, data), scored=scored, notes=notes)


def _found(root: Path, source: str, target: str) -> dict[str, Callable[[str], list[Pair]]]:
    """By name without language, what reads a set's pairs."""
    plain: dict[str, Path] = {}
    for path in sorted(path for path in root.iterdir() if path.is_file()):
        name = path.name.removesuffix(".gz")
        if name in plain and read_text(plain[name]) != read_text(path):
            raise UserError(f"{plain[name]} and {path.name} beside it hold other texts: leave one of them")
        plain.setdefault(name, path)
    found: dict[str, Callable[[str], list[Pair]]] = {}
    languages: set[str] = set()

    def add(name: str, path: Path, read: Callable[[str], list[Pair]]) -> None:
        if name in found:
            raise UserError(f"{path}: there is another set '{name}' of {source} and {target} beside it: leave one of "
                            "them, or give it another name")
        found[name] = read

    for name, path in plain.items():
        if (match := re.fullmatch(r"(.+)\.([a-z]{2,3})", name)) and match[2] not in OTHER_ENDINGS:
            stem, language = match.groups()
            languages.add(language)
            other = plain.get(f"{stem}.{target}")
            if language == source and other is not None:
                add(stem, path, lambda _, path=path, other=other: aligned(path, other))
        if match := re.fullmatch(r"(?:(.+)\.)?([a-z]{2,3})-([a-z]{2,3})\.(?:tsv|txt)", name):
            stem, *order = match.groups()
            languages |= set(order)
            if set(order) == {source, target}:
                add(stem or "pairs", path,
                    lambda language, path=path, order=tuple(order): tabbed(path, order, language))
    if not found:
        missing = [language for language in (source, target) if language not in languages]
        told = f"has no file of language {' or '.join(repr(one) for one in missing)}" if missing else \
            f"has no set in both '{source}' and '{target}'"
        known = ", ".join(sorted(languages)) or "none"
        raise MissingTask(f"data folder '{root}' {told} (languages there: {known}): name another direction with "
                        f"--tasks, or add train.{source} and train.{target}")
    return found


def _roles(names: list[str]) -> dict[str, list[str]]:
    """Which sets are for training, which for validation, and which are scored."""
    train = [name for name in names if re.match(r"train", name)]
    validation = [name for name in names if name in VALIDATION or re.match(r"(val|dev)", name)]
    test = [name for name in names if name not in train and name not in validation]
    if train:
        roles = {"train": train, "validation": validation}
        return {role: own for role, own in roles.items() if own} | {_test_name(name): [name] for name in test}
    if NEWS_VALIDATION in test and len(test) > 1:
        others = [name for name in test if name not in (NEWS_VALIDATION, NEWS_TEST)]
        roles = {"train": others, "validation": [NEWS_VALIDATION]}
        return roles | ({NEWS_TEST: [NEWS_TEST]} if NEWS_TEST in test else {})
    if len(names) == 1:
        return {"train": names}
    raise UserError(f"no set is named for training among {', '.join(names)}: name one train.LANGUAGE")


def _test_name(name: str) -> str:
    """'test_2016_flickr' stays; a set with another name is a test all the same, and must be seen to be one."""
    return name if name.startswith("test") else f"test_{name}"


def _hold_out(splits: dict[str, list[Pair]], notes: dict[str, str], data: DataConfig) -> None:
    """Parts of training for validation, and for a test where the folder is one set; what they hold leaves training."""
    wanted = [name for name in ("validation", "test") if name not in splits]
    if len(splits) > 1:
        wanted = [name for name in wanted if name == "validation"]
    for name in wanted:
        train = splits["train"]
        stay, out = held_out([0.0] * len(train), data.held_out, SEED)
        splits[name], splits["train"] = [train[index] for index in out], [train[index] for index in stay]
        notes[name] = f"held out of training ({data.held_out:.0%}, seed {SEED})"
    known = {text for name in wanted for pair in splits[name] for text in (pair.source, pair.target)}
    kept = [pair for pair in splits["train"] if pair.source not in known and pair.target not in known]
    if gone := len(splits["train"]) - len(kept):
        notes["train"] += f", {counted(gone, 'pair')} left out of which a side stands in a held-out part"
        splits["train"] = kept


def capped(splits: dict[str, Rows], notes: dict[str, str], data: DataConfig) -> dict[str, Rows]:
    """The splits within the settings' numbers of rows; notes say what is left of what."""
    result = {}
    for name, rows in splits.items():
        limit = data.train_rows if name == "train" else data.evaluation_rows
        if limit is not None and limit < len(rows.texts):
            notes[name] += f", {limit} of {len(rows.texts)} pairs (seed {SEED})"
            rows = Rows(texts=[rows.texts[index] for index in stratified_part([0.0] * len(rows.texts), limit, SEED)],
                        labels=[])
        result[name] = rows
    return result
