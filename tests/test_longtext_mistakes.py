"""Long text with damaged, hostile or incomplete input, and with lengths and variants that do not fit."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest
from posbench.suites.lm import SUITE as TEXTS
from posbench.suites.longtext import SUITE

from posbench.config import DataConfig, EvaluationConfig
from posbench.errors import UserError
from posbench.study import from_preset, plan
from posbench.suites import _lm_texts
from posbench.trial import load_rows, resolve
from tests.test_longtext import archive, folder, reviews

# Archives of reviews.


def test_an_archive_with_damage_anywhere_gives_no_rows(tmp_path: Path) -> None:
    """Python's tarfile takes a damaged header for the end of the archive, and would leave rows out in silence."""
    path = tmp_path / "aclImdb_v1.tar.gz"
    archive(path, reviews(60))
    whole = path.read_bytes()
    assert len(folder("text", tmp_path).splits["test"].texts) == 120
    for place in range(40, len(whole) - 4, len(whole) // 40):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        with pytest.raises(UserError, match="give an intact archive"):
            folder("text", tmp_path)
    for length in (1, 9, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match="give an intact archive") as told:
            folder("text", tmp_path)
        assert "\n" not in str(told.value)


def test_a_plain_archive_with_a_damaged_header_or_no_end_gives_no_rows(tmp_path: Path) -> None:
    archive(tmp_path / "packed.gz", reviews(60))
    whole = gzip.decompress((tmp_path / "packed.gz").read_bytes())
    path = tmp_path / "aclImdb.tar"
    path.write_bytes(whole)
    assert len(folder("text", tmp_path).splits["test"].texts) == 120
    middle = 1024 * 120  # each review is a header and a block
    for damaged in (whole[:middle] + b"\1" * 512 + whole[middle + 512 :], whole[:middle], whole[: middle + 100]):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="give an intact archive"):
            folder("text", tmp_path)


def test_names_in_an_archive_are_never_paths(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    evil = "../../escaped/train/pos/1_9.txt"
    archive(inside / "aclImdb_v1.tar.gz", reviews(3) | {evil: b"evil"})
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match="give an archive of one set"):
        folder("text", inside)
    assert sorted(tmp_path.rglob("*")) == before and not (tmp_path.parent / "escaped").exists()


def test_links_hidden_files_and_what_is_no_review_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "aclImdb_v1.tar.gz"
    members = reviews(5)
    with tarfile.open(path, "w:gz") as file:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))
        for kind, target in ((tarfile.SYMTYPE, "/etc/hostname"), (tarfile.LNKTYPE, next(iter(members)))):
            link = tarfile.TarInfo(f"aclImdb/train/pos/link{kind.decode()}.txt")
            link.type, link.linkname = kind, target
            file.addfile(link)
        for name in ("aclImdb/train/pos/._0_7.txt", "aclImdb/imdb.vocab"):
            entry = tarfile.TarInfo(name)
            entry.size = 3
            file.addfile(entry, io.BytesIO(b"\0\1\xff"))
    rows = folder("text", tmp_path).splits
    assert {name: len(part.texts) for name, part in rows.items()} == {"train": 9, "validation": 1, "test": 10}


def test_a_review_larger_than_any_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    archive(tmp_path / "aclImdb_v1.tar.gz", reviews(2) | {"aclImdb/test/pos/9_9.txt": bytes(2**24 + 1)})
    with pytest.raises(UserError, match=r"9_9.txt: more than 16,777,216 bytes are no review"):
        folder("text", tmp_path)


def test_a_name_that_comes_twice_is_one_review(tmp_path: Path) -> None:
    path = tmp_path / "aclImdb_v1.tar.gz"
    with tarfile.open(path, "w:gz") as file:
        for text in (b"first", b"second"):
            for name in reviews(1):
                entry = tarfile.TarInfo(name)
                entry.size = len(text)
                file.addfile(entry, io.BytesIO(text))
    splits = folder("text", tmp_path).splits
    assert splits["test"].texts == [("second",)] * 2  # what unpacking would leave
    assert sum(len(rows.texts) for rows in splits.values()) == 4


@pytest.mark.parametrize("missing", ["train/neg", "train/pos", "test/neg", "test/pos"])
def test_a_class_that_is_missing_is_named(tmp_path: Path, missing: str) -> None:
    members = {name: content for name, content in reviews().items() if missing not in name}
    archive(tmp_path / "aclImdb_v1.tar.gz", members)
    with pytest.raises(UserError, match=f"no reviews in aclImdb/{missing}"):
        folder("text", tmp_path)


