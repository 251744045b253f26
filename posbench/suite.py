"""Suite: what is trained and how it is scored. The runner says how, once for all suites."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from posbench.config import DataConfig

SMALL_MODEL: Mapping[str, Any] = {
    "model.width": 64,
    "model.layers": 2,
    "model.heads": 4,
    "model.feedforward": 256,
    "model.dropout": 0.0,
    "model.initial_std": 0.1,
    "model.embedding_std": 0.1,
}
"""A model for presets of minutes on a processor: few updates, which wide first weights and a high rate make count."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A score of a whole split; never a mean over batches.

    Attributes:
        name: as printed, such as 'accuracy'.
        function: called with the keywords gold and predicted (arrays of one value a row, class indices or numbers).
            Returns NaN where the score is undefined, such as a correlation with a constant.
        higher_is_better: direction, declared and never guessed from the name.
        range: smallest and largest value that a score can have; infinite where there is none.
    """

    name: str
    function: Callable[..., float]
    higher_is_better: bool = True
    range: tuple[float, float] = (-math.inf, math.inf)


@dataclass(frozen=True, kw_only=True)
class Task:
    """One data set with its question.

    Attributes:
        name: short name, as on the command line.
        texts: names of the one or two text columns, in the order in which the model reads them.
        kind: head and loss: classes with cross entropy, a number with squared error, or, with the suite's own
            objective, a target text for each source text or the next token of a text.
        labels: class names in the order of their indices; empty for a regression.
        bounds: smallest and largest target of a regression.
        metrics: everything that is scored.
        primary: the one metric that tables show and that selects weights.
        evaluations: the labelled splits to score where they exist, such as ('validation',).
        train_rows: training rows of the set as published, for plans that are made without its files.
    """

    name: str
    texts: tuple[str, ...]
    kind: Literal["classification", "regression", "translation", "language-model"]
    labels: tuple[str, ...] = ()
    bounds: tuple[float, float] = (0.0, 1.0)
    metrics: tuple[Metric, ...]
    primary: str
    evaluations: tuple[str, ...] = ("validation",)
    train_rows: int | None = None

    @property
    def labelled(self) -> bool:
        """Whether answers are held against one label a row."""
        return self.kind in ("classification", "regression")

    @property
    def primary_metric(self) -> Metric:
        return next(metric for metric in self.metrics if metric.name == self.primary)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """One split.

    Attributes:
        texts: for each row its one or two texts.
        labels: for each row its class index or number; never a placeholder for a hidden label. Empty where the task
            has none.
    """

    texts: list[tuple[str, ...]]
    labels: list[float]


@dataclass(frozen=True, kw_only=True)
class TaskData:
    """The labelled splits of a task.

    Attributes:
        splits: 'train', 'validation' (selection), and what is scored.
        scored: names of the splits whose scores are reported, each a key of splits.
        selection: name of the split that selects weights and draws curves; never one called 'test'.
        notes: what a reader must know of a split, such as 'held out of train (10 %, seed 0)'.
    """

    splits: dict[str, Rows]
    scored: tuple[str, ...]
    selection: str = "validation"
    notes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Published:
    """A number that a paper reports, and what it takes to hold a result against it.

    Attributes:
        preset: whose settings are the paper's. task: of the suite. encoding: label of the choice that stands for it.
        model: its name in the paper. metric: as the suite names it. source: where it stands.
        value: as printed, whose digits say how it was rounded. scale: what a score is multiplied by to be in its unit.
        split: as published. splits: what that split is called here; `split` itself by default.
        rows: rows of the split, and train_rows of training, as published; with others there is no comparison.
        note: metric's recipe and errata, which stand below the table.
        incomparable: why no result here can be held against it; empty where one can.
    """

    preset: str
    task: str
    encoding: str
    model: str
    metric: str
    source: str
    value: str
    scale: float = 1.0
    split: str
    splits: tuple[str, ...] = ()
    rows: int | None = None
    train_rows: int | None = None
    note: str = ""
    incomparable: str = ""

    @property
    def rounding(self) -> float:
        """Half of a unit of the last digit that is printed."""
        return 0.5 * 10.0**-self.decimals

    @property
    def decimals(self) -> int:
        return len(self.value.partition(".")[2])


@dataclass(frozen=True, kw_only=True)
class Direction:
    """A claim that one encoding is better than another, after the same training; it names no number.

    Attributes:
        preset: of the suite; the claim is judged on each task of a study. encoding, over: labels of the two choices.
        metric, split: what is compared, at the length of training. told: what was published, in a few words.
        source, note: as of Published.
    """

    preset: str
    encoding: str
    over: str
    metric: str
    split: str
    told: str
    source: str
    note: str = ""


class Suite(ABC):
    """A set of tasks with presets.

    Class facts:
        name: as on the command line; title: as in a table's caption; version: raise it when numbers change.
        tasks: by name, in the order of the table's columns.
        presets: by name, dotted settings of a StudyConfig such as {'train.steps': 100}; 'per_task' may differ by task.
        encodings: what a study compares when the user names none.
        published: what papers report at the settings of presets; none by default.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    version: ClassVar[str]
    tasks: ClassVar[Mapping[str, Task]]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]
    encodings: ClassVar[tuple[str, ...]]
    published: ClassVar[tuple[Published | Direction, ...]] = ()

    def objective(self, task: Task) -> Any:
        """The subclass of posbench.objective.Objective that trains and scores a task; None for labelled sequences."""
        return None

    @abstractmethod
    def load(self, task: str, data: DataConfig) -> TaskData:
        """The task's labelled splits from the source that `data` states, and from no other.

        Raises:
            UserError: a file is missing or malformed (file and row), a label is outside the task's set, or a split is
                empty.
        """
