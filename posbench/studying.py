"""The commands of a study: run it, see how far it is, report it; heavy packages are imported inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from os.path import isdir
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posbench import copying
from posbench.arguments import assignments, executor_named, home, names, path_of, seed_numbers, tracker_named
from posbench.console import Progress, say, short, terminal_width
from posbench.errors import UserError
from posbench.interrupt import KEPT
from posbench.numerals import counted

if TYPE_CHECKING:
    from posbench.config import StudyConfig
    from posbench.execute import Executor
    from posbench.store import Record
    from posbench.study import Plan

ABANDONED_SECONDS = 3600.0
"""After this nobody writes a file of a report any more: whoever did was killed."""
Target = Annotated[str, typer.Argument(help="Suite by name, such as glue, or a study file, such as mine.yaml.")]
Preset = Annotated[str, typer.Option(help="The suite's settings: mini, real-mini, small, paper; mini by default.")]
Encodings = Annotated[
    str, typer.Option(help="Names or files, with options: rope:base=500000,./mine.py; the suite's by default.")
]
Tasks = Annotated[
    str, typer.Option(help="Tasks by name, such as cola,rte, or all; the preset's by default.")
]
Seeds = Annotated[str, typer.Option(help="How many seeds (6), or which (0,1,2); the preset's by default.")]
Data = Annotated[str, typer.Option(help="Folder of the original files, or 'hub' to download them.")]
Revision = Annotated[str, typer.Option(help="Commit of the hub data set.")]
Tokenizer = Annotated[
    str, typer.Option(help="wordpiece, bpe, or a vocabulary file; the preset's by default.")
]
Baseline = Annotated[str, typer.Option(help="What the others are compared with; learned by default.")]
Setting = Annotated[
    list[str] | None, typer.Option("--set", help="A setting, such as train.steps=100; repeatable.")
]
Out = Annotated[str, typer.Option(help="Folder of tables and figures; out/SUITE-PRESET or out/FILE by default.")]


def study(
    suite: Target,
    preset: Preset = "",
    encodings: Encodings = "",
    tasks: Tasks = "",
    seeds: Seeds = "",
    data: Data = "",
    revision: Revision = "",
    tokenizer: Tokenizer = "",
    baseline: Baseline = "",
    set_: Setting = None,
    out: Out = "",
    jobs: Annotated[int, typer.Option(help="Trials at once; 0 takes all cores, or one on a GPU.", min=0)] = 0,
    skip_missing: Annotated[bool, typer.Option(help="Leave out tasks whose files are missing, and say so.")] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds after which a trial is ended and has failed; 0 for no end.", min=0)
    ] = 0,
    executor: Annotated[
        str, typer.Option(help="Where trials run: local, or ray (RAY_ADDRESS, or what `ray start` started here).")
    ] = "local",
    gpus_per_trial: Annotated[
        float, typer.Option(help="Share of a GPU that a trial takes on Ray, such as 0.25; 0 for one on cuda.", min=0)
    ] = 0,
    tracker: Annotated[str, typer.Option(help="Copy of the record for browsing: mlflow, json or none.")] = "mlflow",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show trials, parameters, FLOPs, memory and time; run and write nothing.")
    ] = False,
    write: Annotated[str, typer.Option(help="Write the study as a file, such as mine.yaml, and run nothing.")] = "",
) -> None:
    """Train every encoding on every task with paired seeds, and print the table of what can be said."""
    from posbench.store import Store

    _look_for(suite)
    changes = _changes(suite, encodings, tasks, seeds, data, revision, tokenizer, baseline, set_)
    wanted = _wanted(suite, preset, changes)
    if write:
        from posbench.study_text import write as write_file

        if len(wanted) > 1:
            raise UserError(f"--write {write}: the file has {len(wanted)} suites already: copy it")
        write_file(next(iter(wanted.values())), path_of(write, "--write"))
        say(f"{write} written. Next: posbench study {write}")
        return
    folders = {name: _folder(name, out, several=len(wanted) > 1) for name in wanted}
    if dry_run:
        from posbench.forecast import forecast

        for config in wanted.values():
            _prove_foreign(config)
            say(forecast(config, home() / "trials").text(width=terminal_width()))
        return
    # Every study is found to be sound before the first runs.
    plans = {name: _planned(config, skip_missing) for name, config in wanted.items()}
    where = partial(executor_named, executor, Store(home() / "trials"), jobs=jobs, timeout=timeout, gpus=gpus_per_trial)
    failed = [_run(plan, folders[name], where, tracker) for name, plan in plans.items()]
    if any(failed):
        raise typer.Exit(1)


def status(
    what: Annotated[str, typer.Argument(help="Suite by name, a study file, or the folder of a study.")],
    preset: Preset = "",
    encodings: Encodings = "",
    tasks: Tasks = "",
    seeds: Seeds = "",
    data: Data = "",
    revision: Revision = "",
    tokenizer: Tokenizer = "",
    baseline: Baseline = "",
    set_: Setting = None,
) -> None:
    """Show how far a study is: what is done, failed, diverged, refused and missing, and the time left; runs nothing."""
    from posbench import study_folder
    from posbench.errors import is_file
    from posbench.standing import standing

    held = is_file(Path(what) / study_folder.IDENTITY) or ("/" in what and isdir(what))
    if not held:
        _look_for(what, folders=True)
    changes = _changes(what, encodings, tasks, seeds, data, revision, tokenizer, baseline, set_)
    if held:
        if changes or preset:
            raise UserError(f"'{what}' is a study's folder, which says all by itself: leave the options out")
        wanted = {Path(what).resolve().name: study_folder.kept_in(Path(what))}
    else:
        wanted = _wanted(what, preset, changes)
    for name, config in wanted.items():
        say(standing(config, home() / "trials", title=name).text(width=terminal_width()))


def report(folder: Annotated[Path, typer.Argument(help="Folder of a study, such as out/glue-mini.")]) -> None:
    """Write the tables and figures of a study again from the stored results, and print the table."""
    from posbench import study as studies
    from posbench.store import Store
    from posbench.study_folder import taken_up

    store = Store(home() / "trials")
    plan = taken_up(folder, store)
    _report(plan, studies.known(plan, store), folder.resolve())
    say(f"tables and figures: {short(folder.resolve())}")


def _look_for(what: str, *, folders: bool = False) -> None:
    """Refuses what is neither a suite nor a study file, with everything near that would be one.

    Args:
        folders: whether the folder of a study would have done too.
    """
    from posbench.errors import is_file, nearest
    from posbench.registry import SUITES
    from posbench.study_file import is_study_file
    from posbench.study_folder import IDENTITY

    suites = SUITES.found()
    if what in suites or what.endswith(".py") or (is_study_file(what) and is_file(Path(what))):
        return
    near = [*suites, *map(str, sorted([*Path().glob("*.y*ml"), *Path("studies").glob("*.y*ml")]))]
    if folders:
        near += [short(file.parent) for file in home().glob(f"*/{IDENTITY}")]
    sought = "no suite, no study file and no folder of a study" if folders else "no suite and no study file"
    raise UserError(f"'{what}' is {sought}, {nearest(what, near)}")


def _changes(
    suite: str, encodings: str, tasks: str, seeds: str, data: str, revision: str, tokenizer: str, baseline: str,
    set_: list[str] | None,
) -> dict[str, Any]:
    """What the options say, as dotted settings."""
    from posbench.config import EncodingChoice, to_plain
    from posbench.study_file import is_study_file
    from posbench.trial import load_suite

    changes = assignments(set_)
    if encodings:
        changes["encodings"] = [to_plain(EncodingChoice.parse(text)) for text in names(encodings, "encodings")]
    if tasks == "all":
        if is_study_file(suite):
            raise UserError("--tasks all: a study file names its tasks: write them there")
        changes["tasks"] = list(load_suite(suite).tasks)
    elif tasks:
        changes["tasks"] = names(tasks, "tasks")
    if seeds:
        changes["seeds"] = seed_numbers(seeds)
    if baseline:
        changes["baseline"] = EncodingChoice.parse(baseline).label
    if revision and data != "hub":
        raise UserError(f"--revision {revision}: a commit on the hub, which --data hub alone reads: add that, or leave "
                        "it out")
    wanted: dict[str, dict[str, Any]] = {
        "--tokenizer": {"data.tokenizer": tokenizer} if tokenizer else {},
        "--revision": {"data.revision": revision} if revision else {},
        "--data": {} if not data else {"data.source": "hub"} if data == "hub" else
                  {"data.source": "folder", "data.path": str(path_of(data, "--data"))},
    }
    for option, settings in wanted.items():
        if twice := changes.keys() & settings.keys():
            raise UserError(f"{option} and --set {min(twice)} say the same thing: leave one out")
        changes |= settings
    return changes


def _wanted(suite: str, preset: str, changes: Mapping[str, Any]) -> dict[str, StudyConfig]:
    """The studies that an argument means, by the name of their folders."""
    from posbench.study import from_preset
    from posbench.study_file import is_study_file, studies_of

    if is_study_file(suite):
        if preset:
            raise UserError(f"--preset {preset}: the study file names its preset: write it there")
        return studies_of(Path(suite), changes)
    config = from_preset(suite, preset or "mini", changes)
    return {f"{config.suite}-{config.preset}": config}


def _folder(name: str, out: str, *, several: bool) -> Path:
    if not out:
        return home() / name
    return path_of(Path(out) / name if several else out, "--out")


def _planned(config: StudyConfig, skip_missing: bool) -> Plan:
    """All trials of a study; its own encodings are proved first, so that a failing one leaves nothing written."""
    from posbench import study as studies

    _prove_foreign(config)
    return studies.plan(config, skip_missing=skip_missing)


def _prove_foreign(config: StudyConfig) -> None:
    """Proves what is not posbench's own, in processes of its own."""
    from posbench.quarantine import prove
    from posbench.registry import ENCODINGS

    prove([choice for choice in config.encodings if not ENCODINGS.own(choice.name)])


