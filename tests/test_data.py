"""Reading files row by row, drawing parts that keep their shares, and telling two editions of a data set apart."""

import gzip
import json
import socket
import time
from pathlib import Path

import numpy as np
import pytest

from posbench.data import data_hash, find_file, held_out, hub_rows, read_json_rows, read_table, stratified_part
from posbench.errors import UserError
from posbench.suite import Rows, TaskData

COMMIT = 40 * "0"

COLUMNS = {"text": "sentence", "label": "label"}


def table(path: Path, content: str | bytes, columns=COLUMNS, **options):
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return list(read_table(path, columns, **{"header": True, **options}))


PLAIN = "sentence\tlabel\nfirst one\t1\nsecond one\t0\n"
ROWS = [(2, {"text": "first one", "label": "1"}), (3, {"text": "second one", "label": "0"})]


@pytest.mark.parametrize("content", [
    PLAIN, PLAIN.replace("\n", "\r\n"), "\ufeff" + PLAIN, "\ufeff" + PLAIN.replace("\n", "\r\n"),
    PLAIN.removesuffix("\n"),
], ids=["plain", "crlf", "bom", "bom and crlf", "no last line feed"])
@pytest.mark.parametrize("name", ["train.tsv", "train.tsv.gz"])
def test_flavours_of_one_file_are_one_table(tmp_path, content, name):
    assert table(tmp_path / name, content) == ROWS


@pytest.mark.parametrize("inside", [
    "\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r", "\0", '"', '""', "'", "NA", "null", " ", "\ufeff",
], ids=ascii)
def test_only_a_line_feed_ends_a_row_and_text_stays_byte_for_byte(tmp_path, inside):
    text = f"{inside}a{inside}b{inside}"
    rows = table(tmp_path / "x.tsv", f"sentence\tlabel\n{text}\t1\n{text}\t0\nlast\t1\n")
    assert [row["text"] for _, row in rows] == [text, text, "last"]
    assert [number for number, _ in rows] == [2, 3, 4]


def test_stray_quotes_eat_no_rows(tmp_path):
    lines = ['"starts and never ends\t1', "middle\t0", 'ends" here\t1', '"""\t0']
    rows = table(tmp_path / "x.tsv", "sentence\tlabel\n" + "\n".join(lines) + "\n")
    assert [f"{row['text']}\t{row['label']}" for _, row in rows] == lines


def test_columns_by_name_whatever_their_order_and_by_index_without_header(tmp_path):
    rows = table(tmp_path / "x.tsv", "id\tlabel\tmore\tsentence\n7\t1\t\twords\n")
    assert rows == [(2, {"text": "words", "label": "1"})]
    content = "gj04\t1\t\tWords.\ngj04\t0\t*\tWords the.\n"
    rows = table(tmp_path / "y.tsv", content, {"text": 3, "label": 1}, header=False)
    assert rows == [(1, {"text": "Words.", "label": "1"}), (2, {"text": "Words the.", "label": "0"})]


@pytest.mark.parametrize(("content", "told"), [
    ("sentence\tlabel\ngood\t1\nbad\n", "row 3: 1 column, row 1 has 2"),
    ("sentence\tlabel\ngood\t1\n\nlast\t1\n", "row 3: 1 column"),
    ("sentence\tlabel\na\tb\t1\n", "row 2: 3 columns"),
    ("sentence\tgold\na\t1\n", "row 1: no column 'label', only sentence, gold"),
    (b"sentence\tlabel\ngood\t1\nb\xe4d\t0\n", "row 3: not UTF-8 (byte 0xe4)"),
    ("", "empty"),
    ("\ufeff", "empty"),
])
def test_a_malformed_table_is_told_with_file_and_row(tmp_path, content, told):
    with pytest.raises(UserError) as error:
        table(tmp_path / "train.tsv", content)
    assert told in str(error.value) and "train.tsv" in str(error.value) and "\n" not in str(error.value)


