"""What a study will run: the trials of each encoding on each task, whether or not their data are there."""

from __future__ import annotations

from dataclasses import dataclass, replace

from posbench import cost
from posbench.config import EncodingChoice, StudyConfig, TrialConfig, build, override, to_plain
from posbench.errors import UserError
from posbench.objective import Sequences, objective_of
from posbench.schedule import updates
from posbench.store import Store
from posbench.study import plan
from posbench.tokens import TRAINED, trained_tokenizer
from posbench.trial import Trial, load_suite, resolve
from posbench.tuning import default_space, settled


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
    planned = [_cell(study, choice, task) for task in study.tasks for choice in study.encodings]
    if study.search is None:
        return planned
    if study.search.space is None:
        study = override(study, {"search.space": default_space(study)})
    return [_searched(study, cell, store) for cell in planned]


def _searched(study: StudyConfig, cell: TrialsPlanned, store: Store) -> TrialsPlanned:
    """With the trials of its search, and those that report under the settings that it chose, if it has."""
    assert study.search is not None
    count = study.search.trials * len(study.search.seeds)
    if not cell.trials:
        return replace(cell, searched=count)
    plain = to_plain(study)
    plain |= {"tasks": [cell.task], "encodings": [to_plain(cell.config.encoding)]}
    plain["search"]["own"] = {label: own for label, own in plain["search"]["own"].items() if label == cell.label}
    alone = build(StudyConfig, plain, where="study")
    found = settled(plan(alone), store)
    return replace(cell, trials=found.trials, tuning=found.tuning, searched=count)


def _cell(study: StudyConfig, choice: EncodingChoice, task: str) -> TrialsPlanned:
    config = study.trial(choice, task, study.seeds[0])
    suite = load_suite(study.suite)
    own = suite.tasks[task]
    head = (suite.objective(own) or Sequences).head
    trials: tuple[Trial, ...] = ()
    missing, assumed = "", ""
    rows: int | None = own.train_rows
    try:
        if config.data.source == "hub":
            raise UserError("on the hub, where a plan does not look")
        trials = tuple(resolve(study.trial(choice, task, seed)) for seed in study.seeds)
        objective = objective_of(trials[0])
        vocabulary, rows = objective.vocabulary, objective.counts["train"]
    except UserError as error:
        trials, missing = (), str(error)
        vocabulary, known = _vocabulary(config)
        if rows is not None and config.data.train_rows is not None:
            rows = min(rows, config.data.train_rows)
        assumed = f"{'' if known else 'at most '}{vocabulary:,} token ids" + (
            f", {rows:,} rows of train as published" if rows else "")
    count = updates(config.train, rows) if rows else config.train.steps
    length = config.data.max_length
    shape = cost.Shape(rows=config.train.rows(length), tokens=length, vocabulary=vocabulary,
                       head=head(own, vocabulary))
    return TrialsPlanned(label=choice.label, task=task, config=config, trials=trials, missing=missing, updates=count,
                         shape=shape, assumed=assumed)


def _vocabulary(config: TrialConfig) -> tuple[int, bool]:
    """Number of token ids without data, and whether it is exact."""
    if config.data.tokenizer == "bytes":
        return trained_tokenizer("bytes", [], config.data.vocabulary).get_vocab_size(), True
    return config.data.vocabulary, config.data.tokenizer not in TRAINED
