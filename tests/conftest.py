"""What tests of several files share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database as `prepare` makes it, once: its migrations take seconds."""
    from posbench.track import DATABASE, MLflow

    home = tmp_path_factory.mktemp("migrated")
    MLflow(home).prepare()
    assert [file.name for file in home.iterdir()] == [DATABASE]
    return home / DATABASE
