"""The command that proves encodings; heavy packages are imported inside, so that help is quick."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from posbench.console import Steps, say

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
