"""Trackers: MLflow holds a whole and equal copy of the store's trials, once each, and never stops a study."""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posbench import mlflow_runs, mlflow_view
from posbench.errors import UserError
from posbench.store import Record
from posbench.track import DATABASE, JsonLines, MLflow, Tracker
from posbench.ui import serve

STUDY = "posbench-toy-mini"


def record(label: str = "rope", task: str = "cola", seed: int = 0, **changes: Any) -> Record:
    """A trial with a curve of three points and one primary score."""
    return Record(
        **{
            "fingerprint": mlflow_runs.digest([label, task, seed]),
            "label": label,
            "config": {
                "encoding": {"name": label, "options": {}},
                "suite": "toy",
                "task": task,
                "seed": seed,
                "model": {"width": 64},
            },
            "status": "done",
            "rows": [
                {
                    "split": "validation",
                    "length": 64,
                    "metric": "accuracy",
                    "value": 0.5 + seed / 10,
                    "n": 100,
                    "higher_is_better": True,
                    "primary": True,
                }
            ],
            "curves": [
                *({"step": step, "metric": "train/loss", "value": 1 / step} for step in (10, 20, 30)),
                {"step": 30, "metric": "validation/accuracy", "value": 0.5 + seed / 10},
            ],
            "facts": {
                "data_hash": "d" * 64,
                "commit": "abc",
                "versions": {"torch": "2"},
                "began": 1e9,
                "ended": 1e9 + 9,
            },
            **changes,
        }
    )


@pytest.fixture
def home(migrated: Path, tmp_path: Path) -> Path:
    shutil.copy(migrated, tmp_path / DATABASE)
    return tmp_path


def mirror(home: Path | str, *records: Record, files: dict[str, Path] | None = None) -> str:
    tracker = MLflow(home)
    tracker.begin(STUDY, "a toy study")
    for each in records:
        tracker.trial(each, files or {})
    return tracker.end()


def runs(home: Path, kind: str = "trial") -> list[Any]:
    client = MLflow(home)._client()
    experiment = client.get_experiment_by_name(STUDY)
    return list(client.search_runs([experiment.experiment_id], f"tags.`posbench.kind` = '{kind}'"))


def test_importing_the_module_loads_no_mlflow() -> None:
    code = "import sys, posbench.track, posbench.ui; print([n for n in ('mlflow', 'torch') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_base_does_nothing(tmp_path: Path) -> None:
    tracker = Tracker()
    tracker.prepare()
    tracker.begin("any/name", "")
    tracker.trial(record(), {})
    tracker.summary("summary", {}, {})
    assert tracker.end() == ""
    assert not list(tmp_path.iterdir())


def test_json_lines_hold_a_trial_once_and_no_nan(tmp_path: Path) -> None:
    path = tmp_path / "a" / "trials.jsonl"
    odd = record(seed=1, curves=[{"step": np.int64(3), "metric": "train/loss", "value": np.float64("nan")}])
    for _ in range(2):
        tracker = JsonLines(path)
        tracker.begin(STUDY, "")
        tracker.trial(record(), {})
        tracker.trial(odd, {})
        assert tracker.end() == ""
    lines = [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]
    assert [line["config"]["seed"] for line in lines] == [0, 1]
    assert math.isnan(float(lines[1]["curves"][0]["value"]))


def test_json_lines_tell_what_they_could_not_write(tmp_path: Path) -> None:
    tracker = JsonLines(tmp_path)
    tracker.trial(record(), {})
    assert "1 trial could" in tracker.end()


def test_a_line_that_a_full_disk_cut_off_is_told_and_spoils_no_other(tmp_path: Path) -> None:
    """At a limit of file size the system writes a part of a line, and says so in a number alone."""
    path = tmp_path / "lines"
    code = ("import resource, sys; from pathlib import Path; from tests.test_track import *\n"
            "lines = JsonLines(Path(sys.argv[1])); lines.begin(STUDY, ''); lines.trial(record(), {})\n"
            "size = lines.path.stat().st_size + 50; resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))\n"
            "lines.trial(record(seed=1), {}); assert '1 trial could' in lines.end(), lines.end()")
    subprocess.run([sys.executable, "-c", code, str(path)], cwd=Path(__file__).parents[1], check=True, timeout=120)
    lines = JsonLines(path)
    lines.begin(STUDY, "")
    for seed in range(3):
        lines.trial(record(seed=seed), {})
    assert lines.end() == ""
    whole = []
    for line in path.read_text().splitlines():
        with contextlib.suppress(ValueError):
            whole.append(json.loads(line)["config"]["seed"])
    assert whole == [0, 1, 2], "the one that was cut off comes again, and the others came once"


