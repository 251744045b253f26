"""What posbench says when something is wrong: one line that names the thing, the place and the mend."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from posbench.numerals import counted


class UserError(Exception):
    """A mistake of the user's: one line naming the thing, the place and the mend; the command line exits with 2."""

    exit_code = 2


class StorageError(UserError):
    """Results cannot be written: a full disk, a folder without permission."""

    exit_code = 3


class EncodingFault(UserError):
    """An encoding broke its contract: a hook returned another shape, dtype or device than the interface states."""


class ContextLengthExceeded(UserError):
    """A sequence is longer than the encoding can express; carries both numbers, so that a study records 'refused'."""

    def __init__(self, encoding: str, limit: int, got: int, mend: str = "raise its max_length") -> None:
        super().__init__(
            f"encoding '{encoding}' ends at {counted(limit, 'position')} and was given {got}: "
            f"{mend}, or cut the sequences to {counted(limit, 'token')}"
        )
        self.encoding, self.limit, self.got, self.mend = encoding, limit, got, mend

    def __reduce__(self) -> tuple[type[ContextLengthExceeded], tuple[str, int, int, str]]:
        return type(self), (self.encoding, self.limit, self.got, self.mend)


class Terminated(SystemExit):
    """The process was asked to end (SIGTERM): never a fault of the trial or plugin at work."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The known names as a hint, nearest first: "did you mean 'rope'?" or "known: a, b".

    Among names of one section the section says nothing: 'train.lr' is as near as 'lr'. And lr is learning_rate.
    """
    choices = sorted(set(known))
    section, dot, own = name.rpartition(".")
    ends = {choice.removeprefix(section + dot): choice for choice in choices if choice.startswith(section + dot)}
    if not dot or not ends:
        own, ends = name, {choice: choice for choice in choices}
    words = {end: end.rpartition(".")[2].split("_") for end in ends}
    initials = [end for end, parts in words.items() if len(parts) > 1 and "".join(part[:1] for part in parts) == own]
    close = [ends[end] for end in initials or get_close_matches(own, ends, n=3, cutoff=0.5)
             or [end for end, parts in words.items() if own in parts]]
    if close:
        return "did you mean " + " or ".join(f"'{choice}'" for choice in close) + "?"
    return "known: " + ", ".join(choices) if choices else "none is known"


def one_line(text: str, limit: int = 2000) -> str:
    """The text on one line, without control characters, which a terminal would obey, and not without end."""
    plain = "".join(char if char.isprintable() else " " for char in text)
    words = " ".join(plain.split())
    return words if len(words) <= limit else words[:limit] + " ..."


def is_file(path: Path) -> bool:
    """Whether there is such a file; a path that the system cannot even ask for is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def reason_of(error: BaseException) -> str:
    """Class and message of an exception, also of one that cannot state its message."""
    try:
        told = one_line(str(error))
    except Exception:
        told = "(its message cannot be shown)"
    return f"{type(error).__name__}: {told}" if told else type(error).__name__
