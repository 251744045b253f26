"""The structure of the project: who imports what, what a wheel carries, and what help must not load."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CORE = sorted((ROOT / "posbench").glob("*.py"))
PLUGINS = [file for kind in ("encodings", "suites", "reports") for file in sorted((ROOT / kind).glob("*.py"))]
# Packages that take seconds to load, or that only one part may know: each with its one importing file.
OWNERS = {
    "mlflow": {"track.py"},
    "seaborn": {"plots.py"},
    "matplotlib": {"plots.py"},
    "datasets": {"data.py"},
    "accelerate": {"distributed.py"},
    "sacrebleu": {"bleu.py"},
    "optuna": {"search.py"},
    "ray": {"ray_cluster.py"},
    "yaml": {"safe_yaml.py"},
    "transformers": set(),
}
# What the lower half of the house may import of posbench; the test of levels below covers the rest.
ALLOWED = {
    "numerals": set(),
    "errors": {"numerals"},
    "checkout": set(),
    "positions": set(),
    "maths": set(),
    "seeds": set(),
    "registry": {"errors"},
    "bounds": {"errors"},
    "encoding": {"positions", "maths", "bounds"},
    "rotary": {"encoding", "positions", "maths", "errors"},
    "settings": {"errors"},
    "space": {"errors", "numerals", "settings"},
    "search": {"settings", "space"},
    "choice": {"errors", "settings"},
    "safe_yaml": {"errors"},
    "config": {"choice", "errors", "settings", "space"},
    "attention": {"encoding", "positions", "maths", "errors"},
    "cache": {"positions"},
    "features": {"seeds"},
    "linear": {"attention", "cache", "encoding", "features", "positions", "errors"},
    "blocks": {"attention", "linear", "cache", "encoding", "config", "positions"},
    "heads": {"blocks", "config", "positions"},
    "transformer": {"attention", "blocks", "cache", "config", "encoding", "errors", "features", "heads", "linear",
                    "positions", "seeds"},
    "suite": {"config"},
    "tokens": {"errors", "seeds"},
    "checkpoint": {"errors", "store"},
    "training": {"checkpoint"},
    "interrupt": {"errors"},
    "locks": {"errors"},
    "store": {"errors", "locks"},
    "stats": {"errors"},
    "results": {"errors"},
}


def imports(file: Path) -> set[str]:
    """Dotted names that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


def own(file: Path) -> set[str]:
    """Modules of posbench that a file imports."""
    modules = {path.stem for path in CORE}
    return {
        name.split(".")[1] for name in imports(file) if name.startswith("posbench.") and name.split(".")[1] in modules
    }


def test_plugin_folders_are_no_packages() -> None:
    assert not [folder for folder in ("encodings", "suites", "reports") if (ROOT / folder / "__init__.py").exists()]


def test_a_plugin_name_occurs_once() -> None:
    names = [file.stem for file in PLUGINS]
    assert len(names) == len(set(names)) > 0


@pytest.mark.parametrize("file", CORE, ids=lambda file: file.stem)
def test_core_names_no_plugin_and_heavy_packages_have_one_importer(file: Path) -> None:
    for name in imports(file):
        assert not re.match(r"posbench\.(encodings|suites|reports)\.", name), f"{file.name} imports the plugin {name}"
        package = name.split(".")[0]
        assert file.name in OWNERS.get(package, {file.name}), f"{file.name} imports {package}"


@pytest.mark.parametrize("module", ALLOWED)
def test_import_directions(module: str) -> None:
    assert own(ROOT / "posbench" / f"{module}.py") <= ALLOWED[module]


def test_no_cycles_of_imports_at_load_time() -> None:
    graph = {}
    for file in CORE:
        tree = ast.parse(file.read_text())
        tree.body = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        text = ast.unparse(tree)
        graph[file.stem] = {
            name
            for name in {path.stem for path in CORE}
            if re.search(rf"from posbench\.{name} import|from posbench import .*\b{name}\b", text)
        }
    placed: set[str] = set()
    while ready := {name for name, needs in graph.items() if name not in placed and needs <= placed}:
        placed |= ready
    assert placed == set(graph), f"in a cycle: {sorted(set(graph) - placed)}"


@pytest.mark.parametrize("file", PLUGINS, ids=lambda file: file.stem)
def test_plugins_import_core_and_their_own_helpers_only(file: Path) -> None:
    for name in imports(file):
        if match := re.match(r"posbench\.(encodings|suites|reports)\.?(\w*)", name):
            helper = match[2]
            assert helper.startswith("_") and file.stem.lstrip("_").split("_")[0] in helper, (
                f"{file.name} imports {name}"
            )


@pytest.mark.parametrize("file", [*CORE, *PLUGINS], ids=lambda file: file.stem)
def test_files_stay_small_and_say_what_they_hold(file: Path) -> None:
    text = file.read_text()
    assert len(text.split("\n")) <= 301
    assert ast.get_docstring(ast.parse(text)), "a file begins with what it holds"


FORBIDDEN = re.compile(
    r"pickle\.load|pickle_module|dill|cloudpickle\.load|joblib\.load|yaml\.load\(|FullLoader|(?<![.\w])eval\(|(?<![.\w])exec\("
    r"|shell=True|trust_remote_code|allow_pickle=True|torch\.load\("
)


@pytest.mark.parametrize("file", [*CORE, *PLUGINS], ids=lambda file: file.stem)
def test_no_code_runs_what_a_file_says(file: Path) -> None:
    found = [line for line in file.read_text().split("\n") if FORBIDDEN.search(line)]
    assert not found


# Below these a file of weights or of settings can run code: CVE-2026-24747, CVE-2026-4137 and CVE-2026-4372.
FLOORS = {"torch": (2, 10), "mlflow": (3, 11), "transformers": (5, 3)}


@pytest.mark.parametrize("package", FLOORS)
def test_versions_with_known_holes_are_not_installed(package: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    stated = [*project["dependencies"], *(text for one in project["optional-dependencies"].values() for text in one)]
    (floor,) = [match for text in stated if (match := re.match(rf"{package}>=([\d.]+)", text))]
    assert tuple(map(int, floor[1].split("."))) >= FLOORS[package]


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from posbench.cli import app; from typer.testing import CliRunner\n"
        "result = CliRunner().invoke(app, ['--help']); assert result.exit_code == 0, result.output\n"
        "assert 'study' in result.output\n"
        "print([name for name in ('torch', 'mlflow', 'transformers', 'datasets', 'pandas', 'accelerate', 'seaborn', "
        "'optuna') "
        "if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_a_wheel_carries_the_plugins(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for file in PLUGINS:
        assert names.count(f"posbench/{file.parent.name}/{file.name}") == 1
    assert not [name for name in names if name.startswith(("encodings/", "suites/", "reports/", "tests/"))]
