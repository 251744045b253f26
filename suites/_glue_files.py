"""GLUE's original files: which file holds which split, and in which columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from posbench.config import DataConfig
from posbench.data import SEED, MissingTask, capped, find_file, held_out, part, read_json_rows, read_table
from posbench.errors import UserError
from posbench.numerals import counted
from posbench.suite import Rows, Task, TaskData


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where a task's columns are.

    Attributes:
        folder: name of the task's folder. texts, label: titles of the columns, or their indices without a header.
        names: label as the files write it -> index. dev: for each scored split the names of its file.
        train: names of the training file. test: a test file whose labels are public. header: the first line has titles.
        with_dev: a training file that holds the rows of dev too; they are taken out of it.
        unsure: a label that marks rows without an agreed one.
        ragged: published with a few rows that lack a column or a text; such rows are left out and counted.
    """

    folder: str
    texts: tuple[str | int, ...]
    label: str | int
    names: tuple[str, ...] = ("0", "1")
    dev: Mapping[str, tuple[str, ...]]
    train: tuple[str, ...] = ("train.tsv",)
    test: tuple[str, ...] = ()
    header: bool = True
    with_dev: str = ""
    unsure: str = ""
    ragged: bool = False


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
        with_dev="msr_paraphrase_train.txt",
        test=("msr_paraphrase_test.txt",),
    ),
    "stsb": Layout(folder="STS-B", texts=("sentence1", "sentence2"), label="score", names=(), dev=DEV),
    "qqp": Layout(folder="QQP", texts=("question1", "question2"), label="is_duplicate", dev=DEV, ragged=True),
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
    splits: dict[str, Rows] = {}
    notes: dict[str, str] = {}
    splits["train"], notes["train"] = _train(folder, layout, task)
    for split, names in layout.dev.items():
        if path := find_file(folder, names):
            splits[split], notes[split] = _file(path, layout, task)
    scored = tuple(name for name in splits if name != "train")
    if not scored:
        stay, out = held_out(splits["train"].labels, data.held_out, SEED)
        splits["validation"], splits["train"] = part(splits["train"], out), part(splits["train"], stay)
        notes["validation"] = (
            f"held out of train ({data.held_out:.0%}, stratified, seed {SEED}), as there is no labelled one"
        )
        scored = ("validation",)
        _leave_out(splits, notes)
        if layout.test and (path := find_file(folder, layout.test)):
            splits["test"], note = _file(path, layout, task)
            notes["test"] = f"{note}, whose labels are public"
            scored = ("test",)
    elif layout.with_dev and notes["train"].startswith(layout.with_dev):
        _leave_out(splits, notes)
    selection = next(name for name in splits if name != "train")
    return TaskData(splits=capped(splits, notes, data), scored=scored, selection=selection, notes=notes)


def _folder(root: Path, name: str, task: str) -> Path:
    if not root.is_dir():
        raise UserError(f"data folder '{root}' does not exist: give the folder that holds GLUE's folders")
    for folder in sorted(root.iterdir()):
        if folder.is_dir() and folder.name.lower() in (name.lower(), task):
            return folder
    raise MissingTask(f"task {task}: no folder '{name}' in {root}")


def _train(folder: Path, layout: Layout, task: Task) -> tuple[Rows, str]:
    if path := find_file(folder, layout.train):
        return _file(path, layout, task)
    sample = find_file(folder / "sample", ("train.json",)) or find_file(folder, ("train.json",))
    if sample is None:
        raise MissingTask(f"task {task.name}: no {' or '.join(layout.train)} in {folder}")
    fields = ("text_a", "text_b", "label") if len(task.texts) == 2 else ("text_a", "label")
    # What is no text becomes none, so that it is told as one that is empty.
    found = (
        (number, [row[name] if isinstance(row[name], str) else "" for name in fields[:-1]] + [str(row["label"])])
        for number, row in read_json_rows(sample, fields)
    )
    rows, note = read_rows(found, str(sample), task, layout.names, unsure=layout.unsure, ragged=layout.ragged)
    return rows, f"{sample.parent.name}/{sample.name}, a sample{note}"


def _file(path: Path, layout: Layout, task: Task) -> tuple[Rows, str]:
    titles = [*layout.texts, layout.label]
    broken: list[int] = []
    table = read_table(path, {str(title): title for title in titles}, header=layout.header,
                       broken=broken if layout.ragged else None)
    found = ((number, [row[str(title)] for title in titles]) for number, row in table)
    rows, note = read_rows(found, str(path), task, layout.names, unsure=layout.unsure, ragged=layout.ragged)
    return rows, path.name + note + (f", {counted(len(broken), 'row')} without all columns left out" if broken else "")


def read_rows(found: Iterable[tuple[int, list[str]]], place: str, task: Task, names: tuple[str, ...], *,
              unsure: str = "", ragged: bool = False) -> tuple[Rows, str]:
    """The rows of a split, checked, and what to note of those that were left out.

    Args:
        found: for each row its number and its texts with the label behind them.
        place: the file or data set, for messages.
        names: labels as this source writes them, in the order of the task's.
        unsure, ragged: as in Layout.

    Raises:
        UserError: an empty text, a label outside the set, or no row at all (place and row).
    """
    texts: list[tuple[str, ...]] = []
    labels: list[float] = []
    without_label = without_text = 0
    for number, (*row, label) in found:
        if unsure and label == unsure:
            without_label += 1
        elif all(text.strip() for text in row):
            texts.append(tuple(row))
            labels.append(_label(label, f"{place}, row {number}", names, task))
        elif ragged:
            without_text += 1
        else:
            raise UserError(f"{place}, row {number}: a text is empty: mend or remove the row")
    if not texts:
        raise UserError(f"{place}: no labelled row, so that {task.name} has an empty split")
    note = f", {counted(without_label, 'row')} without an agreed label left out" if without_label else ""
    note += f", {counted(without_text, 'row')} without a text left out" if without_text else ""
    return Rows(texts=texts, labels=labels), note


def _label(text: str, place: str, names: tuple[str, ...], task: Task) -> float:
    if task.kind == "classification":
        if text in names:
            return float(names.index(text))
        raise UserError(f"{place}: label '{text}' is none of {', '.join(names)}")
    low, high = task.bounds
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise UserError(f"{place}: score '{text}' is no number from {low:g} to {high:g}")
    return value


def _leave_out(splits: dict[str, Rows], notes: dict[str, str]) -> None:
    """Takes rows out of train whose texts stand in a split that was cut from it."""
    other = {texts for name, rows in splits.items() if name != "train" for texts in rows.texts}
    stay = [index for index, texts in enumerate(splits["train"].texts) if texts not in other]
    if gone := len(splits["train"].texts) - len(stay):
        notes["train"] += f", {counted(gone, 'row')} left out whose texts are in an evaluation split"
        splits["train"] = part(splits["train"], stay)
