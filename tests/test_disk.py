"""Disks that fill up and folders that may not be written: one line and exit code 3, and the same command goes on.

The disks are real ones: a process in a namespace of its own mounts them, which needs no rights on the machine. Nor has
it a network there, so that all of this shows too that generated tasks need none.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount", "--net")
STUDY = ("study", "glue", "--encodings", "nope,rope", "--tasks", "rte", "--seeds", "1", "--baseline", "nope",
         "--tracker", "none", "--jobs", "1",
         *(part for setting in ("train.steps=2", "train.evaluations=1", "model.width=16", "model.heads=2",
                                "model.layers=1", "model.feedforward=16", "train.batch_size=8")
           for part in ("--set", setting)))
TRIALS = 2


def own_mounts() -> str:
    """Why no process can mount something for itself alone here; empty where it can."""
    try:
        tried = subprocess.run([*NAMESPACE, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True)
    except OSError as error:
        return f"{NAMESPACE[0]}: {error.strerror}"
    return tried.stderr.strip()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What commands say in one process that has mounts of its own: to load torch takes longer than all of them."""
    if why := own_mounts():
        pytest.skip(f"no mounts of one's own here: {why}")
    code = "import json, sys; from tests.test_disk import *; print(json.dumps(apart(Path(sys.argv[1]))))"
    done = subprocess.run([*NAMESPACE, sys.executable, "-c", code, str(tmp_path_factory.mktemp("disk"))], cwd=ROOT,
                          capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=240)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def mounted(*arguments: object) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True)


def writable(folder: Path, yes: bool) -> None:
    """Takes or gives the right to write below a folder, whoever asks, as an administrator or a failing disk does."""
    if not os.path.ismount(folder):
        mounted("--bind", folder, folder)
    mounted("-o", f"remount,bind,{'rw' if yes else 'ro'}", folder)


def command(home: Path, *arguments: str) -> tuple[int, list[str], str]:
    """Exit code of `posbench`, the lines of its errors, and everything that it said on standard error."""
    from posbench import cli

    os.environ["POSBENCH_HOME"] = str(home)
    sys.argv, told, code = ["posbench", *arguments], io.StringIO(), 0
    with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code or 0
        except Exception:
            code = 1
            traceback.print_exc()
    lines = told.getvalue().splitlines()
    return code, [line for line in lines if line.startswith("posbench: error: ")], told.getvalue()


def prepared() -> None:
    """The same costs each time: what is compared are files, and a clock would tell them apart.

    A checkpoint at every update, and no proofs, which take seconds.
    """
    from posbench import checkpoint, quarantine
    from posbench.outcome import cost

    os.environ[checkpoint.PAUSE_VARIABLE], checkpoint.SHARE = "0", 0
    quarantine.prove_once = lambda *arguments, **named: None  # type: ignore[assignment]
    cost.measure = lambda known, *rest, **more: [  # type: ignore[assignment]
        {"encoding": label, "parameters": 1, "flops": 1.0, "step_ratio": 1.0, "step_seconds": 1.0, "peak_memory": 1.0}
        for label in known]


@contextlib.contextmanager
def before(owner: Any, name: str, happens: Callable[[], None], call: int = 1) -> Iterator[None]:
    """Something happens to the disk before the call of this number."""
    genuine, calls = getattr(owner, name), []

    def called(*arguments: Any, **named: Any) -> Any:
        calls.append(name)
        if len(calls) == call:
            happens()
        return genuine(*arguments, **named)

    setattr(owner, name, called)
    try:
        yield
    finally:
        setattr(owner, name, genuine)


def scores(folder: Path) -> str:
    """What a study found, without how long it took and how often it was interrupted."""
    from tests.torture import calm_text

    return "\n".join(calm_text(name, (folder / name).read_text()) for name in ("comparisons.csv", "scoreboard.md")
                     ).replace(str(folder), "FOLDER")


def kept(home: Path) -> int:
    """Results in the store, each of them whole, and nothing torn beside them."""
    from posbench.store import MANIFEST, Store

    store = Store(home / "trials")
    found = [file.parent.name for file in store.root.glob(f"*/*/{MANIFEST}")]
    assert all(store.has(one) for one in found)
    return len(found)


def left(home: Path) -> list[str]:
    return [str(file.relative_to(home)) for file in home.rglob("*")
            if file.suffix == ".tmp" or file.name == "lock" or "checkpoint-" in file.name]


def apart(place: Path) -> dict[str, Any]:
    prepared()
    mounted("-t", "tmpfs", "none", place)  # without the waits for a disk
    assert command(place / "calm", *STUDY)[0] == 0
    calm = scores(place / "calm" / "glue-mini")
    return {"read-only": read_only(place, calm), "full": full(place, calm)}


