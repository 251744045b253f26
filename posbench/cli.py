"""The commands. Heavy packages are imported inside the command that needs them, so that help answers at once."""

from __future__ import annotations

import errno
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from posbench import distributed
from posbench.arguments import home
from posbench.console import described, say
from posbench.copying import sync
from posbench.errors import StorageError, Terminated, UserError, one_line
from posbench.examination import check
from posbench.inspection import analyse
from posbench.interrupt import KEPT
from posbench.measuring import bench
from posbench.studying import report, status, study

app = typer.Typer(
    name="posbench",
    add_completion=True,
    pretty_exceptions_enable=False,
    help="What a position encoding is (check), what it does to the logits (analyse), and how it does and what it costs "
    "against the others (study).",
)


for command in (study, status, report, sync, check, bench, analyse):
    app.command()(command)


@app.callback(invoke_without_command=True)
def start(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


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
        if distributed.rank():
            distributed.follow()
            sys.exit(0)
        with distributed.led():
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
    except Terminated:
        code = 143
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EIO):
            raise
        sys.stderr.write(f"posbench: error: what the command prints cannot be written: {error.strerror}\n")
        sys.exit(StorageError.exit_code)
    if code in (130, 143):
        told = "".join(f"; {kept()}" for kept in KEPT)
        sys.stderr.write(f"posbench: {'interrupted' if code == 130 else 'terminated'}{told}\n")
    sys.exit(code)


def _terminated(number: int, frame: Any) -> None:
    raise Terminated(143)

