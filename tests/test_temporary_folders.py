"""Temporary folders: those that posbench makes are its user's alone."""

from __future__ import annotations

import ast
import os
import stat
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from posbench import mlflow_runs
from posbench.track import DATABASE, MLflow
from tests.test_track import record

ROOT = Path(__file__).resolve().parents[1]
CODE = ROOT / "posbench"
MAKERS = {"mkdtemp", "TemporaryDirectory"}
Site = tuple[str, int]
"""A file of posbench and the line on which a call begins."""


def called(node: ast.AST) -> str:
    """The last name of what is called: mkdtemp of tempfile.mkdtemp(...)."""
    function = node.func if isinstance(node, ast.Call) else None
    return getattr(function, "attr", getattr(function, "id", ""))


def mode(path: Path | str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def sites() -> dict[Site, int]:
    """Every call in posbench that makes a temporary folder, with the line on which it ends."""
    found = {}
    for file in CODE.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if called(node) in MAKERS:
                found[file.name, node.lineno] = node.end_lineno  # type: ignore[attr-defined]
    return found


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[Site, int]:
    """Modes of the temporary folders that are made from now on, by the call that makes them."""
    modes: dict[Site, int] = {}
    known, genuine = sites(), tempfile.mkdtemp

    def watched(*arguments: Any, **named: Any) -> str:
        path, frame = genuine(*arguments, **named), sys._getframe(1)
        while Path(frame.f_code.co_filename).parent != CODE:
            assert frame.f_back is not None
            frame = frame.f_back
        file = Path(frame.f_code.co_filename).name
        for (name, first), last in known.items():
            if name == file and first <= frame.f_lineno <= last:
                modes[name, first] = mode(path)
        return path

    monkeypatch.setattr(tempfile, "mkdtemp", watched)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    mask = os.umask(0)  # a user whose files are open to all
    try:
        yield modes
    finally:
        os.umask(mask)


def test_every_temporary_folder_is_its_users_alone(
    made: dict[Site, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each place in the code that makes one is come by here, so that another one that is added fails this test."""
    ray_cluster = pytest.importorskip("posbench.ray_cluster", reason="Ray is not installed")
    copy(tmp_path, monkeypatch)
    cluster(ray_cluster, tmp_path, monkeypatch)
    assert made == dict.fromkeys(sites(), 0o700)


def test_no_temporary_folder_is_made_by_other_means() -> None:
    """Names that somebody else can guess, in folders that everybody may write to."""
    for file in CODE.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            assert called(node) not in ("mktemp", "gettempdir", "NamedTemporaryFile"), f"{file.name}:{node.lineno}"


def copy(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a copy in MLflow makes: its database aside, and the files of a run before they are handed over."""

    class Client:
        def __init__(self, home: Path) -> None:
            self.home = home

        def search_experiments(self, **named: Any) -> None:
            assert mode(self.home) == 0o700
            (self.home / DATABASE).touch()

        def create_run(self, *arguments: Any, **named: Any) -> Any:
            return SimpleNamespace(info=SimpleNamespace(run_id="run"))

        def log_artifacts(self, run: str, folder: str) -> None:
            assert list(Path(folder).iterdir()) and mode(folder) == 0o700

        def log_batch(self, *arguments: Any, **named: Any) -> None:
            pass

        set_terminated = log_batch

    monkeypatch.setattr(MLflow, "_client", lambda self: Client(self.home))
    tracker = MLflow(home)
    tracker.prepare()
    assert not tracker.failures and (home / DATABASE).exists()
    (home / "table.md").write_text("table")
    tracker._log(Client(home), mlflow_runs.of_trial(record(), {"table.md": home / "table.md"}))


def cluster(ray_cluster: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Ray gets where no cluster is there, and where a task keeps its trials on another machine."""
    def started(**named: Any) -> None:
        assert mode(named["_temp_dir"]) == 0o700

    monkeypatch.setenv("RAY_ADDRESS", "")
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "token")
    monkeypatch.setattr(ray_cluster.ray, "init", started)
    monkeypatch.setattr(ray_cluster.ray, "shutdown", lambda: None)
    with ray_cluster._connected():
        pass
    home = ray_cluster._home(None)
    assert mode(home.folder) == 0o700
    ray_cluster._leave(home)