def read_only(place: Path, calm: str) -> dict[str, Any]:
    """What commands say of a home, a folder and a store that were read-only from the start, or became it."""
    from posbench import studying
    from posbench.store import Store

    told: dict[str, Any] = {}
    home, results = place / "home", place / "results"

    def say(moment: str, *arguments: str) -> None:
        told[moment] = *command(home, *arguments), kept(home)

    home.mkdir()
    writable(home, False)
    say("home, at start", *STUDY)
    writable(home, True)
    results.mkdir()
    writable(results, False)
    say("folder, at start", *STUDY, "--out", str(results))
    (home / "trials").mkdir()
    writable(home / "trials", False)
    say("store, at start", *STUDY)
    writable(home / "trials", True)
    with before(Store, "keep", lambda: writable(home, False), call=2):
        say("home, after a trial", *STUDY)
    writable(home, True)
    with before(studying, "_report", lambda: writable(home, False)):
        say("home, before the report", *STUDY)
    say("report", "report", str(home / "glue-mini"))
    say("sync", "sync", str(home / "glue-mini"))
    say("analyse", "analyse", "rope", "--out", str(home / "heads"))
    say("new-encoding", "new-encoding", "mine", "--folder", str(home))
    say("--write", *STUDY, "--write", str(home / "mine.yaml"))
    writable(home, True)
    told["same"] = command(home, *STUDY)[0] == 0 and scores(home / "glue-mini") == calm
    told["left"] = left(home)
    return told


MOMENTS = {"home, at start": 0, "folder, at start": 0, "store, at start": 0, "home, after a trial": 1,
           "home, before the report": TRIALS, "report": TRIALS, "sync": TRIALS, "analyse": TRIALS,
           "new-encoding": TRIALS, "--write": TRIALS}


@pytest.mark.parametrize("moment", MOMENTS)
def test_what_may_not_be_written_is_one_line_and_exit_code_3(told: dict[str, Any], moment: str) -> None:
    code, lines, everything, trials = told["read-only"][moment]
    assert code == 3, everything
    assert len(lines) == 1 and "Read-only file system" in lines[0] and "Traceback" not in everything, everything
    assert trials == MOMENTS[moment]


def test_given_the_right_again_the_same_command_completes_the_same_study(told: dict[str, Any]) -> None:
    assert told["read-only"]["same"] and told["read-only"]["left"] == []


SIZES = {4: 0, 32: 1, 128: TRIALS, 240: TRIALS}
"""Of disks in KiB, with the trials that fit them: of the last two, one ends within the figures, one behind them."""


def full(place: Path, calm: str) -> dict[str, Any]:
    """What a study says on disks of these sizes, and what it does when there is room."""
    told: dict[str, Any] = {}
    disk = place / "small"
    for size in SIZES:
        disk.mkdir(exist_ok=True)
        mounted("-t", "tmpfs", "-o", f"size={size}k", "none", disk)
        small = *command(disk, *STUDY), kept(disk), [name for name in left(disk) if name.endswith(".tmp")]
        mounted("-o", "remount,size=100m", disk)
        code = command(disk, *STUDY)[0]
        told[str(size)] = *small, code, scores(disk / "glue-mini") == calm, left(disk)
        subprocess.run(["umount", disk], check=True)
    return told


@pytest.mark.parametrize("size", SIZES)
def test_a_full_disk_is_one_line_and_exit_code_3_wherever_it_fills_up(told: dict[str, Any], size: int) -> None:
    code, lines, everything, trials, torn, again, same, remains = told["full"][str(size)]
    assert code == 3 and len(lines) == 1 and "No space left" in lines[0] and "Traceback" not in everything, everything
    assert trials == SIZES[size] and torn == []
    assert again == 0 and same and remains == [], "with room the same command completes the same study"


def test_a_trial_whose_checkpoint_does_not_fit_says_so_and_has_its_result(told: dict[str, Any]) -> None:
    everything = told["full"]["32"][2]
    assert "cannot be written: No space left on device; training goes on" in everything


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_what_is_printed_into_a_full_disk_is_one_line_and_exit_code_3() -> None:
    with open("/dev/full", "w") as disk:
        done = subprocess.run([sys.executable, "-m", "posbench", "list", "reports"], cwd=ROOT, text=True, stdout=disk,
                              stderr=subprocess.PIPE)
    assert done.returncode == 3
    assert done.stderr == ("posbench: error: what the command prints cannot be written: No space left on device\n")
