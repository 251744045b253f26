"""Several processes in one trial: the same global batch, the same loss, one coordinator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from posbench import distributed
from posbench.config import EncodingChoice, TrialConfig, build
from posbench.errors import UserError
from posbench.objective import objective_of
from posbench.store import MANIFEST, Record, Store
from posbench.study import from_preset
from posbench.trial import resolve

ROOT = Path(__file__).resolve().parents[1]
TINY = {"model.width": 16, "model.heads": 2, "model.layers": 1, "model.feedforward": 16, "train.evaluations": 2,
        "train.steps": 6}


def study(home: Path, processes: int, *arguments: str) -> list[Record]:
    """The records of a study whose trials have so many processes each."""
    settings = [part for name, value in TINY.items() for part in ("--set", f"{name}={value}")]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)] * (processes > 1)
    done = subprocess.run(
        [sys.executable, *launch, "-m", "posbench", "study", *arguments, *settings, "--seeds", "1", "--encodings",
         "learned,rope", "--baseline", "rope", "--jobs", "1", "--tracker", "none"],
        capture_output=True, text=True, cwd=ROOT, timeout=280,
        env={**os.environ, "POSBENCH_HOME": str(home), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("tables and figures:") == 1
    store = Store(home / "trials")
    return [store.load(file.parent.name) for file in sorted(store.root.glob(f"*/*/{MANIFEST}"))]


@pytest.mark.parametrize(
    "arguments",
    [
        # Nine rows are five and four: a mean of the two means would be another number.
        ("glue", "--tasks", "stsb", "--set", "train.batch_size=9"),
        pytest.param(("longtext", "--tasks", "reverse", "--set", "train.batch_size=9", "--set", "evaluation.variants="),
                     marks=pytest.mark.slow),
        pytest.param(("translation", "--set", "train.batch_tokens=64", "--set", "data.max_length=16", "--set",
                      "train.average=1"), marks=pytest.mark.slow),
        pytest.param(("lm", "--set", "train.batch_size=1"), marks=pytest.mark.slow),
    ],
    ids=lambda arguments: arguments[0],
)
def test_two_processes_have_the_losses_of_one(tmp_path: Path, proofs: Path, arguments: tuple[str, ...]) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "proofs").symlink_to(proofs)
    one, two = study(tmp_path / "one", 1, *arguments), study(tmp_path / "two", 2, *arguments)
    assert [record.fingerprint for record in one] == [record.fingerprint for record in two] and len(one) >= 2
    for single, double in zip(one, two, strict=True):
        assert (single.facts["processes"], double.facts["processes"]) == (1, 2)
        losses = [[(point["step"], point["value"]) for point in record.curves if point["metric"] == "train/loss"]
                  for record in (single, double)]
        assert len(losses[0]) == TINY["train.steps"]
        np.testing.assert_allclose(losses[1], losses[0], atol=1e-5)


def in_processes(monkeypatch: pytest.MonkeyPatch, rank: int, world: int) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world))


def objective(suite: str, task: str, **changes: object):
    config = from_preset(suite, "mini", {"tasks": [task], "seeds": [0], **changes})
    return objective_of(resolve(config.trial(EncodingChoice(name="nope"), task, 0)))


@pytest.mark.parametrize(("suite", "task"), [("glue", "rte"), ("longtext", "addition"), ("lm", "docs"),
                                             ("translation", "generated")])
def test_the_weighted_means_of_the_parts_are_the_mean_of_the_batch(monkeypatch, suite: str, task: str) -> None:
    if suite == "translation":
        from posbench.trial import load_suite

        task = next(iter(load_suite(suite).presets["mini"].get("tasks", load_suite(suite).tasks)))
    kind = objective(suite, task)
    batch = next(kind.batches(0))[:7]
    model = model_of(kind)
    with torch.no_grad():
        whole = float(kind.loss(model, batch))
        parts = []
        for rank in range(3):
            in_processes(monkeypatch, rank, 3)
            rows, share = distributed.part(batch, kind)
            parts.append(float(kind.loss(model, rows)) * share)
    assert np.mean(parts) == pytest.approx(whole, abs=1e-6)


def model_of(kind):
    from posbench.transformer import Transformer

    trial = kind.trial
    model = Transformer(trial.config.model, trial.encoding, trial.options, vocabulary=kind.vocabulary,
                        length=trial.config.data.max_length, head=kind.head(trial.task, kind.vocabulary))
    model.initialise(3)
    return model.eval()


def test_a_process_without_a_row_counts_nothing(monkeypatch) -> None:
    kind = objective("glue", "rte")
    batch = np.arange(2)
    shares = []
    for rank in range(3):
        in_processes(monkeypatch, rank, 3)
        rows, share = distributed.part(batch, kind)
        assert len(rows) == 1
        shares.append(share)
    assert shares == [1.5, 1.5, 0.0]


def test_one_process_is_no_launch_whatever_a_cluster_sets(monkeypatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert (distributed.world(), distributed.rank()) == (1, 0)


def test_several_trials_at_once_are_refused(monkeypatch, tmp_path: Path) -> None:
    from posbench.arguments import executor_named

    in_processes(monkeypatch, 0, 2)
    train = build(TrialConfig, {"encoding": {"name": "nope"}, "suite": "glue", "task": "rte", "seed": 0,
                                "train": {"steps": 1}}, where="here").train
    with pytest.raises(UserError, match="leave --jobs and --timeout out"):
        executor_named("local", Store(tmp_path), train, jobs=2, timeout=0, gpus=0)
