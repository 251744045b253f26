"""Texts of language models, as bytes, and where their splits lie.

A text is kept as one string with a character for each byte (Latin-1), so that no byte is lost or made up.
"""

from __future__ import annotations

import gzip
import importlib
import platform
import zlib
from pathlib import Path

from posbench.config import DataConfig
from posbench.data import MissingTask, find_file
from posbench.errors import UserError
from posbench.suite import Rows, TaskData

# The usual split of these two, by bytes: 90, 5 and 5 million.
WHOLE = 100_000_000
# What files begin with whose bytes are no text before they are unpacked.
PACKED = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"7z\xbc\xaf": "7z",
          b"\x28\xb5\x2f\xfd": "zstd"}
TEXT8 = frozenset(b"abcdefghijklmnopqrstuvwxyz ")


def load_text(task: str, data: DataConfig) -> TaskData:
    """Train, validation and test of a text.

    Raises:
        MissingTask: the task's file is not there.
        UserError: the file is empty, cannot be read, or is no text8; or this Python has no documentation.
    """
    if task == "docs":
        if data.source != "python":
            raise UserError("task docs is the documentation that comes with Python and read from no files: use --tasks "
                            "text for a text of your own")
        return _cut(_documentation(), f"of {_source()}", data.held_out)
    if data.source != "folder" or data.path is None:
        raise MissingTask(f"task {task}: its text is read from a file: give its folder with --data DIR")
    path = _file(task, Path(data.path))
    text = _bytes(path)
    if packed := next((kind for start, kind in PACKED.items() if text.startswith(start)), None):
        raise UserError(f"{path}: a {packed} file, whose bytes are no text: unpack it"
                        + (", or end its name with .gz" if packed == "gzip" else ""))
    if task == "text8":
        text = text.removesuffix(b"\n")  # some copies end with a line feed, which is none of the text
    if task == "text8" and (strange := set(text) - TEXT8):
        raise UserError(f"{path}: byte {min(strange):#04x} at {text.index(min(strange))} is none of text8's 27 (a to z "
                        "and the space): give text8, or use --tasks text")
    return _cut(text, f"of {path.name}", data.held_out, published=task != "text")


def _file(task: str, place: Path) -> Path:
    if place.is_file():
        return place
    if not place.is_dir():
        raise UserError(f"data folder '{place}' does not exist: give the folder that holds the text")
    if task != "text":
        path = find_file(place, (task,)) or next(
            (found for folder in sorted(place.iterdir()) if folder.is_dir() and (found := find_file(folder, (task,)))),
            None)
        if path is None:
            raise MissingTask(f"task {task}: no file '{task}' or '{task}.gz' in {place}")
        return path
    files = sorted(path for path in place.iterdir() if path.is_file() and not path.name.startswith("."))
    if len(files) != 1:
        raise MissingTask(f"task text: {len(files)} files in {place}, and one is needed: give a folder with one text, "
                          "or the file itself")
    return files[0]


def _bytes(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({error}): give an intact file") from None
    if not content:
        raise UserError(f"{path}: the file is empty")
    return content


def _cut(text: bytes, source: str, share: float, *, published: bool = False) -> TaskData:
    """Training bytes first, then validation, then test, half of the share each; borders may lie inside a character.

    Args:
        published: a text with a usual split, which a piece of it has not.
    """
    held = 5_000_000 if published and len(text) == WHOLE else int(len(text) * share / 2)
    if not 0 < 2 * held < len(text):
        raise UserError(f"{source.removeprefix('of ')}: {len(text):,} bytes are too few to hold out {share:g} of them: "
                        "give a longer text, or raise data.held_out")
    if published and len(text) != WHOLE:
        source += f" ({len(text):,} bytes, where the published text has {WHOLE:,}: comparable with no published number)"
    parts = {"train": text[: len(text) - 2 * held], "validation": text[len(text) - 2 * held : len(text) - held],
             "test": text[len(text) - held :]}
    splits = {name: Rows(texts=[(part.decode("latin-1"),)], labels=[]) for name, part in parts.items()}
    notes = {name: f"{len(part):,} bytes {source}, {len(set(part))} different ones" for name, part in parts.items()}
    return TaskData(splits=splits, scored=("test",), notes=notes)


def _documentation() -> bytes:
    """The topics of Python's help(), in the order of their names, without paragraphs that came before.

    Topics quote each other at length: without this, half of the test would stand in the training text word by word.
    """
    try:
        topics = importlib.import_module("pydoc_data.topics").topics
    except ImportError:
        raise UserError("this Python has no pydoc_data.topics, the text of the task docs: use --tasks text with "
                        "--data DIR") from None
    paragraphs = [part.rstrip() for name in sorted(topics) for part in topics[name].strip("\n").split("\n\n")]
    return "\n\n".join(dict.fromkeys(paragraphs)).encode()


def _source() -> str:
    return f"the topics of Python {platform.python_version()}'s help(), each paragraph once"
