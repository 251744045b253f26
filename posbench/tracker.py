"""What a study tells of its trials while it runs: to nobody, or to a file of JSON lines.

The store is the source of truth and every tracker a copy of it. No tracker ever stops a study: what it could not write
is counted and told once at the end.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO

from posbench.numerals import counted
from posbench.store import Record


class Tracker:
    """A copy of a study's trials. Every method does nothing unless a subclass says otherwise."""

    def prepare(self) -> None:
        """Called once by the coordinator before anything runs."""

    def begin(self, study: str, description: str) -> None:
        """A study starts or goes on; description says in a line or more what it compares."""

    def trial(self, record: Record, files: Mapping[str, Path]) -> None:
        """A trial has its result, now or from the store. To be called for every trial: a known one costs nothing."""

    def summary(self, name: str, values: Mapping[str, float], files: Mapping[str, Path]) -> None:
        """Numbers, tables and figures of the whole study, by metric name and by artifact path."""

    def end(self) -> str:
        """The study is over. Returns one line for the user about what could not be copied, empty when nothing."""
        return ""


class JsonLines(Tracker):
    """One JSON line a trial, appended to a file; a line that is there already is not written again."""

    def __init__(self, path: Path) -> None:
        self.path, self.lost, self.reason = path, 0, ""
        self.known: set[bytes] = set()

    def begin(self, study: str, description: str) -> None:
        if self.path.is_file():
            with contextlib.suppress(OSError):  # then nothing can be written either, which the end tells
                self.known = {hashlib.sha256(line).digest() for line in self.path.read_bytes().splitlines()}

    def trial(self, record: Record, files: Mapping[str, Path]) -> None:
        # JSON has no NaN or infinity; they are kept as their names.
        plain = json.loads(json.dumps(asdict(record), default=lambda value: value.item()), parse_constant=str)
        plain["files"] = {name: str(path) for name, path in files.items()}
        line = json.dumps(plain, sort_keys=True, allow_nan=False).encode()
        if hashlib.sha256(line).digest() in self.known:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered, one write in append mode: lines of several writers do not mix.
            with open(self.path, "a+b", buffering=0) as file:
                whole = b"\n" * _cut_off(file) + line + b"\n"
                # On a full disk the system writes a part and calls it no error.
                if (file.write(whole) or 0) < len(whole):
                    raise OSError(errno.ENOSPC, "no room for a whole line")
        except OSError as error:
            self.lost, self.reason = self.lost + 1, error.strerror or str(error)

    def end(self) -> str:
        told = f"{self.path} incomplete: {counted(self.lost, 'trial')} could not be written: {self.reason}"
        return told if self.lost else ""


def _cut_off(file: IO[bytes]) -> bool:
    """Whether the file ends within a line, where a kill or a full disk cut it off; the next one must not join it."""
    if not file.seek(0, os.SEEK_END):
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"
