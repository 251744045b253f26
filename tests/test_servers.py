"""A tracking server that dies while a study runs costs it nothing but the copy, which `posbench sync` makes."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from posbench import cli
from posbench.store import Store
from posbench.track import MLflow
from tests.test_study import TINY

STUDY = ["study", "glue", *TINY, "--encodings", "nope,rope", "--baseline", "nope", "--tasks", "cola", "--seeds", "2",
         "--jobs", "1"]


class Server(ThreadingHTTPServer):
    """What a study asks of MLflow's REST interface, from memory; after so many runs it dies, or falls silent."""

    daemon_threads = True

    def __init__(self, folder: Path, runs: int, silent: bool) -> None:
        super().__init__(("127.0.0.1", 0), Requests)
        self.folder, self.left, self.silent = folder, runs, silent
        self.answered: list[str] = []
        self.over = threading.Event()

    def die(self) -> None:
        """Takes no connection any more; one that falls silent still takes them."""
        self.over.set()
        if not self.silent:
            self.socket.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a connection that was cut


class Requests(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *arguments: Any) -> None:
        pass

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        name = self.path.partition("?")[0].partition("/mlflow/")[2]
        if name == "runs/create":
            self.server.left -= 1
            if self.server.left < 0:
                self.server.die()
        if self.server.over.is_set():
            if self.server.silent:
                time.sleep(30)
            self.connection.close()
            return
        self.server.answered.append(name)
        run = {"info": {"run_id": f"r{len(self.server.answered)}", "experiment_id": "1", "status": "RUNNING",
                        "artifact_uri": str(self.server.folder / "artifacts"), "lifecycle_stage": "active"},
               "data": {}}
        answers = {
            "experiments/get-by-name": {"experiment": {"experiment_id": "1", "name": "e", "lifecycle_stage": "active",
                                                       "artifact_location": str(self.server.folder)}},
            "runs/create": {"run": run}, "runs/get": {"run": run}, "runs/update": {"run_info": run["info"]},
        }
        content = json.dumps(answers.get(name, {})).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = _answer  # noqa: N815


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    runs, silent = request.param
    with Server(tmp_path / "server", runs, silent) as own:
        thread = threading.Thread(target=own.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield own
        own.over.set()
        own.shutdown()


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: Path, server: str,
         *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setenv("POSBENCH_HOME", str(home))
    if server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    else:
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(sys, "argv", ["posbench", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def numbers(home: Path) -> dict[str, tuple[Any, ...]]:
    store = Store(home / "trials")
    records = [store.load(file.parent.name) for file in store.root.glob("*/*/manifest.json")]
    return {record.fingerprint: (record.status, record.rows, record.curves) for record in records}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study without a tracker."""
    home = tmp_path_factory.mktemp("alone")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSBENCH_HOME", str(home))
        patch.setattr(sys, "argv", ["posbench", *STUDY, "--tracker", "none"])
        with pytest.raises(SystemExit) as stop:
            cli.main()
    assert not stop.value.code
    return home


@pytest.mark.slow
@pytest.mark.parametrize("server", [(1, False), (2, True)], indirect=True, ids=["dies", "falls silent"])
def test_a_server_that_ends_within_a_study_changes_no_number_and_is_told_in_a_line(
    server: Server, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home, uri = tmp_path / "home", f"http://127.0.0.1:{server.server_address[1]}"
    code, out, err = call(monkeypatch, capsys, home, uri, *STUDY)
    assert code == 0 and "Traceback" not in out + err
    assert server.over.is_set() and server.answered.count("runs/create") >= 1, "it had begun to copy"
    (told,) = [line for line in out.splitlines() if line.startswith("MLflow copy incomplete: ")]
    assert f"posbench sync fills it in: the server at {uri} (MLFLOW_TRACKING_URI) does not answer: " in told
    assert "browse" not in out
    assert numbers(home) == numbers(alone) and len(numbers(home)) == 4


def test_what_a_copy_misses_is_filled_in_where_there_is_a_place_and_told_where_there_is_none(
    alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        dead = f"http://127.0.0.1:{closed.getsockname()[1]}"
    folder, before = str(alone / "glue-mini"), numbers(alone)
    code, out, err = call(monkeypatch, capsys, alone, dead, "sync", folder)
    # Four trials, the means of two encodings, and the summary.
    assert code == 3 and not out and err.count("\n") == 1
    assert err.startswith("posbench: error: MLflow copy incomplete: 7 of 7 runs, the same command goes on when that "
                          "is mended: ")
    assert err.endswith(f": the server at {dead} (MLFLOW_TRACKING_URI) does not answer: Connection refused\n")
    for _ in range(2):
        code, out, err = call(monkeypatch, capsys, alone, "", "sync", folder)
        assert (code, out, err) == (0, f"the MLflow copy of {folder} is complete: 4 results\n", "")
        client = MLflow(alone)._client()
        experiment = client.get_experiment_by_name("posbench-glue-mini")
        runs = client.search_runs([experiment.experiment_id])
        assert {run.info.status for run in runs} == {"FINISHED"}
        kinds = sorted(run.data.tags["posbench.kind"] for run in runs)
        assert kinds == ["encoding", "encoding", "summary", "trial", "trial", "trial", "trial"]
    assert numbers(alone) == before
