"""Interruptions: which trials of a study went on from a checkpoint, and which ran again."""

from __future__ import annotations

from collections.abc import Iterable

from posbench.numerals import counted
from posbench.store import Record

NAMED = 12
"""Trials that are named; of more than these the number is told."""


def told(records: Iterable[Record], planned: int) -> str:
    """What a reader must know of interruptions in one sentence; empty where there were none.

    Args:
        records: of all trials that have one, those of a search included. planned: how many trials there are to be.
    """
    known = list(records)
    resumed = [record for record in known if record.facts.get("resumed")]
    again = [record for record in known if "lost" in record.facts]
    of, parts = f" of {counted(planned, 'trial')}", []
    if resumed:
        on = {record.facts["device"].partition(":")[0] for record in resumed}
        exact = " and ".join((["on CPU bitwise the same"] if "cpu" in on else [])
                             + (["on a GPU not bitwise the same"] if on - {"cpu"} else []))
        parts.append(f"{len(resumed)}{of} went on from a checkpoint ({exact})")
        of = ""
    if again:
        named = list(dict.fromkeys(map(_name, again)))
        more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
        parts.append(f"{len(again)}{of} ran again, as {'its' if len(again) == 1 else 'their'} worker was ended from "
                     f"outside: {', '.join(named[:NAMED])}{more}")
    return "; ".join(parts)


def _name(record: Record) -> str:
    kind = " in tuning" if record.config.get("tuning") else ""
    return f"{record.label} {record.config['task']} seed {record.config['seed']}{kind}"
