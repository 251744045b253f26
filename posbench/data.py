"""Sources of rows: files and the hub, parts that are drawn from them, and a hash of what was read.

The only importer of datasets. Nothing here knows a suite; nothing falls back to another source.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posbench.config import DataConfig, digest
from posbench.errors import UserError
from posbench.numerals import counted
from posbench.seeds import numpy_generator
from posbench.suite import Rows, TaskData

BINS = 10
# One part for all trials: which rows are held out must not change with the seed of a trial.
SEED = 0


class MissingTask(UserError):
    """The files of a task are not there. A study skips such a task only when asked to."""


def find_file(folder: Path, names: Sequence[str]) -> Path | None:
    """The first of these files that the folder has, plain or with .gz."""
    for name in names:
        for candidate in (folder / name, folder / f"{name}.gz"):
            if candidate.is_file():
                return candidate
    return None


def find_below(folder: Path, names: Sequence[str]) -> Path | None:
    """The same in the folder or, where it has none, in the first by name of the folders inside it, two levels deep.

    Raises:
        UserError: there is no such folder.
    """
    if folder.is_file():
        raise UserError(f"data folder '{folder}' is a file: give the folder that holds it")
    if not folder.is_dir():
        raise UserError(f"data folder '{folder}' does not exist: give the folder that holds the files")
    for place in (folder, *(path for level in ("*", "*/*") for path in sorted(folder.glob(level)) if path.is_dir())):
        if found := find_file(place, names):
            return found
    return None


def read_text(path: Path) -> str:
    """A whole file as UTF-8 text, unpacked where its name ends with .gz, without byte order mark.

    Raises:
        UserError: the file cannot be read, is no gzip file, or is no UTF-8 (with the row).
    """
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({error}): give an intact file") from None
    return utf8(content, str(path))


def utf8(content: bytes, place: str) -> str:
    """Bytes as text, without byte order mark.

    Raises:
        UserError: they are no UTF-8 (place and row).
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{place}, row {row}: not UTF-8 (byte {content[error.start]:#04x}): convert the file") from None


def read_table(path: Path, columns: Mapping[str, str | int], *, header: bool,
               broken: list[int] | None = None) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows of a tab-separated file with quoting off, each with its number (1-based physical line).

    Only a line feed ends a line, after CRLF became one: a lone CR, U+2028 or NEL is text.

    Args:
        path: the file.
        columns: for each name that the caller uses, the column's title in the file, or its index.
        header: whether the first line holds titles.
        broken: where given, rows of another width are left out and their numbers collected here, for sets that are
            published with such rows.

    Raises:
        UserError: a column is missing, or a row has another number of fields than the first.
    """
    text = read_text(path).replace("\r\n", "\n")
    lines = text.removesuffix("\n").split("\n")
    if lines == [""]:
        raise UserError(f"{path}: the file is empty")
    first = lines[0].split("\t")
    places: dict[str, int] = {}
    for name, column in columns.items():
        if isinstance(column, int):
            places[name] = column
        elif column in first:
            places[name] = first.index(column)
        else:
            raise UserError(f"{path}, row 1: no column '{column}', only {', '.join(first)}")
    if max(places.values()) >= len(first):
        raise UserError(f"{path}, row 1: {counted(len(first), 'column')}, {max(places.values()) + 1} are needed")
    if not header and len(first) > max(places.values()) + 1:
        needed = max(places.values()) + 1
        raise UserError(f"{path}, row 1: {counted(len(first), 'column')}, {needed} are expected: is this the file, and "
                        "do its lines end with a line feed?")
    for number, line in enumerate(lines, start=1):
        if header and number == 1:
            continue
        fields = line.split("\t")
        if len(fields) != len(first):
            if broken is None:
                raise UserError(f"{path}, row {number}: {counted(len(fields), 'column')}, row 1 has {len(first)}: "
                                "mend or remove the row")
            broken.append(number)
            continue
        yield number, {name: fields[place] for name, place in places.items()}


def read_json_rows(path: Path, fields: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a JSON object keyed '0', '1', ..., of a JSON list, or of JSON lines, each with its number from 1.

    Raises:
        UserError: the file is no such JSON, or a row lacks a field.
    """
    text = read_text(path)
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        whole = None
    # The only row of JSON lines is an object too, and differs in what it holds.
    if isinstance(whole, list) or (isinstance(whole, dict) and all(isinstance(row, dict) for row in whole.values())):
        rows = list(whole.values()) if isinstance(whole, dict) else whole
    else:
        lines = text.removesuffix("\n").split("\n")
        rows = [_json_line(path, number, line) for number, line in enumerate(lines, start=1)]
    if not rows:
        raise UserError(f"{path}: holds no rows")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise UserError(f"{path}, row {number}: {type(row).__name__} where an object with {', '.join(fields)} "
                            "is needed")
        if missing := [field for field in fields if field not in row]:
            raise UserError(f"{path}, row {number}: no field '{missing[0]}', only {', '.join(row)}")
        for field, value in row.items():
            if isinstance(value, str) and any("\ud800" <= symbol <= "\udfff" for symbol in value):
                raise UserError(f"{path}, row {number}: field '{field}' holds half of a character (a lone surrogate): "
                                "mend the row")
        yield number, row


def _json_line(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}, row {number}: neither is the file one JSON text nor this line ({error})") from None


def hub_rows(repository: str, config: str, split: str, revision: str) -> list[dict[str, Any]]:
    """Rows of a split of a hub data set, class labels by their names; a hidden label stays the number -1.

    Raises:
        UserError: the revision is no commit, there is no network and no copy in the cache, or no such data set.
    """
    if not re.fullmatch("[0-9a-f]{40}", revision):
        raise UserError(f"data.revision '{revision}' is no commit of {repository}: give all its 40 hexadecimal digits, "
                        "as what a branch or a tag names can change")
    import datasets
    from huggingface_hub import HfApi, constants

    try:
        if not constants.HF_HUB_OFFLINE:
            # One short question first: without a network it fails at once, where loading would try for half a minute.
            HfApi().dataset_info(repository, revision=revision, timeout=10)
        rows = datasets.load_dataset(repository, config, split=split, revision=revision)
        found = list(rows)
        # Of a cached file that was cut off the library reads what is left, and says nothing.
        whole = (rows.info.splits or {}).get(split)
        if whole and whole.num_examples != len(found):
            place = Path(rows.cache_files[0]["filename"]).parent if rows.cache_files else "its cache"
            raise UserError(f"hub data set {repository}/{config}, split {split}: {place} holds {len(found)} of "
                            f"{whole.num_examples} rows: remove that folder, and it is read anew")
    except UserError:
        raise
    except Exception as error:  # the libraries raise a dozen kinds for one thing: it is not to be had
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"hub data set {repository}/{config}, split {split}: {type(error).__name__}: {reason} "
                        "(give the files with --data DIR, or use a preset with generated data; HF_HUB_OFFLINE=1 reads "
                        "the copy in the cache)") from None
    names = {name: feature.names for name, feature in rows.features.items() if isinstance(feature, datasets.ClassLabel)}
    return [{name: names[name][value] if name in names and value >= 0 else value for name, value in row.items()}
            for row in found]


def stratified_part(labels: Sequence[float], rows: int, seed: int) -> list[int]:
    """Indices of so many rows, in their order, every label keeping its share; fractional labels by their deciles."""
    if rows >= len(labels):
        return list(range(len(labels)))
    random = numpy_generator(seed, "part", len(labels), rows)
    strata = _strata(labels)
    kinds, counts = np.unique(strata, return_counts=True)
    shares = counts * rows / len(labels)
    take = np.floor(shares).astype(int)
    # What rounding down left over goes to the largest remainders.
    for kind in np.argsort(take - shares, kind="stable")[: rows - take.sum()]:
        take[kind] += 1
    chosen = [random.permutation(np.flatnonzero(strata == kind))[:count]
              for kind, count in zip(kinds, take, strict=True)]
    return sorted(int(index) for index in np.concatenate(chosen))


def held_out(labels: Sequence[float], share: float, seed: int) -> tuple[list[int], list[int]]:
    """Indices of what stays and of the stratified share that is held out, at least one row each."""
    rows = min(max(1, round(len(labels) * share)), len(labels) - 1)
    out = set(stratified_part(labels, rows, seed))
    return [index for index in range(len(labels)) if index not in out], sorted(out)


def capped(splits: Mapping[str, Rows], notes: dict[str, str], data: DataConfig) -> dict[str, Rows]:
    """The splits within the settings' numbers of rows; notes say what is left of what."""
    result = {}
    for name, rows in splits.items():
        limit = data.train_rows if name == "train" else data.evaluation_rows
        if limit is not None and limit < len(rows.labels):
            notes[name] += f", {limit} of {len(rows.labels)} rows (stratified, seed {SEED})"
            rows = part(rows, stratified_part(rows.labels, limit, SEED))
        result[name] = rows
    return result


def shared(splits: Mapping[str, Rows], notes: dict[str, str]) -> dict[str, Rows]:
    """The splits as they are; notes say how many rows of each other split stand in the training split, word by word."""
    train = set(splits["train"].texts)
    for name, rows in splits.items():
        if name != "train" and (twice := sum(row in train for row in rows.texts)):
            notes[name] += f"; {twice} of {len(rows.texts)} rows stand in train too"
    return dict(splits)


def part(rows: Rows, indices: Sequence[int]) -> Rows:
    """These rows of a split, in this order."""
    return Rows(texts=[rows.texts[index] for index in indices], labels=[rows.labels[index] for index in indices])


def _strata(labels: Sequence[float]) -> np.ndarray:
    values = np.asarray(labels, dtype=float)
    if np.array_equal(values, values.round()):
        return values
    borders = np.quantile(values, np.linspace(0, 1, BINS + 1)[1:-1])
    return np.searchsorted(borders, values)


def data_hash(data: TaskData) -> str:
    """SHA-256 over the texts and labels of all splits and which of them are scored; notes are left out."""
    return digest({"splits": {name: [rows.texts, list(map(float, rows.labels))] for name, rows in data.splits.items()},
                   "scored": data.scored, "selection": data.selection})