def test_a_run_says_what_the_record_says(home: Path) -> None:
    table = home / "table.md"
    table.write_text("| a |")
    assert mirror(home, record(), files={"tables/main.md": table}) == ""
    (run,) = runs(home)
    client = MLflow(home)._client()
    assert run.info.run_name == "rope-cola-s0"
    assert (run.info.status, run.info.start_time, run.info.end_time) == ("FINISHED", 10**12, 10**12 + 9000)
    assert run.data.params.items() >= {
        ("encoding", "rope"), ("task", "cola"), ("seed", "0"), ("suite", "toy"), ("options", "{}"),
        ("model.width", "64"),
    }  # fmt: skip
    assert run.data.tags.items() >= {
        ("posbench.fingerprint", record().fingerprint), ("posbench.status", "done"), ("posbench.kind", "trial"),
        ("posbench.git_commit", "abc"), ("posbench.versions.torch", "2"), ("posbench.data_hash", "d" * 64),
    }  # fmt: skip
    assert run.data.metrics["score/cola"] == run.data.metrics["final/cola.accuracy.validation"] == 0.5
    history = client.get_metric_history(run.info.run_id, "train/cola.loss")
    assert [(point.step, point.value) for point in history] == [(10, 0.1), (20, 0.05), (30, 1 / 30)]
    artifacts = home / "mlartifacts" / STUDY / run.info.run_id / "artifacts"
    assert json.loads((artifacts / "config.json").read_text()) == record().config
    assert (artifacts / "tables" / "main.md").read_text() == "| a |"


def test_the_same_study_again_adds_nothing_and_another_result_replaces(home: Path) -> None:
    for _ in range(2):
        mirror(home, record(), record(seed=1))
        assert len(runs(home)) == 2
    before = {run.info.run_id for run in runs(home)}
    mirror(home, record(status="failed", reason="out of memory", rows=[]), record(seed=1))
    assert len(runs(home)) == 2
    assert len(before & {run.info.run_id for run in runs(home)}) == 1
    assert {run.info.status for run in runs(home)} == {"FAILED", "FINISHED"}


def test_means_over_seeds_tell_how_many_trials_have_a_score(home: Path) -> None:
    trials = [record(seed=seed) for seed in range(3)]
    lost = record(seed=3, status="diverged", reason="the loss is nan", rows=[])
    for _ in range(2):
        mirror(home, *trials, lost)
        (run,) = runs(home, "encoding")
    assert run.data.params == {"encoding": "rope", "scored": "3 of 4", "seeds": "4"}
    assert run.data.metrics["score/cola"] == pytest.approx(0.6)
    assert run.data.metrics["spread/cola"] == pytest.approx(0.1)


def test_a_mean_curve_has_only_steps_that_every_seed_has() -> None:
    whole, short = record(seed=0), record(seed=1)
    cut = [point for point in short.curves if point["step"] != 20]
    run = mlflow_runs.of_encoding("rope", [whole, record(seed=1, curves=cut)], "#000000")
    assert [point.step for point in run.points if point.name == "train/cola.loss"] == [10, 30]


def test_one_summary_is_updated(home: Path) -> None:
    figure = home / "figure.png"
    for value in (0.4, 0.4, 0.6):
        figure.write_bytes(str(value).encode())
        tracker = MLflow(home)
        tracker.begin(STUDY, "")
        tracker.summary("toy", {"rope/cola/mean": value, "undefined": math.nan}, {"figures/a.png": figure})
        assert tracker.end() == ""
        (run,) = runs(home, "summary")
        assert run.data.metrics == {"rope/cola/mean": value}
    assert (home / "mlartifacts" / STUDY / run.info.run_id / "artifacts/figures/a.png").read_bytes() == b"0.6"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("inf")])