def test_a_file_in_the_place_of_the_folder_is_named_as_one(tmp_path: Path) -> None:
    archive(tmp_path / "aclImdb_v1.tar.gz", reviews())
    with pytest.raises(UserError, match="is a file: give the folder that holds it"):
        folder("text", tmp_path / "aclImdb_v1.tar.gz")


def test_training_rows_of_one_class_are_refused_for_every_task(tmp_path: Path) -> None:
    for name in ("train", "eval", "test"):
        rows = "1\ta\tb\tone\ttwo\n" + ("" if name == "train" else "0\ta\tb\tone\tthree\n")
        (tmp_path / f"new_aan_pairs.{name}.tsv").write_text(rows)
    with pytest.raises(UserError, match=r"the split 'train' has one label alone \(1 row\),"):
        load_rows("longtext", "matching", DataConfig(source="folder", path=str(tmp_path)))


# Expressions.


@pytest.mark.parametrize(("rows", "told"), [
    ("", "holds no rows, only a header"),
    ("[MUL 1 2 ]\t2\n", r"row 2: no expression of ListOps \('\[MUL' is no token"),
    ("\t2\n", r"row 2: no expression of ListOps \(it is empty\)"),
    ("3 4\t3\n", "something stands behind the end"),
    ("[MAX 1 2\t2\n", "a bracket is not closed"),
    ("1 ]\t1\n", "something stands behind the end"),
    ("[MAX ]\t1\n", "a bracket closes nothing"),
    ("[MAX 1 2 ]\t2.0\n", r"given as '2.0' and is 2"),
    ("[MAX 1 2 ]\n", "row 2: 1 column, row 1 has 2"),
    ("[MAX 1 2 ]\t2\t7\n", "row 2: 3 columns, row 1 has 2"),
    ("[MAX 10 2 ]\t10\n", "'10' is no token"),
    ("[MAX ٣ 2 ]\t3\n", "'٣' is no token"),
])
def test_rows_that_are_no_expressions_are_told(tmp_path: Path, rows: str, told: str) -> None:
    for name in ("train", "val", "test"):
        (tmp_path / f"basic_{name}.tsv").write_text(f"Source\tTarget\n{rows}", encoding="utf-8")
    with pytest.raises(UserError, match=told):
        folder("listops", tmp_path)


def test_deep_nesting_is_read_and_a_wrong_value_in_its_depth_told(tmp_path: Path) -> None:
    deep = "[MAX 1 " * 20000 + "[SM 9 4 ] " + "] " * 20000
    for name in ("train", "val", "test"):
        (tmp_path / f"basic_{name}.tsv").write_text(f"Source\tTarget\n{deep}\t3\n[MAX 1 2 ]\t2\n")
    assert folder("listops", tmp_path, max_length=10**5).splits["test"].labels == [3, 2]
    (tmp_path / "basic_test.tsv").write_text(f"Source\tTarget\n{deep}\t4\n")
    with pytest.raises(UserError, match="row 2: the value is given as '4' and is 3"):
        folder("listops", tmp_path, max_length=10**5)


def test_expressions_that_stand_in_train_too_are_counted(tmp_path: Path) -> None:
    for name, rows in (("train", "[MAX 1 2 ]\t2\n[MAX 1 3 ]\t3\n"), ("val", "[MAX 1 4 ]\t4\n"),
                       ("test", "( ( [MAX 1 ) 2 ) ]\t2\n[MAX 2 1 ]\t2\n[MIN 1 2 ]\t1\n")):
        (tmp_path / f"basic_{name}.tsv").write_text(f"Source\tTarget\n{rows}")
    notes = folder("listops", tmp_path).notes
    assert notes["test"].endswith("; 1 of 3 rows stand in train too") and "stand in" not in notes["validation"]


# Triplets.

PLAIN = [{"A": f"a{row}", "B": f"b{row}", "C": f"c{row}"} for row in range(10)]
LABELLED = [row | {"label": "BC"[place % 2]} for place, row in enumerate(PLAIN)]


def lines(rows: list[dict[str, str]]) -> str:
    return "\n".join(map(json.dumps, rows)) + "\n"


