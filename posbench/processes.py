"""Child processes that run foreign code: each ends with its parent, and with all that it started."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess


def manner_of_end(code: int | None) -> str:
    """How a process ended, from its exit code."""
    return f"signal {-code} ({signal.Signals(-code).name})" if code is not None and code < 0 else f"exit code {code}"


def lead_group() -> None:
    """Makes this child the leader of its own process group, which ends as soon as its parent does.

    A coordinator that was killed runs again soon, and nothing may train or write beside it.
    """
    with contextlib.suppress(OSError, AttributeError):
        os.setpgid(0, 0)
    parent = multiprocessing.parent_process()
    assert parent is not None
    with contextlib.suppress(ImportError, AttributeError, OSError):
        _ask_the_kernel(parent.sentinel)

    def watch() -> None:
        wait([parent.sentinel])
        with contextlib.suppress(OSError, AttributeError):
            os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _ask_the_kernel(sentinel: int) -> None:
    """On Linux the kernel ends the group when the parent's end of a pipe closes.

    A thread is not enough: it never runs again beside foreign code that does not let go of the interpreter's lock.
    """
    import fcntl

    fcntl.fcntl(sentinel, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(sentinel, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(sentinel, fcntl.F_SETFL, fcntl.fcntl(sentinel, fcntl.F_GETFL) | os.O_ASYNC)


def end_group(process: BaseProcess) -> None:
    """Ends a child that leads a group with all that it started, at once; also what it left behind."""
    assert process.pid is not None
    with contextlib.suppress(OSError, AttributeError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()


class Tail:
    """The last lines that a process printed. All before them is forgotten, so that no plugin fills memory or a disk.

    Args:
        descriptor: the reading end of a pipe, which the tail closes at its end.
        lines: at most so many are told. columns: of each line at most so many characters.
    """

    def __init__(self, descriptor: int, *, lines: int = 60, columns: int = 200) -> None:
        self.limits = lines, columns
        self.kept = b""
        self.thread = threading.Thread(target=self._read, args=(descriptor,), daemon=True)
        self.thread.start()

    def _read(self, descriptor: int) -> None:
        with open(descriptor, "rb", buffering=0) as pipe, contextlib.suppress(OSError):
            while read := pipe.read(65536):
                self.kept = (self.kept + read)[-65536:]

    def forget(self) -> None:
        """Begins anew."""
        self.kept = b""

    def end(self) -> list[str]:
        """The lines, once the process is gone; what it left behind may still hold the pipe, and is not waited for."""
        self.thread.join(1)
        lines, columns = self.limits
        text = self.kept.decode(errors="replace").rstrip()
        return ["".join(char if char.isprintable() else " " for char in line[:columns])
                for line in text.split("\n")[-lines:]] if text else []
