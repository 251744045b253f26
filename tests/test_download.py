"""Downloads that break off: what has arrived of a file is never read as if it were all of it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pyarrow as pa
import pytest

ROOT = Path(__file__).resolve().parents[1]
COMMIT = "ab" * 20
NAME = "cola/train-00000-of-00001.parquet"
ROWS = 5000
CARD = """---
configs:
- config_name: cola
  data_files:
  - split: train
    path: cola/train-*
---
"""
# Answers to questions on its standard input; the library's pauses between its attempts are left out.
READ = """
import json, sys, time, types
import huggingface_hub.file_download
from posbench.data import hub_rows
from posbench.errors import UserError
huggingface_hub.file_download.time = types.SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None})
for line in sys.stdin:
    began = time.monotonic()
    try:
        rows = hub_rows(line.strip(), "cola", "train", sys.argv[1])
        told = [[row["sentence"], row["label"]] for row in rows]
    except UserError as error:
        told = str(error)
    print(json.dumps([told, time.monotonic() - began]), flush=True)
"""


def text(row: int) -> str:
    return hashlib.sha256(str(row).encode()).hexdigest()


WHOLE = [[text(row), row % 2] for row in range(ROWS)]


def parquet() -> bytes:
    """A split that does not fit one packet of the network."""
    file = io.BytesIO()
    pd.DataFrame(WHOLE, columns=["sentence", "label"]).to_parquet(file)
    return file.getvalue()


class Hub(BaseHTTPRequestHandler):
    """As much of a hub as one data set of one file needs."""

    protocol_version = "HTTP/1.1"
    content: ClassVar[bytes]
    share: ClassVar[float]
    asked: ClassVar[list[str]]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.asked.append(f"{self.command} {self.path} {self.headers.get('Range', '')}")
        path = self.path.split("?")[0]
        size = len(self.content)
        entry = {"type": "file", "path": NAME, "size": size, "oid": "0" * 40}
        if path.endswith(NAME):
            self.file()
        elif "/tree/" in path:
            folder = path.partition(f"/tree/{COMMIT}")[2].strip("/")
            parent = {"type": "directory", "path": "cola", "oid": "0" * 40, "size": 0}
            self.plain({"cola": [entry], "": [parent]}[folder])
        elif "/paths-info/" in path:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.plain([entry])
        elif path.endswith("README.md"):
            self.answer(CARD.encode(), 200, {"ETag": '"card"', "X-Repo-Commit": COMMIT})
        elif path.startswith("/api/datasets/some/set"):
            self.plain({"id": "some/set", "sha": COMMIT, "private": False, "tags": [], "siblings": [
                {"rfilename": NAME}], "downloads": 0, "likes": 0, "author": "some", "gated": False, "disabled": False})
        else:
            self.plain({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})

    def do_POST(self) -> None:
        self.do_GET()

    def plain(self, what: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.answer(json.dumps(what).encode(), status, {"Content-Type": "application/json", **(headers or {})})

    def file(self) -> None:
        first = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        part = self.content[first:]
        headers = {"ETag": f'"{hashlib.sha1(self.content).hexdigest()}"', "X-Repo-Commit": COMMIT,
                   "Accept-Ranges": "bytes"}
        if first:
            headers["Content-Range"] = f"bytes {first}-{len(self.content) - 1}/{len(self.content)}"
        self.answer(part, 206 if first else 200, headers, send=max(0, int(len(self.content) * self.share) - first))

    def answer(self, body: bytes, status: int, headers: dict[str, str], send: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(body[:send])
        if send is not None and send < len(body):
            self.close_connection = True

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[ThreadingHTTPServer]:
    Hub.content, Hub.asked, Hub.share = parquet(), [], 1.0
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


class Reader:
    """A process that reads data sets as a study does, from this hub or, where there is none, from the cache alone."""

    def __init__(self, cache: Path, hub: ThreadingHTTPServer | None = None) -> None:
        port = hub.server_address[1] if hub else 9
        named = {"HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_HOME": str(cache), "HF_HUB_OFFLINE": str(int(not hub)),
                 "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
        self.process = subprocess.Popen([sys.executable, "-c", READ, COMMIT], cwd=ROOT, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        env={**os.environ, **named})

    def read(self, repository: str = "some/set") -> tuple[Any, float]:
        """The rows, or why there are none; and the seconds that this took."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{repository}\n")
        self.process.stdin.flush()
        told, seconds = json.loads(self.process.stdout.readline())
        return told, seconds

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.communicate(timeout=60)


def named(cache: Path, end: str) -> list[Path]:
    return [file for file in cache.rglob(f"*{end}") if file.is_file()]


def shortened(file: Path, batches: int) -> bytes:
    """An Arrow file of the first batches alone, which by itself is as good as the whole."""
    with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as stream:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, stream.schema) as out:
            for _, batch in zip(range(batches), stream, strict=False):
                out.write_batch(batch)
    return sink.getvalue().to_pybytes()


def replaced(file: Path, content: bytes) -> None:
    """Under another inode: what somebody has mapped into memory stays whole."""
    (new := file.with_name("new")).write_bytes(content)
    os.replace(new, file)


def test_a_download_that_breaks_off_is_told_and_never_read_by_halves(
    hub: ThreadingHTTPServer, tmp_path: Path
) -> None:
    with Reader(tmp_path, hub) as online:
        Hub.share = 0.5
        told, _ = online.read()
        assert isinstance(told, str) and told.startswith("hub data set some/set/cola, split train: ")
        assert "\n" not in told and "--data DIR" in told
        assert not named(tmp_path, ".parquet") and not named(tmp_path, ".arrow"), "no half has a name"
        Hub.share = 1.0
        assert online.read()[0] == WHOLE, "the same command goes on"
    whole = named(tmp_path, ".arrow")[0].read_bytes()
    hub.shutdown()
    with Reader(tmp_path) as offline:
        assert offline.read()[0] == WHOLE
        told, seconds = offline.read("some/other")
        assert isinstance(told, str) and "some/other/cola" in told and "\n" not in told and seconds < 5
        # By half, at the end of a batch, and to nothing: the library itself reads the first two without a word.
        for half in (whole[: len(whole) // 2], shortened(named(tmp_path, ".arrow")[0], 2), b""):
            replaced(named(tmp_path, ".arrow")[0], half)
            told, _ = offline.read()
            assert isinstance(told, str) and told.startswith("hub data set some/set/cola, split train: "), told[:3]
            assert "\n" not in told
        replaced(named(tmp_path, ".arrow")[0], whole)
        assert offline.read()[0] == WHOLE
