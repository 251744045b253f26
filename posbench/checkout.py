"""Where a checkout keeps its plugin folders."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def plugin_folders(kind: str, package_path: Iterable[str]) -> list[str]:
    """Where modules of posbench.<kind> lie: in the wheel's package, or in the folder of the checkout around it."""
    checkout = PACKAGE.parent / kind
    known = list(package_path)
    if (PACKAGE.parent / "pyproject.toml").is_file() and checkout.is_dir():
        known.append(str(checkout))
    return known
