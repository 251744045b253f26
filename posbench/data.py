"""Where rows come from: files of the original layouts and the hub; which part of them is used, and what they hash to.

Nothing here knows a suite. The only importer of datasets.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posbench.config import digest
from posbench.errors import UserError
from posbench.seeds import numpy_generator
from posbench.suite import TaskData

BINS = 10
"""Quantile bins that stand for the classes of a regression."""


class MissingTask(UserError):
    """The source has no data of this task; a study may be told to skip it."""


class Row(NamedTuple):
    """One row of a source: its place, counted as its readers count, and the wanted values.

    Attributes:
        number: physical line from 1, the header included, or the key of a JSON row.
        values: in the order of the wanted columns.
    """

    number: int
    values: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """What a file held: its rows, and the numbers of the rows that were left out for their wrong width."""

    rows: list[Row]
    broken: list[int] = field(default_factory=list)


def read_table(path: Path, *, header: bool, columns: Sequence[str] | Sequence[int], width: int | None = None,
               skip_broken: bool = False) -> Table:
    """A file of tab-separated values: one physical line is one row, and quotation marks are text.

    Args:
        header: the first line names the columns.
        columns: the wanted ones, by name where there is a header and by index where there is none.
        width: columns of a row where there is no header; those of the first row by default.
        skip_broken: leave out rows of another width and count them, in place of an error; for sets that are published
            with such rows.

    Raises:
        UserError: not UTF-8, empty, a wanted column is not there, or a row's width is wrong (file and row).
    """
    lines = [line.split("\t") for line in _lines(path)]
    if not lines:
        raise UserError(f"{path}: the file is empty")
    width = len(lines[0]) if header or width is None else width
    indices = [_index(path, lines[0], column) for column in columns] if header else [int(column) for column in columns]
    if max(indices) >= width:
        raise UserError(f"{path}: column {max(indices)} is wanted (counted from 0), rows have {width} columns")
    rows, broken = [], []
    for number, line in enumerate(lines[1:] if header else lines, start=2 if header else 1):
        if len(line) == width:
            rows.append(Row(number, tuple(line[index] for index in indices)))
        elif skip_broken:
            broken.append(number)
        else:
            raise UserError(f"{path}, row {number}: {len(line)} columns, expected {width}; "
                            "each line must be one row, its columns separated by tabs")
    return Table(rows, broken)


def _index(path: Path, names: list[str], column: str | int) -> int:
    if column not in names:
        raise UserError(f"{path}, row 1: no column '{column}' in the header; it has {', '.join(names)}")
    return names.index(str(column))


def read_json_rows(path: Path, fields: Sequence[str] = ("text_a", "text_b", "label")) -> Table:
    """Rows of a JSON object keyed "0", "1", ..., of a JSON list, or of JSON lines; a row's number is its key or line.

    Raises:
        UserError: no JSON, a key out of turn, a field is missing or is neither text nor number (file and row).
    """
    lines = _lines(path)
    try:
        whole = json.loads("\n".join(lines))
    except json.JSONDecodeError:
        whole = None
    if isinstance(whole, dict) and whole and all(isinstance(entry, dict) for entry in whole.values()):
        for place, key in enumerate(whole):
            if key != str(place):
                raise UserError(f"{path}: row '{key}' stands where row '{place}' is expected")
        numbered: Iterable[tuple[int, Any]] = enumerate(whole.values())
    elif isinstance(whole, list):
        numbered = enumerate(whole)
    else:
        numbered = [(number, _parsed(path, number, line)) for number, line in enumerate(lines, start=1)]
    return Table([Row(number, tuple(_field(path, number, entry, name) for name in fields)) for number, entry in numbered])


def _parsed(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, row {number}: no JSON ({error.msg} at column {error.colno})") from None


def _field(path: Path, number: int, entry: Any, name: str) -> str:
    value = entry.get(name) if isinstance(entry, dict) else None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UserError(f"{path}, row {number}: field '{name}' is missing or is neither a text nor a number")
    return str(value)


def _lines(path: Path) -> list[str]:
    """Physical lines. Only a line feed ends one: str.splitlines would also cut at U+2028, NEL, form feeds and others."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        row = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, row {row}: byte {content[error.start]:#04x} is not UTF-8; convert the file") from None
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def hub_rows(repository: str, config: str, split: str, revision: str | None) -> tuple[list[dict[str, Any]], str]:
    """Rows of one split of a hub data set, class labels as their names, and the commit that they came from.

    Raises:
        UserError: the hub cannot be reached and the rows are in no cache, or there is no such data set.
    """
    import datasets
    from huggingface_hub import HfApi, constants

    place = f"hub data set '{repository}' ({config}, {split})"
    try:
        # Asked first because it fails at once where there is no network; loading would try for minutes. It also turns
        # the name of a branch into a commit, which does not move.
        commit = revision if constants.HF_HUB_OFFLINE else HfApi().dataset_info(repository, revision=revision, timeout=10).sha
        rows = datasets.load_dataset(repository, config, split=split, revision=commit)
    except Exception as error:
        # Whatever datasets and its network layers raise is the same to the user: there are no rows.
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{place} cannot be loaded: {type(error).__name__}: {reason}; use local files (data.source=folder, "
                        "data.path=...) or connect to the hub") from None
    names = {name: feature.names for name, feature in rows.features.items() if isinstance(feature, datasets.ClassLabel)}
    # A hidden label is -1 and stays what it is, so that whoever reads it refuses it by its value.
    return [{name: names[name][value] if name in names and value >= 0 else value for name, value in row.items()}
            for row in rows], str(commit)


