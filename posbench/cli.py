"""The commands. Heavy packages are imported inside the command that needs them, so that help answers at once."""

from __future__ import annotations

import errno
import re
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from posbench.arguments import (
    assignment,
    home,
    names,
    path_of,
    seed_numbers,
    tracker_named,
    trials_at_once,
)
from posbench.console import Progress, described, say, short, terminal_width
from posbench.errors import StorageError, Terminated, UserError, one_line
from posbench.examination import check
from posbench.inspection import analyse
from posbench.measuring import bench

app = typer.Typer(
    name="posbench",
    add_completion=True,
    pretty_exceptions_enable=False,
    help="What a position encoding is (check), what it does to the logits (analyse), and how it does and what it costs "
    "against the others (study).",
)


for command in (check, bench, analyse):
    app.command()(command)


@app.callback(invoke_without_command=True)
def start(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def study(
    suite: Annotated[str, typer.Argument(help="Suite by name, such as glue.")],
    preset: Annotated[str, typer.Option(help="The suite's settings: mini, real-mini, small, paper.")] = "mini",
    encodings: Annotated[
        str, typer.Option(help="Names or files, with options: rope:base=500000,./mine.py; the suite's by default.")
    ] = "",
    tasks: Annotated[str, typer.Option(help="Tasks by name, such as cola,rte, or all; the preset's by default.")] = "",
    seeds: Annotated[str, typer.Option(help="How many seeds (6), or which (0,1,2); the preset's by default.")] = "",
    data: Annotated[str, typer.Option(help="Folder of the original files, or 'hub' to download them.")] = "",
    revision: Annotated[str, typer.Option(help="Commit of the hub data set.")] = "",
    tokenizer: Annotated[str, typer.Option(help="wordpiece, bpe, or a vocabulary file; the preset's by default.")] = "",
    baseline: Annotated[str, typer.Option(help="What the others are compared with; learned by default.")] = "",
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting, such as train.steps=100; repeatable.")
    ] = None,
    out: Annotated[str, typer.Option(help="Folder of tables and figures; out/SUITE-PRESET by default.")] = "",
    jobs: Annotated[int, typer.Option(help="Trials at once; 0 takes all cores, or one on a GPU.", min=0)] = 0,
    skip_missing: Annotated[bool, typer.Option(help="Leave out tasks whose files are missing, and say so.")] = False,
    tracker: Annotated[str, typer.Option(help="Copy of the record for browsing: mlflow, json or none.")] = "mlflow",
) -> None:
    """Train every encoding on every task with paired seeds, and print the table of what can be said."""
    from posbench import study as studies
    from posbench import tuning
    from posbench.config import EncodingChoice
    from posbench.quarantine import prove
    from posbench.registry import ENCODINGS
    from posbench.store import Store
    from posbench.trial import load_suite

    changes: dict[str, Any] = dict(assignment(text) for text in set_ or [])
    if encodings:
        from posbench.config import to_plain

        changes["encodings"] = [to_plain(EncodingChoice.parse(text)) for text in names(encodings, "encodings")]
    if tasks:
        changes["tasks"] = list(load_suite(suite).tasks) if tasks == "all" else names(tasks, "tasks")
    if seeds:
        changes["seeds"] = seed_numbers(seeds)
    if baseline:
        changes["baseline"] = EncodingChoice.parse(baseline).label
    if tokenizer:
        changes["data.tokenizer"] = tokenizer
    if data == "hub":
        changes |= {"data.source": "hub", "data.revision": revision or None}
    elif data:
        changes |= {"data.source": "folder", "data.path": str(path_of(data, "--data"))}
    wanted = studies.from_preset(suite, preset, changes)
    prove([choice for choice in wanted.encodings if not ENCODINGS.own(choice.name)])
    plan = studies.plan(wanted, skip_missing=skip_missing)
    folder = path_of(out, "--out") if out else home() / f"{plan.study.suite}-{plan.study.preset}"
    copy = tracker_named(tracker, home())
    at_once = trials_at_once(jobs, plan.study.train.threads, plan.study.train.device)
    store = Store(home() / "trials")
    plan = tuning.settled(plan, store)
    known = studies.stored((*plan.tuning, *plan.trials), store)
    news = {trial.config.encoding.label: trial.config.encoding for trial in (*plan.tuning, *plan.trials)
            if trial.fingerprint not in known and ENCODINGS.own(trial.config.encoding.name)}
    prove(list(news.values()))
    studies.claim(folder, plan.study)
    for why in plan.skipped.values():
        say(f"skipped: {why}")
    copy.prepare()
    # Names in MLflow are narrower than names of folders.
    copy.begin(
        "posbench-" + re.sub(r"[^A-Za-z0-9._-]+|\.{2,}", "-", folder.name)[:50],
        f"{plan.trials[0].suite.title}, preset {plan.study.preset}",
    )
    with Progress(plan.planned, len(known), phases=plan.study.search is not None) as watch:
        plan = tuning.tune(plan, store, jobs=at_once, tracker=copy, watch=watch)
        records = studies.run(plan, store, jobs=at_once, tracker=copy, watch=watch)
    files = _report(plan, records, folder)
    from posbench.outcome import summary

    copy.summary(folder.name, summary(plan, records), {file.name: file for file in files})
    if told := copy.end():
        say(told)
    say(
        f"tables and figures: {short(folder)}"
        + (f"   browse: posbench ui --home {short(home())}" if tracker == "mlflow" else "")
    )
    tuning_records = plan.tuned.records if plan.tuned else {}
    broken = [record for record in (*records.values(), *tuning_records.values())
              if record.status in ("failed", "refused")]
    if broken:
        first = broken[0]
        cell = f"{first.label}, {first.config['task']}, seed {first.config['seed']}"
        say(f"{len(broken)} of {plan.planned} trials failed, the first: {cell}: {first.reason}", error=True)
        raise typer.Exit(1)


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="Folder of a study, such as out/glue-mini.")]) -> None:
    """Write the tables and figures of a study again from the stored results, and print the table."""
    from posbench import study as studies
    from posbench import tuning
    from posbench.config import StudyConfig, build
    from posbench.store import Store

    wanted = build(StudyConfig, studies.read_identity(folder), where=f"{folder / studies.IDENTITY}")
    store = Store(home() / "trials")
    plan = tuning.settled(studies.plan(wanted, skip_missing=True), store)
    _report(plan, studies.known(plan, store), folder.resolve())
    say(f"tables and figures: {short(folder.resolve())}")


