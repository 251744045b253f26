"""Report: a study's results in; one page, Markdown, LaTeX, plain text, CSV and figures out.

A report says what it shows as a Document; how that looks in each form is said here, once for all reports. Files appear
whole or not at all, and the same results give the same bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pandas as pd

from posbench.page import page
from posbench.signs import Signs
from posbench.store import write_atomically
from posbench.suite import Direction, Published
from posbench.tables import Table, csv_text, latex, latex_text, markdown, markdown_text, terminal, wrapped

TERMINAL_WIDTH = 160
"""Character cells of the plain-text file."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure that is drawn when the document is written.

    Attributes:
        title: one line.
        name: of its files, without a suffix.
        draw: writes NAME.png and NAME.svg, given the path without a suffix, and returns them.
    """

    title: str
    name: str
    draw: Callable[[Path], list[Path]]


@dataclass(frozen=True, kw_only=True)
class StudyResults:
    """What a report is given.

    Attributes:
        title: of the study, one line.
        header: facts of the study by name, as they are to be printed: suite, preset, data source, machine, threads,
            versions, and any others.
        frame: the tidy table (results.frame), completed with what was planned and not run (results.complete).
        curves: points with the columns plots.CURVE_COLUMNS; may be empty.
        costs: one row an encoding: encoding, parameters, flops (of a step), step_ratio (step time over that of nope
            in the same study), step_seconds (s), peak_memory (bytes); NaN where not measured.
        baseline: label of the encoding that the others are compared with.
        alpha: level of the tests, after correction.
        folder: where to write.
        warnings: what must be read before the numbers, beside what the report itself sees.
        extras: tables of single tasks beside those that every task has.
        search: what there is to show of a search. sheets: its tables to be written as CSV, by name.
        notes: what stands below every table.
        signs: which encodings are no equal comparison, and why.
        ranges: by task and metric, also as curves name it, the smallest and largest value that a score can have;
            where one is not stated, it has no ends.
        published: what papers report at the settings of the study's preset, with why a result here is none of theirs.
    """

    title: str
    header: Mapping[str, str]
    frame: pd.DataFrame
    curves: pd.DataFrame
    costs: pd.DataFrame
    baseline: str
    alpha: float
    folder: Path
    warnings: tuple[str, ...] = ()
    extras: tuple[Table, ...] = ()
    search: tuple[Table | Figure, ...] = ()
    sheets: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    signs: Signs = field(default_factory=Signs)
    ranges: Mapping[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    published: tuple[Published | Direction, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Document:
    """What a report shows.

    Attributes:
        title: one line.
        header: names and texts that say what was measured and how.
        warnings: what must be read before the numbers.
        parts: tables and figures, in order.
    """

    title: str
    header: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    parts: tuple[Table | Figure, ...]

    def text(self, *, width: int = TERMINAL_WIDTH) -> str:
        """For a terminal of so many character cells; figures are left out."""
        indent = max((len(name) for name, _ in self.header), default=0) + 2
        lines = [*wrapped(self.title, width=width, indent=0), ""]
        for name, text in self.header:
            lines += wrapped(f"{name:<{indent}}{text}", width=width, indent=indent)
        for text in self.warnings:
            lines += ["", *wrapped(f"! {text}", width=width, indent=2)]
        tables = [terminal(part, width=width) for part in self.parts if isinstance(part, Table)]
        return "\n".join([*lines, "", *tables])

    def markdown(self) -> str:
        """As GitHub renders it, with links to the figures' files."""
        lines = [f"# {markdown_text(self.title)}", ""]
        lines += [f"- {markdown_text(name)}: {markdown_text(text)}" for name, text in self.header]
        lines += ["", *(f"> {markdown_text(text)}\n" for text in self.warnings)]
        for part in self.parts:
            lines.append(markdown(part) if isinstance(part, Table)
                         else f"## {markdown_text(part.title)}\n\n![{markdown_text(part.title)}]({part.name}.png)\n")
        return "\n".join(lines).rstrip() + "\n"

    def latex(self) -> str:
        """The tables, to be read by \\input; the header is a comment above them."""
        facts = "".join(f"% {' '.join(latex_text(f'{name}: {text}').split())}\n" for name, text in self.header)
        warnings = "".join(f"% Note: {' '.join(latex_text(text).split())}\n" for text in self.warnings)
        tables = "\n".join(latex(part) for part in self.parts if isinstance(part, Table))
        needs = "% Needs \\usepackage{booktabs,graphicx,textcomp} and \\usepackage[T1]{fontenc}.\n"
        return f"{needs}{facts}{warnings}\n{tables}"

    def html(self, figures: Mapping[str, bytes]) -> str:
        """One page with the figures (PNG bytes by name) inside."""
        return page(title=self.title, header=self.header, warnings=self.warnings, parts=[
            part if isinstance(part, Table) else (part.title, figures[part.name]) for part in self.parts])


class Report(ABC):
    """One way to read a study. A subclass says what it shows; writing it is the same for all.

    Class facts:
        name: as on the command line, and the name of the files.
    """

    name: ClassVar[str]

    @abstractmethod
    def document(self, context: StudyResults) -> Document:
        """What the report shows."""

    def data(self, context: StudyResults) -> dict[str, pd.DataFrame]:
        """Tables to be written as CSV, by file name without a suffix; none unless a report has some."""
        return {}

    def write(self, context: StudyResults) -> list[Path]:
        """Writes every form into the context's folder and returns the files, the page first."""
        document = self.document(context)
        context.folder.mkdir(parents=True, exist_ok=True)
        figures = [part for part in document.parts if isinstance(part, Figure)]
        drawn = [path for figure in figures for path in figure.draw(context.folder / figure.name)]
        pictures = {path.stem: path.read_bytes() for path in drawn if path.suffix == ".png"}
        forms = {
            f"{self.name}.html": document.html(pictures),
            f"{self.name}.md": document.markdown(),
            f"{self.name}.tex": document.latex(),
            f"{self.name}.txt": document.text(),
            **{f"{name}.csv": csv_text(table) for name, table in self.data(context).items()},
        }
        for name, text in forms.items():
            write_atomically(context.folder / name, text.encode())
        return [context.folder / name for name in forms] + drawn