def test_labels_of_a_part_of_the_rows_are_refused(tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_text(lines(LABELLED[:5] + PLAIN[5:]))
    with pytest.raises(UserError, match="row 6: no 'label', unlike row 1"):
        folder("cail-512", tmp_path)
    (tmp_path / "input.txt").write_text(lines(PLAIN[:5] + LABELLED[5:]))
    with pytest.raises(UserError, match="row 6: a 'label', unlike row 1"):
        folder("cail-512", tmp_path)


def test_a_test_without_labels_beside_labelled_training_rows_is_refused(tmp_path: Path) -> None:
    for name, rows in (("train", LABELLED), ("valid", LABELLED), ("test", PLAIN)):
        (tmp_path / f"{name}.json").write_text(lines(rows))
    with pytest.raises(UserError, match=r"test.json: no row has a 'label', and those of train.json have one"):
        folder("cail-512", tmp_path)


def test_json_that_nests_without_end_or_holds_half_a_character_is_told(tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_text("[" * 100000)
    with pytest.raises(UserError, match="row 1: neither is the file one JSON text nor this line"):
        folder("cail-512", tmp_path)
    (tmp_path / "input.txt").write_text(lines(PLAIN) + '{"A": "x\\ud800", "B": "b", "C": "c"}\n')
    with pytest.raises(UserError, match="row 11: field 'A' holds half of a character"):
        folder("cail-512", tmp_path)


# Running text.


def text(path: Path, task: str = "text") -> object:
    return TEXTS.load(task, DataConfig(source="folder", path=str(path)))


@pytest.mark.parametrize(("start", "kind"), [
    (b"PK\x03\x04", "zip"), (b"BZh9", "bzip2"), (b"\xfd7zXZ\0", "xz"), (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"\x28\xb5\x2f\xfd", "zstd"), (b"\x1f\x8b\x08", "gzip")])
def test_packed_bytes_are_no_text(tmp_path: Path, start: bytes, kind: str) -> None:
    (tmp_path / "enwik8.bin").write_bytes(start + bytes(range(256)) * 9)
    with pytest.raises(UserError, match=f"a {kind} file, whose bytes are no text: unpack it"):
        text(tmp_path)
    (tmp_path / "enwik8.bin").write_bytes(b"." + start + bytes(range(256)) * 9)
    assert text(tmp_path)


def test_a_text_of_a_few_bytes_is_told(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_bytes(b"abc")
    with pytest.raises(UserError, match=r"short.txt: 3 bytes are too few to hold out 0.1 of them"):
        text(tmp_path)


def test_a_piece_of_enwik8_is_told_apart_from_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "enwik8").write_bytes(b"ab" * 999)
    assert "1,998 bytes, where the published text has 100,000,000" in text(tmp_path, "enwik8").notes["test"]
    monkeypatch.setattr(_lm_texts, "WHOLE", 30_000_000)
    whole = _lm_texts._cut(bytes(30_000_000), "of it", 0.1, published=True)
    assert "published" not in whole.notes["test"] and len(whole.splits["test"].texts[0][0]) == 5_000_000
    # Any other text of that size is parted as its settings say.
    other = _lm_texts._cut(bytes(30_000_000), "of it", 0.2)
    assert len(other.splits["test"].texts[0][0]) == 3_000_000


def test_a_line_feed_behind_text8_is_none_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "text8").write_bytes(b"ab c" * 99 + b"\n")
    data = text(tmp_path, "text8")
    assert sum(len(rows.texts[0][0]) for rows in data.splits.values()) == 4 * 99
    assert data.splits["test"].texts[0][0][-1] == "c"


# Lengths.


@pytest.mark.parametrize(("task", "least", "most"), [
    ("copy", 3, 4096), ("addition", 6, 4096), ("recall", 5, 4096), ("passkey", 25, 4096), ("listops", 32, 1024),
    ("text", 32, 8192), ("matching", 64, 8192), ("cail-512", 60, 8192)])
def test_generated_rows_have_room_for_what_decides_and_an_end(task: str, least: int, most: int) -> None:
    for length in (least - 1, most + 1, 10**6):
        if length >= 4:
            with pytest.raises(UserError, match=f"max_length = {length} is too .* choose {least} to {most:,}"):
                SUITE.load(task, DataConfig(max_length=length))


def test_the_shortest_generated_documents_hold_what_decides_and_fit() -> None:
    for one, two in (row for rows in SUITE.load("matching", DataConfig(max_length=64)).splits.values()
                     for row in rows.texts):
        assert len(one) + len(two) + 3 <= 64
    from posbench.suites import _longtext_triplets

    for rows in SUITE.load("cail-512", DataConfig(max_length=60)).splits.values():
        for row in rows.texts:
            facts = [{fact for fact in _longtext_triplets.FACTS if fact in case} for case in row]
            assert [len(found) for found in facts] == [4, 4, 4] and len(row[0]) + len(row[1]) + 3 <= 60


@pytest.mark.parametrize("task", ["copy", "passkey", "recall", "addition"])
def test_at_the_shortest_length_every_symbol_is_learned_and_shared_rows_are_counted(task: str) -> None:
    from posbench.suites._longtext_generated import KINDS

    data = SUITE.load(task, DataConfig(max_length=max(4, KINDS[task].shortest)))
    known = {symbol for row in data.splits["train"].texts for text in row for symbol in text}
    assert known >= {symbol for rows in data.splits.values() for row in rows.texts for text in row for symbol in text}
    train = set(data.splits["train"].texts)
    for split in ("validation", "test"):
        shared = sum(row in train for row in data.splits[split].texts)
        assert data.notes[split] == "generated" + (
            f"; {shared} of {len(data.splits[split].texts)} rows stand in train too" if shared else "")
    if task == "copy":  # of one letter, and there are sixteen
        assert "200 of 200 rows" in data.notes["validation"]


# Scored lengths and variants.

GRID = {"train.steps": "2", "train.evaluations": "1", "model.width": "16", "model.heads": "2", "model.layers": "1",
        "model.feedforward": "32", "data.max_length": "16", "tasks": ["induction"], "seeds": [0],
        "encodings": [{"name": "nope"}, {"name": "rope"}]}


@pytest.mark.parametrize(("longest", "scored"), [("1", (16,)), ("3", (16, 32)), ("4", (16, 32, 64)),
                                                 ("6", (16, 32, 64)), ("15", (16, 32, 64, 128))])
def test_any_number_of_lengths_may_be_scored(longest: str, scored: tuple[int, ...]) -> None:
    from posbench.objective import objective_of

    one = plan(from_preset("longtext", "mini", {**GRID, "evaluation.longest": longest})).trials[0]
    objective = objective_of(one)
    assert objective.lengths == scored and objective.counts["test"] == 200 * len(scored)
    assert [len(objective._of_length("test", length)) for length in scored] == [200] * len(scored)


def test_lengths_without_rows_are_told_before_anything_is_trained() -> None:
    with pytest.raises(UserError, match=r"no row of 129 to 256 tokens: lower evaluation\.longest"):
        plan(from_preset("longtext", "mini", {**GRID, "evaluation.longest": "16"}))


@pytest.mark.parametrize(("variants", "told"), [
    ("rope -> rope_yarn, rope -> rope_yarn", "'rope -> rope_yarn' is named twice"),
    ("rop -> rope_yarn", "'rop' is not in the study, did you mean 'rope'"),
    ("alibi -> rope_yarn", "'alibi' is not in the study"),
    ("rope:base=500 -> rope_ntk", "'rope:base=500' is not in the study"),
    ("rope -> rope_yarn+attention=linear", r"changes the model, whose weights are trained: leave \+attention out"),
    ("rope -> rope_yarn:factor=0.5", "factor = 0.5, but it must be at least 1"),
    ("rope -> rope_yarn:factor=nan", "factor = nan, but it must be a finite number"),
])
def test_variants_that_would_be_lost_or_doubled_are_refused(variants: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        plan(from_preset("longtext", "mini", {**GRID, "evaluation.variants": variants}))


def test_a_presets_variants_need_not_be_in_the_study() -> None:
    from posbench.provenance import header, of_tasks

    whole = plan(from_preset("longtext", "mini", {**GRID, "encodings": [{"name": "nope"}]}))
    assert "variants" not in header(whole, {}, of_tasks(whole))
    whole = plan(from_preset("longtext", "mini", GRID))
    assert "rope -> rope_ntk:factor=8" in header(whole, {}, of_tasks(whole))["variants"]


def test_a_variant_keeps_the_options_that_the_trained_encoding_was_given() -> None:
    study = from_preset("longtext", "mini", {**GRID, "encodings": [{"name": "rope", "options": {"base": "500",
                                                                                                "layout": "half"}}]})
    evaluation = EvaluationConfig(variants="rope:base=500:layout=half -> rope_ntk:factor=4, "
                                           "rope:base=500:layout=half -> rope:base=9000")
    config = dataclasses.replace(study.trial(study.encodings[0], "induction", 0), evaluation=evaluation)
    ntk, other = (variant.options for variant in resolve(config).variants)
    assert (ntk.base, ntk.layout, ntk.factor) == (500, "half", 4)
    assert (other.base, other.layout) == (9000, "half")  # a base of its own is what was asked for
    assert [variant.label for variant in resolve(config).variants] == ["rope_ntk:factor=4", "rope:base=9000"]


@pytest.mark.parametrize("threshold", ["0", "-1", "1.01"])
def test_a_threshold_that_every_length_or_none_reaches_is_refused(threshold: str) -> None:
    with pytest.raises(UserError, match=r"evaluation\.threshold"):
        from_preset("longtext", "mini", {**GRID, "evaluation.threshold": threshold})
