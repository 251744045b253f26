"""How far a study is: what the store has of its trials, by encoding and task, and the time that is left."""

from __future__ import annotations

from pathlib import Path

from posbench import interruptions
from posbench.config import StudyConfig
from posbench.console import duration
from posbench.numerals import counted
from posbench.prospect import TrialsPlanned, cells
from posbench.report import Document
from posbench.results import STATUSES
from posbench.store import LOCK, Record, Store
from posbench.study import stored
from posbench.tables import Table
from posbench.timing import Timings
from posbench.trial import Trial

BEGUN = "begun"
"""Not finished, and something of it lies in the store: it runs now, or was interrupted."""


def standing(study: StudyConfig, root: Path, *, title: str) -> Document:
    """Counts by encoding and by task; reads the store and the data, and writes nothing.

    Args:
        root: folder of the store. title: the study's name.
    """
    store = Store(root)
    planned = cells(study, store)
    counts: dict[tuple[str, str], dict[str, int]] = {}
    timings, left, unknown = Timings(root), 0.0, 0
    tuned = searched = now = tuning_now = 0
    results: list[Record] = []
    for cell in planned:
        own = counts.setdefault((cell.label, cell.task), dict.fromkeys((*STATUSES, BEGUN), 0))
        records, to_run = stored(cell.trials, store), 0
        for trial in cell.trials:
            record = records.get(trial.fingerprint)
            runs = (record is None or record.status == "failed") and _runs(store, trial)
            begun = runs or (record is None and store.folder(trial.fingerprint).exists())
            now += runs
            own[BEGUN if begun else record.status if record else "missing"] += 1
            to_run += record is None or record.status == "failed"
        found = stored(cell.tuning, store)
        tuning_now += sum(_runs(store, trial) for trial in cell.tuning)
        results += [*found.values(), *records.values()]
        tuned, searched, to_run = tuned + len(found), searched + cell.searched, to_run + cell.searched - len(found)
        seconds = timings.trial_seconds(cell.config, cell.updates or 0)
        left, unknown = left + to_run * (seconds or 0.0), unknown + to_run * (seconds is None)
        if not cell.trials:
            own["missing"] += len(study.seeds)
            unknown += len(study.seeds)
    every = [sum(own[status] for own in counts.values()) for status in (*STATUSES, BEGUN)]
    total = sum(every)
    # Where nothing was measured, 0 s would say that the study is done.
    told = [f"{duration(left)} of computing, one trial after the other, from the steps measured in the store"
            ] if left or not unknown else []
    if unknown:
        told.append(f"an unknown time for {counted(unknown, 'trial')}, as none like {'it' if unknown == 1 else 'them'} "
                    "was measured")
    header = (
        ("planned", f"{counted(total, 'trial')}: {counted(len(study.encodings), 'encoding')}, "
                    f"{counted(len(study.tasks), 'task')}, {counted(len(study.seeds), 'seed')}"),
        *((status, str(count)) for status, count in zip(STATUSES, every[:-1], strict=True)),
        (BEGUN, str(every[-1]) + (f", {now} of which {'runs' if now == 1 else 'run'} now" if now else "")),
        *([("tuning", f"{tuned} of {counted(searched, 'trial')} of the search "
                      f"{'has' if tuned == 1 else 'have'} a result"
                      + (f", {tuning_now} {'runs' if tuning_now == 1 else 'run'} now" if tuning_now else ""))]
          if searched else []),
        *([("interruptions", broken)] if (broken := interruptions.told(results, total + searched)) else []),
        ("time left", "; and ".join(told)),
    )
    return Document(title=f"posbench: {title}", header=header, warnings=_missing(planned), parts=(
        _by(counts, 0, "encoding"), _by(counts, 1, "task")))


def _runs(store: Store, trial: Trial) -> bool:
    """Whether some process is at the trial, which may also be one that failed before. Without a lock nothing is."""
    return (store.folder(trial.fingerprint) / LOCK).exists() and store.held(trial.fingerprint)


def _missing(planned: list[TrialsPlanned]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f"{cell.task}: {cell.missing}" for cell in planned if cell.missing))


def _by(counts: dict[tuple[str, str], dict[str, int]], place: int, name: str) -> Table:
    statuses = (*STATUSES, BEGUN)
    rows = []
    for value in dict.fromkeys(key[place] for key in counts):
        own = [sum(entry[status] for key, entry in counts.items() if key[place] == value) for status in statuses]
        rows.append((value, str(sum(own)), *map(str, own)))
    notes = ("A trial that has begun and is not finished runs now, or was interrupted.",) if place == 0 else ()
    return Table(title=f"By {name}", columns=(name, "planned", *statuses), rows=tuple(rows), notes=notes)
