"""Studies from the command line: the main job end to end, and what bad input gets."""

from __future__ import annotations

import csv
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TINY = [
    "--set",
    "train.steps=4",
    "--set",
    "train.evaluations=1",
    "--set",
    "model.width=16",
    "--set",
    "model.heads=2",
    "--set",
    "model.layers=1",
    "--set",
    "model.feedforward=16",
]
GRID = ["--encodings", "nope,learned,rope:base=500", "--tasks", "cola,stsb,mnli", "--seeds", "2", "--tracker", "none"]


def posbench(home: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "posbench", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "POSBENCH_HOME": str(home), "COLUMNS": "160", **environment},
        timeout=300,
    )


def all_gone(session: int) -> bool:
    """Whether every process of the session ends within ten seconds; workers lead groups of their own in it."""
    for _ in range(100):
        if not _members(session):
            return True
        time.sleep(0.1)
    return False


def _members(session: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of, *_ = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(of) == session and state != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, proofs: Path) -> tuple[Path, subprocess.CompletedProcess[str]]:
    home = tmp_path_factory.mktemp("home")
    (home / "proofs").symlink_to(proofs)
    return home, posbench(home, "study", "glue", *TINY, *GRID, "--jobs", "1")


def test_a_study_prints_its_table_and_writes_every_form(done: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    home, run = done
    assert run.returncode == 0, run.stderr
    assert "rope:base=500" in run.stdout and "generated" in run.stdout
    folder = home / "glue-mini"
    assert {
        "scoreboard.md",
        "scoreboard.tex",
        "scoreboard.html",
        "tidy.csv",
        "comparisons.csv",
        "curves.png",
        "curves.svg",
        "study.json",
    } <= {file.name for file in folder.iterdir()}
    with (folder / "tidy.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["primary"] == "True"]
    # cola and stsb have one scored split, mnli two.
    assert len(rows) == 3 * 2 * (1 + 1 + 2)
    assert {row["status"] for row in rows} <= {"done", "degenerate"}
    assert all(int(row["parameters"]) > 0 and float(row["flops"]) > 0 and float(row["peak_memory"]) > 0 for row in rows)


def test_a_second_call_runs_nothing_and_writes_the_same_bytes(
    done: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    home, first = done
    files = {file: file.read_bytes() for file in (home / "glue-mini").iterdir()}
    kept = {file: file.stat().st_mtime_ns for file in (home / "trials").rglob("*.json")}
    again = posbench(home, "study", "glue", *TINY, *GRID)
    assert again.returncode == 0 and again.stdout == first.stdout
    assert "18 of 18 trials are in the store already" in again.stderr
    assert files == {file: file.read_bytes() for file in (home / "glue-mini").iterdir()}
    assert kept == {file: file.stat().st_mtime_ns for file in (home / "trials").rglob("*.json")}


def test_a_study_grows_and_shares_its_trials(done: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    home, _ = done
    grown = posbench(home, "study", "glue", *TINY, *GRID[:-4], "--seeds", "0,1,2", "--tracker", "none", "--jobs", "1")
    assert grown.returncode == 0, grown.stderr
    assert "18 of 27 trials are in the store already" in grown.stderr
    report = posbench(home, "report", str(home / "glue-mini"))
    assert report.returncode == 0 and "rope:base=500" in report.stdout


WRONG = [
    (["--encodings", "rop"], "unknown encoding 'rop', did you mean 'rope'"),
    (["--encodings", "rope:bas=2"], "unknown option 'bas', did you mean 'base'"),
    (["--encodings", "rope:base=x"], "base = 'x'"),
    (["--encodings", "rope,rope"], "names encoding rope twice"),
    (["--encodings", "rope,,nope"], "empty name"),
    (["--encodings", "./nowhere.py"], "'nowhere.py' does not exist"),
    (["--encodings", "learned:max_length=4"], "ends at 4 positions"),
    (["--encodings", "shaw:clip=0"], "clip = 0"),
    (["--tasks", "colla"], "has no task 'colla', did you mean 'cola'"),
    (["--preset", "minni"], "has no preset 'minni', did you mean 'mini'"),
    (["--set", "train.lr=1"], "unknown setting 'train.lr'"),
    (["--set", "train.steps"], "write NAME=VALUE"),
    (["--seeds", "x"], "give how many (6) or which (0,1,2)"),
    (["--seeds", "0"], "the study has no seed"),
    (["--seeds", "1,1"], "names seed 1 twice"),
    (["--tokenizer", "nowhere.txt"], "'nowhere.txt' cannot be read"),
    (["--jobs", "1000"], "give at most"),
    (["--tracker", "wandb"], "unknown tracker 'wandb'"),
    (["--data", "nowhere"], "nowhere"),
    (["--set", "model.width=30", "--set", "model.heads=4"], "no multiple of heads"),
]


@pytest.mark.parametrize(("arguments", "told"), WRONG, ids=[" ".join(arguments) for arguments, _ in WRONG])
def test_bad_input_is_one_line_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    from posbench import cli

    monkeypatch.setenv("POSBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "argv", ["posbench", "study", "glue", "--tracker", "none", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert told in error and error.startswith("posbench: error: ") and error.count("\n") == 1
    assert not (tmp_path / "home").exists()


def test_a_plugin_that_fails_its_contract_is_refused_before_anything_runs(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        '"""wrong: claims to be relative, and is not."""\n'
        "from posbench.encoding import Encoding, Paper, Properties\nclass Wrong(Encoding):\n"
        "    paper = Paper(title='t', arxiv='2104.09864', equations='1')\n"
        "    properties = Properties(shift=True)\n"
        "    def embed(self, x, at):\n        return x + at.q[..., None].to(x.dtype)\nENCODING = Wrong\n"
    )
    run = posbench(tmp_path / "home", "study", "glue", *TINY, "--tracker", "none", "--encodings", f"nope,{wrong}")
    assert run.returncode == 2
    assert "'wrong' fails its contract" in run.stderr and "Traceback" not in run.stderr
    assert not (tmp_path / "home").exists()
    check = posbench(tmp_path / "home", "check", str(wrong))
    assert check.returncode == 1 and "P4" in check.stdout


def test_a_folder_of_another_study_or_of_none_is_left_alone(
    done: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path, proved: Path
) -> None:
    home, _ = done
    other = posbench(home, "study", "glue", *GRID, *TINY, "--set", "train.steps=5")
    assert other.returncode == 2 and "train.steps is 4 there and 5 here" in other.stderr
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("precious")
    taken = posbench(proved, "study", "glue", *GRID, *TINY, "--out", str(mine))
    assert taken.returncode == 2 and "holds something that is no study" in taken.stderr
    assert [file.name for file in mine.iterdir()] == ["thesis.txt"]


def test_a_failed_trial_is_shown_and_the_exit_code_is_1(tmp_path: Path, proved: Path) -> None:
    late = tmp_path / "late.py"
    late.write_text(
        '"""late: breaks in training alone."""\n'
        "from posbench.encoding import Encoding, Paper, Properties\nclass Late(Encoding):\n    'd'\n"
        "    paper = Paper(title='t', arxiv='2305.19466', equations='none')\n"
        "    properties = Properties(permutation=True, reversal=True, shift=True)\n"
        "    def embed(self, x, at):\n"
        "        if x.shape[0] > 16:\n            raise RuntimeError('out of luck')\n        return x\n"
        "ENCODING = Late\n"
    )
    arguments = [
        "study",
        "glue",
        *TINY,
        "--tracker",
        "none",
        "--encodings",
        f"nope,{late}",
        "--tasks",
        "cola",
        "--seeds",
        "1",
        "--jobs",
        "1",
    ]
    run = posbench(proved, *arguments)
    assert run.returncode == 1, run.stderr
    assert "failed" in run.stdout and "out of luck" in run.stderr and "Traceback" not in run.stderr
    again = posbench(proved, *arguments)
    assert again.returncode == 1 and "RuntimeError: out of luck" in again.stdout


@pytest.mark.slow
def test_a_trial_that_hangs_fails_at_its_time_and_the_others_run(tmp_path: Path) -> None:
    """It hangs in batches of training, which are larger than those of the contract, and so would its cost."""
    hangs = tmp_path / "hangs.py"
    hangs.write_text(
        '"""hangs: in training alone."""\n'
        "import time\nfrom posbench.encoding import Encoding, Paper, Properties\nclass Hangs(Encoding):\n    'd'\n"
        "    paper = Paper(title='t', arxiv='2305.19466', equations='none')\n"
        "    properties = Properties(permutation=True, reversal=True, shift=True)\n"
        "    def embed(self, x, at):\n"
        "        if x.shape[0] > 16:\n            time.sleep(600)\n        return x\n"
        "ENCODING = Hangs\n"
    )
    home = tmp_path / "home"
    began = time.time()
    run = posbench(home, "study", "glue", *TINY, "--tracker", "none", "--encodings", f"{hangs},nope", "--baseline",
                   "nope", "--tasks", "cola", "--seeds", "1", "--timeout", "25", "--jobs", "2")
    assert run.returncode == 1 and "Traceback" not in run.stderr, run.stderr
    lines = run.stderr.splitlines()
    (line,) = [line for line in lines if "hangs seed 0" in line]
    assert "cola hangs seed 0: failed, timeout: no end after 25 s (2" in line
    assert lines[-1] == "1 of 2 trials failed, the first: hangs, cola, seed 0: timeout: no end after 25 s"
    listed = run.stdout.partition("Trials with another status than done")[2]
    assert "hangs cola 0 failed timeout: no end after 25 s" in " ".join(listed.split())
    with (home / "glue-mini" / "tidy.csv").open(newline="") as file:
        rows = {row["encoding"]: row for row in csv.DictReader(file) if row["primary"] == "True"}
    assert rows["nope"]["status"] in ("done", "degenerate") and rows["hangs"]["status"] == "failed"
    assert 25 <= float(rows["hangs"]["seconds"]) < 35
    from posbench.store import Store

    facts = Store(home / "trials").load(rows["hangs"]["fingerprint"]).facts
    assert began < facts["began"] and 25 <= facts["ended"] - facts["began"] < 35


def test_the_cost_of_an_encoding_whose_trials_all_failed_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that hung or crashed in its trials would do the same in the coordinator, which measures."""
    from posbench import outcome
    from posbench.execute import failed
    from posbench.stopwatch import Stopwatch
    from posbench.study import from_preset, plan

    asked = []

    def measure(known: dict, *rest: object, **more: object) -> list[dict]:
        asked.append(list(known))
        return [{"encoding": label, "flops": 1.0} for label in known]

    monkeypatch.setattr(outcome.cost, "measure", measure)
    whole = plan(from_preset("glue", "mini", {
        "encodings": [{"name": "nope"}, {"name": "rope"}, {"name": "alibi"}], "tasks": ["cola"], "seeds": [0, 1],
        "baseline": "nope"}))
    records = {trial.fingerprint: failed(trial, status, "why", Stopwatch()) for trial, status in
               zip(whole.trials, ("done", "failed", "failed", "done", "failed", "done"), strict=True)}
    for _ in range(2):
        rows = {row["encoding"]: row for row in outcome._costs(whole, records, tmp_path)}
        assert (rows["nope"]["flops"], rows["alibi"]["flops"]) == (1.0, 1.0)
        assert rows["rope"]["flops"] is None and rows["rope"]["reason"] == "all of its trials failed"
    assert asked == [["nope", "alibi"]], "the second time it is known"
    outcome._costs(whole, {}, tmp_path)
    assert asked[1:] == [["nope", "rope", "alibi"]], "what has not run may be well"
    broken = {trial.fingerprint: failed(trial, "failed", "why", Stopwatch()) for trial in whole.trials}
    assert [row["flops"] for row in outcome._costs(whole, broken, tmp_path)] == [None] * 3 and len(asked) == 2


@pytest.mark.parametrize(("number", "code"), [
    (signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)])
def test_an_interrupted_study_goes_on_where_it_stopped(
    done: tuple[Path, subprocess.CompletedProcess[str]], proved: Path, number: int, code: int
) -> None:
    """As Ctrl-C does it, the signal reaches the whole group; no worker is left, no trial is lost or run twice."""
    home = proved
    process = subprocess.Popen(
        [sys.executable, "-m", "posbench", "study", "glue", *TINY, *GRID, "--jobs", "2"],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "POSBENCH_HOME": str(home), "COLUMNS": "160"},
    )
    assert process.stderr is not None
    while not process.stderr.readline().startswith("[3/"):
        assert process.poll() is None
    os.killpg(process.pid, number)
    process.communicate(timeout=60)
    assert process.returncode == code
    assert all_gone(process.pid)
    kept = {file: file.stat().st_mtime_ns for file in (home / "trials").rglob("manifest.json")}
    assert 3 <= len(kept) < 18
    again = posbench(home, "study", "glue", *TINY, *GRID, "--jobs", "2")
    assert again.returncode == 0 and f"{len(kept)} of 18 trials are in the store already" in again.stderr
    assert all(file.stat().st_mtime_ns == before for file, before in kept.items())
    undisturbed, _ = done
    tables = [(folder / "glue-mini" / "tidy.csv").read_text() for folder in (home, undisturbed)]
    scores = [
        [
            (row["encoding"], row["task"], row["split"], row["seed"], row["metric"], row["value"])
            for row in csv.DictReader(io.StringIO(table))
        ]
        for table in tables
    ]
    assert scores[0] == [row for row in scores[1] if row[3] in ("0", "1")]


MORE_WRONG = [
    (["--seeds", "99999999999999999999"], "up to 1000"),
    (["--seeds=-1,2"], "must be at least 0"),
    (["--set", "train.learning_rate=inf"], "learning_rate"),
    (["--set", "data.vocabulary=1000000000000"], "must be at most"),
    (["--set", "model.token_types=1"], "token_types 1"),
    (["--set", "encodings=x"], "settings are those of model, train, data, decode and search"),
    (["--set", "train.device=cuda"], "no GPU"),
    (["--baseline", "zzz"], "baseline 'zzz' is not in the study"),
    (["--encodings", "rope,rope:base=10000"], "are one and the same"),
    (["--encodings", "rope:base=1:base=2"], "given twice"),
    (["--encodings", "a" * 300 + ".py"], "does not exist"),
    (["--encodings", "two\nlines"], "unknown encoding 'two lines'"),
    (["--out", "x" * 300], "255 bytes"),
    (["--data", "nul\0byte"], "--data"),
]


@pytest.mark.parametrize(("arguments", "told"), MORE_WRONG, ids=[ascii(" ".join(a))[:40] for a, _ in MORE_WRONG])
def test_absurd_values_are_told_in_one_line_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    import torch

    if "train.device=cuda" in arguments and torch.cuda.is_available():
        pytest.skip("there is a GPU here, so cuda is no mistake")
    test_bad_input_is_one_line_and_writes_nothing(tmp_path, monkeypatch, capsys, arguments, told)


@pytest.mark.parametrize("gpu", [True, False])
def test_a_device_that_is_left_open_is_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch, gpu: bool) -> None:
    import torch

    from posbench.study import from_preset

    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert from_preset("glue", "mini", {"train.device": "auto"}).train.device == ("cuda" if gpu else "cpu")


def test_a_table_says_on_what_device_it_was_trained(done: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    import torch

    (line,) = [line for line in done[1].stdout.splitlines() if line.startswith("machine ")]
    assert line.endswith(" cores, cuda" if torch.cuda.is_available() else " cores, cpu")


BEHAVIOURS = {
    "leaves": "raise SystemExit(0)",
    "worse": "raise GeneratorExit",
    "dumb": "raise type('Dumb', (Exception,), {'__str__': lambda self: 1 / 0})",
}


@pytest.mark.parametrize("behaviour", [
    "leaves", *(pytest.param(name, marks=pytest.mark.slow) for name in BEHAVIOURS if name != "leaves")])
def test_a_plugin_that_wants_to_leave_ends_its_own_trials_alone(tmp_path: Path, proved: Path, behaviour: str) -> None:
    """Batches of training are larger than those of the contract, so that it breaks where the others train too."""
    plugin = tmp_path / f"{behaviour}.py"
    plugin.write_text(
        f'"""{behaviour}."""\nfrom posbench.encoding import Encoding, Paper, Properties\n'
        'class Plugin(Encoding):\n    "d"\n'
        "    paper = Paper(title='t', arxiv='2305.19466', equations='none')\n"
        "    properties = Properties(permutation=True, reversal=True, shift=True)\n"
        f"    def embed(self, x, at):\n        if x.shape[0] > 16:\n            {BEHAVIOURS[behaviour]}\n"
        "        return x\n"
        "ENCODING = Plugin\n"
    )
    run = posbench(
        proved,
        "study",
        "glue",
        *TINY,
        "--tracker",
        "none",
        "--jobs",
        "1",
        "--encodings",
        f"{plugin},nope",
        "--tasks",
        "cola",
        "--seeds",
        "1",
    )
    assert run.returncode == 1, run.stderr
    assert "Traceback" not in run.stderr
    with (proved / "glue-mini" / "tidy.csv").open(newline="") as file:
        statuses = {row["encoding"]: row["status"] for row in csv.DictReader(file)}
    assert statuses[behaviour] == "failed" and statuses["nope"] in ("done", "degenerate")


@pytest.mark.parametrize("line", ["1 / 0", *(pytest.param(line, marks=pytest.mark.slow) for line in (
    "import sys; sys.exit(0)", "raise GeneratorExit", "def"))])
def test_a_plugin_that_leaves_at_import_is_a_mistake_and_no_success(tmp_path: Path, line: str) -> None:
    (tmp_path / "gone.py").write_text(line)
    study = ["study", "glue", "--encodings", f"nope,{tmp_path / 'gone.py'}"]
    for command in [study, ["check", str(tmp_path / "gone.py")]][: 2 if line == "1 / 0" else 1]:
        run = posbench(tmp_path / "home", *command)
        assert run.returncode == 2 and "gone.py cannot be imported" in run.stderr and run.stderr.count("\n") == 1


def test_workers_end_with_a_coordinator_that_was_killed(proved: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "posbench", "study", "glue", *TINY, *GRID, "--set", "train.steps=100000", "--jobs", "2"],
        cwd=ROOT,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "POSBENCH_HOME": str(proved)},
    )
    time.sleep(12)
    process.kill()
    process.wait()
    if not all_gone(process.pid):
        for pid in _members(process.pid):
            os.kill(pid, signal.SIGKILL)
        pytest.fail("workers outlived their coordinator")
