"""What a study will run: the trials of each encoding on each task, whether or not their data are there."""

from __future__ import annotations

from dataclasses import dataclass

from posbench import cost
from posbench.config import EncodingChoice, StudyConfig, TrialConfig, override
from posbench.data import MissingTask
from posbench.objective import Sequences, objective_of
from posbench.schedule import updates
from posbench.store import Store
from posbench.study import Plan, plan
from posbench.tokens import TRAINED, trained_tokenizer
from posbench.trial import Trial, load_suite, resolve
from posbench.tuning import check, settled


@dataclass(frozen=True, kw_only=True)
class TrialsPlanned:
    """The trials of one encoding on one task.

    Attributes:
        label, task: of the table. config: of the first of them.
        trials: with their fingerprints; empty where the data are missing, and then `missing` says why.
        tuning: trials of a search, as far as they are determined; searched: how many it will have.
        updates: of one trial; None where the rows are not known. shape: of its batches.
        assumed: what is said of the data without them.
    """

    label: str
    task: str
    config: TrialConfig
    trials: tuple[Trial, ...]
    missing: str
    updates: int | None
    shape: cost.Shape
    assumed: str = ""
    tuning: tuple[Trial, ...] = ()
    searched: int = 0


def cells(study: StudyConfig, store: Store) -> list[TrialsPlanned]:
    """Every (encoding, task) of a study; data that are not there, or only on the hub, are not loaded.

    Args:
        store: what a search has chosen follows from its results.
    """
    missing = {task: told for task in study.tasks if (told := _missing(study, task))}
    if study.search is not None:
        check(study)  # also where no task is there
    here = [task for task in study.tasks if task not in missing]
    # Whatever the run would refuse is refused here: both make the same plan.
    whole = settled(plan(override(study, {"tasks": here})), store) if here else None
    return [_cell(study, choice, task, whole, missing.get(task, ""))
            for task in study.tasks for choice in study.encodings]


def _missing(study: StudyConfig, task: str) -> str:
    """Why the rows of a task are not there; empty where they are."""
    config = study.trial(study.encodings[0], task, study.seeds[0])
    if config.data.source == "hub":
        return "on the hub, where a plan does not look"
    try:
        resolve(config)
    except MissingTask as error:
        return f"{error} (the run refuses this, or leaves the task out with --skip-missing)"
    return ""


def _cell(study: StudyConfig, choice: EncodingChoice, task: str, whole: Plan | None, missing: str) -> TrialsPlanned:
    config = study.trial(choice, task, study.seeds[0])
    suite = load_suite(study.suite)
    own = suite.tasks[task]
    head = (suite.objective(own) or Sequences).head
    mine: dict[str, tuple[Trial, ...]] = {"trials": (), "tuning": ()}
    assumed = ""
    rows: int | None = own.train_rows
    if not missing and whole:
        cells = {"trials": whole.trials, "tuning": whole.tuning}
        mine = {kind: tuple(trial for trial in trials
                            if (trial.config.encoding.label, trial.config.task) == (choice.label, task))
                for kind, trials in cells.items()}
        objective = objective_of(mine["trials"][0])
        vocabulary, rows = objective.vocabulary, objective.counts["train"]
    else:
        vocabulary, known = _vocabulary(config)
        if rows is not None and config.data.train_rows is not None:
            rows = min(rows, config.data.train_rows)
        assumed = f"{'' if known else 'at most '}{vocabulary:,} token ids" + (
            f", {rows:,} rows of train as published" if rows else "")
    count = updates(config.train, rows) if rows else config.train.steps
    length = config.data.max_length
    shape = cost.Shape(rows=config.train.rows(length), tokens=length, vocabulary=vocabulary,
                       head=head(own, vocabulary))
    searched = study.search.trials * len(study.search.seeds) if study.search else 0
    return TrialsPlanned(label=choice.label, task=task, config=config, missing=missing, updates=count, shape=shape,
                         assumed=assumed, searched=searched, **mine)


def _vocabulary(config: TrialConfig) -> tuple[int, bool]:
    """Number of token ids without data, and whether it is exact."""
    if config.data.tokenizer == "bytes":
        return trained_tokenizer("bytes", [], config.data.vocabulary).get_vocab_size(), True
    return config.data.vocabulary, config.data.tokenizer not in TRAINED
