"""Kills a study again and again, at random moments, and holds what comes out against an undisturbed run.

    python -m tests.torture --kills 100

A study of 24 trials (a search, then reporting seeds) is started, killed with its whole process group (SIGKILL) and
started again, until so many kills are done. Every time that it comes to its end, its tables are held against those
of a run that nothing disturbed, byte for byte but for the header's entry on interruptions, and the study begins anew in
an empty folder. A result that is there must stay there, the same to the byte: a trial that ran twice would have another
start and end in its record.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from posbench.checkpoint import PAUSE_VARIABLE
from posbench.store import LOCK, MANIFEST, Store

ROOT = Path(__file__).resolve().parents[1]
FILE = """
suite: glue
preset: mini
encodings: [nope, rope, alibi]
tasks: [cola, rte]
seeds: [0, 1]
baseline: nope
search:
  trials: 2
  seeds: [7]
  space: {train.learning_rate: {low: 0.001, high: 0.004, log: true}}
train: {steps: 40, evaluations: 2}
data: {train_rows: 300, evaluation_rows: 100}
"""
TRIALS = 24
TUNING = 12
INTERRUPTIONS = {
    ".md": r"^- interruptions: .*\n",
    ".tex": r"^% interruptions: .*\n",
    ".txt": r"^interruptions  .*\n(?:  .*\n)*",
    ".html": r"<dt>interruptions</dt><dd>.*</dd>\n",
}
"""The entry of a report's header that truly differs from an undisturbed run's, with the lines that continue it."""
TABLES = ("scoreboard.md", "scoreboard.txt", "scoreboard.tex", "scoreboard.html", "comparisons.csv", "search.csv",
          "expected_best.csv")
WATCH_SECONDS = 0.005
PHASES = ("starting", "searching", "training", "writing a checkpoint", "reporting")


class Study:
    """One folder in which the study runs."""

    def __init__(self, home: Path, file: Path) -> None:
        self.home, self.file = home, file
        self.store = Store(home / "trials")
        self.known: dict[str, bytes] = {}
        self.kept: set[str] = set()

    @property
    def folder(self) -> Path:
        return self.home / self.file.stem

    def start(self, jobs: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "posbench", "study", str(self.file), "--jobs", str(jobs),
                   "--out", str(self.folder)]
        environment = {**os.environ, "POSBENCH_HOME": str(self.home), PAUSE_VARIABLE: "0"}
        return subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, env=environment)

    def results(self) -> list[str]:
        """Fingerprints of the trials that have a manifest."""
        return [path.parent.name for path in self.store.root.glob(f"*/*/{MANIFEST}")]

    def phase(self) -> str:
        """What the study is doing, as far as its files tell."""
        done = len(self.results())
        if any(self.store.root.glob("*/*/.*checkpoint*.tmp")):
            return "writing a checkpoint"
        if done == TRIALS:
            return "reporting"
        if done == 0 and not self.store.root.exists():
            return "starting"
        return "searching" if done < TUNING else "training"

    def check(self) -> list[str]:
        """What is wrong with the store: results that vanished, changed, or are no results."""
        wrong = []
        now = {name: (self.store.folder(name) / "record.json").read_bytes() for name in self.results()}
        for name, content in self.known.items():
            if name not in now:
                wrong.append(f"trial {name[:12]} was lost")
            elif now[name] != content:
                wrong.append(f"trial {name[:12]} ran twice")
        wrong += [f"trial {name[:12]} has a manifest and no result" for name in now if not self.store.has(name)]
        self.known = now
        return wrong

    def leftovers(self) -> list[str]:
        """What a finished study has no use for: halves of files, checkpoints, locks."""
        return [file.name for file in self.store.root.glob("*/*/*")
                if file.suffix == ".tmp" or file.name == LOCK or file.name.startswith("checkpoint-")]

    def tables(self) -> dict[str, str]:
        return {name: calm_text(name, (self.folder / name).read_bytes().decode()) for name in TABLES}


def calm_text(name: str, text: str) -> str:
    """A file of a report without what it says of interruptions."""
    entry = INTERRUPTIONS.get(Path(name).suffix)
    return re.sub(entry, "", text, flags=re.MULTILINE) if entry else text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args()
    draw = random.Random(wanted.seed)
    with tempfile.TemporaryDirectory(prefix="posbench-torture-") as place:
        file = Path(place) / "torture.yaml"
        file.write_text(FILE)
        calm = Study(Path(place) / "calm", file)
        began = time.monotonic()
        process = calm.start(jobs=2)
        told = process.communicate()[1].decode()
        if process.returncode or len(calm.results()) != TRIALS:
            print(f"the undisturbed run ended with {process.returncode} and {len(calm.results())} trials:\n{told}")
            return 1
        whole = time.monotonic() - began
        print(f"undisturbed: {TRIALS} trials in {whole:.0f} s", flush=True)
        return torment(calm, wanted.kills, draw, whole)


def torment(calm: Study, kills: int, draw: random.Random, whole: float) -> int:
    """Kills and restarts; prints the counts, and returns 1 where anything was wrong."""
    reference = calm.tables()
    phases: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    rounds = 0
    study = fresh(calm, rounds)
    while sum(phases.values()) < kills or study.known:
        spare = sum(phases.values()) < kills
        process = study.start(jobs=draw.choice((1, 2)))
        phase = kill(study, process, draw, whole) if spare else None
        told = process.communicate()[1].decode()
        wrong += study.check()
        if phase and process.returncode == -signal.SIGKILL:
            phases[phase] += 1
            continue
        if process.returncode:
            wrong.append(f"a run that nobody killed ended with {process.returncode}: {told.splitlines()[-1:]}")
        if len(study.known) != TRIALS:
            wrong.append(f"round {rounds}: {len(study.known)} trials in place of {TRIALS}")
        wrong += [f"round {rounds}: {name} differs" for name, content in study.tables().items()
                  if content != reference[name]]
        wrong += [f"round {rounds}: {left} was left behind" for left in study.leftovers()]
        rounds += 1
        print(f"round {rounds}: {sum(phases.values())} kills so far, {len(wrong)} faults", flush=True)
        shutil.rmtree(study.home)
        study = fresh(calm, rounds)
    print(f"{sum(phases.values())} kills: {', '.join(f'{count} {phase}' for phase, count in sorted(phases.items()))}")
    print(f"{rounds} tables held against the undisturbed one; faults: {len(wrong)}")
    print("\n".join(wrong[:20]))
    return 1 if wrong else 0


def fresh(calm: Study, number: int) -> Study:
    """An empty home; what a clock measured (the cost of a step) is taken over, as no second run repeats it."""
    study = Study(calm.home.parent / f"round-{number}", calm.file)
    study.folder.mkdir(parents=True)
    for name in ("costs.json", "study.json"):
        shutil.copy(calm.folder / name, study.folder)
    return study


def kill(study: Study, process: subprocess.Popen[bytes], draw: random.Random, whole: float) -> str | None:
    """Kills the group at a random moment, of all or of a chosen phase; None where the study ended before that."""
    target = draw.choice(("any", *PHASES))
    deadline = time.monotonic() + (draw.uniform(0, whole / 2) if target == "any" else 4 * whole)
    while process.poll() is None and time.monotonic() < deadline:
        if study.phase() == target:
            if target == "writing a checkpoint":  # which is over in milliseconds
                break
            deadline, target = min(deadline, time.monotonic() + draw.uniform(0, 2)), "any"
        time.sleep(WATCH_SECONDS)
    if process.poll() is not None:
        return None
    phase = study.phase()
    os.killpg(process.pid, signal.SIGKILL)
    return phase


if __name__ == "__main__":
    sys.exit(main())
