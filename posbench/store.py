"""Results on disk, the source of truth: one folder a trial, named by its fingerprint, its manifest written last.

A trial is done when its manifest exists and every file in the manifest has the recorded hash. Files appear under their
final names only when they are whole; what a killed process leaves behind ends in '.tmp' and is swept.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, load_file, save

from posbench.errors import StorageError, reason_of
from posbench.locks import exclusive

MANIFEST = "manifest.json"
RECORD = "record.json"
PREDICTIONS = "predictions.safetensors"
LOCK = "lock"
Stamp = tuple[int, int] | None
"""What tells one result under a fingerprint from the next; None where there is none."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """What is known of one finished trial.

    Attributes:
        fingerprint: SHA-256 of all that the trial depends on.
        label: the encoding as tables name it.
        config: the TrialConfig as plain values.
        status: 'done', 'degenerate', 'diverged', 'refused' or 'failed'; reason says why in one line.
        rows: measurements, each with split, length, metric, value, n, higher_is_better and primary.
        curves: points, each with step, metric (such as 'train/loss') and value.
        parameters: trainable numbers of the model. seconds: wall time of the trial. step_seconds: median of a step.
        facts: hashes of data and sources, origin of the plugin, versions, threads, device, rows, cut rows.
    """

    fingerprint: str
    label: str
    config: dict[str, Any]
    status: str
    reason: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    curves: list[dict[str, Any]] = field(default_factory=list)
    parameters: int = 0
    seconds: float = 0.0
    step_seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)


class Store:
    """Trials under one folder.

    Args:
        root: the folder; it is created when the first result is kept.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, fingerprint: str) -> Path:
        return self.root / fingerprint[:2] / fingerprint

    def has(self, fingerprint: str) -> bool:
        """Whether the trial is done: its manifest exists and its files are those that were written."""
        folder = self.folder(fingerprint)
        try:
            known = json.loads((folder / MANIFEST).read_text())["files"]
            # A manifest that names no file would vouch for all of them.
            return all(_hash((folder / name).read_bytes()) == known[name] for name in {RECORD, PREDICTIONS, *known})
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return False

    def stamp(self, fingerprint: str) -> Stamp:
        """Which result is there, whether whole or not."""
        try:
            known = (self.folder(fingerprint) / MANIFEST).stat()
        except OSError:
            return None
        return known.st_ino, known.st_mtime_ns

    def claim(self, fingerprint: str) -> AbstractContextManager[bool]:
        """The lock of a trial, held by the process that runs it: with it nobody else runs or writes the trial."""
        return exclusive(self.folder(fingerprint) / LOCK)

    def held(self, fingerprint: str) -> bool:
        """Whether another process runs the trial."""
        with self.claim(fingerprint) as mine:
            return not mine

    def release(self, fingerprint: str) -> None:
        """Removes the file of a lock that nobody holds: a process that was killed beside its result left it."""
        if (self.folder(fingerprint) / LOCK).exists():
            with contextlib.suppress(StorageError), self.claim(fingerprint):
                pass  # the file goes when the lock is let go

    def keep(self, record: Record, predictions: Mapping[str, np.ndarray]) -> None:
        """Writes a trial, or nothing. An earlier result under the same fingerprint gives way.

        Args:
            record: what was measured.
            predictions: per-example arrays, such as 'validation/gold' and 'validation/predicted'.
        """
        folder = self.folder(record.fingerprint)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            sweep(folder)
            (folder / MANIFEST).unlink(missing_ok=True)
            plain = _jsonable(asdict(record))
            files = {
                RECORD: json.dumps(plain, indent=1, sort_keys=True, allow_nan=False).encode(),
                PREDICTIONS: save({name: np.ascontiguousarray(a) for name, a in predictions.items()}),
            }
            for name, content in files.items():
                write_atomically(folder / name, content)
            manifest = {"files": {name: _hash(content) for name, content in files.items()}}
            write_atomically(folder / MANIFEST, json.dumps(manifest, sort_keys=True).encode())
        except OSError as error:
            raise StorageError(
                f"result store {self.root}: cannot write {error.filename or folder}: {error.strerror}"
            ) from error

    def load(self, fingerprint: str) -> Record:
        """The record of a done trial.

        Raises:
            StorageError: it is whole, and another version of posbench wrote it.
        """
        file = self.folder(fingerprint) / RECORD
        try:
            return _record(file.read_bytes())
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise StorageError(
                f"{file} cannot be read as a record ({reason_of(error)}): it is of another version of posbench: use "
                "that one, or remove the file, and the trial runs again"
            ) from error

    def predictions(self, fingerprint: str) -> dict[str, np.ndarray]:
        """The per-example arrays of a done trial."""
        return load_file(self.folder(fingerprint) / PREDICTIONS)

    def files(self, fingerprint: str) -> dict[str, bytes]:
        """The files of a done trial, for another machine."""
        return {name: (self.folder(fingerprint) / name).read_bytes() for name in (RECORD, PREDICTIONS)}

    def drop(self, fingerprint: str) -> None:
        """Forgets a trial, so that the next study runs it again."""
        shutil.rmtree(self.folder(fingerprint), ignore_errors=True)


def sweep(folder: Path, *, age: float = 0.0) -> None:
    """Removes what processes that were killed while they wrote left in a folder.

    Args:
        age: seconds since it was written, at least; above 0 where others may be writing beside this process.
    """
    for left in folder.glob("*.tmp"):
        with contextlib.suppress(FileNotFoundError):
            if not age or time.time() - left.stat().st_mtime >= age:
                left.unlink()


def parsed(files: Mapping[str, bytes]) -> tuple[Record, dict[str, np.ndarray]]:
    """A record and its per-example arrays from `Store.files` of another machine."""
    return _record(files[RECORD]), load(files[PREDICTIONS])


def _record(content: bytes) -> Record:
    plain = json.loads(content)
    for entry in [*plain["rows"], *plain["curves"]]:
        entry["value"] = _number(entry["value"])
    return Record(**plain)


@contextlib.contextmanager
def writing(folder: Path, mend: str) -> Iterator[None]:
    """Around what writes files for people to read.

    Raises:
        StorageError: one of them cannot be written; `mend` says what to do.
    """
    try:
        yield
    except OSError as error:
        told = error.strerror or reason_of(error)
        raise StorageError(f"folder '{folder}' cannot be written: {told}: {mend}") from error


def write_atomically(path: Path, content: bytes, *, fresh: bool = False) -> None:
    """Puts a whole file under its name or leaves what was there.

    Raises:
        FileExistsError: a file that was to be fresh is there already; of several writers at one moment one wins.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files private; a result is as readable as anything else that the user creates.
        os.chmod(name, 0o666 & ~_umask())
        if fresh and _linked(name, path):
            Path(name).unlink()
        else:
            os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _linked(name: str, path: Path) -> bool:
    """Gives a file a second name that nobody has; not on file systems that know no second names."""
    try:
        os.link(name, path)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            return False
        raise
    return True


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _jsonable(value: Any) -> Any:
    """JSON has no NaN or infinity; they are kept as their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, Mapping):
        return {key: _jsonable(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(entry) for entry in value]
    return value.item() if isinstance(value, np.generic) else value


def _number(value: Any) -> float:
    return float(value)
