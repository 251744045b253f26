"""MLflow's pages over a posbench folder, for the user of this machine alone."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from posbench import mlflow_view
from posbench.console import say
from posbench.errors import UserError
from posbench.track import ARTIFACTS, DATABASE, QUIET, MLflow

LOOPBACK = ("127.0.0.1", "localhost", "::1")
LOG = "mlflow-ui.log"
START_SECONDS = 90


def serve(home: Path, port: int = 5000, host: str = "127.0.0.1") -> None:
    """Runs MLflow's server over the folder's database until Ctrl-C, and prints where each study opens.

    Raises:
        UserError: there is no database, the port is taken, the host is not this machine, or the server ended.
    """
    home = home.expanduser().resolve()
    if host not in LOOPBACK:
        raise UserError(
            f"host '{host}': the pages have no login and are served on 127.0.0.1 only; "
            f"from another machine use ssh -L {port}:127.0.0.1:{port}"
        )
    if not (home / DATABASE).is_file():
        raise UserError(f"no MLflow database at {home / DATABASE}: run a study first, or name the folder of one")
    _refuse_taken(host, port)
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--backend-store-uri",
        f"sqlite:///{home / DATABASE}",
        "--artifacts-destination",
        str(home / ARTIFACTS),
        "--host",
        host,
        "--port",
        str(port),
        "--workers",
        "1",
        "--allowed-hosts",
        f"localhost:{port},127.0.0.1:{port},[::1]:{port}",
    ]
    # Without job execution the server is 2 processes in place of 10.
    settings = {**os.environ, **QUIET, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with open(home / LOG, "wb") as log:
        # A session of its own: Ctrl-C reaches this process alone, which then ends the server without its traceback.
        server = subprocess.Popen(
            command,
            cwd=home,
            env=settings,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )
        _interrupt_on_every_end()
        try:
            base = f"http://{'[::1]' if host == '::1' else host}:{port}"
            _wait(server, base, home / LOG)
            for line in _places(home, base):
                say(line)
            if server.wait():
                raise UserError(f"MLflow's server ended: {_last_line(home / LOG)} (all of it in {home / LOG})")
        except KeyboardInterrupt:
            pass
        finally:
            _end(server)


def _end_with_parent() -> None:
    """Asks the kernel to end the server when this process is killed and can end nothing any more (prctl(2))."""
    import ctypes

    end_with_parent = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(end_with_parent, signal.SIGTERM)


def _interrupt_on_every_end() -> None:
    """Being ended from outside, or with its terminal, is as good as Ctrl-C: the server never outlives this process."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), interrupt)


def _refuse_taken(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            raise UserError(
                f"port {port} cannot be used ({getattr(error, 'strerror', None) or error}): "
                "end what uses it, or give another --port"
            ) from None


def _wait(server: subprocess.Popen[bytes], base: str, log: Path) -> None:
    ends = time.monotonic() + START_SECONDS
    # A proxy of the environment has no business with this machine's own address.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < ends:
        if server.poll() is not None:
            raise UserError(f"MLflow's server did not start: {_last_line(log)} (all of it in {log})")
        with contextlib.suppress(OSError), direct.open(f"{base}/health", timeout=2):
            return
        time.sleep(0.2)
    raise UserError(f"MLflow's server did not answer within {START_SECONDS} s; its output is in {log}")


def _places(home: Path, base: str) -> list[str]:
    """Where to look, by study; the plain address where there is none yet."""
    lines = []
    for identity, name in MLflow(home).studies():
        lines += [
            f"{name}",
            f"  by encoding  {mlflow_view.url(base, identity)}",
            f"  charts       {mlflow_view.url(base, identity, charts=True)}",
            f"  all trials   {mlflow_view.url(base, identity, mlflow_view.TRIALS)}",
        ]
    return [*(lines or [f"no study yet: {base}"]), "Ctrl-C ends it"]


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1].strip()[:300] if lines else "it said nothing"


def _end(server: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(5)
