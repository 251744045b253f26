"""What the texts on a command line mean."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posbench.environment import cores
from posbench.errors import StorageError, UserError, nearest
from posbench.numerals import counted

if TYPE_CHECKING:
    from posbench.config import TrainConfig
    from posbench.execute import Executor
    from posbench.store import Store

SEEDS = 1000


def home() -> Path:
    """Where results lie: POSBENCH_HOME, or the folder 'out' here; always absolute."""
    return Path(os.environ.get("POSBENCH_HOME") or "out").resolve()


def names(text: str, what: str) -> list[str]:
    """Names between commas."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise UserError(f"--{what} {text!r} has an empty name: separate names by single commas")
    return parts


def seed_numbers(text: str) -> list[int]:
    """'6' is the first six seeds, '0,1,7' are these."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds {text!r}: give how many (6) or which (0,1,2)") from None
    if len(numbers) > 1:
        return numbers
    if not 0 <= numbers[0] <= SEEDS:
        raise UserError(f"--seeds {text}: give how many, up to {SEEDS}, or which (0,1,2)")
    return list(range(numbers[0]))


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """'128,512' as numbers of at least 1."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1 or len(set(numbers)) < len(numbers):
        raise UserError(f"{option} {text!r}: give different whole numbers of at least 1, such as 128,512")
    return numbers


def assignment(text: str) -> tuple[str, str | None]:
    """A setting of --set as its name and its text; 'none' is no value."""
    name, found, value = text.partition("=")
    if not found or not name:
        raise UserError(f"--set {text!r}: write NAME=VALUE, such as train.steps=100")
    if "." not in name and name != "alpha":
        raise UserError(
            f"--set {text!r}: settings are those of model, train, data, decode and search, such as "
            "train.steps=100, and alpha"
        )
    return name, None if value == "none" else value


def assignments(texts: Sequence[str] | None) -> dict[str, Any]:
    """Settings of --set by name; of one that is given twice the last, as on every command line."""
    from posbench.settings import both_given, told_both

    found: dict[str, Any] = dict(assignment(text) for text in texts or ())
    if both := both_given(found):
        raise UserError(f"--set: {told_both(*both)}")
    return found


def path_of(path: str | Path, option: str) -> Path:
    """An absolute path, with ~ for the home folder."""
    try:
        whole = Path(path).expanduser().resolve()
        if any(len(os.fsencode(part)) > 255 for part in whole.parts):
            raise UserError(
                f"{option}: a name of more than 255 bytes, which no file system takes: choose a shorter one"
            )
        return whole
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{option}: no path: {error}") from None


def trials_at_once(jobs: int, threads: int, device: str) -> int:
    """How many trials run at once: as asked for, or as many as fit the machine."""
    available = cores()
    # Each is a process with its own torch, half a gigabyte before it has trained anything.
    if jobs > 4 * available:
        raise UserError(
            f"--jobs {jobs}: this machine has {counted(available, 'core')}; give at most {4 * available}, or 0 "
            "for as many as fit"
        )
    return jobs or (1 if device == "cuda" else max(1, available // threads))


def executor_named(
    name: str, store: Store, train: TrainConfig, *, jobs: int, timeout: float, gpus: float
) -> Executor:
    """Where trials run.

    Args:
        name: 'local' or 'ray'. store: where results are kept. train: for the threads and the device of a trial.
        jobs: trials at once, 0 for as many as fit. timeout: seconds of a trial, 0 for no end.
        gpus: of a trial on Ray, 0 for one where it trains on a GPU.
    """
    for option, value in (("--timeout", timeout), ("--gpus-per-trial", gpus)):
        if not math.isfinite(value):
            raise UserError(f"{option} {value}: give a number, or 0")
    end = timeout or None
    from posbench.checkpoint import pause

    pause()  # told now, and not by every trial
    if name == "ray":
        from posbench.ray_cluster import RayCluster

        return RayCluster(store, train.threads, gpus=gpus or float(train.device == "cuda"), jobs=jobs, timeout=end)
    if name != "local":
        raise UserError(f"unknown executor '{name}', {nearest(name, ('local', 'ray'))}")
    if gpus:
        raise UserError(f"--gpus-per-trial {gpus:g}: Ray shares GPUs by fractions: add --executor ray, or leave it out")
    from posbench.distributed import world
    from posbench.execute import Here
    from posbench.workers import Processes

    if world() > 1:
        if jobs > 1 or end:
            raise UserError("several processes were started for each trial: one trial runs at a time and without a "
                            "timeout: leave --jobs and --timeout out")
        return Here(store)
    at_once = trials_at_once(jobs, train.threads, train.device)
    return Here(store) if at_once == 1 and end is None else Processes(store, at_once, end)


def mlflow_place(home: Path) -> Path | str:
    """Where MLflow keeps its copy: the server of MLFLOW_TRACKING_URI, or the folder of the results."""
    return os.environ.get("MLFLOW_TRACKING_URI") or home


def tracker_named(name: str, home: Path) -> Any:
    """Where the record is copied to: MLflow, lines of JSON, or nowhere."""
    from posbench import track
    from posbench.mirror import Mirror

    if name == "none":
        return track.Tracker()
    if name == "json":
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"folder '{home}' cannot be made: {error.strerror}: set POSBENCH_HOME") from None
        return track.JsonLines(home / "trials.jsonl")
    if name == "mlflow":
        place = mlflow_place(home)
        # Built here too, so that a wrong address is told at once.
        track.MLflow(place)
        return Mirror(partial(track.MLflow, place))
    raise UserError(f"unknown tracker '{name}', {nearest(name, ('mlflow', 'json', 'none'))}")
