"""Signs before the names of encodings that are no equal comparison, and the legends that explain them.

A table or figure explains exactly the signs that it has: it may be copied out of its page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import pandas as pd

from posbench.results import VARIANT
from posbench.tables import Table

BUDGET, OWN = "‡", "§"
ENCODING = "encoding"
"""Head of a column that names encodings."""


@dataclass(frozen=True, kw_only=True)
class Signs:
    """What is not alike, by label; an encoding that took a trained one's place bears the signs of that.

    Attributes:
        budgets: in what an encoding's budget (size of the model, length of training, length of rows) is not the
            baseline's.
        own: options of an encoding's own that were searched beside the settings that all share, with their ranges.
    """

    budgets: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, str] = field(default_factory=dict)

    def named(self, label: str) -> str:
        """The label behind its signs: '‡ rope+train.steps=600'."""
        trained = label.partition(VARIANT)[0]
        signs = BUDGET * (trained in self.budgets) + OWN * (trained in self.own)
        return f"{signs} {label}" if signs else label

    def legend(self, labels: Iterable[str]) -> tuple[str, ...]:
        """One sentence for each sign that one of these labels bears, with what each of them has."""
        trained = dict.fromkeys(label.partition(VARIANT)[0] for label in labels)
        kinds = ((BUDGET, "Ablations, and no comparison of encodings at an equal budget", self.budgets),
                 (OWN, "Options of its own were searched too, in as many points", self.own))
        return tuple(f"{sign} {meaning}: " + "; ".join(f"{label}: {what[label]}" for label in trained if label in what)
                     + "." for sign, meaning, what in kinds if any(label in what for label in trained))

    def caption(self, labels: Iterable[str]) -> str:
        """The legend of a figure, in a few words."""
        shown = "".join(self.named(label).partition(" ")[0] for label in labels)
        return " ".join(f"{sign} {meaning}." for sign, meaning in ((BUDGET, "another budget"),
                                                                   (OWN, "own options searched too")) if sign in shown)

    def table(self, table: Table) -> Table:
        """The table with signs in its columns of encodings and in names that title or heads quote, and their legend."""
        places = [place for place, head in enumerate(table.columns) if head == ENCODING]
        found: list[str] = []

        def quoted(match: re.Match[str]) -> str:
            found.append(match[1])
            return f"'{self.named(match[1])}'"

        def marked(cell: str) -> str:
            lines = []
            for line in cell.split("\n"):
                less, label = re.fullmatch(r"(less )?(.*)", line).groups(default="")  # type: ignore[union-attr]
                found.append(label)
                lines.append(less + self.named(label))
            return "\n".join(lines)

        rows = tuple(tuple(marked(cell) if place in places else cell for place, cell in enumerate(row))
                     for row in table.rows)
        title, *heads = (re.sub("'([^']+)'", quoted, text) for text in (table.title, *table.columns))
        return replace(table, title=title, columns=tuple(heads), rows=rows,
                       notes=(*table.notes[:1], *self.legend(found), *table.notes[1:]))

    def frame(self, frame: pd.DataFrame) -> pd.DataFrame:
        """A copy whose encodings are named with their signs, to be drawn."""
        return frame.assign(encoding=[self.named(str(label)) for label in frame[ENCODING]])

    def told(self, frame: pd.DataFrame) -> pd.DataFrame:
        """A copy with two further columns in place of signs, to be written as CSV: labels stay those of other files."""
        trained = [str(label).partition(VARIANT)[0] for label in frame[ENCODING]]
        columns = {"other_budget": self.budgets, "own_options_searched": self.own}
        return frame.assign(**{name: pd.Series([what.get(label) for label in trained], index=frame.index, dtype=object)
                               for name, what in columns.items()})
