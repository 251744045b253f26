"""Checkpoints of one trial on disk: tensors in safetensors, all else as JSON in their header, nothing that can run.

A checkpoint is two files: 'checkpoint-<step>.safetensors', and 'checkpoint-<step>.json' with its SHA-256, written last.
Both appear under their names when they are whole. The two newest are kept, as the newest may turn out damaged.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from posbench.errors import UserError
from posbench.store import write_atomically

NAME = re.compile(r"checkpoint-(\d{1,12})\.(safetensors|json)")
KEPT = 2
PAUSE = 10.0
"""Seconds of training, at least, between two checkpoints: a shorter trial writes none."""
SHARE = 50
"""A checkpoint is due no earlier than this many times the seconds that the last one took, at most 2 % of the time."""
PAUSE_VARIABLE = "POSBENCH_CHECKPOINT_SECONDS"


def pause() -> float:
    """Seconds between two checkpoints: PAUSE, or what the environment says.

    Raises:
        UserError: the variable is no number of seconds.
    """
    text = os.environ.get(PAUSE_VARIABLE) or str(PAUSE)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise UserError(f"{PAUSE_VARIABLE} is '{text}': give seconds, such as 60")
    return seconds


class Misfit(Exception):
    """A checkpoint is not of this trial, of this code, or of this model; says in what they differ."""


class Checkpoints:
    """The checkpoints of a trial in its folder.

    Args:
        folder: made when the first is written.
        identity: what must be equal for a checkpoint to be this trial's, such as fingerprint and versions.
        pause: seconds between two.
        tell: called with a line for the user, once, when no checkpoint can be written.

    Attributes:
        events: what happened to checkpoints that were not read or not written, in lines.
    """

    def __init__(self, folder: Path, identity: Mapping[str, str], *, pause: float = PAUSE,
                 tell: Callable[[str], None] = lambda line: None) -> None:
        self.folder, self.identity, self.pause, self.tell = folder, dict(identity), pause, tell
        self.events: list[str] = []
        self.ended, self.cost = time.monotonic(), 0.0
        self.silent = False

    def due(self) -> bool:
        """Whether so much time has gone by since the last one that another costs little."""
        return time.monotonic() - self.ended >= max(self.pause, SHARE * self.cost)

    def write(self, step: int, captured: Callable[[], tuple[Mapping[str, Tensor], Mapping[str, Any]]]) -> bool:
        """Writes a checkpoint, and removes all but the one before; one that cannot be written leaves those there are.

        Args:
            step: updates done.
            captured: gives tensors by name, and all else as JSON values, in which NaN and infinities may occur.

        Returns:
            Whether it was written.
        """
        began = time.monotonic()
        try:
            tensors, plain = captured()
            header = {"identity": json.dumps(self.identity), "plain": json.dumps(plain)}
            # Copies: the format refuses tensors that share memory, and none may change while it is written.
            content = save({name: value.detach().cpu().clone() for name, value in tensors.items()}, header)
            stem = self.folder / f"checkpoint-{step}"
            self.folder.mkdir(parents=True, exist_ok=True)
            stem.with_suffix(".json").unlink(missing_ok=True)
            write_atomically(stem.with_suffix(".safetensors"), content)
            manifest = {"files": {f"{stem.name}.safetensors": hashlib.sha256(content).hexdigest()}}
            write_atomically(stem.with_suffix(".json"), json.dumps(manifest).encode())
            _remove_but(self.folder, self._steps()[:KEPT])
            written = True
        except OSError as error:
            written = False
            if not self.silent:
                self.silent = True
                line = f"no checkpoint after update {step}: {self.folder} cannot be written: {error.strerror}"
                self.events.append(line)
                self.tell(f"{line}; training goes on")
        self.ended = time.monotonic()
        self.cost = self.ended - began
        return written

    def restore(self, take: Callable[[Mapping[str, Tensor], Mapping[str, Any]], None]) -> bool:
        """Hands the newest whole checkpoint of this trial to `take`, else the one before.

        What is damaged or refused is removed, and `events` says why: training comes to that step again.

        Args:
            take: takes tensors and JSON values; raises Misfit where they are another model's, and then changed nothing.

        Returns:
            Whether there was one.
        """
        taken: list[int] = []
        for step in self._steps():
            try:
                take(*self._read(step))
                taken.append(step)
                break
            except Misfit as error:
                self.events.append(f"checkpoint after update {step} not used: {error}")
        try:
            _remove_but(self.folder, taken)
        except OSError as error:
            self.events.append(f"old checkpoints stay: {error.strerror}")
        self.ended = time.monotonic()  # seconds of loading are none of training
        return bool(taken)

    def remove(self) -> None:
        """Removes all, when the trial has its result."""
        clear(self.folder)

    def _read(self, step: int) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
        name = f"checkpoint-{step}.safetensors"
        try:
            known = json.loads((self.folder / f"checkpoint-{step}.json").read_bytes())["files"][name]
            content = (self.folder / name).read_bytes()
            if hashlib.sha256(content).hexdigest() != known:
                raise Misfit("its SHA-256 is not that of its manifest")
            tensors = load(content)
            size = int.from_bytes(content[:8], "little")
            header = json.loads(content[8 : 8 + size])["__metadata__"]
            theirs, plain = json.loads(header["identity"]), json.loads(header["plain"])
            if not isinstance(theirs, dict) or not isinstance(plain, dict):
                raise Misfit("it is damaged (its header holds no settings)")
        except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
            raise Misfit(f"it is damaged ({type(error).__name__})") from None
        if told := differences(theirs, self.identity):
            raise Misfit(told)
        return tensors, plain

    def _steps(self) -> list[int]:
        """Steps with a manifest, newest first."""
        return sorted({step for step, _, kind in _files(self.folder) if kind == "json"}, reverse=True)


def there(folder: Path) -> bool:
    """Whether a trial's folder has a checkpoint, whole or not."""
    return any(kind == "json" for *_, kind in _files(folder))


def clear(folder: Path) -> None:
    """Removes the checkpoints of a trial that has its result, also those that a kill left behind it."""
    # One that cannot be removed is in no one's way: a trial with a result is not run again.
    with contextlib.suppress(OSError):
        _remove_but(folder, [])


def _remove_but(folder: Path, steps: Collection[int]) -> None:
    # Manifests go first: tensors without one are no checkpoint.
    for step, file, _ in sorted(_files(folder), key=lambda entry: entry[2]):
        if step not in steps:
            file.unlink(missing_ok=True)


def differences(theirs: Mapping[str, Any], ours: Mapping[str, Any], limit: int = 3) -> str:
    """What differs between two descriptions, by name; empty if nothing does."""
    names = [name for name in sorted(theirs.keys() | ours.keys(), key=str) if theirs.get(name) != ours.get(name)]
    told = [f"{name} is {theirs.get(name, 'absent')} there and {ours.get(name, 'absent')} here"
            for name in names[:limit]]
    return "; ".join(told) + (f"; and {len(names) - limit} more" if len(names) > limit else "")


def _files(folder: Path) -> Iterator[tuple[int, Path, str]]:
    """Step, file and kind of all that lies there under a checkpoint's name."""
    if folder.is_dir():
        for file in folder.iterdir():
            if (match := NAME.fullmatch(file.name)) and file.is_file():
                yield int(match[1]), file, match[2]
