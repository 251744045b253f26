"""Interruptions are told in one sentence, which is all that a disturbed study's report has beside a calm one's."""

from __future__ import annotations

from typing import Any

import pytest

from posbench.interruptions import told
from posbench.report import Document
from posbench.store import Record
from posbench.tables import Table
from tests.torture import INTERRUPTIONS, calm_text


def record(label: str = "rope", seed: int = 0, tuning: Any = None, **facts: Any) -> Record:
    config = {"task": "cola", "seed": seed, "tuning": tuning}
    return Record(fingerprint=f"{label}{seed}", label=label, config=config, status="done",
                  facts={"device": "cpu", "resumed": 0, **facts})


CALM = [record(), record(seed=1), Record(fingerprint="x", label="x", config={}, status="diverged")]
KILLED = {"lost": ["signal 9 (SIGKILL)"]}
SAID = [
    (CALM, ""),
    ([*CALM, record(resumed=2)], "1 of 24 trials went on from a checkpoint (on CPU bitwise the same)"),
    ([record(resumed=1), record(resumed=1, device="cuda:0")],
     "2 of 24 trials went on from a checkpoint (on CPU bitwise the same and on a GPU not bitwise the same)"),
    ([record(resumed=1, device="cuda:1")],
     "1 of 24 trials went on from a checkpoint (on a GPU not bitwise the same)"),
    ([*CALM, record(seed=3, **KILLED)],
     "1 of 24 trials ran again, as its worker was ended from outside: rope cola seed 3"),
    ([record(resumed=1, **KILLED), record("t5", tuning={"thresholds": []}, **KILLED), *CALM],
     "1 of 24 trials went on from a checkpoint (on CPU bitwise the same); 2 ran again, as their worker was ended from "
     "outside: rope cola seed 0, t5 cola seed 0 in tuning"),
]


@pytest.mark.parametrize(("records", "said"), SAID)
def test_both_counts_are_told_and_nothing_where_nothing_happened(records: list[Record], said: str) -> None:
    assert told(records, 24) == said


def test_of_many_the_first_are_named() -> None:
    said = told([record(seed=seed, **KILLED) for seed in range(20)], 20)
    assert said.startswith("20 of 20 trials ran again") and said.endswith("rope cola seed 11 and 8 more")
    assert told([record(**KILLED)], 1).startswith("1 of 1 trial ran again")


@pytest.mark.parametrize("long", [False, True])
def test_without_that_entry_every_form_of_a_report_is_the_calm_one(long: bool) -> None:
    """The entry wraps in plain text, and a neighbour that wraps too must stay as it is."""
    said = told([record(seed=seed, resumed=1, **KILLED) for seed in range(11 if long else 1)], 24)
    rows = (("interruptions  a", "interruptions: b"),)
    table = Table(title="Interruptions", columns=("interruptions", "x"), rows=rows)
    before, after = [("content hashes", "cola 0123 " * 40)], [("splits", "test: " + "cola, " * 40)]
    common: dict[str, Any] = {"title": "t", "warnings": ("a warning",), "parts": (table,)}
    calm = Document(header=(*before, *after), **common)
    disturbed = Document(header=(*before, ("interruptions", said), *after), **common)
    forms = {".md": Document.markdown, ".tex": Document.latex, ".txt": Document.text, ".html": lambda own: own.html({})}
    assert forms.keys() == INTERRUPTIONS.keys()
    for ending, form in forms.items():
        assert said.split("; ")[0].split(" (")[0] in form(disturbed)
        assert form(disturbed) != form(calm) == calm_text(f"scoreboard{ending}", form(disturbed)), ending
        assert calm_text(f"scoreboard{ending}", form(calm)) == form(calm)
