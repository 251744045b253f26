"""What tests of several files share."""

from __future__ import annotations

import errno
import ipaddress
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def no_network() -> Iterator[None]:
    """Tests reach this machine alone: one that would ask anybody else fails at once, wherever it runs."""
    genuine = socket.socket.connect

    def connect(self: socket.socket, address: Any) -> None:
        reaches = self.family in (socket.AF_INET, socket.AF_INET6) and self.type == socket.SOCK_STREAM
        if reaches and not near(address[0]):
            raise OSError(errno.ENETUNREACH, f"{os.strerror(errno.ENETUNREACH)}: tests ask nobody else ({address[0]})")
        genuine(self, address)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(socket.socket, "connect", connect)
        yield


@pytest.fixture(scope="session", autouse=True)
def signals_as_in_a_terminal() -> Iterator[None]:
    """Shells start what runs in the background without Ctrl-C; programs under test inherit that."""
    before = signal.getsignal(signal.SIGINT)
    if before == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def proofs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of proofs that all test processes share: proving an encoding takes seconds, and is tested elsewhere."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "proofs"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(params=["one kind", pytest.param("every kind", marks=pytest.mark.slow)])
def models(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which models the contract is checked in: encoders and decoders with softmax attention, and all only when slow."""
    if request.param == "one kind":
        from posbench import testing

        monkeypatch.setattr(testing, "SHAPES", ("encoder", "decoder"))
        monkeypatch.setattr(testing, "KINDS", ("softmax",))


@pytest.fixture
def proved(tmp_path: Path, proofs: Path) -> Path:
    """An empty folder for results in which what other tests have proved is proved."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "proofs").symlink_to(proofs)
    return home


def near(host: str) -> bool:
    """Whether an address is this machine's."""
    try:
        known = ipaddress.ip_address(host)
    except ValueError:
        return host in ("localhost", socket.gethostname())
    return known.is_loopback or host in {entry[4][0] for entry in socket.getaddrinfo(socket.gethostname(), None)}


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database as `prepare` makes it, once: its migrations take seconds."""
    from posbench.track import DATABASE, MLflow

    home = tmp_path_factory.mktemp("migrated")
    MLflow(home).prepare()
    assert [file.name for file in home.iterdir()] == [DATABASE]
    return home / DATABASE
