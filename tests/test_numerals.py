"""Numerals: one of a thing is told in the singular, wherever the number of it may be one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from posbench.numerals import counted

ROOT = Path(__file__).resolve().parents[1]
NOUNS = ("trials|tasks|seeds|encodings|results|runs|checks|cores|threads|layers|heads|entries|columns|updates|epochs|"
         "points")
# A number that a name in capitals holds is no 1, nor are those that a ranking needs.
COUNT = re.compile(r"\{(?![A-Z_]+\}|test\.[kn]\}|[kn]\})[^{}]*\} (?:planned |tuning )?(?:" + NOUNS + r")\b")


@pytest.mark.parametrize(("count", "words", "told"), [
    (1, ("trial",), "1 trial"), (0, ("trial",), "0 trials"), (24, ("trial",), "24 trials"),
    (1, ("entry", "entries"), "1 entry"), (2, ("entry", "entries"), "2 entries"),
    (1.0, ("epoch",), "1 epoch"), (0.5, ("epoch",), "0.5 epochs"), (3.0, ("epoch",), "3 epochs"),
])
def test_a_count_and_its_noun_agree(count: float, words: tuple[str, ...], told: str) -> None:
    assert counted(count, *words) == told


@pytest.mark.parametrize("folder", ["posbench", "suites", "reports", "encodings"])
def test_no_text_has_a_plural_behind_a_number_that_may_be_one(folder: str) -> None:
    found = [f"{file.name}: {line.strip()}" for file in sorted((ROOT / folder).glob("*.py"))
             for line in file.read_text().split("\n") if COUNT.search(line)]
    assert not found