def test_rows_of_another_width_are_left_out_only_when_asked_and_counted(tmp_path):
    broken: list[int] = []
    rows = table(tmp_path / "x.tsv", "sentence\tlabel\na\t1\nhalf\nb\t0\none\ttoo\tmany\n", broken=broken)
    assert [number for number, _ in rows] == [2, 4] and broken == [3, 5]


@pytest.mark.parametrize("content", [b"no gzip", gzip.compress(PLAIN.encode())[:-12], b"\x1f\x8b\x08" + bytes(30)],
                         ids=["no gzip", "cut short", "empty blocks"])  # the bytes hold the time, which names no test
def test_a_damaged_gzip_file_is_told(tmp_path, content):
    (tmp_path / "x.tsv.gz").write_bytes(content)
    with pytest.raises(UserError, match=r"x\.tsv\.gz"):
        list(read_table(tmp_path / "x.tsv.gz", COLUMNS, header=True))


ENTRIES = [{"text_a": "one\u2028two", "text_b": "b", "label": "0"}, {"text_a": "three", "text_b": "d", "label": 1}]


@pytest.mark.parametrize("content", [
    json.dumps({str(place): entry for place, entry in enumerate(ENTRIES)}, indent=4),
    json.dumps(ENTRIES),
    "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in ENTRIES),
], ids=["object", "list", "lines"])
@pytest.mark.parametrize("name", ["train.json", "train.json.gz"])
def test_three_kinds_of_json_are_one_table(tmp_path, content, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(content.encode()) if name.endswith("gz") else content.encode())
    assert list(read_json_rows(path, ("text_a", "text_b", "label"))) == [(1, ENTRIES[0]), (2, ENTRIES[1])]


def test_a_single_json_line_is_a_row(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps(ENTRIES[0]))
    assert list(read_json_rows(tmp_path / "x.json", ("label",))) == [(1, ENTRIES[0])]


@pytest.mark.parametrize(("content", "told"), [
    (json.dumps([ENTRIES[0], {"text_a": "x", "label": "0"}]), "row 2: no field 'text_b'"),
    (json.dumps({"0": ENTRIES[0], "1": {}}), "row 2: no field 'text_a'"),
    (json.dumps(ENTRIES[0]) + "\n{broken\n", "row 2"),
    (json.dumps(["words"]), "row 1: str where an object"),
    ("[]", "no rows"),
    ("{}", "no rows"),
    ("", "row 1"),
])
def test_malformed_json_is_told_with_file_and_row(tmp_path, content, told):
    (tmp_path / "train.json").write_text(content)
    with pytest.raises(UserError) as error:
        list(read_json_rows(tmp_path / "train.json", ("text_a", "text_b", "label")))
    assert told in str(error.value) and "train.json" in str(error.value)


def test_a_file_is_found_plain_or_packed_and_in_the_order_of_the_names(tmp_path):
    assert find_file(tmp_path, ("a.tsv",)) is None
    (tmp_path / "b.tsv.gz").touch()
    assert find_file(tmp_path, ("a.tsv", "b.tsv")) == tmp_path / "b.tsv.gz"
    (tmp_path / "a.tsv").touch()
    assert find_file(tmp_path, ("a.tsv", "b.tsv")) == tmp_path / "a.tsv"


@pytest.mark.parametrize("rows", [10, 77, 100, 333])
def test_a_part_of_sorted_rows_keeps_the_share_of_each_label(rows):
    labels = [0.0] * 500 + [1.0] * 300 + [2.0] * 200
    chosen = stratified_part(labels, rows, seed=0)
    assert len(set(chosen)) == rows and chosen == sorted(chosen)
    counts = np.bincount([int(labels[index]) for index in chosen], minlength=3)
    assert np.abs(counts - np.array([0.5, 0.3, 0.2]) * rows).max() < 1
    assert chosen == stratified_part(labels, rows, seed=0) != stratified_part(labels, rows, seed=1)
    # Never the first rows of a class.
    assert [index for index in chosen if index < 500] != list(range(counts[0]))


