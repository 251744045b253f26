"""Parallel text from files: no line goes astray, and what cannot be aligned is refused with both counts."""

from __future__ import annotations

import gzip
import random
import re
from pathlib import Path

import pytest
from posbench.suites._translation_files import aligned, lines, parting
from posbench.suites.translation import SUITE

from posbench.config import DataConfig
from posbench.data import data_hash
from posbench.errors import UserError
from posbench.suite import TaskData

SHARED = Path(__file__).parents[1].parent / "shared" / "data" / "translation"
real = pytest.mark.skipif(not SHARED.is_dir(), reason="no original files beside the checkout (../shared/data)")
# Whatever some reader takes for the end of a line, inside of one.
ODD = ["a\u2028b", "c\u2029d", "e\x0bf", "g\x0ch", "i\x1cj", "k\x85l", "m\rn", "\ufeffo", "p\u00a0q", ""]


def write(folder: Path, name: str, texts: list[str], *, end: str = "\n", last: bool = True, begin: str = "") -> Path:
    path = folder / name
    content = (begin + end.join(texts) + (end if last else "")).encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def numbered(count: int, side: str, start: int = 0) -> list[str]:
    return [f"{side} {'w ' * (number % 7)}{number}" for number in range(start, start + count)]


def load(folder: Path, task: str = "en-de", **settings) -> TaskData:
    return SUITE.load(task, DataConfig(source="folder", path=str(folder), **settings))


def multi30k(folder: Path, rows: int = 30) -> None:
    for name, count in (("train", rows), ("val", 4), ("test_2016_flickr", 5)):
        for side in ("en", "de"):
            write(folder, f"{name}.{side}", numbered(count, f"{name} {side}"))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("begin", ["", "\ufeff"])
def test_only_a_line_feed_ends_a_line(tmp_path: Path, end: str, last: bool, begin: str) -> None:
    texts = [*ODD, "the end"]
    path = write(tmp_path, "a.en", texts, end=end, last=last, begin=begin)
    assert lines(path) == texts
    other = write(tmp_path, "a.de.gz", numbered(len(texts), "de"))
    pairs = aligned(path, other)
    assert [(pair.source, pair.target, pair.row) for pair in pairs] == [
        (text, number, row) for row, (text, number) in enumerate(zip(texts, numbered(11, "de"), strict=True), start=1)]


def test_empty_lines_are_lines_also_at_the_end(tmp_path: Path) -> None:
    assert lines(write(tmp_path, "a", ["x", "", "", "y", ""])) == ["x", "", "", "y", ""]
    one, other = write(tmp_path, "b.en", ["", "x", ""]), write(tmp_path, "b.de", ["", "y", ""])
    assert [(pair.source, pair.target) for pair in aligned(one, other)] == [("", ""), ("x", "y"), ("", "")]


@pytest.mark.parametrize("lost", [1, 3])
@pytest.mark.parametrize("place", [0, 17, 150, 299])
@pytest.mark.parametrize("side", [0, 1])
def test_a_count_that_differs_is_told_with_both_and_where_they_part(tmp_path: Path, lost: int, place: int,
                                                                    side: int) -> None:
    draw = random.Random(0)
    sizes = [draw.randint(2, 40) for _ in range(300)]
    sides = [["w" * size for size in sizes], ["w" * max(1, size + draw.randint(-1, 1)) for size in sizes]]
    place = min(place, 300 - lost)
    del sides[side][place : place + lost]
    paths = [write(tmp_path, f"train.{name}", texts) for name, texts in zip(("en", "de"), sides, strict=True)]
    with pytest.raises(UserError) as error:
        aligned(*paths)
    assert f"has {len(sides[0])} lines" in str(error.value) and f"has {len(sides[1])}" in str(error.value)
    assert abs(parting(*sides) - (place + 1)) <= 4, "as far as lengths of lines tell"


def test_multi30ks_layout_in_both_directions(tmp_path: Path) -> None:
    multi30k(tmp_path)
    data, back = load(tmp_path), load(tmp_path, "de-en")
    assert {name: len(rows.texts) for name, rows in data.splits.items()} == {
        "train": 30, "validation": 4, "test_2016_flickr": 5}
    assert data.scored == ("test_2016_flickr",) and data.selection == "validation"
    assert data.splits["train"].texts[2] == ("train en w w 2", "train de w w 2")
    assert [row[::-1] for row in back.splits["train"].texts] == data.splits["train"].texts
    assert data_hash(back) != data_hash(data)


def test_years_of_newstest_have_wmt14s_roles(tmp_path: Path) -> None:
    for year, count in ((2011, 7), (2012, 8), (2013, 3), (2014, 4)):
        for side in ("en", "de"):
            write(tmp_path, f"newstest{year}.{side}.gz", numbered(count, f"{year} {side}"))
    data = load(tmp_path)
    assert {name: len(rows.texts) for name, rows in data.splits.items()} == {
        "train": 15, "validation": 3, "newstest2014": 4}
    assert data.scored == ("newstest2014",)
    for side in ("en", "de"):
        (tmp_path / f"newstest2014.{side}.gz").unlink()
    assert load(tmp_path).scored == ("validation",)


