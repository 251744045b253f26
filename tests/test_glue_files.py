"""GLUE's original files and the hub: rows, labels, what is held out, and what is left out."""

import json
from pathlib import Path

import numpy as np
import pytest
from posbench.suites.glue import SUITE

from posbench.config import DataConfig
from posbench.data import MissingTask, data_hash
from posbench.errors import UserError

GLUE = Path(__file__).parents[1].parent / "shared" / "data" / "glue"
real = pytest.mark.skipif(not GLUE.is_dir(), reason="no original files beside the checkout (../shared/data/glue)")
TASKS = tuple(SUITE.tasks)

SAMPLES = {
    "cola": ("CoLA", "train.tsv", None, "src\t{label}\t\tWords {n}.", ("0", "1")),
    "sst2": ("SST-2", "train.tsv", "sentence\tlabel", "words {n} \t{label}", ("0", "1")),
    "mrpc": ("MRPC", "msr_paraphrase_train.txt", "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
             '{label}\t1\t2\tSaid " once {n} .\tSaid twice {n} .', ("0", "1")),
    "stsb": ("sts-b", "train.tsv", "index\tsentence1\tsentence2\tscore", "{n}\tone {n}\tother {n}\t{label}",
             ("0.5", "5.000")),
    "qqp": ("QQP", "train.tsv", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
            "1\t2\t3\ta {n}?\tb {n}?\t{label}", ("0", "1")),
    "mnli": ("MNLI", "train.tsv", "index\tgenre\tsentence1\tsentence2\tlabel1\tgold_label",
             "{n}\tx\tp {n}\th {n}\tneutral\t{label}", ("entailment", "neutral", "contradiction")),
    "qnli": ("QNLI", "train.tsv", "index\tquestion\tsentence\tlabel", "{n}\tq {n}\ts {n}\t{label}",
             ("entailment", "not_entailment")),
    "rte": ("rte", "train.tsv", "index\tsentence1\tsentence2\tlabel", "{n}\tp {n}\th {n}\t{label}",
            ("entailment", "not_entailment")),
    "wnli": ("WNLI", "train.tsv", "index\tsentence1\tsentence2\tlabel", "{n}\tp {n}\th {n}\t{label}", ("0", "1")),
}