def test_what_is_no_finite_number_is_never_stored_as_one(home: Path, value: float) -> None:
    curves = [{"step": 1, "metric": "train/loss", "value": 0.5}, {"step": 2, "metric": "train/loss", "value": value}]
    assert mirror(home, record(curves=curves)) == ""
    (run,) = runs(home)
    assert run.info.status == "FAILED"
    assert run.data.tags["posbench.status"] == "diverged"
    assert run.data.tags["posbench.not_finite"] == "train/cola.loss"
    history = MLflow(home)._client().get_metric_history(run.info.run_id, "train/cola.loss")
    assert [point.value for point in history] == [0.5]
    with sqlite3.connect(home / DATABASE) as database:
        assert database.execute("select max(abs(value)), sum(is_nan) from metrics").fetchone() == (0.5, 0)


def test_an_undefined_validation_score_is_left_out_and_diverges_nothing(home: Path) -> None:
    mirror(home, record(curves=[{"step": 1, "metric": "validation/accuracy", "value": math.nan}]))
    (run,) = runs(home)
    assert (run.info.status, run.data.tags["posbench.status"]) == ("FINISHED", "done")
    assert "validation/cola.accuracy" not in run.data.metrics


def test_numbers_of_other_types_are_stored_as_numbers(home: Path) -> None:
    curves = [
        {"step": step, "metric": "train/loss", "value": value}
        for step, value in ((np.int64(1), np.float32(0.5)), (2.0, 1), (np.float64(3), np.float64(0.25)))
    ]
    assert mirror(home, record(curves=curves)) == ""
    with sqlite3.connect(home / DATABASE) as database:
        types = database.execute("select distinct typeof(step), typeof(value) from metrics").fetchall()
    assert types == [("integer", "real")]


def test_long_and_many_params_are_kept_whole(home: Path) -> None:
    long = "é" * 10_000
    config = record().config | {"long": long, "many": {f"option{i}": i for i in range(250)}, "odd": {"a@[b](c)": 1}}
    points = [{"step": step, "metric": "train/loss", "value": 0.5} for step in range(2500)]
    assert mirror(home, record(config=config, curves=points)) == ""
    (run,) = runs(home)
    assert sum(name.startswith("many.") for name in run.data.params) == 250
    param = run.data.params["long"]
    assert len(param) <= 500
    assert mlflow_runs.hashlib.sha256(long.encode()).hexdigest() in param
    artifacts = home / "mlartifacts" / STUDY / run.info.run_id / "artifacts"
    (whole,) = (artifacts / "params").iterdir()
    assert whole.read_text(encoding="utf-8") == long
    assert len(MLflow(home)._client().get_metric_history(run.info.run_id, "train/cola.loss")) == 2500


@pytest.mark.parametrize(
    "name", ["a@[b](c)", "../../x", "/x", "a//b", "..", "x" * 300, "a\0b", "a;b", "$(x)", "%2e%2e"]
)
def test_odd_names_become_ones_that_lead_nowhere_and_stay_different(name: str, tmp_path: Path) -> None:
    taken = mlflow_runs.key(name)
    assert taken != mlflow_runs.key(name + "!") and len(taken) <= 250
    assert not taken.startswith("/") and ".." not in taken.split("/")
    (tmp_path / "from").write_text("x")
    mlflow_runs.of_summary("s", {}, {name: tmp_path / "from"}).write_artifacts(tmp_path / "to")
    assert len([file for file in (tmp_path / "to").rglob("*") if file.is_file()]) == 1


