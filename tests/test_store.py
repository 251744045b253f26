"""The store: whole or not at all, and never wrong about what is done."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from posbench.errors import StorageError
from posbench.store import MANIFEST, Record, Store

PRINT = "ab" * 32


def record(**changes: object) -> Record:
    fields = {"fingerprint": PRINT, "label": "rope", "config": {"task": "cola"}, "status": "done",
              "rows": [{"split": "test", "metric": "mcc", "value": 0.1 + 0.2, "n": 10, "primary": True}],
              "curves": [{"step": 1, "metric": "train/loss", "value": float("nan")}]}
    return Record(**{**fields, **changes})  # type: ignore[arg-type]


def test_what_is_kept_comes_back_to_the_last_bit(tmp_path: Path) -> None:
    store = Store(tmp_path)
    arrays = {"test/gold": np.arange(3), "test/output": np.array([[0.1, -1.0]], dtype=np.float32)}
    store.keep(record(), arrays)
    assert store.has(PRINT)
    back = store.load(PRINT)
    assert back.rows == record().rows
    assert math.isnan(back.curves[0]["value"])
    for name, array in arrays.items():
        assert np.array_equal(store.predictions(PRINT)[name], array)
        assert store.predictions(PRINT)[name].dtype == array.dtype


@pytest.mark.parametrize("name", ["record.json", "predictions.safetensors"])
@pytest.mark.parametrize("keep", [0, 0.5, -1])
def test_a_damaged_file_is_no_result(tmp_path: Path, name: str, keep: float) -> None:
    store = Store(tmp_path)
    store.keep(record(), {"test/gold": np.arange(100)})
    path = store.folder(PRINT) / name
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep) if keep >= 0 else -1])
    assert not store.has(PRINT)
    flipped = bytearray(content)
    flipped[len(flipped) // 2] ^= 1
    path.write_bytes(bytes(flipped))
    assert not store.has(PRINT)


@pytest.mark.parametrize("manifest", ["", "{", "[]", '{"files": 3}', "null", '{"files": {}}', "[" * 100_000,
                                      '{"files": {"../../x": "0"}}'])
def test_a_damaged_manifest_is_no_result(tmp_path: Path, manifest: str) -> None:
    store = Store(tmp_path)
    store.keep(record(), {})
    (store.folder(PRINT) / MANIFEST).write_text(manifest)
    assert not store.has(PRINT)


@pytest.mark.parametrize("operation", ["fsync", "replace"])
def test_whichever_operation_fails_no_half_result_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """The N-th call fails, for every N until none is left to fail."""
    genuine = getattr(os, operation)
    for number in range(1, 50):
        store = Store(tmp_path / str(number))
        calls = iter(range(1, 1000))

        def fails(*arguments: object, number: int = number, calls: object = calls) -> object:
            if next(calls) == number:  # type: ignore[call-overload]
                raise OSError(errno.ENOSPC, "No space left on device")
            return genuine(*arguments)

        monkeypatch.setattr(os, operation, fails)
        try:
            store.keep(record(), {"test/gold": np.arange(3)})
            failed = False
        except StorageError as error:
            failed = True
            assert "No space left" in str(error) and error.exit_code == 3
        monkeypatch.setattr(os, operation, genuine)
        if not failed:
            assert number > 3
            return
        assert not list(store.root.rglob("*.tmp"))
        if store.has(PRINT):  # only the last fsync, of the folder, can fail after all is in place
            assert store.load(PRINT).rows == record().rows
        store.keep(record(), {"test/gold": np.arange(3)})
        assert store.has(PRINT)
    pytest.fail("the operation never stopped failing")


def test_a_kill_at_any_moment_leaves_a_whole_result_or_none(tmp_path: Path) -> None:
    code = ("import sys, numpy as np; from pathlib import Path\n"
            "from tests.test_store import record; from posbench.store import Store\n"
            "store = Store(Path(sys.argv[1])); print('ready', flush=True)\n"
            "while True: store.keep(record(), {'test/output': np.zeros(200_000)})")
    store = Store(tmp_path)
    for kill in range(12):
        process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=Path(__file__).parents[1],
                                   stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        time.sleep(0.004 * kill)
        process.kill()
        process.wait()
        process.stdout.close()
        if store.has(PRINT):
            assert len(store.predictions(PRINT)["test/output"]) == 200_000
    store.keep(record(), {})
    assert store.has(PRINT) and not list(store.folder(PRINT).glob("*.tmp"))


def test_an_old_result_gives_way_to_a_new_one(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.keep(record(status="failed"), {})
    store.keep(record(), {})
    assert store.load(PRINT).status == "done"
    store.drop(PRINT)
    assert not store.has(PRINT)


@pytest.mark.parametrize("change", [{"later": 1}, {"rows": None}])
def test_a_whole_record_of_another_version_is_told_in_one_line(tmp_path: Path, change: dict[str, object]) -> None:
    store = Store(tmp_path)
    store.keep(record(), {})
    folder = store.folder(PRINT)
    content = json.dumps(json.loads((folder / "record.json").read_text()) | change).encode()
    (folder / "record.json").write_bytes(content)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"]["record.json"] = hashlib.sha256(content).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(manifest))
    assert store.has(PRINT)
    with pytest.raises(StorageError, match="another version of posbench"):
        store.load(PRINT)


def test_the_manifest_names_every_file(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.keep(record(), {})
    folder = store.folder(PRINT)
    manifest = json.loads((folder / MANIFEST).read_text())
    assert set(manifest["files"]) | {MANIFEST} == {file.name for file in folder.iterdir()}


def test_the_lock_of_a_killed_process_is_removed_and_one_that_is_held_stays(tmp_path: Path) -> None:
    store = Store(tmp_path)
    lock = store.folder("ab" * 32) / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    store.release("ab" * 32)
    assert not lock.exists()
    with store.claim("ab" * 32) as mine:
        store.release("ab" * 32)
        assert mine and lock.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="limits are POSIX's")
def test_a_file_size_limit_leaves_what_was_there(tmp_path: Path) -> None:
    """The first write beyond the limit is a short one, without an error."""
    import resource

    store = Store(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(StorageError, match="File too large") as told:
            store.keep(record(), {"test/output": np.zeros(100_000)})
        store.keep(record(fingerprint="cd" * 32), {"test/output": np.zeros(100)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert told.value.exit_code == 3 and "\n" not in str(told.value)
    assert not store.has(PRINT) and store.has("cd" * 32) and not list(tmp_path.rglob("*.tmp"))
    store.keep(record(), {"test/output": np.zeros(100_000)})
    assert len(store.predictions(PRINT)["test/output"]) == 100_000
