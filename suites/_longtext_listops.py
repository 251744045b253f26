"""ListOps (Nangia and Bowman 2018; Tay et al. 2021): the value of a nested expression of small numbers.

An expression is kept as its tokens between spaces: ten digits, four operators with their opening bracket, and one
closing bracket. Round parentheses of the released files, which only bind an operator's arguments two by two, are taken
out; the brackets stay, without which nesting cannot be told.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

from posbench.config import DataConfig
from posbench.data import MissingTask, capped, find_below, held_out, part, read_table, shared
from posbench.errors import UserError
from posbench.seeds import number
from posbench.suite import Rows, TaskData

# Raise the suite's version when anything here changes: these numbers are the data.
SEED = 2024
SIZES = {"train": 6000, "validation": 400, "test": 800}
SPECIALS = 2  # [CLS] and [SEP] around an expression
OPERATORS: dict[str, Callable[[Sequence[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}
DEPTH, ARGUMENTS = 6, 5
SHORTEST = 8  # tokens of a generated training row beside the test of 2018, most of whose rows are short


def value_of(tokens: Sequence[str]) -> int:
    """What an expression is worth.

    Raises:
        ValueError: it is no expression.
    """
    stack: list[tuple[str, list[int]]] = []
    done: int | None = None
    for token in tokens:
        if done is not None:
            raise ValueError("something stands behind the end")
        if token in OPERATORS:
            stack.append((token, []))
            continue
        if token == "]":
            if not stack or not stack[-1][1]:
                raise ValueError("a bracket closes nothing")
            operator, values = stack.pop()
            value = OPERATORS[operator](values)
        elif len(token) == 1 and token in "0123456789":
            value = int(token)
        else:
            raise ValueError(f"'{token}' is no token of ListOps")
        if stack:
            stack[-1][1].append(value)
        else:
            done = value
    if done is None:
        raise ValueError("a bracket is not closed" if stack else "it is empty")
    return done


def expressions(longest: int, shortest: int | None = None) -> TaskData:
    """Expressions of at most `longest` tokens, special ones included, each in one split alone; at least half of it."""
    shortest = longest // 2 if shortest is None else shortest
    seen: set[str] = set()
    splits = {}
    for split, size in SIZES.items():
        draw = Random(number(SEED, "listops", split, longest, shortest))
        texts: list[tuple[str, ...]] = []
        while len(texts) < size:
            tokens = _expression(draw, draw.randint(shortest, longest) - SPECIALS)
            text = " ".join(tokens)
            if len(tokens) >= shortest - SPECIALS and text not in seen:
                seen.add(text)
                texts.append((text,))
        splits[split] = Rows(texts=texts, labels=[float(value_of(text.split())) for (text,) in texts])
    return TaskData(splits=splits, scored=("test",), notes=dict.fromkeys(splits, "generated"))


def _expression(draw: Random, room: int, depth: int = DEPTH) -> list[str]:
    """Tokens of an expression, at most `room` of them, which are 4 or more."""
    tokens = [draw.choice(tuple(OPERATORS))]
    room -= 2
    for left in range(draw.randint(2, ARGUMENTS), 0, -1):
        share = (room - left + 1) if left == 1 else draw.randint(1, max(1, room - left + 1))
        inner = _expression(draw, share, depth - 1) if share >= 4 and depth > 1 and draw.random() < 0.8 else \
            [str(draw.randrange(10))]
        tokens += inner
        room -= len(inner)
        if room <= 0:
            break
    return [*tokens, "]"]


def load_expressions(data: DataConfig) -> TaskData:
    """The files of 2018 where they are, those of the Long Range Arena otherwise.

    train_d20s.tsv and test_d20s.tsv: value, expression, no header. basic_train.tsv, basic_val.tsv and basic_test.tsv:
    expression, value, with a header. Where only the test of 2018 is there, training rows are generated.
    """
    folder = Path(data.path or ".")
    splits, notes = {}, {}
    original = {split: find_below(folder, (f"{split}_d20s.tsv",)) for split in ("train", "test")}
    arena = {"train": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}
    if original["test"] is None:
        for split, name in arena.items():
            path = find_below(folder, (name,))
            if path is None:
                raise MissingTask(f"task listops: neither test_d20s.tsv nor {name} in {folder}")
            table = read_table(path, {"text": "Source", "label": "Target"}, header=True)
            splits[split], notes[split] = _rows(path, table, data)
        return TaskData(splits=shared(capped(splits, notes, data), notes), scored=("test",), notes=notes)
    for split, path in original.items():
        if path is not None:
            splits[split], notes[split] = _rows(path, read_table(path, {"label": 0, "text": 1}, header=False), data)
    if "train" in splits:
        stay, out = held_out(splits["train"].labels, data.held_out, 0)
        splits["validation"], splits["train"] = part(splits["train"], out), part(splits["train"], stay)
        notes["validation"] = f"held out of train ({data.held_out:.0%}, stratified, seed 0)"
    else:
        own = expressions(data.max_length, SHORTEST).splits
        splits |= {name: own[name] for name in ("train", "validation")}
        notes |= dict.fromkeys(("train", "validation"), "generated by the suite, as there is no train_d20s.tsv")
    kept = shared(capped(splits, notes, data), notes)
    return TaskData(splits={name: kept[name] for name in SIZES}, scored=("test",), notes=notes)


def _rows(path: Path, table: Iterator[tuple[int, dict[str, str]]], data: DataConfig) -> tuple[Rows, str]:
    """Checked rows; those that are longer than the model reads are left out, as no part of an expression has its value.

    Raises:
        UserError: an expression that is none, or whose value is another (file and row).
    """
    texts: list[tuple[str, ...]] = []
    labels: list[float] = []
    longer = 0
    for row, fields in table:
        label = fields["label"]
        tokens = [token for token in fields["text"].split() if token not in "()"]
        try:
            value = value_of(tokens)
        except ValueError as error:
            raise UserError(f"{path}, row {row}: no expression of ListOps ({error}): mend or remove the row") from None
        if label.strip() != str(value):
            raise UserError(f"{path}, row {row}: the value is given as '{label.strip()}' and is {value}: mend or "
                            "remove the row")
        if len(tokens) + SPECIALS > data.max_length:
            longer += 1
        else:
            texts.append((" ".join(tokens),))
            labels.append(float(value))
    if not texts and not longer:
        raise UserError(f"{path}: holds no rows, only a header: give an intact file")
    if not texts:
        raise UserError(f"{path}: every row is longer than data.max_length = {data.max_length} tokens: raise it")
    note = f"{path.name}, every value checked"
    return Rows(texts=texts, labels=labels), note + (
        f", {longer} of {longer + len(texts)} rows of more than {data.max_length} tokens left out" if longer else "")
