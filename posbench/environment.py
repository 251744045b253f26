"""What a result was made with: versions, machine, commit and code. Recorded, never part of a fingerprint."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from posbench.checkout import PACKAGE

LIBRARIES = ("torch", "accelerate", "tokenizers", "numpy", "scikit-learn")


@functools.cache
def facts() -> dict[str, Any]:
    """Versions, processor, cores, accelerator, commit and a hash of posbench's own code, as plain values."""
    import torch

    return {
        "versions": {
            "python": platform.python_version(),
            "posbench": version("posbench"),
            **{name: version(name) for name in LIBRARIES},
        },
        "processor": _processor(),
        "cores": cores(),
        "accelerator": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "commit": commit(),
        "code": code_hash(),
    }


def spelled_versions(versions: Mapping[str, str]) -> str:
    """'python 3.11.7, posbench 0.1.0, ...' in one order, whatever the order in which a store gives them back."""
    known = [name for name in ("python", "posbench", *LIBRARIES) if name in versions]
    return ", ".join(f"{name} {versions[name]}" for name in dict.fromkeys([*known, *sorted(versions)]))


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def code_hash() -> str:
    """SHA-256 over the files of the package: results of other code can be told apart."""
    total = hashlib.sha256()
    for file in sorted(PACKAGE.glob("*.py")):
        total.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return total.hexdigest()


@functools.cache
def commit() -> str | None:
    """The commit of the checkout around the package, '+changes' when files differ from it; None outside one."""
    if not (PACKAGE.parent / ".git").exists():
        return None
    head = _git("rev-parse", "HEAD")
    return head and head + ("+changes" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=PACKAGE, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(errors="replace").split("\n"):
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