@pytest.mark.parametrize(
    "name", ["", "a/b", "../x", "a..b", "x" * 65, "a b", "a;b", "a?b", "a#b", "%2e%2e", "a\0b", ".a", "-a", "é", "a\n"]
)
def test_study_names_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as told:
        MLflow(tmp_path).begin(name, "")
    assert "study name" in str(told.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("uri", ["ftp://x", "sqlite:///x.db", "http://me:secret@host"])
def test_other_addresses_are_refused_and_passwords_not_repeated(uri: str) -> None:
    with pytest.raises(UserError) as told:
        MLflow(uri)
    assert "secret" not in str(told.value)


def _write(home: Path, seeds: range) -> None:
    assert mirror(home, *(record(seed=seed) for seed in seeds)) == ""


def test_mlflow_is_told_to_open_no_pickle(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", raising=False)
    MLflow(home)._client()
    assert os.environ["MLFLOW_ALLOW_PICKLE_DESERIALIZATION"] == "false"


def test_writers_at_once_lose_nothing(home: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(home, range(n * 5, n * 5 + 5))) for n in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0, 0, 0]
    assert sorted(int(run.data.params["seed"]) for run in runs(home)) == list(range(20))


def test_a_run_that_a_kill_left_half_written_is_replaced(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    def killed(*arguments: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    for at in ("log_batch", "log_artifacts", "set_terminated"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(MlflowClient, at, killed)
            mirror(home, record())
        assert {run.info.status for run in runs(home)} == {"RUNNING"}
    assert mirror(home, record()) == ""
    (run,) = runs(home)
    assert run.info.status == "FINISHED"
    assert run.data.metrics["score/cola"] == 0.5


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_dead_or_silent_server_is_told_once_and_holds_nobody_up(silent: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        gone = server.getsockname()[1]
    for port in (gone, silent):
        began = time.monotonic()
        tracker = MLflow(f"http://127.0.0.1:{port}")
        tracker.prepare()
        tracker.begin(STUDY, "")
        for seed in range(20):
            tracker.trial(record(seed=seed), {})
        told = tracker.end()
        assert time.monotonic() - began < 8
        assert told.startswith("MLflow copy incomplete: 21 of 21 runs, posbench sync fills it in: ")
        why = "Connection refused" if port == gone else "timed out"
        assert told.endswith(f"in: the server at http://127.0.0.1:{port} (MLFLOW_TRACKING_URI) does not answer: {why}")
        assert "\n" not in told


def test_a_locked_database_loses_a_few_runs_and_the_next_call_fills_them_in(home: Path) -> None:
    mirror(home, record())
    tracker = MLflow(home)
    tracker.begin(STUDY, "a toy study")
    with sqlite3.connect(home / DATABASE, isolation_level=None) as database:
        database.execute("begin exclusive")
        began = time.monotonic()
        for seed in range(8):
            tracker.trial(record(seed=seed), {})
        assert time.monotonic() - began < 10
        database.execute("rollback")
    told = tracker.end()
    # One trial was there before; seven and the means are not.
    assert told.startswith("MLflow copy incomplete: 8 of 9 runs, ") and "locked" in told
    assert mirror(home, *(record(seed=seed) for seed in range(8))) == ""
    assert len(runs(home)) == 8


@pytest.mark.parametrize("name", ["plain", "a b", "a%20b", "é", "a#b", "a?b"])
def test_a_folder_of_any_name_works_or_is_told(name: str, migrated: Path, tmp_path: Path) -> None:
    home = tmp_path / name
    home.mkdir()
    shutil.copy(migrated, home / DATABASE)
    told = mirror(home, record())
    if set(name) & set("%?#"):
        assert told.startswith("MLflow copy incomplete: 2 of 2 runs") and "one of % ? #" in told
    else:
        assert told == "" and len(runs(home)) == 1
    assert {path.name for path in tmp_path.iterdir()} == {name}


def test_views_hold_what_the_pages_need() -> None:
    tags = mlflow_view.tags(["rope", "none"], ["score/cola"], ["validation/cola.mcc"], ["train/cola.loss"])
    means, trials = (mlflow_view.unpacked(tags[mlflow_view.TAG + view]) for view in ("posbench", "posbench-trials"))
    assert trials["groupBy"] == {
        "aggregateFunction": "average",
        "groupByKeys": [{"mode": "param", "groupByData": "encoding"}],
    }
    assert trials["groupsExpanded"] == {"param.encoding.rope": False, "param.encoding.none": False}
    for view, kind in ((means, "encoding"), (trials, "trial")):
        assert view["searchFilter"] == f"tags.`posbench.kind` = '{kind}'"
        assert "metrics.`score/cola`" in view["selectedColumns"]
        assert view["runsHiddenMode"] == "SHOW_ALL"
        sections = {section["uuid"] for section in view["compareRunSections"]}
        assert [chart["metricKey"] for chart in view["compareRunCharts"]] == [
            "validation/cola.mcc", "score/cola", "train/cola.loss"
        ]  # fmt: skip
        assert {chart["metricSectionId"] for chart in view["compareRunCharts"]} == sections


def test_views_of_many_tasks_stay_within_a_tag() -> None:
    names = [f"{mlflow_runs.digest(i)[:40]}" for i in range(200)]
    tags = mlflow_view.tags(names, *([f"{kind}/{name}" for name in names] for kind in ("score", "validation", "train")))
    assert all(len(tag) <= mlflow_view.LONGEST_TAG for tag in tags.values())
    assert mlflow_view.unpacked(tags[mlflow_view.TAG + "posbench-trials"])["groupBy"]


def test_a_study_writes_its_views_and_is_found_again(home: Path) -> None:
    mirror(home, record())
    tracker = MLflow(home)
    ((identity, name),) = tracker.studies()
    assert name == STUDY
    experiment = tracker._client().get_experiment(identity)
    assert experiment.tags["mlflow.note.content"] == "a toy study"
    state = mlflow_view.unpacked(experiment.tags[mlflow_view.TAG + mlflow_view.MEANS])
    assert [chart["metricKey"] for chart in state["compareRunCharts"]] == [
        "validation/cola.accuracy", "score/cola", "train/cola.loss"
    ]  # fmt: skip
    assert tracker.view_url(identity) == (
        f"http://127.0.0.1:5000/#/experiments/{identity}/runs?workflowType=machine_learning&viewStateShareKey=posbench"
    )


def test_views_keep_their_columns_while_a_study_is_continued(home: Path) -> None:
    mirror(home, record(task="cola"), record(task="rte"))
    tracker = MLflow(home)
    tracker.begin(STUDY, "")
    tracker.trial(record(task="rte"), {})
    for tasks in (["cola", "rte"], ["rte"]):
        experiment = tracker._client().get_experiment_by_name(STUDY)
        state = mlflow_view.unpacked(experiment.tags[mlflow_view.TAG + mlflow_view.MEANS])
        assert state["selectedColumns"] == ["params.`scored`", *(f"metrics.`score/{task}`" for task in tasks)]
        tracker.end()


def test_what_somebody_wrote_or_deleted_in_the_browser_is_respected(home: Path) -> None:
    mirror(home, record())
    client = MLflow(home)._client()
    experiment = client.get_experiment_by_name(STUDY)
    client.set_experiment_tag(experiment.experiment_id, "mlflow.note.content", "my note")
    client.delete_experiment(experiment.experiment_id)
    assert mirror(home, record(seed=1)) == ""
    assert client.get_experiment_by_name(STUDY).tags["mlflow.note.content"] == "my note"
    assert len(runs(home)) == 2


def test_pages_are_refused_without_a_database_on_a_taken_port_and_for_the_network(home: Path, silent: int) -> None:
    for arguments, words in (
        ((home / "none",), "no MLflow database"),
        ((home, silent), f"port {silent}"),
        ((home, 5000, "0.0.0.0"), "127.0.0.1 only"),
    ):
        with pytest.raises(UserError, match=words):
            serve(*arguments)


@pytest.mark.slow
def test_pages_are_served_to_this_machine_and_end_quietly(home: Path) -> None:
    mirror(home, record())
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    code = f"from pathlib import Path; from posbench.ui import serve; serve(Path({str(home)!r}), {port})"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1", "COLUMNS": "60"},
    ) as process:
        assert process.stdout is not None
        try:
            lines = []
            while not lines or "Ctrl-C" not in lines[-1]:
                lines.append(process.stdout.readline())
                assert lines[-1], lines
            assert any("viewStateShareKey=posbench\n" in line for line in lines)
            stranger = urllib.request.Request(f"http://127.0.0.1:{port}/", headers={"Host": "evil.example"})
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(stranger)
            assert mirror(f"http://127.0.0.1:{port}", record(), record(seed=1)) == ""
        finally:
            process.send_signal(signal.SIGINT)
        assert process.stdout.read() == ""
        assert process.wait(20) == 0
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1)
    assert len(runs(home)) == 2