@pytest.mark.parametrize("form", ["aligned", "tabs", "tabs back"])
def test_one_set_is_split_and_nothing_that_is_held_out_is_trained_on(tmp_path: Path, form: str) -> None:
    english, german = numbered(100, "en"), numbered(100, "de")
    english[50:60] = english[:10]  # other translations of the same sentences
    if form == "aligned":
        for side, texts in (("en", english), ("de", german)):
            write(tmp_path, f"tatoeba.{side}", texts)
    elif form == "tabs":
        rows = zip(english, german, strict=True)
        write(tmp_path, "tatoeba.en-de.tsv", [f"{one}\t{two}\tCC-BY {two}" for one, two in rows])
    else:
        write(tmp_path, "de-en.tsv.gz", [f"{two}\t{one}" for one, two in zip(english, german, strict=True)])
    data = load(tmp_path)
    sizes = {name: len(rows.texts) for name, rows in data.splits.items()}
    assert (sizes["validation"], sizes["test"]) == (10, 9) and data.scored == ("test",)
    train = {text for row in data.splits["train"].texts for text in row}
    assert not train & {text for name in ("validation", "test") for row in data.splits[name].texts for text in row}
    gone = 100 - sum(sizes.values())
    assert 0 < gone and f"{gone} pairs left out" in data.notes["train"]
    assert all(("en" in source, "de" in target) == (True, True) for source, target in data.splits["train"].texts)


def test_an_empty_side_is_left_out_of_training_and_refused_where_it_is_scored(tmp_path: Path) -> None:
    multi30k(tmp_path)
    texts = numbered(30, "train en")
    texts[4] = texts[9] = " "
    write(tmp_path, "train.en", texts)
    data = load(tmp_path)
    assert len(data.splits["train"].texts) == 28 and "2 pairs with an empty side" in data.notes["train"]
    assert data.splits["train"].texts[4] == (texts[5], "train de w w w w w 5")
    write(tmp_path, "test_2016_flickr.de", ["a", "b", "", "d", "e"])
    with pytest.raises(UserError, match=r"test_2016_flickr, row 3: the de side is empty"):
        load(tmp_path)
    write(tmp_path, "test_2016_flickr.de", ["", "", "", "", ""])
    with pytest.raises(UserError, match="the file is empty"):
        load(tmp_path)


@pytest.mark.parametrize(("task", "told"), [
    ("en-fr", r"no file of language 'fr' \(languages there: de, en\)"),
    ("cs-en", "no file of language 'cs'"),
])
def test_a_language_that_is_not_there(tmp_path: Path, task: str, told: str) -> None:
    multi30k(tmp_path)
    for name in ("README.md", "licence.txt", "counts.csv"):
        (tmp_path / name).write_text("about\n")
    with pytest.raises(UserError, match=told):
        load(tmp_path, task)


def test_other_mistakes_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        load(tmp_path / "nowhere")
    with pytest.raises(UserError, match="languages there: none"):
        load(tmp_path)
    for side in ("en", "de"):
        write(tmp_path, f"one.{side}", ["a", "b"])
        write(tmp_path, f"two.{side}", ["a", "b"])
    with pytest.raises(UserError, match="no set is named for training among one, two"):
        load(tmp_path)
    other = tmp_path / "tabs"
    other.mkdir()
    write(other, "x.en-de.tsv", ["a\tb", "only one"])
    with pytest.raises(UserError, match="row 2: one column"):
        load(other)
    write(other, "x.en-de.tsv", ["caf\xe9"])
    (other / "x.en-de.tsv").write_bytes(b"a\tb\ncaf\xe9\tc\n")
    with pytest.raises(UserError, match="row 2: not UTF-8"):
        load(other)


def test_one_set_is_read_from_one_place(tmp_path: Path) -> None:
    """Which of two would be read must not hang on the order of their names."""
    multi30k(tmp_path)
    before = data_hash(load(tmp_path))
    write(tmp_path, "train.de.gz", numbered(30, "train de"))
    assert data_hash(load(tmp_path)) == before, "a copy that says the same"
    write(tmp_path, "train.de.gz", numbered(30, "other de"))
    with pytest.raises(UserError, match=r"train.de and train.de.gz beside it hold other texts: leave one"):
        load(tmp_path)
    (tmp_path / "train.de.gz").unlink()
    write(tmp_path, "train.en-de.tsv", ["a\tb"])
    with pytest.raises(UserError, match="another set 'train' of en and de"):
        load(tmp_path)
    (tmp_path / "train.en-de.tsv").unlink()
    write(tmp_path, "train.de", numbered(30, "train en"))
    with pytest.raises(UserError, match=r"train.en and .*train.de hold the same text"):
        load(tmp_path)


