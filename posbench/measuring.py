"""The command that measures what encodings cost; heavy packages are imported inside, so that help is quick."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from posbench.arguments import assignments, home, path_of, whole_numbers
from posbench.console import Steps, say, short, terminal_width
from posbench.errors import UserError


def bench(
    encodings: Annotated[list[str] | None, typer.Argument(help="Names or files, with options; all by default.")] = None,
    lengths: Annotated[str, typer.Option(help="Tokens of a row (128,512,2048), or of an output (64).")] = "",
    tokens: Annotated[int, typer.Option(help="Tokens of a step; rows are as many as fit.", min=1)] = 2048,
    rounds: Annotated[int, typer.Option(help="Measured steps, or searches, of each encoding.", min=1)] = 15,
    decode: Annotated[bool, typer.Option("--decode", help="Beam search with a cache and without one instead.")] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting, such as model.shape=decoder; repeatable.")
    ] = None,
    out: Annotated[str, typer.Option(help="Folder of the tables; out/bench by default.")] = "",
) -> None:
    """Measure what encodings cost: step time beside nope's, tokens per second and peak memory by length."""
    from posbench import bench as benches
    from posbench.config import EncodingChoice, override
    from posbench.registry import ENCODINGS
    from posbench.store import writing

    chosen = [EncodingChoice.parse(text) for text in encodings or list(ENCODINGS.found())]
    known = benches.loaded(chosen)
    changes: dict[str, Any] = {"rounds": rounds, **assignments(set_)}
    folder = path_of(out, "--out") if out else home() / "bench"
    if decode:
        from posbench import decoding

        changes["lengths"] = whole_numbers(lengths or "64", "--lengths")
        search = override(decoding.STANDARD, changes)
        if search.model.shape != "encoder-decoder":
            raise UserError(f"--decode measures translation, and model.shape is '{search.model.shape}': leave it out")
        with Steps("measuring", len(search.lengths)) as step:
            table = decoding.measure(known, search, step)
        shown = decoding.document(table, search)
    else:
        changes |= {"tokens": tokens, "lengths": whole_numbers(lengths or "128,512,2048", "--lengths")}
        setting = override(benches.STANDARD, changes)
        with Steps("measuring", len(setting.lengths)) as step:
            table = benches.measure(known, setting, step)
        shown = benches.document(table, setting)
    with writing(folder, "choose another with --out"):
        files = benches.write(table, shown, folder, "decode" if decode else "bench")
    say(shown.text(width=terminal_width()))
    say("tables: " + ", ".join(short(file) for file in files))
    if (table["reason"] != "").any():
        raise typer.Exit(1)
