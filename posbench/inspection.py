"""The command that draws what encodings do to attention; heavy packages are imported inside, so that help is quick."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from posbench.arguments import home, path_of
from posbench.console import say, short
from posbench.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

Tables = dict[str, "pd.DataFrame"]


def analyse(
    encodings: Annotated[list[str] | None, typer.Argument(help="Names or files, with options; all by default.")] = None,
    length: Annotated[int, typer.Option(help="Trained length, tokens.", min=8, max=65536)] = 1024,
    width: Annotated[int, typer.Option(help="Features of a token.", min=1, max=65536)] = 512,
    heads: Annotated[int, typer.Option(help="Attention heads; they share the width.", min=1, max=1024)] = 4,
    seed: Annotated[int, typer.Option(help="Of random tokens and of initial values.", min=0, max=2**31 - 1)] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder of figures and numbers; out/analyse by default.")] = None,
) -> None:
    """Draw what untrained encodings do to attention: decay, map, precision, and behaviour beyond the trained length."""
    from posbench import analysis
    from posbench.config import EncodingChoice
    from posbench.registry import ENCODINGS
    from posbench.stand import Setup

    setup = Setup(width=width, heads=heads, length=length, seed=seed)
    choices = [EncodingChoice.parse(text) for text in encodings or list(ENCODINGS.found())]
    labels = [choice.label for choice in choices]
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise UserError(f"two encodings are called '{twice}': give each once, and name files apart")
    folder = path_of(out, "--out") if out else home() / "analyse"
    # A mistake in the last of many names is told before the first is measured.
    for choice in choices:
        analysis.resolved(choice)
    found = {}
    for choice in choices:
        found[choice.label] = analysis.analyse(choice, setup)
        write(folder / folder_name(choice.label), found[choice.label], "head")
    if len(found) > 1:
        write(folder, together(found), "encoding")
    say(summary(found), width=120)
    say(
        "Changes of the logit at distance 1 and at the farthest: equal tokens in a decoder, mean over heads; where\n"
        "heads differ, (n) says how many. Errors are the largest at any position, in units of |q||k|/sqrt(d)."
    )
    for label in labels:
        say(f"{label}: {short(folder / folder_name(label))}")
    if len(found) > 1:
        say(f"compared: {short(folder)}")


def together(found: Mapping[str, Tables]) -> Tables:
    """The tables of several encodings, one below the other."""
    import pandas as pd

    names = dict.fromkeys(name for tables in found.values() for name in tables)
    return {name: pd.concat([tables[name] for tables in found.values()], ignore_index=True) for name in names}


def folder_name(label: str) -> str:
    """The label as the name of a folder: letters, digits and '._=-' alone; a long one is cut and made unique."""
    name = re.sub(r"[^A-Za-z0-9._=-]+", "-", label).lstrip(".-")
    if name and len(name) <= 64:
        return name
    return f"{name[:48]}-{hashlib.sha256(label.encode()).hexdigest()[:12]}"


def write(folder: Path, tables: Tables, by: str) -> list[Path]:
    """Every table as CSV and its figure as PNG and SVG; returns the files.

    Raises:
        StorageError: the folder cannot be written.
    """
    from posbench.figures import FIGURES
    from posbench.store import write_atomically, writing
    from posbench.tables import csv_text

    files = []
    with writing(folder, "choose another with --out"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, frame in tables.items():
            files.append(folder / f"{name}.csv")
            write_atomically(files[-1], csv_text(frame).encode())
            if name in FIGURES:
                files += FIGURES[name](frame, folder / name, by)
    return files


def summary(found: Mapping[str, Tables]) -> Table:
    """One row an encoding."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    names = ("decay with distance", "at 1", "farthest", "bf16 error", "fp16 error", "entropy 1×, nat", "8×")
    table.add_column("encoding", no_wrap=True)
    for name in names:
        table.add_column(name, justify="left" if name == names[0] else "right")
    for label, tables in found.items():
        table.add_row(*(Text(cell) for cell in (label, *_cells(tables))))
    return table


def _cells(tables: Tables) -> list[str]:
    verdicts, decay, precision, beyond = (tables[name] for name in ("verdicts", "decay", "precision", "beyond"))
    own = verdicts[(verdicts["shape"] == "decoder") & (verdicts["quantity"] == "change")]["verdict"]
    told = own.iloc[0] if own.nunique() == 1 else "; ".join(f"{text} ({n})" for text, n in own.value_counts().items())
    change = decay[(decay["shape"] == "decoder") & (decay["content"] == "equal")].groupby("distance")["value"].mean()
    worst = precision[precision["quantity"] == "largest error"].groupby("dtype")["value"].max()
    far = beyond[beyond["shape"] == "decoder"]
    entropy = far[(far["quantity"] == "entropy") & (far["content"] == "equal")].groupby("multiple")["value"].mean()
    near_and_far = [f"{change[d]:.3g}" if d in change else "-" for d in (1, change.index.max())]
    errors = [f"{worst[name]:.1e}" if worst[name] == worst[name] else "-" for name in ("bfloat16", "float16")]
    return [told, *near_and_far, *errors, *(f"{entropy[m]:.2f}" if m in entropy else "refused" for m in (1, 8))]
