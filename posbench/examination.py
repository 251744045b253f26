"""The commands that prove encodings and measure what they cost; heavy packages are imported inside."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from posbench.arguments import assignment, home, path_of, whole_numbers
from posbench.console import Steps, say, short, terminal_width

if TYPE_CHECKING:
    from posbench.contract import Verdict


def check(
    encodings: Annotated[list[str] | None, typer.Argument(help="Names or files, with options; all by default.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print every verdict with its measured error as JSON.")] = False,
) -> None:
    """Prove what an encoding is: every claim that it makes is measured, in both directions."""
    from posbench.config import EncodingChoice
    from posbench.quarantine import verdicts
    from posbench.registry import ENCODINGS
    from posbench.testing import truth_table

    choices = [EncodingChoice.parse(text) for text in encodings or list(ENCODINGS.found())]
    found = {}
    with Steps("checking", len(choices)) as step:
        for choice in choices:
            step(choice.label)
            found[choice.label] = verdicts(choice)
    table = truth_table(found)
    if json:
        say(as_json(found))
    elif markdown:
        say(table.markdown())
    else:
        say(table.rich(), width=140)
        say("✓ holds and ✗ does not, each as claimed; in brackets, measured where nothing is claimed; - has no meaning "
            f"there. {table.legend}")
        for fault in table.faults:
            say(f"failed: {fault}")
    if any(not verdict.passed for verdicts in found.values() for verdict in verdicts):
        raise typer.Exit(1)


def as_json(found: Mapping[str, Sequence[Verdict]]) -> str:
    """Verdicts by encoding; what could not be measured is null, as JSON knows no NaN."""
    import json

    return json.dumps({
        name: [{key: None if isinstance(value, float) and not math.isfinite(value) else value
                for key, value in asdict(verdict).items()} for verdict in verdicts]
        for name, verdicts in found.items()
    }, indent=1)


def bench(
    encodings: Annotated[list[str] | None, typer.Argument(help="Names or files, with options; all by default.")] = None,
    lengths: Annotated[str, typer.Option(help="Tokens of a row, such as 128,512,2048.")] = "128,512,2048",
    tokens: Annotated[int, typer.Option(help="Tokens of a step; rows are as many as fit.", min=1)] = 2048,
    rounds: Annotated[int, typer.Option(help="Measured steps of each encoding at each length.", min=1)] = 15,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting, such as model.shape=decoder; repeatable.")
    ] = None,
    out: Annotated[str, typer.Option(help="Folder of the tables; out/bench by default.")] = "",
) -> None:
    """Measure what encodings cost: step time beside nope's, tokens per second and peak memory by length."""
    from posbench import bench as benches
    from posbench.config import EncodingChoice, override
    from posbench.registry import ENCODINGS

    chosen = [EncodingChoice.parse(text) for text in encodings or list(ENCODINGS.found())]
    setting = override(benches.STANDARD, {"lengths": whole_numbers(lengths, "--lengths"), "tokens": tokens,
                                          "rounds": rounds, **dict(assignment(text) for text in set_ or [])})
    known = benches.loaded(chosen)
    folder = path_of(out, "--out") if out else home() / "bench"
    with Steps("measuring", len(setting.lengths)) as step:
        table = benches.measure(known, setting, step)
    shown = benches.document(table, setting)
    files = benches.write(table, shown, folder)
    say(shown.text(width=terminal_width()))
    say("tables: " + ", ".join(short(file) for file in files))
    if table["step_seconds"].isna().any():
        raise typer.Exit(1)
