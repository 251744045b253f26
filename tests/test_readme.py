"""README against the program: what it lists is there, and its table of proofs is what the encodings declare."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from posbench import testing
from posbench.contract import Check
from posbench.probe import Subject
from posbench.registry import ENCODINGS

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def taken_on_trust(check: Check) -> Check:
    """The check with every claim taken for true and nothing measured; tests/test_contracts.py measures them all."""
    def measure(subject: Subject) -> float:
        return 0.0 if check.declared(subject.bare()) is not False else 1.0

    return dataclasses.replace(check, measure=measure)


def unmeasured(markdown: str) -> str:
    """The table without what only a measurement tells: what stands in brackets, where nothing is claimed."""
    return re.sub(r"\((✓|✗)\)", "( )", markdown).strip()


def test_the_table_of_proofs_is_what_every_encoding_declares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stale rows, columns, titles or cells: write the output of `posbench check --markdown` in place of the table."""
    monkeypatch.setattr(testing, "CHECKS", tuple(map(taken_on_trust, testing.CHECKS)))
    declared = testing.truth_table({name: testing.check_encoding(name) for name in sorted(ENCODINGS.found())})
    told = README.partition("<!-- truth table: posbench check --markdown -->\n")[2].partition("\n## ")[0]
    assert unmeasured(told) == unmeasured(declared.markdown())