def test_a_part_of_numbers_keeps_their_distribution():
    scores = sorted(np.random.default_rng(0).beta(2, 1, size=1000) * 5)
    chosen = np.array([scores[index] for index in stratified_part(scores, 100, seed=0)])
    quantiles = np.linspace(0.1, 0.9, 9)
    assert np.abs(np.quantile(chosen, quantiles) - np.quantile(scores, quantiles)).max() < 0.25


def test_many_classes_are_no_numbers():
    labels = [float(index % 40) for index in range(400)]
    counts = np.bincount([int(labels[index]) for index in stratified_part(labels, 80, seed=0)])
    assert counts.tolist() == [2] * 40


def test_all_rows_where_there_are_no_more():
    assert stratified_part([0.0, 1.0, 0.0], 3, seed=0) == stratified_part([0.0, 1.0, 0.0], 9, seed=0) == [0, 1, 2]


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.999])
def test_what_is_held_out_is_disjoint_complete_and_stratified(share):
    labels = [0.0] * 150 + [1.0] * 50
    stay, out = held_out(labels, share, seed=0)
    assert sorted(stay + out) == list(range(200)) and stay == sorted(stay) and out == sorted(out) and stay and out
    ones = sum(labels[index] for index in out)
    assert abs(ones - 0.25 * len(out)) < 1


def some(text: str = "words here", label: float = 1.0, **more) -> TaskData:
    rows = Rows(texts=[(text,), ("other",)], labels=[label, 0.0])
    return TaskData(**{"splits": {"train": rows, "validation": rows}, "scored": ("validation",), **more})


def test_the_hash_tells_editions_apart_and_nothing_else():
    base = data_hash(some())
    assert base == data_hash(some(notes={"train": "said otherwise"})) == data_hash(some(label=1))
    swapped = Rows(texts=[("other",), ("words here",)], labels=[0.0, 1.0])
    others = [some("words hers"), some("words here "), some(label=0.0),
              some(splits={"train": swapped, "validation": swapped}),
              some(splits={"train": some().splits["train"]}, scored=("train",))]
    assert len({base, *map(data_hash, others)}) == len(others) + 1


def test_the_hash_does_not_run_texts_together():
    one = Rows(texts=[("ab", "c")], labels=[0.0])
    two = Rows(texts=[("a", "bc")], labels=[0.0])
    hashes = {data_hash(TaskData(splits={"train": rows}, scored=("train",))) for rows in (one, two)}
    assert len(hashes) == 2


def test_an_unreachable_hub_is_told_at_once_and_in_one_line(monkeypatch):
    import huggingface_hub
    from huggingface_hub import constants

    def unreachable(*args, **options):
        raise ConnectionError("no\nnetwork")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", unreachable)
    started = time.monotonic()
    with pytest.raises(UserError) as error:
        hub_rows("nobody/nothing", "cola", "train", COMMIT)
    assert str(error.value).startswith("hub data set nobody/nothing/cola, split train: ConnectionError: no network")
    assert time.monotonic() - started < 10 and "\n" not in str(error.value)


def test_no_test_reaches_another_machine():
    began = time.monotonic()
    with pytest.raises(OSError, match="tests ask nobody else"):
        socket.create_connection(("192.0.2.1", 80), timeout=5)
    assert time.monotonic() - began < 1


def test_hub_labels_are_names_and_a_hidden_one_stays_a_number(monkeypatch):
    import datasets
    from huggingface_hub import constants

    features = datasets.Features({"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=["b", "a"])})
    rows = datasets.Dataset.from_dict({"sentence": ["x", "y", "z"], "label": [0, 1, -1]}, features=features)
    asked = {}

    def load(*args, **options):
        asked.update(options)
        return rows

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets, "load_dataset", load)
    assert [row["label"] for row in hub_rows("some/set", "cola", "train", COMMIT)] == ["b", "a", -1]
    assert asked == {"split": "train", "revision": COMMIT}


@pytest.mark.parametrize("revision", ["main", "v1.0", "b199e40", COMMIT + "0", COMMIT.upper().replace("0", "G")])
def test_what_the_hub_may_change_is_no_revision(revision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=f"data.revision '{revision}' is no commit of some/set"):
        hub_rows("some/set", "cola", "train", revision)