def find_folder(root: Path, name: str) -> Path | None:
    """The folder of this name in any case, the exact case first."""
    if not root.is_dir():
        return None
    folders = sorted(child for child in root.iterdir() if child.is_dir() and child.name.lower() == name.lower())
    return next((folder for folder in folders if folder.name == name), folders[0] if folders else None)


def find_file(folder: Path, names: Iterable[str]) -> Path | None:
    """The first of the names that is a file in the folder, each also with '.gz' behind it."""
    for name in names:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    return None


def checked_texts(place: str, texts: Sequence[str]) -> tuple[str, ...]:
    """The texts of one row, none of which is blank; the place is a file and a row."""
    for position, text in enumerate(texts, start=1):
        if not text.strip():
            raise UserError(f"{place}: text {position} is empty")
    return tuple(texts)


def stratified_part(labels: Sequence[float], rows: int, seed: int, *, bins: bool = False) -> list[int]:
    """Indices of `rows` rows in their old order, drawn so that each label keeps its share; all where there are fewer.

    Args:
        labels: class indices, or numbers with `bins`, which stand in quantile bins.
    """
    values = np.asarray(labels, dtype=float)
    if rows >= len(values):
        return list(range(len(values)))
    if bins:
        ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable")
        values = ranks * min(BINS, len(values)) // len(values)
    classes, counts = np.unique(values, return_counts=True)
    exact = counts * rows / len(values)
    wanted = np.floor(exact).astype(int)
    # The rest goes to the largest remainders.
    wanted[np.argsort(wanted - exact, kind="stable")[: rows - wanted.sum()]] += 1
    drawn = [numpy_generator(seed, "part", int(place)).permutation(np.flatnonzero(values == value))[:want]
             for place, (value, want) in enumerate(zip(classes, wanted, strict=True))]
    return sorted(int(index) for index in np.concatenate(drawn))


def held_out(labels: Sequence[float], share: float, seed: int, *, bins: bool = False) -> tuple[list[int], list[int]]:
    """Indices that stay for training and those held out, both in their old order and stratified by label.

    Raises:
        UserError: one of the two would be empty.
    """
    rows = round(len(labels) * share)
    if not 0 < rows < len(labels):
        raise UserError(f"data.held_out = {share} of {len(labels)} rows leaves no row on one side: choose another share")
    out = stratified_part(labels, rows, seed, bins=bins)
    chosen = set(out)
    return [index for index in range(len(labels)) if index not in chosen], out


def data_hash(data: TaskData) -> str:
    """SHA-256 of the texts and labels of all splits in their order; notes do not count."""
    return digest({name: [[list(texts), float(label)] for texts, label in zip(rows.texts, rows.labels, strict=True)]
                   for name, rows in data.splits.items()})