def test_quotes_are_text_and_a_stray_tab_is_told(tmp_path: Path) -> None:
    """A quote that opened a field would swallow the lines up to the next one; a tab would move the columns."""
    rows = [f"{quote}en {number}\t{quote}de {number}" for number, quote in enumerate(["", '"', "'", '""', "", '"', ""])]
    write(tmp_path, "en-de.tsv", rows)
    data = load(tmp_path, held_out=0.2)
    assert {row for split in data.splits.values() for row in split.texts} == {tuple(row.split("\t")) for row in rows}
    write(tmp_path, "en-de.tsv", [*rows, "en\t8\tde 8"])
    with pytest.raises(UserError, match="row 8: 3 columns, row 1 has 2"):
        load(tmp_path)


@pytest.mark.parametrize("task", ["en-de", "de-en"])
def test_tatoebas_sentence_pairs_have_a_number_before_each_text(tmp_path: Path, task: str) -> None:
    write(tmp_path, "en-de.tsv", [f"{number}\ten {number}\t{number + 50}\tde {number}" for number in range(20)],
          begin="\ufeff", end="\r\n")
    data = load(tmp_path, task)
    pairs = {row for split in data.splits.values() for row in split.texts}
    sides = task.split("-")
    assert pairs == {(f"{sides[0]} {number}", f"{sides[1]} {number}") for number in range(20)}
    write(tmp_path, "en-de.tsv", ["1\ten 1\tde 1", "2\ten 2\tde 2"])
    with pytest.raises(UserError, match="the first column holds numbers alone"):
        load(tmp_path, task)


def test_lines_that_end_with_carriage_returns_are_no_one_line(tmp_path: Path) -> None:
    path = write(tmp_path, "train.en", ["a", "b", "c"], end="\r")
    with pytest.raises(UserError, match="one line, with 3 carriage returns in it"):
        lines(path)


@pytest.mark.parametrize("pairs", [0, 1, 2])
def test_sets_of_a_few_pairs_are_refused_or_read(tmp_path: Path, pairs: int) -> None:
    """One set of which two parts cannot be held out; with sets of their own one pair is a training set."""
    write(tmp_path, "set.en", [*numbered(pairs, "en"), "x", ""])
    write(tmp_path, "set.de", [*numbered(pairs, "de"), "", "y"])
    if pairs < 2:
        with pytest.raises(UserError, match=f"{pairs} training pairs of en and de are left"):
            load(tmp_path)
    else:
        assert not load(tmp_path).splits["test"].texts, "refused where all suites' empty splits are"
    for side in ("en", "de"):
        (tmp_path / f"set.{side}").unlink()
    multi30k(tmp_path, rows=1)
    assert len(load(tmp_path).splits["train"].texts) == 1


def test_references_are_the_files_own_characters(tmp_path: Path) -> None:
    multi30k(tmp_path)
    texts = ['"&quot; &amp; &lt; &gt;"', "„Zitat“ – Strich-Wort", "a\u2028b\x85c", " blank before", "e\u0301 é"]
    write(tmp_path, "test_2016_flickr.de", texts)
    assert [row[1] for row in load(tmp_path).splits["test_2016_flickr"].texts] == texts


def test_caps_are_a_part_in_its_order(tmp_path: Path) -> None:
    multi30k(tmp_path)
    data = load(tmp_path, train_rows=10, evaluation_rows=3)
    assert [len(rows.texts) for rows in data.splits.values()] == [10, 3, 3]
    whole = load(tmp_path).splits["train"].texts
    places = [whole.index(row) for row in data.splits["train"].texts]
    assert places == sorted(places) and "10 of 30 pairs" in data.notes["train"]


def test_the_hub_is_read_only_when_asked_and_in_the_direction_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def rows(*question):
        asked.append(question)
        return [{"translation": {"de": f"de {place}", "en": f"en {place}"}} for place in range(3)]

    monkeypatch.setattr("posbench.suites.translation.hub_rows", rows)
    data = SUITE.load("en-de", DataConfig(source="hub", revision="abc"))
    assert asked[0] == ("wmt/wmt14", "de-en", "train", "abc") and data.scored == ("test",)
    pinned = SUITE.load("en-de", DataConfig(source="hub"))
    assert re.fullmatch("[0-9a-f]{40}", asked[-1][3]) and len({question[3] for question in asked[3:]}) == 1
    assert pinned.notes["train"] == f"wmt/wmt14 at {asked[-1][3]}", "what was taken is told"
    assert data.splits["test"].texts[0] == ("en 0", "de 0")


@real
@pytest.mark.parametrize(("folder", "sizes"), [
    ("multi30k", {"train": 29000, "validation": 1014, "test_2016_flickr": 1000}),
    ("newstest", {"train": 2489 + 3003 + 3003, "validation": 3000}),
])
def test_real_files_lose_no_pair(folder: str, sizes: dict[str, int]) -> None:
    data = load(SHARED / folder)
    assert {name: len(rows.texts) for name, rows in data.splits.items()} == sizes


@real
def test_tatoebas_pairs_are_all_accounted_for() -> None:
    data = load(SHARED / "tatoeba")
    gone = int(data.notes["train"].split(", ")[-1].split()[0])
    assert sum(len(rows.texts) for rows in data.splits.values()) + gone == 17565
    assert ("en-fr" not in data.notes["train"]) and set(data.splits) == {"train", "validation", "test"}
