"""Pairs of sentences in a small English-like and a small German-like language, whose order of words is their meaning.

English tells who did what to whom by order alone. German tells it by case, puts the verb last in subordinate clauses
and second in main ones, and inflects article, adjective and verb for gender, case and number. Every word is drawn
freely and stands for itself, so that the words of a sentence do not tell which noun is the subject, which adjective
belongs to which noun, or which verb to which clause: an encoder that is blind to order can only guess. The decoder sees
its own order whatever the encoding, through its mask; what it lacks then is the source's.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from posbench.seeds import number
from posbench.suite import Rows

# Raise the suite's version when anything here changes: these numbers and words are the data.
SEED = 1609
SIZES = {"train": 8000, "validation": 200, "test": 500}


class Noun(NamedTuple):
    """English and German, each in singular and plural, with the German gender (m, f, n)."""

    one: str
    many: str
    eins: str
    viele: str
    gender: str


class Verb(NamedTuple):
    """Third person in English and German, each in singular and plural."""

    one: str
    many: str
    eins: str
    viele: str


class Phrase(NamedTuple):
    """What stands for someone: English, German as subject, German as object, and whether it is plural."""

    english: str
    subject: str
    object: str
    plural: bool


NOUNS = (
    Noun("dog", "dogs", "Hund", "Hunde", "m"), Noun("wolf", "wolves", "Wolf", "Wölfe", "m"),
    Noun("baker", "bakers", "Bäcker", "Bäcker", "m"), Noun("cook", "cooks", "Koch", "Köche", "m"),
    Noun("fox", "foxes", "Fuchs", "Füchse", "m"), Noun("cat", "cats", "Katze", "Katzen", "f"),
    Noun("nurse", "nurses", "Pflegerin", "Pflegerinnen", "f"), Noun("goat", "goats", "Ziege", "Ziegen", "f"),
    Noun("duck", "ducks", "Ente", "Enten", "f"), Noun("horse", "horses", "Pferd", "Pferde", "n"),
    Noun("child", "children", "Kind", "Kinder", "n"), Noun("pig", "pigs", "Schwein", "Schweine", "n"),
)
VERBS = (
    Verb("sees", "see", "sieht", "sehen"), Verb("chases", "chase", "jagt", "jagen"),
    Verb("calls", "call", "ruft", "rufen"), Verb("finds", "find", "findet", "finden"),
    Verb("feeds", "feed", "füttert", "füttern"), Verb("hears", "hear", "hört", "hören"),
    Verb("greets", "greet", "grüßt", "grüßen"), Verb("carries", "carry", "trägt", "tragen"),
)
SAYING = (Verb("says", "say", "sagt", "sagen"), Verb("thinks", "think", "denkt", "denken"),
          Verb("hopes", "hope", "hofft", "hoffen"))
ADJECTIVES = (("old", "alt"), ("young", "jung"), ("big", "groß"), ("small", "klein"), ("tired", "müd"),
              ("brave", "mutig"), ("quiet", "still"), ("happy", "froh"))
ADVERBS = (("today", "heute"), ("often", "oft"), ("here", "hier"), ("now", "jetzt"), ("sometimes", "manchmal"))
JOINTS = (("because", "weil"), ("if", "wenn"), ("although", "obwohl"), ("before", "bevor"))
ARTICLES = {"m": ("der", "den"), "f": ("die", "die"), "n": ("das", "das"), "": ("die", "die")}


def _phrase(draw: Random) -> tuple[Phrase, str]:
    """Someone, with the German relative pronoun that takes up the subject."""
    noun, plural = draw.choice(NOUNS), draw.random() < 0.5
    gender = "" if plural else noun.gender
    english, german = (noun.many, noun.viele) if plural else (noun.one, noun.eins)
    word, stem = draw.choice(ADJECTIVES) if draw.random() < 0.5 else ("", "")
    nominative, accusative = ARTICLES[gender]
    endings = ("en", "en") if plural else ("e", "en" if gender == "m" else "e")
    subject, object_ = (
        " ".join(part for part in (article, stem and stem + ending, german) if part)
        for article, ending in zip((nominative, accusative), endings, strict=True)
    )
    return Phrase(" ".join(part for part in ("the", word, english) if part), subject, object_, plural), nominative


def _two(draw: Random) -> tuple[tuple[Phrase, str], Phrase]:
    """Two that differ in their noun, so that exchanging them changes the meaning."""
    first = _phrase(draw)
    while True:
        second = _phrase(draw)[0]
        if second.english.split()[-1] != first[0].english.split()[-1]:
            return first, second


def _verb(draw: Random, verbs: tuple[Verb, ...], plural: bool) -> tuple[str, str]:
    verb = draw.choice(verbs)
    return (verb.many, verb.viele) if plural else (verb.one, verb.eins)


def _main(draw: Random) -> tuple[str, str]:
    """Verb second: with an adverb in front the German subject stands behind the verb."""
    (who, _), whom = _two(draw)
    english, german = _verb(draw, VERBS, who.plural)
    if draw.random() < 0.4:
        when, wann = draw.choice(ADVERBS)
        return f"{when} {who.english} {english} {whom.english}", f"{wann} {german} {who.subject} {whom.object}"
    return f"{who.english} {english} {whom.english}", f"{who.subject} {german} {whom.object}"


def _last(draw: Random) -> tuple[str, str]:
    """A clause whose German verb stands last."""
    (who, _), whom = _two(draw)
    english, german = _verb(draw, VERBS, who.plural)
    return f"{who.english} {english} {whom.english}", f"{who.subject} {whom.object} {german}"


def _told(draw: Random) -> tuple[str, str]:
    """Someone says that ..."""
    (who, _), _ = _two(draw)
    english, german = _verb(draw, SAYING, who.plural)
    what, was = _last(draw)
    return f"{who.english} {english} that {what}", f"{who.subject} {german}, dass {was}"


def _joined(draw: Random) -> tuple[str, str]:
    """Two clauses; which comes first decides which has its German verb last."""
    (first, erst), (second, dann) = _main(draw), _last(draw)
    word, wort = draw.choice(JOINTS)
    return f"{first} {word} {second}", f"{erst}, {wort} {dann}"


def _relative(draw: Random) -> tuple[str, str]:
    """Someone who does one thing does another: the second verb agrees over the relative clause."""
    (who, pronoun), whom = _two(draw)
    other = _two(draw)[1]
    one, eins = _verb(draw, VERBS, who.plural)
    two, zwei = _verb(draw, VERBS, who.plural)
    return (f"{who.english} that {one} {whom.english} {two} {other.english}",
            f"{who.subject}, {pronoun} {whom.object} {eins}, {zwei} {other.object}")


def _chain(draw: Random) -> tuple[str, str]:
    """Someone says that ... because ...: the longest, with two verbs of three at the end of their German clauses."""
    (told, gesagt), (why, warum) = _told(draw), _last(draw)
    word, wort = draw.choice(JOINTS)
    return f"{told} {word} {why}", f"{gesagt}, {wort} {warum}"


KINDS = (_main, _main, _told, _joined, _joined, _relative, _chain)


def generated(source: str) -> dict[str, Rows]:
    """Training, validation and test pairs; no source stands in two of them.

    Args:
        source: 'en' or 'de', the language that is read; the other one is written.
    """
    draw = Random(number(SEED, "translation"))
    seen: set[str] = set()
    splits = {}
    for split, size in SIZES.items():
        texts: list[tuple[str, ...]] = []
        while len(texts) < size:
            english, german = (f"{text}." for text in draw.choice(KINDS)(draw))
            if english not in seen:
                seen.add(english)
                texts.append((english, german) if source == "en" else (german, english))
        splits[split] = Rows(texts=texts, labels=[])
    return splits
