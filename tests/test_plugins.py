"""Plugins from elsewhere: an installed package, a file on the command line, and the file that `new-encoding` writes."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from posbench.errors import UserError
from posbench.registry import ENCODINGS
from posbench.scaffold import new_encoding
from posbench.testing import check_encoding

SOURCE = '''
from posbench.encoding import Encoding, Paper, Properties


class Wave(Encoding):
    """A bias that rises and falls with the distance."""

    paper = Paper(title="A paper", arxiv="2108.12409", equations="1")
    properties = Properties(reversal=True, shift=True)

    def offset_bias(self, distance):
        return (distance.float() / 3).cos().expand(self.dimensions.heads, -1)


ENCODING = Wave
'''
PROJECT = '''
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "acme-positions"
version = "1.2"

[project.entry-points."posbench.encodings"]
wave = "acme_positions.wave"
ripple = "acme_positions.wave:Wave"
rope = "acme_positions.wave"
broken = "acme_positions.broken"
unnamed = "acme_positions.unnamed"

[tool.hatch.build.targets.wheel]
packages = ["acme_positions"]
'''
REPORT = '''
import json, sys
from posbench.registry import ENCODINGS

found = {name: [claim.origin for claim in claims] for name, claims in ENCODINGS.found().items()}
imported = sorted({"torch", "acme_positions", "acme_positions.wave"} & set(sys.modules))
from posbench.errors import UserError
from posbench.testing import check_encoding

told = {}
for name in ("wave", "ripple", "rope", "broken", "unnamed", "alibi", "wav"):
    try:
        verdicts = check_encoding(name)
        told[name] = {"origin": ENCODINGS.load(name).origin, "hash": ENCODINGS.load(name).source_hash,
                      "failed": [v.reason for v in verdicts if not v.passed], "made": len(verdicts)}
    except UserError as error:
        told[name] = str(error)
print(json.dumps({"found": found, "imported": imported, "told": told}))
'''


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> dict:
    """What a fresh process sees with a third-party package installed beside posbench."""
    folder, target = tmp_path_factory.mktemp("acme"), tmp_path_factory.mktemp("installed")
    package = folder / "acme_positions"
    package.mkdir()
    (folder / "pyproject.toml").write_text(PROJECT)
    (package / "__init__.py").write_text("")
    (package / "wave.py").write_text(SOURCE)
    (package / "broken.py").write_text("import a_package_that_is_not_there\n")
    (package / "unnamed.py").write_text("x = 1\n")
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *offline, "--target", target, folder],
                   check=True, capture_output=True, text=True)
    run = subprocess.run([sys.executable, "-c", REPORT], env={**os.environ, "PYTHONPATH": str(target)}, cwd=folder,
                         check=True, capture_output=True, text=True)
    return json.loads(run.stdout)


def test_an_installed_package_joins_by_its_entry_points(seen):
    assert seen["found"]["wave"] == ["acme-positions 1.2 (acme_positions.wave)"]
    for name in ("wave", "ripple"):
        told = seen["told"][name]
        assert told["origin"].startswith("acme-positions 1.2") and told["failed"] == [] and told["made"] > 30
        assert len(told["hash"]) == 64


def test_listing_imports_no_plugin_and_no_heavy_package(seen):
    assert seen["imported"] == []
    assert {"alibi", "learned", "nope", "placebo", "rope", "shaw", "sinusoidal", "t5"} <= seen["found"].keys()


def test_two_plugins_of_one_name_are_an_error_that_names_both(seen):
    assert seen["told"]["rope"] == ("encoding 'rope' is claimed by posbench encodings/rope.py and by "
                                    "acme-positions 1.2 (acme_positions.wave): rename one of them")


def test_a_plugin_that_cannot_be_imported_tells_why_and_breaks_nothing_else(seen):
    assert "broken" in seen["found"]
    assert seen["told"]["broken"] == ("encoding acme-positions 1.2 (acme_positions.broken) cannot be imported: "
                                      "ModuleNotFoundError: No module named 'a_package_that_is_not_there'")
    assert "has no 'ENCODING': end the file with ENCODING = YourClass" in seen["told"]["unnamed"]
    assert seen["told"]["alibi"]["failed"] == []


def test_an_unknown_name_suggests_the_near_one(seen):
    assert "unknown encoding 'wav', did you mean 'wave'?" in seen["told"]["wav"]


# A file


def test_a_file_is_a_plugin_by_its_path(tmp_path):
    file = tmp_path / "wave.py"
    file.write_text(SOURCE)
    assert not [v.reason for v in check_encoding(str(file)) if not v.passed]
    first = ENCODINGS.load(str(file))
    assert (first.name, first.origin) == ("wave", f"file {file}") and first.value.__name__ == "Wave"
    file.write_text(SOURCE.replace("/ 3", "/ 4"))
    second = ENCODINGS.load(str(file))
    assert second.value is not first.value and second.source_hash != first.source_hash


@pytest.mark.parametrize("name, content, told", [
    ("wave.py", None, r"file '.*wave\.py' does not exist"),
    ("Wave-1.py", SOURCE, "a plugin's name is its file name, in lower-case letters"),
    ("rope.py", SOURCE, r"the name 'rope' belongs to posbench encodings/rope\.py: rename the file"),
    ("wave.py", "1 / 0\n", "cannot be imported: ZeroDivisionError: division by zero"),
    ("wave.py", "def\n", "cannot be imported: SyntaxError"),
    ("wave.py", "x = 1\n", "has no 'ENCODING': end the file with ENCODING = YourClass"),
    ("wave.py", "ENCODING = 3\n", r"encoding '.*wave\.py': 3 is no subclass of posbench\.encoding\.Encoding"),
])
def test_a_bad_file_is_refused_in_one_line(tmp_path, name, content, told):
    file = tmp_path / name
    if content is not None:
        file.write_text(content)
    with pytest.raises(UserError, match=told) as error:
        check_encoding(str(file))
    assert "\n" not in str(error.value)


# The scaffold


@pytest.mark.parametrize("name", ["mine", "my_own_2"])
def test_a_new_encoding_passes_the_contract(tmp_path, name):
    file = new_encoding(name, tmp_path / "folder")
    assert file == tmp_path / "folder" / f"{name}.py"
    verdicts = check_encoding(str(file))
    assert len(verdicts) > 30 and not [(v.check, v.reason) for v in verdicts if not v.passed]
    assert not [v for v in check_encoding(str(file), {"start": "0.5"}) if not v.passed]
    with pytest.raises(UserError, match=r"start = -30\.0, but it must be at least -20"):
        check_encoding(str(file), {"start": "-30"})
    root = Path(__file__).resolve().parents[1]
    run = subprocess.run([sys.executable, "-m", "ruff", "check", "--config", root / "pyproject.toml", file],
                         capture_output=True)
    assert run.returncode == 0, run.stdout


@pytest.mark.parametrize("name, told", [
    ("Mine", "use lower-case letters"), ("2mine", "use lower-case letters"), ("../mine", "use lower-case letters"),
    ("", "use lower-case letters"), ("class", "means something else"), ("encoding", "means something else"),
    ("rope", r"belongs to posbench encodings/rope\.py"), ("torch", "an installed package"), ("json", "an installed"),
])
def test_bad_names_are_refused(tmp_path, name, told):
    with pytest.raises(UserError, match=told):
        new_encoding(name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_existing_file_is_kept(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("precious\n")
    with pytest.raises(UserError, match=r"mine\.py' exists and is kept as it is"):
        new_encoding("mine", tmp_path)
    assert (tmp_path / "mine.py").read_text() == "precious\n"
    with pytest.raises(UserError, match="cannot be written"):
        new_encoding("mine", tmp_path / "mine.py")
    # From its own folder it is found like an installed package.
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    with pytest.raises(UserError, match=r"mine\.py' exists and is kept as it is"):
        new_encoding("mine", tmp_path)


def test_a_name_that_is_a_file_here_is_told_with_its_path(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"such as \./mine\.py"):
        ENCODINGS.load("mine")


def test_own_is_what_lies_in_the_plugin_folder(tmp_path):
    assert ENCODINGS.own("rope")
    assert not ENCODINGS.own("./rope.py") and not ENCODINGS.own("unheard_of")
