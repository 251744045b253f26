"""Quarantine: the contract of somebody's own encoding, checked in a process that it may take down without harm.

A plugin under test may leave, crash, hang, or start processes of its own; the program that asks about it goes on.
"""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from posbench import environment
from posbench.config import EncodingChoice, Scalar, digest
from posbench.contract import Verdict
from posbench.errors import UserError, is_file
from posbench.numerals import counted
from posbench.processes import end_group, lead_group, manner_of_end
from posbench.registry import ENCODINGS
from posbench.store import write_atomically
from posbench.trial import Trial

SECONDS = 300.0
"""After this a check counts as hanging; the slowest built-in encoding needs a hundredth of it."""


def check_apart(name: str, options: Mapping[str, Scalar] | None = None, *, seconds: float = SECONDS) -> list[Verdict]:
    """`testing.check_encoding` in a process of its own.

    Args:
        name: of an encoding, or the path of its file.
        options: those that differ from the defaults.
        seconds: how long it may take.

    Returns:
        The verdicts; a single failed one where the process ended by itself or did not answer.

    Raises:
        UserError: what check_encoding refuses.
    """
    kind: str
    content: Any
    # Spawned, not forked: torch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, name, dict(options or {})), daemon=True)
    process.start()
    theirs.close()
    try:
        # Closing its end is all that a process which ends without an answer says.
        answered = wait([ours], seconds)
        # What comes back is text, read as text: the other side has run foreign code.
        kind, content = json.loads(ours.recv_bytes()) if answered else ("hangs", None)
    except (EOFError, OSError, ValueError):
        process.join(5)
        kind, content = "ended", manner_of_end(process.exitcode)
    finally:
        ours.close()
        end_group(process)
        process.join(5)
    if kind == "refused":
        raise UserError(content)
    if kind == "verdicts":
        return [Verdict(**verdict) for verdict in content]
    reason = (f"did not come to an end within {seconds:g} s" if kind == "hangs"
              else f"the process of the checks ended with {content} before they were through")
    return [Verdict("P0", "the checks can be made", "decoder", "softmax", True, math.nan, 0.0, False, reason)]


def _answer(connection: Connection, name: str, options: dict[str, Any]) -> None:
    from posbench.testing import check_encoding

    lead_group()  # so that what the plugin starts can be ended with it
    try:
        answer: tuple[str, Any] = ("verdicts", [asdict(verdict) for verdict in check_encoding(name, options)])
    except UserError as error:
        answer = ("refused", str(error))
    with contextlib.suppress(OSError):
        connection.send_bytes(json.dumps(answer).encode())


def verdicts(choice: EncodingChoice) -> list[Verdict]:
    """The contract's verdicts; what is not posbench's own is checked in a process of its own."""
    if not ENCODINGS.own(choice.name):
        return check_apart(choice.name, choice.options)
    from posbench.testing import check_encoding

    return check_encoding(choice.name, choice.options)


class Unproved(UserError):
    """Encodings that fail their contract, each with what is wrong: the whole study is refused, once for all of them."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__(f"{'; '.join(faults)}: the study is refused and nothing is trained: mend what fails, or leave "
                         "it out")
        self.faults = tuple(faults)


def prove(choices: Sequence[EncodingChoice]) -> None:
    """Refuses encodings that fail their contract, before anything is trained with them.

    Raises:
        Unproved: of each that fails, or cannot be asked, the first check and how many there are.
    """
    faults = []
    for choice in choices:
        try:
            wrong = [verdict for verdict in verdicts(choice) if not verdict.passed]
        except UserError as error:
            faults.append(str(error))
            continue
        if wrong:
            faults.append(
                f"encoding '{choice.label}' fails its contract in {counted(len(wrong), 'check')}, the first: "
                f"{wrong[0].check} {wrong[0].title}, {wrong[0].reason} (posbench check {choice.name} shows all)"
            )
    if faults:
        raise Unproved(faults)


def prove_once(trials: Sequence[Trial], folder: Path, *, tell: Callable[[str], None] = lambda line: None) -> None:
    """Refuses posbench's own encodings that fail their contract; a proof is kept and not made again.

    A proof belongs to the sources of the encoding, its options, posbench's own code and the versions of what it was
    made with: when any of them changes it is another one.

    Args:
        trials: one for each choice to prove.
        folder: where proofs are kept.
        tell: called with a line when proofs are missing, which take seconds each.

    Raises:
        Unproved: what fails, after all were asked.
    """
    facts = environment.facts()
    missing = {}
    for trial in trials:
        key = digest([trial.sources, trial.plugin.name, asdict(trial.options), facts["code"], facts["versions"],
                      facts["processor"]])
        if not is_file(proof := folder / f"{key}.json"):
            missing[proof] = trial.config.encoding
    if missing:
        told = ", ".join(choice.label for choice in missing.values())
        tell(f"proving {told}: some seconds each, once for this code and machine")
    faults: list[str] = []
    for proof, choice in missing.items():
        try:
            prove([choice])
        except Unproved as error:
            faults += error.faults
            continue
        with contextlib.suppress(OSError):  # where nothing can be written the study says so itself
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(proof, json.dumps({"encoding": choice.label, "passed": True}).encode())
    if faults:
        raise Unproved(faults)
