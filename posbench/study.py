"""A study: a grid of trials that differ in encoding, task and seed; running it runs what is missing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from posbench.checkpoint import clear, there
from posbench.config import EncodingChoice, StudyConfig, build, override, to_plain
from posbench.data import MissingTask
from posbench.errors import ContextLengthExceeded, UserError, nearest, reason_of
from posbench.execute import Executor
from posbench.settings import RIVALS
from posbench.store import Record, Store
from posbench.track import Tracker
from posbench.transformer import Transformer
from posbench.trial import Trial, load_suite, resolve

if TYPE_CHECKING:
    from posbench.tuning import Tuned

OPEN = "open "
"""What the name of a trial begins with that stands for settings yet to be chosen; no fingerprint does."""
Watch = Callable[[int, int, Record], None]


def from_preset(suite_name: str, preset: str, changes: Mapping[str, Any]) -> StudyConfig:
    """A suite's preset with dotted changes, which also win over what the preset sets for single tasks.

    Raises:
        UserError: unknown suite, preset, encoding, task or setting, with the near names.
    """
    suite = load_suite(suite_name)
    if preset not in suite.presets:
        raise UserError(f"suite '{suite.name}' has no preset '{preset}', {nearest(preset, suite.presets)}")
    plain: dict[str, Any] = {
        "suite": suite.name,
        "preset": preset,
        "tasks": tuple(suite.tasks),
        "train": {},
        "model": {},
        "data": {},
        "encodings": tuple(to_plain(EncodingChoice.parse(name)) for name in suite.encodings),
    }
    for name, value in suite.presets[preset].items():
        *parents, last = name.split(".")
        node = plain
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    study = build(StudyConfig, plain, where=f"preset '{preset}' of suite '{suite.name}'")
    won = {*changes, *(RIVALS[name] for name in changes if name in RIVALS)}
    per_task = {
        task: {name: value for name, value in settings.items() if name not in won}
        for task, settings in study.per_task.items()
    }
    if study.search is None and any(name.startswith("search.") for name in changes):
        study = override(study, {"search": {}})
    if isinstance(seeds := changes.get("search.seeds"), str):
        changes = {**changes, "search.seeds": seeds.split(",")}
    for task, settings in changes.get("per_task", {}).items():
        if task not in suite.tasks:
            raise UserError(f"per_task: suite '{suite.name}' has no task '{task}', {nearest(task, suite.tasks)}")
        per_task[task] = {**per_task.get(task, {}), **settings}
    study = override(study, {**changes, "per_task": per_task})
    _check_source(study, changes)
    if study.train.device == "auto":
        import torch

        study = override(study, {"train.device": "cuda" if torch.cuda.is_available() else "cpu"})
    elif study.train.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise UserError(
                "train.device is cuda, and this machine has no GPU that torch can use: leave it out, or say cpu"
            )
    labels = [encoding.label for encoding in study.encodings]
    if "baseline" in changes and study.baseline not in labels:
        raise UserError(f"the baseline '{study.baseline}' is not in the study, {nearest(study.baseline, labels)}")
    placed = study.evaluation.pairs if "evaluation.variants" in changes else {}
    if unknown := [name for name in placed if name not in labels]:
        raise UserError(f"evaluation.variants: '{unknown[0]}' is not in the study, {nearest(unknown[0], labels)}")
    for what, values in (
        ("task", study.tasks),
        ("seed", study.seeds),
        ("encoding", labels),
    ):
        if not values:
            raise UserError(f"the study has no {what}: name at least one")
        if twice := {str(value) for value in values if list(values).count(value) > 1}:
            raise UserError(f"the study names {what} {', '.join(sorted(twice))} twice: name each once")
    for task in study.tasks:
        if task not in suite.tasks:
            raise UserError(f"suite '{suite.name}' has no task '{task}', {nearest(task, suite.tasks)}")
    return study


def _check_source(study: StudyConfig, changes: Mapping[str, Any]) -> None:
    """Refuses to be told of files that nothing would read."""
    sources = {study.data.source, *(own["data.source"] for own in study.per_task.values() if "data.source" in own)}
    for name, source, option in (("data.path", "folder", "--data DIR"), ("data.revision", "hub", "--data hub")):
        if changes.get(name) is not None and source not in sources:
            raise UserError(f"{name} is read where data.source is {source}, and it is {study.data.source}: say "
                            f"data.source {source} too ({option}), or leave {name} out")


@dataclass(frozen=True)
class Plan:
    """All trials of a study, found and checked; nothing has run yet.

    Attributes:
        study: as asked for, without the tasks that were skipped. trials: those that report, in the order in which they
            run; where a search has not chosen yet, one with the study's own settings stands under a name of no trial.
        skipped: why, by task.
        cells: with a search, what trials are made of. tuning: the trials of a search that are determined so far.
        tuned: the search as far as it is known. outcomes: of trials that cannot run, by fingerprint.
    """

    study: StudyConfig
    trials: tuple[Trial, ...]
    skipped: dict[str, str] = field(default_factory=dict)
    cells: tuple[Trial, ...] = ()
    tuning: tuple[Trial, ...] = ()
    tuned: Tuned | None = None
    outcomes: dict[str, Record] = field(default_factory=dict)

    @property
    def open(self) -> tuple[Trial, ...]:
        """Trials that report whose settings a search has still to choose."""
        return tuple(trial for trial in self.trials
                     if trial.fingerprint.startswith(OPEN) and trial.fingerprint not in self.outcomes)

    @property
    def tuned_records(self) -> Mapping[str, Record]:
        """Results of a search's trials by fingerprint, as far as they are known."""
        return self.tuned.records if self.tuned else {}

    @property
    def planned(self) -> int:
        """Number of trials, those of a search included that are not determined yet."""
        return len(self.trials) + (self.tuned.planned if self.tuned else 0)


