"""The contract suite, for built-in encodings and for anyone's own: `check_encoding` and `truth_table`.

    from posbench.testing import check_encoding
    assert all(verdict.passed for verdict in check_encoding(MyEncoding))

Every check is a small function that measures an error (posbench.properties for one attention layer, posbench.guarantees
for what models rely on). What the encoding declares decides whether that error must be small, or visibly large.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from posbench import claims, guarantees, properties, structure, upkeep
from posbench.config import Scalar
from posbench.contract import VISIBLE, Check, Verdict
from posbench.encoding import Encoding
from posbench.errors import UserError
from posbench.options import build_options, encoding_class
from posbench.probe import KINDS, SHAPES, Kind, Shape, Subject, isolated
from posbench.registry import ENCODINGS

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["CHECKS", "VISIBLE", "Check", "TruthTable", "Verdict", "check_encoding", "truth_table"]


def _order(check: Check) -> tuple[int, str]:
    number, suffix = re.fullmatch(r"P(\d+)(\w*)", check.name).groups()  # type: ignore[union-attr]
    return int(number), suffix


CHECKS: tuple[Check, ...] = tuple(sorted(
    (value for module in (claims, guarantees, properties, structure, upkeep)
     for value in vars(module).values() if isinstance(value, Check)),
    key=_order,
))


def check_encoding(encoding: str | type[Encoding], options: Mapping[str, Scalar] | None = None) -> list[Verdict]:
    """Every check that applies, in encoders, decoders and both together, with softmax and with linear attention.

    Args:
        encoding: a name, the path of a file that ends with '.py', or the class itself.
        options: those that differ from the defaults; texts are converted as on the command line.

    Returns:
        One verdict for each check and kind of model. A plugin's fault, whatever it raises, is a failed verdict.

    Raises:
        UserError: an unknown name, a file that cannot be imported, something else than an encoding, a wrong option.
    """
    told = encoding if isinstance(encoding, str) else encoding.__name__
    cls = encoding_class(told, ENCODINGS.load(encoding).value if isinstance(encoding, str) else encoding)
    name = encoding if isinstance(encoding, str) else cls.spelled()
    config = build_options(name, cls, options)
    built: Encoding | type[Encoding] = cls
    with contextlib.suppress(Exception), isolated():
        built = Subject(cls, config, "decoder").bare()
    places = [(shape, kind) for shape in SHAPES for kind in KINDS if _lives(cls, config, built, shape, kind)]
    return [check.judge(cls, config, shape, kind) for shape, kind in places for check in CHECKS
            if shape in check.shapes and kind in check.kinds and _concerns(check, built)]


def _concerns(check: Check, built: Encoding | type[Encoding]) -> bool:
    """Whether a check applies, which may build the plugin once more; what breaks there is for the verdict to tell."""
    try:
        with isolated():
            return check.applies(built)
    except Exception:
        return True


def _lives(cls: type[Encoding], config: Any, built: Encoding | type[Encoding], shape: Shape, kind: Kind) -> bool:
    """Whether such a model takes the encoding.

    Raises:
        UserError: options that do not fit together: told once, and not by every check.
    """
    if built.needs_causal and shape != "decoder":
        return False
    try:
        with isolated():
            subject = Subject(cls, config, shape, kind)
    except UserError:
        raise
    except Exception:
        return kind == "softmax"  # the plugin's fault, which the verdicts tell
    try:
        with isolated():
            subject.model()
    except UserError:
        if kind == "softmax":
            raise
        return False  # refused with the reason, as it is when a trial is configured
    except Exception:
        return kind == "softmax"
    return True


@dataclass(frozen=True)
class TruthTable:
    """What encodings declare and what was measured.

    Attributes:
        columns: names of the checks.
        rows: for each encoding its name and a cell for each check. '✓' holds and '✗' does not, as declared; '(✓)' and
            '(✗)' were measured where nothing is declared; '-' has no meaning there; where they disagree, the cell is
            'declared→measured', '?' being a check that broke down.
        titles: what each check is about.
        faults: one line for each failed verdict.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    titles: tuple[str, ...]
    faults: tuple[str, ...]

    def markdown(self) -> str:
        """A table, the legend and the faults, as Markdown."""
        lines = ["| encoding | " + " | ".join(self.columns) + " |", "|---|" + ":-:|" * len(self.columns)]
        lines += ["| " + " | ".join(f"**{cell}**" if "→" in cell else cell for cell in row) + " |" for row in self.rows]
        lines += ["", self.legend, *([""] if self.faults else []), *(f"- {fault}" for fault in self.faults)]
        return "\n".join(lines) + "\n"

    def rich(self) -> Table:
        """For a terminal of 120 columns or more; legend and faults are printed apart."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        colours = {"✓": "green", "✗": "yellow", "-": "dim"}
        table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
        table.add_column("encoding", no_wrap=True)
        for name in self.columns:
            table.add_column(name, justify="center", no_wrap=True)
        for name, *cells in self.rows:
            table.add_row(Text(name), *(Text(cell, style=colours.get(cell, "bold white on red")) for cell in cells))
        return table

    @property
    def legend(self) -> str:
        """The titles of the columns in one paragraph."""
        return "; ".join(f"{name} {title}" for name, title in zip(self.columns, self.titles, strict=True)) + "."


def truth_table(results: Mapping[str, Sequence[Verdict]]) -> TruthTable:
    """Verdicts by encoding as a table: rows are encodings, columns checks, each cell over encoder and decoder."""
    made = {verdict.check for verdicts in results.values() for verdict in verdicts}
    # A property may be measured in several ways, one for each kind of attention; it has one column.
    checks = list({check.name: check for check in reversed(CHECKS) if check.name in made}.values())[::-1]
    rows, faults = [], []
    for name, verdicts in results.items():
        rows.append((name, *(_cell([v for v in verdicts if v.check == check.name]) for check in checks)))
        faults += [f"{name}, {place(v)}, {v.check} {v.title}: {v.reason}" for v in verdicts if not v.passed]
    names, titles = (tuple(getattr(check, field) for check in checks) for field in ("name", "title"))
    return TruthTable(names, tuple(rows), titles, tuple(faults))


def place(verdict: Verdict) -> str:
    """The model in which a check was made, as faults name it."""
    return verdict.shape if verdict.attention == "softmax" else f"linear {verdict.shape}"


def _cell(verdicts: list[Verdict]) -> str:
    if not verdicts:
        return "-"
    worst = next((verdict for verdict in verdicts if not verdict.passed), verdicts[0])
    if worst.declared is None and worst.passed:
        return "(✓)" if all(verdict.measured <= verdict.tolerance for verdict in verdicts) else "(✗)"
    declared = "✓" if worst.declared else "✗"
    if worst.passed:
        return declared
    if worst.measured != worst.measured:
        return f"{declared}→?"
    return f"{declared}→{'✓' if worst.measured <= worst.tolerance else '✗'}"