def write(root: Path, task: str, name: str | None = None, rows: int = 40, more: str = "", start: int = 0) -> Path:
    """A small file in the task's original layout, its labels in blocks."""
    folder, train, header, line, labels = SAMPLES[task]
    path = root / folder / (name or train)
    path.parent.mkdir(exist_ok=True)
    lines = [line.format(n=start + n, label=labels[n * len(labels) // rows]) for n in range(rows)]
    path.write_text("\n".join(([header] if header else []) + lines) + "\n" + more)
    return path


def load(root: Path, task: str, **settings):
    return SUITE.load(task, DataConfig(source="folder", path=str(root), **settings))


@pytest.mark.parametrize("task", TASKS)
def test_original_layout_without_dev_holds_out_a_stratified_part_of_train(tmp_path, task):
    write(tmp_path, task)
    data = load(tmp_path, task, held_out=0.25)
    assert data.scored == ("validation",) and set(data.splits) == {"train", "validation"}
    assert [len(rows.texts) for rows in data.splits.values()] == [30, 10]
    assert not set(data.splits["train"].texts) & set(data.splits["validation"].texts)
    kinds = len(SUITE.tasks[task].labels) or 2
    counts = np.unique(data.splits["validation"].labels, return_counts=True)[1]
    assert len(counts) == kinds and counts.max() - counts.min() <= 1
    assert "held out of train" in data.notes["validation"] and "25%" in data.notes["validation"]
    assert data_hash(data) == data_hash(load(tmp_path, task, held_out=0.25))


@pytest.mark.parametrize("task", [task for task in TASKS if task != "mnli"])
def test_dev_is_scored_and_an_unlabelled_test_is_never_opened(tmp_path, task):
    write(tmp_path, task)
    write(tmp_path, task, "dev.tsv", rows=8, start=100)
    (tmp_path / SAMPLES[task][0] / "test.tsv").write_bytes(b"\xff\xfe broken")
    data = load(tmp_path, task)
    assert data.scored == ("validation",) and len(data.splits["train"].texts) == 40
    assert len(data.splits["validation"].texts) == 8


def test_mnlis_two_dev_sets_stay_apart_and_rows_without_gold_are_counted(tmp_path):
    write(tmp_path, "mnli")
    write(tmp_path, "mnli", "dev_matched.tsv", rows=9, more="99\tx\tp\th\tneutral\t-\n")
    write(tmp_path, "mnli", "dev_mismatched.tsv", rows=6, start=50)
    data = load(tmp_path, "mnli")
    assert data.scored == ("validation_matched", "validation_mismatched") == SUITE.tasks["mnli"].evaluations
    assert [len(data.splits[name].texts) for name in data.scored] == [9, 6]
    assert data.selection == "validation_matched"
    assert "1 row without an agreed label" in data.notes["validation_matched"]
    # The label is found by its name, whatever its index in another loader.
    assert data.splits["validation_matched"].labels == [0.0] * 3 + [1.0] * 3 + [2.0] * 3


def test_mrpcs_public_test_labels_are_scored_and_select_nothing(tmp_path):
    write(tmp_path, "mrpc")
    write(tmp_path, "mrpc", "msr_paraphrase_test.txt", rows=6, start=100)
    data = load(tmp_path, "mrpc")
    assert data.scored == ("test",) and data.selection == "validation" and len(data.splits["test"].texts) == 6


def test_rows_of_dev_are_taken_out_of_mrpcs_whole_training_file(tmp_path):
    write(tmp_path, "mrpc")
    write(tmp_path, "mrpc", "dev.tsv", rows=8)
    data = load(tmp_path, "mrpc")
    assert not set(data.splits["train"].texts) & set(data.splits["validation"].texts)
    assert len(data.splits["train"].texts) == 32 and "8 rows left out" in data.notes["train"]


@pytest.mark.parametrize(("task", "line", "told"), [
    ("cola", "src\t2\t\tWords.", "row 41: label '2' is none of 0, 1"),
    ("sst2", "words\t-1", "row 42: label '-1' is none of 0, 1"),
    ("sst2", "words\t", "row 42: label '' is none of"),
    ("sst2", "  \t1", "row 42: a text is empty"),
    ("qnli", "1\tq\ts\tentails", "row 42: label 'entails' is none of entailment, not_entailment"),
    ("rte", "1\tp\th\t0", "row 42: label '0' is none of"),
    ("stsb", "1\ta\tb\t5.1", "row 42: score '5.1' is no number from 0 to 5"),
    ("stsb", "1\ta\tb\tnan", "row 42: score 'nan' is no number"),
    ("stsb", "1\ta\tb\tgood", "row 42: score 'good' is no number"),
    ("mrpc", "1\t1\t2\tonly one", "row 42: 4 columns"),
])
def test_a_wrong_row_is_told_with_file_and_row(tmp_path, task, line, told):
    path = write(tmp_path, task, more=line + "\n")
    with pytest.raises(UserError) as error:
        load(tmp_path, task)
    assert told in str(error.value) and str(path) in str(error.value)


def test_qqps_known_broken_rows_are_left_out_and_counted(tmp_path):
    write(tmp_path, "qqp", more="1\t2\t3\thalf a row\n1\t2\t3\t\tno first question?\t0\n")
    data = load(tmp_path, "qqp")
    assert sum(len(rows.texts) for rows in data.splits.values()) == 40
    assert "1 row without a text left out" in data.notes["train"]
    assert "1 row without all columns left out" in data.notes["train"]


def test_a_missing_task_is_of_its_own_kind_and_names_what_was_looked_for(tmp_path):
    with pytest.raises(MissingTask, match="'CoLA'"):
        load(tmp_path, "cola")
    (tmp_path / "CoLA").mkdir()
    with pytest.raises(MissingTask, match=r"train\.tsv"):
        load(tmp_path, "cola")
    with pytest.raises(UserError, match="does not exist"):
        load(tmp_path / "nowhere", "cola")
    write(tmp_path, "cola", rows=0).write_text("")
    with pytest.raises(UserError, match="empty"):
        load(tmp_path, "cola")


def test_caps_keep_shares_and_leave_what_is_held_out_as_it_was(tmp_path):
    write(tmp_path, "sst2", rows=400)
    data, capped = load(tmp_path, "sst2"), load(tmp_path, "sst2", train_rows=50, evaluation_rows=10)
    assert [len(rows.labels) for rows in capped.splits.values()] == [50, 10]
    assert [sum(rows.labels) for rows in capped.splits.values()] == [25, 5]
    for name, rows in capped.splits.items():
        assert set(rows.texts) < set(data.splits[name].texts)
    assert "50 of 360 rows" in capped.notes["train"] and "10 of 40 rows" in capped.notes["validation"]


def test_a_json_sample_stands_in_for_train_and_says_so(tmp_path):
    (tmp_path / "MNLI" / "sample").mkdir(parents=True)
    names = SUITE.tasks["mnli"].labels
    entries = {str(n): {"text_a": f"p {n}", "text_b": f"h {n}", "label": names[n % 3]} for n in range(30)}
    path = tmp_path / "MNLI" / "sample" / "train.json"
    path.write_text(json.dumps(entries))
    data = load(tmp_path, "mnli")
    assert "a sample" in data.notes["train"] and len(data.splits["train"].texts) == 27
    entries["7"]["text_b"] = None
    path.write_text(json.dumps(entries))
    with pytest.raises(UserError, match="row 8: a text is empty"):
        load(tmp_path, "mnli")


def test_hidden_labels_of_the_hub_are_refused_and_names_decide(monkeypatch):
    rows = [{"sentence1": "a", "sentence2": "b", "label": name} for name in ("not_entailment", "entailment")]
    monkeypatch.setattr("posbench.suites.glue.hub_rows", lambda *asked: rows)
    data = SUITE.load("rte", DataConfig(source="hub"))
    assert data.splits["train"].labels == [1.0, 0.0] and "nyu-mll/glue at " in data.notes["train"]
    # WNLI's classes stand the other way round.
    assert SUITE.load("wnli", DataConfig(source="hub")).splits["train"].labels == [0.0, 1.0]
    rows.append({"sentence1": "a", "sentence2": "b", "label": -1})
    with pytest.raises(UserError, match="row 2: label '-1' is none of"):
        SUITE.load("rte", DataConfig(source="hub"))


# The real files, where they are.

# Training and evaluation rows as published with the files; held out are 10 % of train.
PUBLISHED = {
    "cola": (8551, {"validation": 1043}), "sst2": (67349, {"validation": 872}), "mrpc": (3668, {"test": 1725}),
    "stsb": (5749, {}), "qqp": (8999, {}), "mnli": (8999, {}), "qnli": (8999, {"validation": 5463}), "rte": (2490, {}),
    "wnli": (635, {"validation": 71}),
}


@real
@pytest.mark.parametrize("task", TASKS)
def test_real_files_lose_no_row(task):
    data = load(GLUE, task)
    sizes = {name: len(rows.texts) for name, rows in data.splits.items()}
    train, others = PUBLISHED[task]
    assert {name: size for name, size in sizes.items() if name in others} == others
    left = int(data.notes["train"].split(", ")[-1].split()[0]) if "left out" in data.notes["train"] else 0
    held = sizes["validation"] if "held out" in data.notes.get("validation", "") else 0
    assert sizes["train"] + held + left == train and held in (0, round(train / 10))
    assert left <= 10
    kind = SUITE.tasks[task]
    for rows in data.splits.values():
        labels = set(rows.labels)
        assert labels == set(map(float, range(len(kind.labels)))) if kind.labels else all(0 <= y <= 5 for y in labels)
        assert {len(row) for row in rows.texts} == {len(kind.texts)}
    held_rows = data.splits["validation"].texts if held else []
    assert not set(held_rows) & set(data.splits["train"].texts)


@real
def test_real_texts_are_those_of_the_files():
    assert load(GLUE, "cola").splits["validation"].texts[0] == ("The sailors rode the breeze clear of the rocks.",)
    assert load(GLUE, "sst2").splits["validation"].texts[0] == ("it 's a charming and often affecting journey . ",)
    first = load(GLUE, "mrpc").splits["test"]
    assert first.texts[0][0].startswith("PCCW 's chief operating officer , Mike Butcher") and first.labels[0] == 1
    # 66.5 % of MSRP's test pairs are paraphrases (Dolan and Brockett 2005).
    assert np.mean(first.labels) == pytest.approx(0.665, abs=0.001)
