"""GLUE's original files: which file holds which split, and in which columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from posbench.config import DataConfig
from posbench.data import MissingTask, find_file, held_out, read_json_rows, read_table, stratified_part
from posbench.errors import UserError
from posbench.suite import Rows, Task, TaskData

# One part for all trials: which rows are held out must not change with the seed of a trial.
SEED = 0


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where a task's columns are.

    Attributes:
        folder: name of the task's folder. texts, label: titles of the columns, or their indices without a header.
        names: label as the files write it -> index. dev: for each scored split the names of its file.
        train: names of the training file. test: a test file whose labels are public. header: the first line has titles.
        unsure: a label that marks rows without an agreed one.
    """

    folder: str
    texts: tuple[str | int, ...]
    label: str | int
    names: tuple[str, ...] = ("0", "1")
    dev: dict[str, tuple[str, ...]]
    train: tuple[str, ...] = ("train.tsv",)
    test: tuple[str, ...] = ()
    header: bool = True
    unsure: str = ""


DEV = {"validation": ("dev.tsv",)}
ENTAILS = ("entailment", "not_entailment")
LAYOUTS = {
    "cola": Layout(folder="CoLA", texts=(3,), label=1, dev=DEV, header=False),
    "sst2": Layout(folder="SST-2", texts=("sentence",), label="label", dev=DEV),
    "mrpc": Layout(
        folder="MRPC",
        texts=("#1 String", "#2 String"),
        label="Quality",
        dev=DEV,
        train=("train.tsv", "msr_paraphrase_train.txt"),
        test=("msr_paraphrase_test.txt",),
    ),
    "stsb": Layout(folder="STS-B", texts=("sentence1", "sentence2"), label="score", names=(), dev=DEV),
    "qqp": Layout(folder="QQP", texts=("question1", "question2"), label="is_duplicate", dev=DEV),
    "mnli": Layout(
        folder="MNLI",
        texts=("sentence1", "sentence2"),
        label="gold_label",
        names=("entailment", "neutral", "contradiction"),
        unsure="-",
        dev={"validation_matched": ("dev_matched.tsv",), "validation_mismatched": ("dev_mismatched.tsv",)},
    ),
    "qnli": Layout(folder="QNLI", texts=("question", "sentence"), label="label", names=ENTAILS, dev=DEV),
    "rte": Layout(folder="RTE", texts=("sentence1", "sentence2"), label="label", names=ENTAILS, dev=DEV),
    "wnli": Layout(folder="WNLI", texts=("sentence1", "sentence2"), label="label", dev=DEV),
}


def load_folder(task: Task, data: DataConfig) -> TaskData:
    """The labelled splits of a task from a folder of original files; unlabelled test files are never opened.

    Raises:
        MissingTask: the task's folder or its training file is not there.
        UserError: a row or a label is wrong (file and row), or a split is empty.
    """
    layout = LAYOUTS[task.name]
    folder = _folder(Path(data.path or "."), layout.folder, task.name)
    notes: dict[str, str] = {}
    train, notes["train"] = _train(folder, layout, task)
    splits: dict[str, Rows] = {}
    for split, names in layout.dev.items():
        if path := find_file(folder, names):
            splits[split], note = _read(_rows(path, layout), path, layout, task)
            notes[split] = f"{path.name}{note}"
    scored = list(splits)
    if not splits:
        stay, out = held_out(train.labels, data.held_out, SEED)
        splits["validation"], train = part(train, out), part(train, stay)
        notes["validation"] = (
            f"held out of train ({data.held_out:.0%}, stratified, seed {SEED}), as there is no labelled one"
        )
        scored = ["validation"]
        if layout.test and (path := find_file(folder, layout.test)):
            splits["test"], note = _read(_rows(path, layout), path, layout, task)
            notes["test"] = f"{path.name}, whose labels are public{note}"
            scored = ["test"]
    whole = {"train": train, **splits}
    for name, rows in whole.items():
        limit = data.train_rows if name == "train" else data.evaluation_rows
        if limit is not None and limit < len(rows.labels):
            notes[name] += f", {limit} of {len(rows.labels)} rows (stratified, seed {SEED})"
            whole[name] = part(rows, stratified_part(rows.labels, limit, SEED))
    return TaskData(splits=whole, scored=tuple(scored), selection=next(iter(splits)), notes=notes)


def _folder(root: Path, name: str, task: str) -> Path:
    if not root.is_dir():
        raise UserError(f"data folder '{root}' does not exist: give the folder that holds GLUE's folders")
    for folder in sorted(root.iterdir()):
        if folder.is_dir() and folder.name.lower() in (name.lower(), task):
            return folder
    raise MissingTask(f"task {task}: no folder '{name}' in {root}")


def _train(folder: Path, layout: Layout, task: Task) -> tuple[Rows, str]:
    if path := find_file(folder, layout.train):
        rows, note = _read(_rows(path, layout), path, layout, task)
        return rows, f"{path.name}{note}"
    sample = find_file(folder / "sample", ("train.json",)) or find_file(folder, ("train.json",))
    if sample is None:
        raise MissingTask(f"task {task.name}: no {' or '.join(layout.train)} in {folder}")
    fields = ("text_a", "text_b", "label") if len(task.texts) == 2 else ("text_a", "label")
    rows, note = _read(
        ((number, [str(row[name]) for name in fields]) for number, row in read_json_rows(sample, fields)),
        sample,
        layout,
        task,
    )
    return rows, f"{sample.parent.name}/{sample.name}, a sample{note}"


def _rows(path: Path, layout: Layout) -> Iterator[tuple[int, list[str]]]:
    titles = [*layout.texts, layout.label]
    for number, row in read_table(path, {str(title): title for title in titles}, header=layout.header):
        yield number, [row[str(title)] for title in titles]


def _read(rows: Iterator[tuple[int, list[str]]], path: Path, layout: Layout, task: Task) -> tuple[Rows, str]:
    texts: list[tuple[str, ...]] = []
    labels: list[float] = []
    unsure = 0
    for number, (*row, label) in rows:
        if layout.unsure and label == layout.unsure:
            unsure += 1
            continue
        if not all(text.strip() for text in row):
            raise UserError(f"{path}, row {number}: a text is empty: mend or remove the row")
        texts.append(tuple(row))
        labels.append(_label(label, path, number, layout, task))
    if not texts:
        raise UserError(f"{path}: no labelled row, so that {task.name} has an empty split")
    return Rows(texts=texts, labels=labels), f", {unsure} rows without an agreed label left out" if unsure else ""


def _label(text: str, path: Path, number: int, layout: Layout, task: Task) -> float:
    if task.kind == "classification":
        if text in layout.names:
            return layout.names.index(text)
        raise UserError(f"{path}, row {number}: label '{text}' is none of {', '.join(layout.names)}")
    low, high = task.bounds
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise UserError(f"{path}, row {number}: score '{text}' is no number from {low:g} to {high:g}")
    return value


def part(rows: Rows, indices: list[int]) -> Rows:
    return Rows(texts=[rows.texts[index] for index in indices], labels=[rows.labels[index] for index in indices])
