"""How long a trial takes, from the trials of the same shape that the store has."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posbench.config import TrialConfig, digest, to_plain
from posbench.environment import facts
from posbench.safe_yaml import canonical


class Timings:
    """Steps that were measured on this machine, read from the store once; nothing is written.

    Args:
        root: folder of the store.
    """

    def __init__(self, root: Path) -> None:
        self.found: dict[str, list[tuple[float, float]]] = {}
        for file in sorted(root.glob("*/*/record.json")):
            try:
                record = json.loads(file.read_text())
                step, rest = _measured(record)
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue  # half a result, or one of an older form, measures nothing
            if step > 0:
                for key in _keys(record["config"], record["facts"]):
                    self.found.setdefault(key, []).append((step, rest))

    def step_seconds(self, config: TrialConfig) -> float | None:
        """Median seconds of a step: of the same task's trials, else of any with this shape; None without any."""
        return None if (known := self._known(config)) is None else known[0]

    def trial_seconds(self, config: TrialConfig, updates: int) -> float | None:
        """Seconds of a trial with so many updates, with what it does besides: evaluations, and scoring."""
        return None if (known := self._known(config)) is None else known[0] * updates + known[1]

    def _known(self, config: TrialConfig) -> tuple[float, float] | None:
        here = facts()
        device = "cuda:0" if config.train.device == "cuda" else "cpu"
        for key in _keys(to_plain(config), {**here, "device": device}):
            if key in self.found:
                steps, rests = zip(*self.found[key], strict=True)
                return statistics.median(steps), statistics.median(rests)
        return None


def _measured(record: Mapping[str, Any]) -> tuple[float, float]:
    """Seconds of a step, and what the trial took beside its steps."""
    step, updates = float(record["step_seconds"]), int(record["facts"]["updates"])
    return step, max(0.0, float(record["seconds"]) - step * updates)


def _keys(config: Mapping[str, Any], machine: Mapping[str, Any]) -> tuple[str, str]:
    """What decides the time of a step, with the task and without it."""
    encoding, train = config["encoding"], config["train"]
    shape = {
        "encoding": [Path(encoding["name"]).stem,
                     {name: canonical(value) for name, value in encoding["options"].items()}],
        "model": config["model"],
        "batch": [train["batch_size"], train.get("batch_tokens"), config["data"]["max_length"]],
        "threads": train["threads"],
        "machine": [machine["accelerator"] if machine["device"] != "cpu" else machine["processor"], machine["cores"],
                    machine["device"].partition(":")[0]],
    }
    return digest({**shape, "suite": config["suite"], "task": config["task"]}), digest(shape)