@app.command("list")
def list_(kind: Annotated[str, typer.Argument(help="encodings, suites or reports; all by default.")] = "") -> None:
    """Show every plugin with its origin, and why one is not available."""
    from rich.table import Table

    from posbench.errors import nearest
    from posbench.registry import AGREED, Registry

    if kind and kind not in AGREED:
        raise UserError(f"unknown kind of plugin '{kind}', {nearest(kind, AGREED)}")
    for name in [kind] if kind else AGREED:
        registry = Registry(name)
        table = Table("name", "what", "origin", title=name, title_justify="left")
        for plugin, claims in registry.found().items():
            try:
                what = described(registry.load(plugin).value)
            except UserError as error:
                what = f"unavailable: {error}"
            table.add_row(plugin, what, "; ".join(claim.origin for claim in claims))
        say(table)


@app.command()
def new_encoding(
    name: Annotated[str, typer.Argument(help="Lower-case letters, digits and '_'.")],
    folder: Annotated[Path, typer.Option(help="Where to write the file.")] = Path("."),
) -> None:
    """Write a commented encoding file that already passes the contract."""
    from posbench.scaffold import new_encoding as write

    path = write(name, folder)
    shown = path if path.is_absolute() else f"./{path}"
    say(
        f"{shown} written. Next: posbench check {shown}, then:\n"
        f"posbench study glue --encodings nope,learned,rope,{shown} --out out/{name}"
    )


@app.command()
def ui(
    home_: Annotated[
        Path | None, typer.Option("--home", help="Folder of the results; POSBENCH_HOME or 'out' by default.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.", min=1, max=65535)] = 5000,
) -> None:
    """Serve the MLflow copy of all studies on 127.0.0.1."""
    from posbench.ui import serve

    serve((home_ or home()).resolve(), port=port)


def main() -> None:
    """Runs a command; a mistake of the user's is one line and an exit code, never a traceback."""
    signal.signal(signal.SIGTERM, _terminated)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal that knows no '±' gets its number, and not a traceback.
            stream.reconfigure(errors="backslashreplace")
    try:
        # Without standalone mode a wrong option is not turned into a page of usage; Ctrl-C comes back as 130.
        code = app(standalone_mode=False)
    except UserError as error:
        sys.stderr.write(f"posbench: error: {one_line(str(error))}\n")
        sys.exit(error.exit_code)
    except TyperException as error:
        told = error.format_message() if hasattr(error, "format_message") else str(error)
        sys.stderr.write(f"posbench: error: {one_line(told)} (posbench --help shows the commands)\n")
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EIO):
            raise
        sys.stderr.write(f"posbench: error: what the command prints cannot be written: {error.strerror}\n")
        sys.exit(StorageError.exit_code)
    if code == 130:
        sys.stderr.write("posbench: interrupted; finished trials are kept, the same command goes on\n")
    sys.exit(code)


def _terminated(number: int, frame: Any) -> None:
    sys.stderr.write("posbench: terminated; finished trials are kept, the same command goes on\n")
    raise Terminated(143)


def _report(plan: Any, records: Any, folder: Path) -> list[Path]:
    from posbench.outcome import study_results
    from posbench.registry import REPORTS
    from posbench.store import Store

    results = study_results(plan, records, folder, Store(home() / "trials"))
    scoreboard = REPORTS.load("scoreboard").value
    files = scoreboard.write(results)
    say(scoreboard.document(results).text(width=terminal_width()))
    return files
