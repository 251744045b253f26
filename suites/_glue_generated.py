"""Nine small tasks with GLUE's columns and labels, generated so that the order of words decides.

A row is either plain or full. In a plain row the words alone tell the label; in a full one two roles stand in one
sentence, and exchanging them changes the label and no word. Plain rows teach what the words mean, full rows ask who did
what to whom. Training mixes both; what is scored is full, as in HANS (McCoy et al. 2019), so that a model which is
blind to order stays at chance. Three tasks let it come part of the way: sst2 keeps plain rows everywhere, in mnli words
betray one class, and in wnli the usual roles are a good guess.

In most rows of a pair the person has the usual role; where it has not, both texts must be read together.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random

from posbench.seeds import number
from posbench.suite import Rows

# Raise the suite's version when anything here changes: these numbers and words are the data.
SEED = 2024
TRAIN, VALIDATION, TEST = 2400, 240, 400
PLAIN, USUAL = 0.4, 0.9
# Share of plain rows where they are scored too.
PLAIN_SST2 = 0.7

PEOPLE = "farmer doctor teacher baker pilot sailor".split()
ANIMALS = "dog cat horse fox wolf goat".split()
VERBS = "chased followed helped pushed watched called".split()
ACTS = "left arrived sang spoke slept ate ran waited danced smiled".split()
SCENES = ("yesterday", "in town", "at night", "last week", "this morning", "outside")
# The same words in other company: the mismatched genre of mnli.
OTHER_SCENES = ("last night", "this week", "last morning", "outside town", "this night")
NOMINATIVE, ACCUSATIVE = "i he she they we".split(), "me him her them us".split()
ASPECTS = "plot cast script music story ending film acting".split()
GOOD = "superb charming funny moving bright clever".split()
BAD = "dull awful clumsy empty boring flat".split()
DEGREES = ("", "very ", "quite ", "really ")
DAY = ("woke stretched washed dressed shaved".split(), "cooked baked cleaned shopped swept".split(),
       "worked painted wrote studied taught".split(), "rested read dined slept relaxed".split())
EAST, WEST = "tokyo delhi cairo seoul sydney osaka".split(), "paris rome london madrid lima boston".split()
JOURNEYS = ("how far is it", "can i fly", "cheapest fare", "fastest train", "is there any bus", "how to drive")
OF_SUBJECT, OF_OBJECT = "hungry angry curious bored".split(), "lost hurt slow weak".split()
ADDITIONS = ("for an hour", "with a friend", "after the rain", "near the river")


def _pair(draw: Random) -> tuple[str, str]:
    return draw.choice(PEOPLE), draw.choice(ANIMALS)


def _exchanged(pair: tuple[str, str], exchange: bool) -> tuple[str, str]:
    return (pair[1], pair[0]) if exchange else pair


def _set(draw: Random, clause: str, scenes: tuple[str, ...] = SCENES) -> str:
    """The clause with a scene in front or behind, so that a role has no fixed place."""
    scene = draw.choice(scenes)
    return f"{scene} {clause}" if draw.random() < 0.5 else f"{clause} {scene}"


def _cola(draw: Random, label: int, plain: bool) -> tuple[str, ...]:
    """Case: 'he saw them' is acceptable, 'them saw he' is not."""
    subject, object_ = draw.choice(NOMINATIVE), draw.choice(ACCUSATIVE)
    if plain:
        return (_set(draw, f"{subject if label else object_} {draw.choice(ACTS)}"),)
    first, second = _exchanged((subject, object_), not label)
    return (_set(draw, f"{first} {draw.choice(VERBS)} {second}"),)


def _sst2(draw: Random, label: int, plain: bool) -> tuple[str, ...]:
    """What stands behind 'but' counts: 'the plot is dull but the cast is superb'."""

    def judged(good: bool) -> str:
        return f"the {draw.choice(ASPECTS)} is {draw.choice(DEGREES)}{draw.choice(GOOD if good else BAD)}"

    last = judged(bool(label))
    return (f"{judged(bool(label))} and {last}" if plain else f"{judged(not label)} but {last}",)


def _mrpc(draw: Random, label: int, plain: bool) -> tuple[str, ...]:
    """Who did it to whom, twice."""
    pair, verb = _exchanged(_pair(draw), draw.random() > USUAL), draw.choice(VERBS)
    one, two = _exchanged(pair, not label)
    told = f"the {one} {verb} " + ("someone" if plain else f"the {two}")
    return _set(draw, f"the {pair[0]} {verb} the {pair[1]}"), told


def _stsb(draw: Random, label: int, plain: bool) -> tuple[str, ...]:
    """The label counts the pairs of events in the wrong order, 0 to 6."""
    events = [draw.choice(part) for part in DAY]
    # One event alone tells how late the story starts.
    order = (label // 2,) if plain and label % 2 == 0 else draw.choice(_ORDERS[label])
    retold = [events[at] for at in order]
    return " then ".join(events), " then ".join(retold)


def inversions(order: tuple[int, ...]) -> int:
    """Pairs that stand in the wrong order."""
    return sum(one > two for one, two in itertools.combinations(order, 2))


_ORDERS = [
    [order for order in itertools.permutations(range(len(DAY))) if inversions(order) == wrong] for wrong in range(7)
]


def _qqp(draw: Random, label: int, plain: bool) -> tuple[str, ...]:
    """There or back."""
    route = _exchanged((draw.choice(EAST), draw.choice(WEST)), draw.random() > USUAL)
    start, end = _exchanged(route, not label)
    other = f"to {end}" if plain else f"from {start} to {end}"
    return f"{draw.choice(JOURNEYS)} from {route[0]} to {route[1]}", f"{draw.choice(JOURNEYS)} {other}"


def _mnli(draw: Random, label: int, plain: bool, scenes: tuple[str, ...] = SCENES) -> tuple[str, ...]:
    """The same event, more than was said, or the roles exchanged."""
    pair, verb = _exchanged(_pair(draw), draw.random() > USUAL), draw.choice(VERBS)
    one, two = _exchanged(pair, label == 2)
    told = f"the {one} {verb} " + ("someone" if plain else f"the {two}")
    return (
        _set(draw, f"the {pair[0]} {verb} the {pair[1]}", scenes),
        f"{told} {draw.choice(ADDITIONS)}" if label == 1 else told,
    )


def _qnli(draw: Random, label: int, plain: bool) -> tuple[str, ...]:
    """Whether the sentence says who did it to the one who is asked about."""
    asked, other = _exchanged(_pair(draw), draw.random() > USUAL)
    verb = draw.choice(VERBS)
    first, second = _exchanged((other, asked), bool(label))
    return f"who {verb} the {asked}", _set(draw, f"the {first} {verb} " + ("everyone" if plain else f"the {second}"))


def _rte(draw: Random, label: int, plain: bool) -> tuple[str, ...]:
    """Who was first."""
    claimed, other = _exchanged(_pair(draw), draw.random() > USUAL)
    act = draw.choice(ACTS)
    first, second = _exchanged((claimed, other), bool(label))
    told = f"the {first} {act} before " + ("everyone" if plain else f"the {second}")
    return _set(draw, told), f"the {claimed} {act} first"


def _wnli(draw: Random, label: int, plain: bool) -> tuple[str, ...]:
    """What 'it' is: some states are the subject's reason, others the object's."""
    pair, verb = _exchanged(_pair(draw), draw.random() > USUAL), draw.choice(VERBS)
    of_object = draw.random() > USUAL and not plain
    state = draw.choice(OF_OBJECT if of_object else OF_SUBJECT)
    meant = _exchanged(pair, of_object != (not label))[0]
    return f"the {pair[0]} {verb} " + (
        "someone" if plain else f"the {pair[1]}"
    ) + f" because it was {state}", f"the {meant} was {state}"


_MAKERS: dict[str, tuple[Callable[..., tuple[str, ...]], int]] = {
    "cola": (_cola, 2),
    "sst2": (_sst2, 2),
    "mrpc": (_mrpc, 2),
    "stsb": (_stsb, 7),
    "qqp": (_qqp, 2),
    "mnli": (_mnli, 3),
    "qnli": (_qnli, 2),
    "rte": (_rte, 2),
    "wnli": (_wnli, 2),
}


def generated(task: str) -> dict[str, Rows]:
    """The splits of a task: 'train', 'validation', and 'test' or mnli's two; no text is in two of them."""
    tests = ("test_matched", "test_mismatched") if task == "mnli" else ("test",)
    seen: set[tuple[str, ...]] = set()
    sizes = {"train": TRAIN, "validation": VALIDATION} | dict.fromkeys(tests, TEST)
    return {split: _rows(task, split, size, seen) for split, size in sizes.items()}


def _rows(task: str, split: str, size: int, seen: set[tuple[str, ...]]) -> Rows:
    make, labels = _MAKERS[task]
    draw = Random(number(SEED, "glue", task, split))
    share = PLAIN_SST2 if task == "sst2" else PLAIN if split == "train" else 0.0
    other = {"scenes": OTHER_SCENES} if split == "test_mismatched" else {}
    rows: list[tuple[tuple[str, ...], float]] = []
    while len(rows) < size:
        label = len(rows) % labels
        texts = make(draw, label, draw.random() < share, **other)
        if texts not in seen:
            seen.add(texts)
            rows.append((texts, round(5 - 5 * label / 6, 2) if task == "stsb" else float(label)))
    draw.shuffle(rows)
    return Rows(texts=[texts for texts, _ in rows], labels=[label for _, label in rows])
