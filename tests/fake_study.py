"""Results that no training made, for the tests of what is done with results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from posbench import results
from posbench.report import StudyResults


def row(encoding: str = "rope", task: str = "cola", seed: int = 0, value: float | None = 0.5, **changes: Any) -> dict:
    """One measurement with every column."""
    return {
        "fingerprint": f"{encoding}/{task}/{seed}", "encoding": encoding, "options": "{}", "suite": "glue",
        "task": task, "seed": seed, "split": "validation", "length": None, "metric": "accuracy",
        "value": value, "n": 100, "higher_is_better": True, "primary": True,
        "parameters": 1000, "flops": 1e9, "seconds": 2.0,
        "peak_memory": 1e6, "status": "done", "reason": None, **changes,
    }


def broken(encoding: str, task: str, seed: int, status: str, reason: str = "why") -> dict:
    """The row of a trial that has no score."""
    return row(encoding, task, seed, None, status=status, reason=reason, split=None, n=None)


def table(scores: Mapping[str, Mapping[str, Sequence[float | str]]], **changes: Any) -> pd.DataFrame:
    """A tidy table from {encoding: {task: scores of seeds 0, 1, ...}}; a text in place of a score is a status."""
    return results.frame(
        broken(encoding, task, seed, value) if isinstance(value, str) else row(encoding, task, seed, value, **changes)
        for encoding, tasks in scores.items()
        for task, values in tasks.items()
        for seed, value in enumerate(values)
    )


def study(frame: pd.DataFrame, folder: Path, **changes: Any) -> StudyResults:
    """What a report is given."""
    encodings = list(dict.fromkeys(frame["encoding"]))
    costs = pd.DataFrame([{"encoding": name, "parameters": 1000, "flops": 1e9, "step_ratio": 1.5, "step_seconds": 0.02,
                           "peak_memory": 2.0**20} for name in encodings])
    curves = pd.DataFrame([{"encoding": name, "task": "cola", "seed": seed, "step": step, "metric": "accuracy",
                            "value": 0.1 * step + 0.01 * seed} for name in encodings for seed in (0, 1, 2)
                           for step in (0, 1, 2)])
    settings: dict[str, Any] = {
        "title": "A study", "header": {"suite": "glue 1", "preset": "mini", "data source": "hub"}, "frame": frame,
        "curves": curves, "costs": costs, "baseline": "learned", "alpha": 0.05, "folder": folder, **changes,
    }
    return StudyResults(**settings)
