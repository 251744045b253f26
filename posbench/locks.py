"""Advisory locks between processes: held while work is done, let go by the kernel when a process dies in any way."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from posbench.errors import StorageError


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[bool]:
    """Holds the lock of this name for a block, or says at once that another process has it.

    There is no lease that could run out under a process that is only slow, and none that outlives a dead one.

    Args:
        path: the lock's file, whose folder is made where there is none; it is removed when the lock is let go.

    Yields:
        Whether the lock is held.

    Raises:
        StorageError: the file cannot be written, or its file system keeps no locks, as some network shares do not.
    """
    descriptor = _acquired(path)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            # Removed while it is held: who opened the file before and gets its lock now sees that it has no name.
            with contextlib.suppress(OSError):
                path.unlink()
            # Said, and not left to close: a process that was forked meanwhile shares the descriptor.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _acquired(path: Path) -> int | None:
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            continue  # the folder was removed in between
        except OSError as error:
            raise StorageError(f"lock {path} cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as error:
            os.close(descriptor)
            raise StorageError(
                f"the file system of {path.parent} keeps no locks ({error.strerror}), without which two studies could "
                "run one trial twice: set POSBENCH_HOME to a folder on another"
            ) from error
        if _names(path, descriptor):
            return descriptor
        os.close(descriptor)


def _names(path: Path, descriptor: int) -> bool:
    """Whether the path still leads to the open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