def plan(study: StudyConfig, *, skip_missing: bool = False) -> Plan:
    """Resolves every cell of the grid, so that a mistake is told before anything runs or is written.

    Args:
        skip_missing: leave out a task whose files are missing, instead of refusing the study.

    Raises:
        UserError: also where an encoding's positions end before the longest sequence that the study allows.
    """
    from posbench.objective import objective_of

    trials: list[Trial] = []
    skipped: dict[str, str] = {}
    for task in study.tasks:
        try:
            for seed in study.seeds:
                trials += [resolve(study.trial(encoding, task, seed)) for encoding in study.encodings]
        except MissingTask as error:
            if not skip_missing:
                raise UserError(f"{error} (--skip-missing leaves such tasks out)") from None
            skipped[task] = str(error)
    if not trials:
        raise UserError("every task is missing: " + "; ".join(skipped.values()))
    alike: dict[str, Trial] = {}
    for trial in trials:
        if (other := alike.setdefault(trial.fingerprint, trial)) is not trial:
            raise UserError(
                f"encodings '{other.config.encoding.label}' and '{trial.config.encoding.label}' are one and the same: "
                "name one of them"
            )
    for trial in {trial.config.encoding.label: trial for trial in trials}.values():
        fits(trial)
    for trial in {trial.config.task: trial for trial in trials if not trial.task.labelled}.values():
        # Texts have no rows that were checked one by one: what is too short or too long for the settings shows here.
        objective_of(trial)
    left = tuple(task for task in study.tasks if task not in skipped)
    whole = Plan(override(study, {"tasks": left}), tuple(trials), skipped)
    if study.search is None:
        return whole
    from posbench.tuning import opened

    return opened(whole)


def fits(trial: Trial) -> None:
    """Builds the template around the encoding, without memory for its weights, so that a wrong option shows now."""
    import torch

    from posbench.objective import kind_of
    from posbench.variants import exchanged

    head = kind_of(trial).head(trial.task, 8)
    longest = trial.config.data.max_length
    try:
        with torch.device("meta"):
            model = Transformer(
                trial.config.model,
                trial.encoding,
                trial.options,
                vocabulary=8,
                length=longest,
                head=head,
            )
            for variant in trial.variants:
                with exchanged(model, variant, vocabulary=8, length=longest, head=head):
                    pass
        limit = model.encoding(0).max_length
    except UserError:
        raise
    except Exception as error:
        label = trial.config.encoding.label
        raise UserError(f"encoding '{label}' cannot be built with these settings: {reason_of(error)}") from error
    if limit is not None and limit < longest:
        raise ContextLengthExceeded(trial.plugin.name, limit, longest)
    kind_of(trial).check(trial, limit)


def run(plan: Plan, store: Store, *, executor: Executor, tracker: Tracker, watch: Watch) -> dict[str, Record]:
    """Runs the trials that the store lacks and those that failed before; returns all records by fingerprint."""
    if plan.open:
        raise ValueError("a search has not chosen yet: tune the plan before it is run")
    labels = {trial.fingerprint: trial.config.encoding.label for trial in plan.trials}
    records = known(plan, store)
    missing = [
        trial
        for trial in plan.trials
        if trial.fingerprint not in plan.outcomes
        and (trial.fingerprint not in records or records[trial.fingerprint].status == "failed")
    ]
    planned = len(plan.trials)
    done = planned - len(missing)
    for record in records.values():
        if record.status != "failed" and record.fingerprint not in plan.outcomes:
            clear(store.folder(record.fingerprint))
            store.release(record.fingerprint)
            tracker.trial(record, {})
    # Closed at once when the study is stopped between two records: its workers are told then, and not when it is freed.
    with contextlib.closing(executor.results(missing)) as running:
        for result in running:
            # Another study over the same store may have run it, under a name of its own.
            record = replace(result, label=labels[result.fingerprint])
            done += 1
            records[record.fingerprint] = record
            tracker.trial(record, {})
            watch(done, planned, record)
    return records


def known(plan: Plan, store: Store) -> dict[str, Record]:
    """Of the trials that report: their records in the store, and the outcomes of those that cannot run."""
    return stored(plan.trials, store) | plan.outcomes


def stored(trials: Sequence[Trial], store: Store) -> dict[str, Record]:
    """The records that the store has, under the labels that this study uses."""
    records = {}
    for trial in trials:
        if store.has(trial.fingerprint):
            label = trial.config.encoding.label
            records[trial.fingerprint] = replace(store.load(trial.fingerprint), label=label)
    return records


def kept(trials: Sequence[Trial], store: Store) -> str:
    """What a study that is stopped says of its trials."""
    under_way = sum(there(store.folder(trial.fingerprint)) for trial in trials if not store.has(trial.fingerprint))
    told = f"{under_way} trial{'s' * (under_way != 1)} under way {'were' if under_way != 1 else 'was'} checkpointed, "
    return (told if under_way else "") + "finished trials are kept, the same command goes on"
