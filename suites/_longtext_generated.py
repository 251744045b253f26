"""Exact tasks of any length: a prompt and the one right answer, each character a token.

Prompts of training have every size up to the trained length, those of a scored length fill it as far as the task can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from posbench.seeds import number
from posbench.suite import Rows

# Raise the suite's version when anything here changes: these numbers and words are the data.
SEED = 2024
TRAIN, VALIDATION, TEST = 24000, 200, 200
LETTERS = "abcdefghijklmnop"
DIGITS = "0123456789"
MARK, END = "#", "="
FIRST_KEY = 0x4E00
# Draws of a row that another split holds already, before it is taken all the same: short rows are few.
TRIES = 20
LONGEST = 4096  # tokens of a training row at most: thousands of longer ones would fill the memory
SENTENCES = ("the grass is green. ", "the sky is blue. ", "the sun is yellow. ", "here we go. ",
             "there and back again. ")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One task.

    Attributes:
        make: from a random stream, the number of items and the largest number that any row has, to prompt and answer.
        fixed, each: tokens of prompt and answer together without items, and those of an item.
        least: items of the shortest row. varied: items of the longest training row from which on every symbol occurs.
    """

    make: Callable[[Random, int, int], tuple[str, str]]
    fixed: int
    each: int
    least: int = 1
    varied: int = 1

    @property
    def shortest(self) -> int:
        """The smallest trained length."""
        return self.fixed + self.each * self.varied

    def items(self, tokens: int) -> int:
        """The most items that fit."""
        return (tokens - self.fixed) // self.each


def _letters(draw: Random, items: int) -> str:
    return "".join(draw.choices(LETTERS, k=items))


def _copy(draw: Random, items: int, most: int) -> tuple[str, str]:
    """abc= abc"""
    text = _letters(draw, items)
    return text + END, text


def _reverse(draw: Random, items: int, most: int) -> tuple[str, str]:
    """abc= cba"""
    text = _letters(draw, items)
    return text + END, text[::-1]


def _sort(draw: Random, items: int, most: int) -> tuple[str, str]:
    """bca= abc"""
    text = _letters(draw, items)
    return text + END, "".join(sorted(text))


def _addition(draw: Random, items: int, most: int) -> tuple[str, str]:
    """12+34= 640: numbers of equally many digits, the least of each number first, so that carries go along."""
    one, two = (draw.randrange(10**items) for _ in range(2))
    return (f"{one:0{items}d}"[::-1] + "+" + f"{two:0{items}d}"[::-1] + END, f"{one + two:0{items + 1}d}"[::-1])


def _parity(draw: Random, items: int, most: int) -> tuple[str, str]:
    """0110= 0: whether the ones are odd in number."""
    bits = draw.choices("01", k=items)
    return "".join(bits) + END, str(bits.count("1") % 2)


def _recall(draw: Random, items: int, most: int) -> tuple[str, str]:
    """K3Q7M1=Q 7: the value behind one of so many different keys."""
    keys = [chr(FIRST_KEY + key) for key in draw.sample(range(most), items)]
    values = draw.choices(DIGITS, k=items)
    asked = draw.randrange(items)
    return "".join(map("".join, zip(keys, values, strict=True))) + END + keys[asked], values[asked]


def _induction(draw: Random, items: int, most: int) -> tuple[str, str]:
    """abc#defg# d: what stood behind the mark when it came first."""
    text = _letters(draw, items)
    place = draw.randrange(items)
    return text[:place] + MARK + text[place:] + MARK, text[place]


def _passkey(draw: Random, items: int, most: int) -> tuple[str, str]:
    """Sentences that say nothing, a key of five digits in the middle of them, and the question for it."""
    start = draw.randrange(len(SENTENCES))
    filler = "".join(SENTENCES[(start + turn) % len(SENTENCES)] for turn in range(items // 10 + 2))[:items]
    key, place = "".join(draw.choices(DIGITS, k=5)), draw.randrange(items + 1)
    return filler[:place] + MARK + key + filler[place:] + END, key


KINDS = {
    "copy": Kind(make=_copy, fixed=1, each=2),
    "reverse": Kind(make=_reverse, fixed=1, each=2),
    "sort": Kind(make=_sort, fixed=1, each=2),
    "addition": Kind(make=_addition, fixed=3, each=3),
    "parity": Kind(make=_parity, fixed=2, each=1),
    "recall": Kind(make=_recall, fixed=3, each=2),
    "induction": Kind(make=_induction, fixed=3, each=1),
    "passkey": Kind(make=_passkey, fixed=12, each=1, varied=13),
}


def generated(task: str, lengths: Sequence[int]) -> dict[str, Rows]:
    """Splits of a task: 'train' and 'validation' up to the first length, 'test' with as many rows at each length.

    A scored row occurs in no other split, unless so few different ones exist that it must.
    """
    kind = KINDS[task]
    most = kind.items(lengths[-1])
    longest = kind.items(lengths[0])
    seen: set[tuple[str, str]] = set()

    def rows(split: str, least: int, longest: int, count: int) -> list[tuple[str, ...]]:
        draw = Random(number(SEED, "longtext", task, split, *lengths))
        made: list[tuple[str, ...]] = []
        for _ in range(count):
            row = kind.make(draw, draw.randint(least, longest), most)
            tries = 0
            while row in seen and tries < TRIES:
                row, tries = kind.make(draw, draw.randint(least, longest), most), tries + 1
            made.append(row)
        if split != "train":
            seen.update(made)
        return made

    sizes = {length: kind.items(length) for length in lengths}
    splits = {
        "test": [row for length, size in sizes.items() for row in rows(f"test {length}", size, size, TEST)],
        "validation": rows("validation", longest, longest, VALIDATION),
        "train": rows("train", kind.least, longest, TRAIN),
    }
    return {name: Rows(texts=splits[name], labels=[]) for name in ("train", "validation", "test")}
