"""Documents as bytes: pairs of them, and generated ones of both kinds."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
from torch import nn

from posbench.config import DataConfig
from posbench.data import MissingTask, capped, find_below, read_table, shared
from posbench.errors import UserError
from posbench.lengths import PARTS
from posbench.objective import Scores, Sequences
from posbench.seeds import number
from posbench.suite import Rows, TaskData
from posbench.tokens import Encoded

# Raise the suite's version when anything here changes: these numbers and words are the data.
SEED = 2024
SIZES = {"train": 4000, "validation": 400, "test": 800}
GOOD, BAD = ("superb", "moving", "bright", "clever"), ("dull", "clumsy", "empty", "flat")
OTHERS = ("my friend", "the press", "my sister", "everyone else")
NAMES = ("smith", "jones", "brown", "clark", "lewis", "young")
PLACES = ("paris", "rome", "cairo", "delhi", "lima", "oslo")
DEEDS = ("sold a house in", "opened a shop in", "lost a case in", "taught in")


class Documents(Sequences):
    """Sequences whose accuracy is also told of rows that the model reads whole, and of those that lost their end."""

    def score(self, model: nn.Module, split: str) -> Scores:
        scores = super().score(model, split)
        whole = self.whole(self.splits[split])
        gold, predicted = (scores.arrays[f"{split}/{what}"] for what in ("gold", "predicted"))
        metric = self.trial.task.primary_metric
        if whole.any() and not whole.all():
            for part, name in zip((whole, ~whole), PARTS, strict=True):
                value = float(metric.function(gold=gold[part], predicted=predicted[part]))
                scores.rows.append(scores.rows[0] | {"metric": metric.name + name, "value": value, "n": int(part.sum()),
                                                     "primary": False})
        return scores

    def whole(self, data: Encoded) -> np.ndarray:
        """(N,) bool: rows of which nothing is cut."""
        return data.full <= data.lengths


def load_pairs(data: DataConfig) -> TaskData:
    """new_aan_pairs.train.tsv, .eval.tsv and .test.tsv of the Long Range Arena: label, two ids, two documents."""
    splits, notes = {}, {}
    for split, name in (("train", "train"), ("validation", "eval"), ("test", "test")):
        path = find_below(Path(data.path or "."), (f"new_aan_pairs.{name}.tsv",))
        if path is None:
            raise MissingTask(f"task matching: no new_aan_pairs.{name}.tsv in {data.path}")
        texts: list[tuple[str, ...]] = []
        labels: list[float] = []
        table = read_table(path, {"label": 0, "id1": 1, "id2": 2, "one": 3, "two": 4}, header=False)
        for row, fields in table:
            if fields["label"] not in ("0", "1", "0.0", "1.0"):
                raise UserError(f"{path}, row {row}: label '{fields['label']}' is neither 0 nor 1")
            if not fields["one"].strip() or not fields["two"].strip():
                raise UserError(f"{path}, row {row}: a document is empty: mend or remove the row")
            texts.append((fields["one"], fields["two"]))
            labels.append(float(fields["label"]))
        splits[split], notes[split] = Rows(texts=texts, labels=labels), path.name
    return TaskData(splits=shared(capped(splits, notes, data), notes), scored=("test",), notes=notes)


def documents(task: str, longest: int) -> TaskData:
    """Documents that fill most of `longest` bytes, special tokens included; what decides lies anywhere in them."""
    make = _review if task == "text" else _pair
    splits = {}
    for split, size in SIZES.items():
        draw = Random(number(SEED, "longtext", task, split, longest))
        rows = [(make(draw, row % 2, longest), float(row % 2)) for row in range(size)]
        draw.shuffle(rows)
        splits[split] = Rows(texts=[texts for texts, _ in rows], labels=[label for _, label in rows])
    return TaskData(splits=splits, scored=("test",), notes=dict.fromkeys(splits, "generated"))


def _found(draw: Random, who: str, good: bool) -> str:
    """'i found it superb.' or 'i did not find it dull.'"""
    if draw.random() < 0.5:
        return f"{who} found it {draw.choice(GOOD if good else BAD)}. "
    return f"{who} did not find it {draw.choice(BAD if good else GOOD)}. "


def _review(draw: Random, label: int, longest: int) -> tuple[str, ...]:
    """The writer's own judgement among those of others, which say as often one thing as the other."""
    sentences = [_found(draw, "i", bool(label))]
    while sum(map(len, sentences)) < longest - 45:
        sentences.append(_found(draw, draw.choice(OTHERS), draw.random() < 0.5))
    draw.shuffle(sentences)
    return ("".join(sentences)[: longest - 2],)


def _pair(draw: Random, label: int, longest: int) -> tuple[str, ...]:
    """Two documents that report one deed alike, or with another person; the other deeds are those of strangers."""
    name, place, deed = draw.choice(NAMES), draw.choice(PLACES), draw.choice(DEEDS)
    other = name if label else draw.choice([entry for entry in NAMES if entry != name])
    return tuple(_report(draw, f"{who} {deed} {place}. ", deed, longest // 2 - 30) for who in (name, other))


def _report(draw: Random, fact: str, deed: str, room: int) -> str:
    sentences = [fact]
    while sum(map(len, sentences)) < room:
        other = draw.choice([entry for entry in DEEDS if entry != deed])
        sentences.append(f"{draw.choice(NAMES)} {other} {draw.choice(PLACES)}. ")
    draw.shuffle(sentences)
    return "".join(sentences)
