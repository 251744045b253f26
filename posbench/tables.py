"""Tables as text, and how they look in a terminal, in Markdown, in LaTeX and as CSV.

Names, reasons and options come from plugins and from error messages; each form escapes them by its own rules, here and
nowhere else. A cell may have several lines.
"""

from __future__ import annotations

import csv
import io
import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

Row = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table; the first column names the row.

    Attributes:
        title: one line.
        columns: heads.
        rows: cells, each row as long as columns.
        footer: rows below a rule.
        notes: what the numbers are, one sentence or more each.
        texts: indices of further columns that hold words and not numbers, and are set flush left.
    """

    title: str
    columns: Row
    rows: tuple[Row, ...]
    footer: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    texts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for row in (*self.rows, *self.footer):
            if len(row) != len(self.columns):
                raise ValueError(f"table '{self.title}': {len(row)} cells under {len(self.columns)}: {row}")


def plain(text: str) -> str:
    """The text without control characters but line ends: a terminal would obey them."""
    return re.sub(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]", " ", text)


def markdown(table: Table) -> str:
    """GitHub's form of a table, its title as a heading and its notes as a list."""
    lines = [f"## {_markdown(table.title)}", "", _markdown_row(table.columns)]
    lines.append("| " + " | ".join(":---" if left else "---:" for left in _left(table)) + " |")
    lines += [_markdown_row(row) for row in (*table.rows, *table.footer)]
    lines += ["", *(f"- {_markdown(note)}" for note in table.notes)]
    return "\n".join(lines).rstrip() + "\n"


def latex(table: Table) -> str:
    """A floating table across both columns, scaled to the text's width; needs the packages booktabs and graphicx."""
    body = [_latex_row(table.columns), r"\midrule", *map(_latex_row, table.rows)]
    if table.footer:
        body += [r"\midrule", *map(_latex_row, table.footer)]
    notes = " ".join(map(_latex, table.notes))
    return "\n".join([
        r"\begin{table*}[t]", r"\centering",
        r"\caption{" + _latex(table.title) + (f". {notes}" if notes else "") + "}",
        r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
        r"\begin{tabular}{" + "".join("l" if left else "r" for left in _left(table)) + "}",
        r"\toprule", *body, r"\bottomrule", r"\end{tabular}}", r"\end{table*}",
    ]) + "\n"


def csv_text(frame: pd.DataFrame) -> str:
    """All rows as CSV; numbers in full precision, unknown ones empty.

    A text that a spreadsheet would take for a formula gets an apostrophe in front; numbers stay numbers.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([_csv(str(name)) for name in frame.columns])
    for row in frame.itertuples(index=False, name=None):
        writer.writerow([_csv(value) for value in row])
    return out.getvalue()


def terminal(table: Table, *, width: int) -> str:
    """The table for so many character cells; one that is wider is cut into blocks that repeat the first column."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False, legacy_windows=False)
    console.print(Text(plain(table.title), style="bold"))
    for block in _blocks(table, width):
        grid = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for index in block:
            grid.add_column(Text(plain(table.columns[index])), justify="left" if _left(table)[index] else "right",
                            overflow="fold")
        for row in table.rows:
            grid.add_row(*(Text(plain(row[index])) for index in block))
        if table.footer:
            grid.add_section()
        for row in table.footer:
            grid.add_row(*(Text(plain(row[index])) for index in block))
        console.print(grid)
    assert isinstance(console.file, io.StringIO)
    # Rich fills lines up to the width; blanks at the end of a line are noise in a file.
    lines = [line.rstrip() for line in console.file.getvalue().rstrip().splitlines()]
    notes = [line for note in table.notes for line in wrapped(f"- {note}", width=width, indent=2)]
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def wrapped(text: str, *, width: int, indent: int) -> list[str]:
    """A text as lines of at most so many character cells; what continues is indented."""
    return textwrap.wrap(plain(text), width, subsequent_indent=" " * indent, break_on_hyphens=False) or [""]


def _left(table: Table) -> list[bool]:
    return [index == 0 or index in table.texts for index in range(len(table.columns))]


def _blocks(table: Table, width: int) -> list[list[int]]:
    rows = (table.columns, *table.rows, *table.footer)
    # A column costs its widest line, one blank and the divider.
    need = [max(cell_len(line) for row in rows for line in plain(row[index]).split("\n")) + 2
            for index in range(len(table.columns))]
    blocks, used = [[0]], need[0]
    for index in range(1, len(need)):
        if used + need[index] > width and len(blocks[-1]) > 1:
            blocks.append([0])
            used = need[0]
        blocks[-1].append(index)
        used += need[index]
    return blocks


def markdown_text(text: str) -> str:
    """A text of one line for Markdown, outside a table."""
    return _markdown(text)


def latex_text(text: str) -> str:
    """A text for LaTeX."""
    return _latex(text)


def _markdown_row(row: Sequence[str]) -> str:
    return "| " + " | ".join(_markdown(cell) for cell in row) + " |"


def _markdown(text: str) -> str:
    escaped = re.sub(r"([\\`*\[\]|~{}#])", r"\\\1", plain(text))
    # An underscore within a word is no emphasis; a tag is one wherever it stands.
    escaped = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", escaped)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", "<br>")


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "`": r"\textasciigrave{}", "±": r"$\pm$",
    "↑": r"$\uparrow$", "↓": r"$\downarrow$", "≤": r"$\leq$", "†": r"\dag{}", "‡": r"\ddag{}", "§": r"\S{}",
    "²": "$^2$",
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in plain(text)).replace("\n", " ")


def _latex_row(row: Sequence[str]) -> str:
    return " & ".join(
        _latex(cell) if "\n" not in cell else r"\shortstack[r]{" + r"\\".join(map(_latex, cell.split("\n"))) + "}"
        for cell in row
    ) + r" \\"


def _csv(value: object) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, float | np.floating):
        return repr(float(value))
    text = str(value)
    return f"'{text}" if text.lstrip()[:1] in ("=", "+", "-", "@") or text[:1] in ("\t", "\r") else text