def _run(plan: Plan, folder: Path, where: Callable[..., Executor], tracker: str) -> bool:
    """Runs what is missing, reports, and says whether a trial failed."""
    from posbench import study as studies
    from posbench import study_folder, tuning
    from posbench.quarantine import prove_once
    from posbench.registry import ENCODINGS
    from posbench.store import Store

    copy = tracker_named(tracker, home())
    place = where(plan.study.train)
    store = Store(home() / "trials")
    KEPT.append(lambda: studies.kept((*plan.tuning, *plan.trials), store))
    plan = tuning.settled(plan, store)
    known = studies.stored((*plan.tuning, *plan.trials), store)
    news = {trial.config.encoding.label: trial for trial in (*plan.tuning, *plan.trials)
            if trial.fingerprint not in known and ENCODINGS.own(trial.config.encoding.name)}
    prove_once(list(news.values()), home() / "proofs", tell=partial(say, error=True))
    study_folder.claim(folder, plan.study, seen=bool(known))
    for why in plan.skipped.values():
        say(f"skipped: {why}")
    copying.begin(copy, plan, folder)
    # Workers stay from the search to the last report: torch is loaded once in each.
    kept = sum(record.status != "failed" for record in known.values())
    searches = plan.study.search is not None
    with closing(place), Progress(plan.planned, kept, at_once=place.jobs, phases=searches) as watch:
        plan = tuning.tune(plan, store, executor=place, tracker=copy, watch=watch)
        records = studies.run(plan, store, executor=place, tracker=copy, watch=watch)
    files = _report(plan, records, folder)
    if told := copying.conclude(copy, plan, records, files, folder):
        say(told)
    say(f"tables and figures: {short(folder)}{'' if told else copying.browsed(tracker)}")
    broken = [record for record in (*records.values(), *plan.tuned_records.values())
              if record.status in ("failed", "refused")]
    if broken:
        first = broken[0]
        cell = f"{first.label}, {first.config['task']}, seed {first.config['seed']}"
        say(f"{len(broken)} of {counted(plan.planned, 'trial')} failed, the first: {cell}: {first.reason}", error=True)
    return bool(broken)


def _report(plan: Plan, records: Mapping[str, Record], folder: Path) -> list[Path]:
    from posbench.outcome import study_results
    from posbench.registry import REPORTS
    from posbench.store import Store, sweep, writing

    with writing(folder, "give it room and permission; results are kept, the same command goes on"):
        results = study_results(plan, records, folder, Store(home() / "trials"))
        scoreboard = REPORTS.load("scoreboard").value
        files = scoreboard.write(results)
        sweep(folder, age=ABANDONED_SECONDS)
    say(scoreboard.document(results).text(width=terminal_width()))
    return files
