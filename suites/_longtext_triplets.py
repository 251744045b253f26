"""CAIL2019-SCM (Xiao et al. 2019): of two court cases B and C, which is more like A?

The files put the similar case first, so B and C change places at random, by a fixed seed: otherwise the place would be
the answer. The model reads [CLS] A [SEP] B [SEP] and [CLS] A [SEP] C [SEP] and gives each one number; the larger wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch
from posbench.suites._longtext_documents import Documents
from tokenizers import Tokenizer
from torch import Tensor, nn

from posbench.config import DataConfig
from posbench.data import MissingTask, capped, find_below, part, read_json_rows
from posbench.errors import UserError
from posbench.objective import Sequences
from posbench.seeds import number
from posbench.suite import Rows, Task, TaskData
from posbench.tokens import Encoded, encode
from posbench.transformer import Head
from posbench.trial import Trial, load_rows, tokenizer_of

SEED = 2019
FILES = (("train", ("SCM_5k.json", "train.json")), ("validation", ("valid.json",)), ("test", ("test.json",)))
SHARES = (0.6, 0.2)
SIZES = {"train": 3000, "validation": 300, "test": 600}
PEOPLE, PLACES = "赵钱孙李周吴郑王冯陈", ("北京", "天津", "上海", "重庆", "沈阳", "武汉")
THINGS = ("汽车", "房屋", "机器", "土地")
FACTS = ("借款", "担保", "利息", "还款", "合同", "起诉", "判决", "违约")


@dataclass(frozen=True, kw_only=True)
class Pairs(Encoded):
    """A split of triplets: A with B, and in `other` A with C, row by row."""

    other: Encoded


class Triplets(Documents):
    """Two pairs a row, scored by the same model; the label is 1 where the third text is the similar one."""

    def __init__(self, trial: Trial, device: torch.device) -> None:
        # Not the parent's, whose rows have one text or two.
        super(Sequences, self).__init__(trial, device)
        data = trial.config.data
        rows, _ = load_rows(trial.config.suite, trial.config.task, data)
        tokenizer = tokenizer_of(rows, data)
        self.splits = {name: _pairs(tokenizer, split, data.max_length) for name, split in rows.splits.items()}
        self.cut = {name: int((~self.whole(split)).sum()) for name, split in self.splits.items()}
        self.vocabulary = tokenizer.get_vocab_size()
        self.counts = {name: len(split) for name, split in self.splits.items()}

    def whole(self, data: Encoded) -> np.ndarray:
        assert isinstance(data, Pairs)
        # A triplet is cut once, whether one of its pairs is or both.
        return super().whole(data) & super().whole(data.other)

    @classmethod
    def head(cls, task: Task, vocabulary: int) -> Head:
        return Head(kind="classification", outputs=1)

    def _output(self, model: nn.Module, data: Encoded, index: np.ndarray) -> Tensor:
        """(B, 2): a number for each of the two pairs."""
        assert isinstance(data, Pairs)
        return torch.cat([super(Triplets, self)._output(model, part, index) for part in (data, data.other)], dim=1)


def _pairs(tokenizer: Tokenizer, rows: Rows, longest: int) -> Pairs:
    first, other = (encode(tokenizer, [(row[0], row[place]) for row in rows.texts], rows.labels, longest, whole=True)
                    for place in (1, 2))
    return Pairs(**vars(first), other=other)


def load_cases(data: DataConfig) -> TaskData:
    """JSON lines with A, B and C, and 'label' ('B' or 'C') where B is not the similar one throughout.

    The files of the competition, or one file, which is parted 6 : 2 : 2.
    """
    folder = Path(data.path or ".")
    splits, notes = {}, {}
    paths = {split: find_below(folder, names) for split, names in FILES}
    labelled: dict[bool, Path] = {}
    for split, path in paths.items():
        if path is not None and all(paths.values()):
            splits[split], told = _read(path)
            notes[split] = path.name
            labelled.setdefault(told, path)
    if len(labelled) > 1:
        raise UserError(f"{labelled[False]}: no row has a 'label', and those of {labelled[True].name} have one, so "
                        "that which case is the similar one is not known: add the labels")
    if not splits:
        path = find_below(folder, ("input.txt", "SCM_5k.json"))
        if path is None:
            raise MissingTask(f"task cail: neither train.json, valid.json and test.json nor input.txt in {folder}")
        rows, _ = _read(path)
        order = np.random.default_rng(number(SEED, "parts")).permutation(len(rows.labels)).tolist()
        ends = [round(len(order) * SHARES[0]), round(len(order) * sum(SHARES))]
        for split, indices in (("train", order[: ends[0]]), ("validation", order[ends[0] : ends[1]]),
                               ("test", order[ends[1] :])):
            splits[split] = part(rows, sorted(indices))
            notes[split] = f"of {path.name}, parted 6 : 2 : 2 (seed {SEED})"
    known = {text for row in splits["train"].texts for text in row}
    for split in ("validation", "test"):
        shared = sum(not known.isdisjoint(row) for row in splits[split].texts)
        notes[split] += f"; {shared} of {len(splits[split].labels)} triplets share a document with train"
    notes["train"] += "; B and C change places at random (fixed seed) in all splits"
    return TaskData(splits=capped(splits, notes, data), scored=("test",), notes=notes)


def _read(path: Path) -> tuple[Rows, bool]:
    """The triplets of a file, and whether they are labelled."""
    texts, similar = [], []
    labelled: bool | None = None
    for row, fields in read_json_rows(path, ("A", "B", "C")):
        for name in ("A", "B", "C"):
            if not isinstance(fields[name], str) or not fields[name].strip():
                raise UserError(f"{path}, row {row}: field '{name}' is no text, or an empty one: mend the row")
        labelled = "label" in fields if labelled is None else labelled
        if ("label" in fields) != labelled:
            raise UserError(f"{path}, row {row}: {'no' if labelled else 'a'} 'label', unlike row 1: label every row, "
                            "or none where B is the similar case throughout")
        if fields.get("label", "B") not in ("B", "C"):
            raise UserError(f"{path}, row {row}: label '{fields['label']}' is neither B nor C")
        texts.append((fields["A"], fields["B"], fields["C"]))
        similar.append(fields.get("label", "B"))
    return exchanged(texts, similar), bool(labelled)


def exchanged(texts: Sequence[tuple[str, str, str]], similar: Sequence[str]) -> Rows:
    """Triplets with B and C exchanged in a random half of them, by a fixed seed: label 1 where C is the similar one."""
    draw = Random(number(SEED, "exchange"))
    order = [place % 2 == 1 for place in range(len(texts))]
    draw.shuffle(order)
    rows = [((a, c, b), float(which == "B")) if exchange else ((a, b, c), float(which == "C"))
            for (a, b, c), which, exchange in zip(texts, similar, order, strict=True)]
    return Rows(texts=[row for row, _ in rows], labels=[label for _, label in rows])


def cases(longest: int) -> TaskData:
    """Cases of four facts each, which fill half of `longest`: the similar one shares three with A, the other one."""
    splits = {}
    for split, size in SIZES.items():
        draw = Random(number(SEED, "cail", split, longest))
        rows = []
        for _ in range(size):
            facts = draw.sample(FACTS, len(FACTS))
            near, far = facts[:3] + facts[4:5], facts[:1] + facts[5:]
            rows.append(tuple(_case(draw, chosen, longest // 2 - 2) for chosen in (facts[:4], near, far)))
        splits[split] = exchanged(rows, ["B"] * size)  # type: ignore[arg-type]
    return TaskData(splits=splits, scored=("test",), notes=dict.fromkeys(splits, "generated"))


def _case(draw: Random, facts: Sequence[str], room: int) -> str:
    sentences = [f"{draw.choice(PEOPLE)}某{fact}{draw.choice(THINGS)}。" for fact in facts]
    while sum(map(len, sentences)) < room - 6:
        sentences.append(f"{draw.choice(PEOPLE)}某在{draw.choice(PLACES)}。")
    draw.shuffle(sentences)
    return "".join(sentences)[:room]
