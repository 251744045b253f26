"""GLUE (Wang et al. 2019): nine tasks of understanding sentences, with GLUE's own metrics.

One number a task goes into tables, the one that RoFormer's comparison shows: F1 for mrpc and qqp, Spearman's
correlation for stsb, accuracy elsewhere, and Matthews' correlation for cola, which that comparison leaves out.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from posbench.suites._glue_files import load_folder, read_rows
from posbench.suites._glue_generated import generated
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from posbench.config import DataConfig
from posbench.data import MissingTask, capped, hub_rows
from posbench.suite import SMALL_MODEL, Metric, Published, Rows, Suite, Task, TaskData

HUB = "nyu-mll/glue"
# A branch moves; this commit, the one that is read unless another is stated, does not.
REVISION = "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c"


def _correlation(function: Any) -> Any:
    def correlation(*, gold: np.ndarray, predicted: np.ndarray) -> float:
        """NaN where either side is constant: a correlation is not defined there."""
        if np.ptp(gold) == 0 or np.ptp(predicted) == 0:
            return float("nan")
        return float(function(gold, predicted).statistic)

    return correlation


def _mcc(*, gold: np.ndarray, predicted: np.ndarray) -> float:
    """0 where all predictions are equal and gold is not; NaN where gold has one class alone."""
    return float(matthews_corrcoef(gold, predicted)) if len(set(gold)) > 1 else float("nan")


MCC = Metric(name="mcc", function=_mcc, range=(-1.0, 1.0))
ACCURACY = Metric(name="accuracy", function=lambda *, gold, predicted: float(accuracy_score(gold, predicted)),
                  range=(0.0, 1.0))
# Of the positive class, whose index is 1: paraphrase, duplicate.
F1 = Metric(name="f1", function=lambda *, gold, predicted: float(f1_score(gold, predicted, zero_division=0.0)),
            range=(0.0, 1.0))
PEARSON = Metric(name="pearson", function=_correlation(pearsonr), range=(-1.0, 1.0))
SPEARMAN = Metric(name="spearman", function=_correlation(spearmanr), range=(-1.0, 1.0))
ENTAILMENT = ("entailment", "not_entailment")


def _task(name: str, texts: tuple[str, ...], labels: tuple[str, ...], *metrics: Metric, **more: Any) -> Task:
    """A classification whose first metric is the one that tables show."""
    return Task(
        name=name, texts=texts, kind="classification", labels=labels, metrics=metrics, primary=metrics[0].name, **more
    )


TASKS = (
    _task("cola", ("sentence",), ("unacceptable", "acceptable"), MCC),
    _task("sst2", ("sentence",), ("negative", "positive"), ACCURACY),
    _task("mrpc", ("sentence1", "sentence2"), ("not_equivalent", "equivalent"), F1, ACCURACY),
    Task(
        name="stsb",
        texts=("sentence1", "sentence2"),
        kind="regression",
        bounds=(0.0, 5.0),
        metrics=(SPEARMAN, PEARSON),
        primary="spearman",
    ),
    _task("qqp", ("question1", "question2"), ("not_duplicate", "duplicate"), F1, ACCURACY),
    _task(
        "mnli",
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        ACCURACY,
        evaluations=("validation_matched", "validation_mismatched"),
    ),
    _task("qnli", ("question", "sentence"), ENTAILMENT, ACCURACY),
    _task("rte", ("sentence1", "sentence2"), ENTAILMENT, ACCURACY),
    _task("wnli", ("sentence1", "sentence2"), ("not_entailment", "entailment"), ACCURACY),
)


# Rows of train in the hub's data set at that commit, which are GLUE's own.
TRAIN_ROWS = {"cola": 8551, "sst2": 67349, "mrpc": 3668, "stsb": 5749, "qqp": 363846, "mnli": 392702, "qnli": 104743,
              "rte": 2490, "wnli": 635}


# Task, split, metric; BERT's row and RoFormer's, in percent.
TABLE = (
    ("mrpc", "", F1, "88.9", "89.5"),
    ("sst2", "", ACCURACY, "93.5", "90.7"),
    ("qnli", "", ACCURACY, "90.5", "88.0"),
    ("stsb", "", SPEARMAN, "85.8", "87.0"),
    ("qqp", "", F1, "71.2", "86.4"),
    ("mnli", "_matched", ACCURACY, "84.6", "80.2"),
    ("mnli", "_mismatched", ACCURACY, "83.4", "79.8"),
)
# Why neither row is comparable: by its model the encoding, the split and the reason.
PRETRAINED = "fine-tuned from a pre-trained model, trained from scratch here"
MODELS = {
    "BERT": ("learned", "test", f"from GLUE's test server, whose labels are hidden, and {PRETRAINED}"),
    "RoFormer": ("rope", "validation", PRETRAINED),
}
NOTE = ("Percent: F1 for mrpc and qqp, Spearman's correlation for stsb, accuracy elsewhere. BERT's row is that of the "
        "test server, RoFormer's the best averaged result on validation: most of the +15.2 on qqp is the split. Their "
        "pre-training budgets differ too (3.28 G tokens at most against 1 M steps). BERT's position encoding, which "
        "the paper calls sinusoidal, is a learned table. Single runs, without seeds and intervals.")


def _published(task: str, part: str, metric: Metric, model: str, value: str) -> Published:
    encoding, split, why = MODELS[model]
    return Published(
        preset="paper", task=task, encoding=encoding, model=model, metric=metric.name, value=value, scale=100.0,
        split=split + part, source="RoFormer (Su et al. 2021, arXiv 2104.09864), section 4.3", note=NOTE,
        incomparable=why,
    )


class Glue(Suite):
    """The nine tasks."""

    name, title, version = "glue", "GLUE", "1"
    tasks = {task.name: dataclasses.replace(task, train_rows=TRAIN_ROWS[task.name]) for task in TASKS}
    encodings = ("nope", "sinusoidal", "learned", "shaw", "t5", "rope", "alibi", "placebo")
    published = tuple(_published(task, part, metric, model, value) for task, part, metric, *values in TABLE
                      for model, value in zip(MODELS, values, strict=True))
    presets = {
        # Minutes on two cores.
        "mini": {
            "seeds": (0, 1, 2),
            "data.source": "generated",
            "data.max_length": 32,
            "data.vocabulary": 512,
            **SMALL_MODEL,
            "train.steps": 300,
            "train.batch_size": 32,
            "train.learning_rate": 2e-3,
            "train.evaluations": 6,
        },
        # The original files, a small model and few rows: a quarter of an hour on two cores for seven tasks.
        "real-mini": {
            "seeds": (0, 1, 2),
            "data.source": "folder",
            "data.max_length": 64,
            "data.vocabulary": 4096,
            "data.train_rows": 4000,
            "data.evaluation_rows": 1000,
            "model.width": 96,
            "model.layers": 2,
            "model.heads": 4,
            "model.feedforward": 384,
            "model.dropout": 0.1,
            "model.initial_std": 0.05,
            "model.embedding_std": 0.05,
            "train.steps": 250,
            "train.batch_size": 32,
            "train.learning_rate": 1e-3,
            "train.evaluations": 4,
        },
        # All rows, one GPU, hours; from scratch.
        "small": {
            "seeds": (0, 1, 2, 3, 4, 5, 6, 7, 8),
            "data.source": "folder",
            "data.max_length": 128,
            "data.vocabulary": 16384,
            "model.width": 384,
            "model.layers": 6,
            "model.heads": 6,
            "model.feedforward": 1536,
            "model.norm": "pre",
            "train.epochs": 3,
            "train.batch_size": 64,
            "train.learning_rate": 5e-4,
            "train.evaluations": 4,
        },
        # RoFormer's fine-tuning (Su et al. 2021, section 4.3): 3 epochs, length 512, batch 32, the best of the rates
        # 2e-5, 3e-5, 4e-5 and 5e-5, here 3e-5. Not stated there: warm-up, decay, dropout, seeds. It starts from a
        # pre-trained model; without one, as here, its short training at a low rate is a lower bound and comparable
        # with none of the numbers in `published`.
        "paper": {
            "seeds": (0, 1, 2, 3, 4),
            "data.source": "folder",
            "data.max_length": 512,
            "data.vocabulary": 30522,
            "model.width": 768,
            "model.layers": 12,
            "model.heads": 12,
            "model.feedforward": 3072,
            "model.norm": "post",
            "model.attention_dropout": 0.1,
            "train.epochs": 3,
            "train.batch_size": 32,
            "train.learning_rate": 3e-5,
            "train.evaluations": 3,
            "train.select": "best",
        },
    }

    def load(self, task: str, data: DataConfig) -> TaskData:
        if data.source == "generated":
            splits = generated(task)
            scored = tuple(name for name in splits if name.startswith("test"))
            return TaskData(splits=splits, scored=scored, notes=dict.fromkeys(splits, "generated"))
        if data.source == "hub":
            return _load_hub(self.tasks[task], data)
        if data.path is None:
            raise MissingTask("this preset reads GLUE's own files: give their folder with --data DIR, or --data hub")
        return load_folder(self.tasks[task], data)


def _load_hub(task: Task, data: DataConfig) -> TaskData:
    splits: dict[str, Rows] = {}
    notes: dict[str, str] = {}
    commit = data.revision or REVISION
    for name in ("train", *task.evaluations):
        found = hub_rows(HUB, task.name, name, commit)
        columns = (*task.texts, "label")
        rows = ((number, [str(row[column]) for column in columns]) for number, row in enumerate(found))
        splits[name], note = read_rows(rows, f"{HUB}/{task.name}, {name}", task, task.labels, ragged=task.name == "qqp")
        notes[name] = f"{HUB} at {commit}{note}"
    splits = capped(splits, notes, data)
    return TaskData(splits=splits, scored=task.evaluations, selection=task.evaluations[0], notes=notes)


SUITE = Glue()
