"""Study files: what is read and what is refused, with its line; identity, growth, status and plans."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from posbench import cli, declaration
from posbench.errors import UserError
from posbench.safe_yaml import parse, written
from posbench.store import Store
from posbench.study import from_preset, plan
from posbench.study_file import is_study_file, studies_of
from posbench.study_folder import claim, declarations, kept_in
from posbench.study_text import text_of, write

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "studies").glob("*.yaml"))
TINY = "model: {width: 16, heads: 2, layers: 1, feedforward: 16}\ntrain: {steps: 4, evaluations: 1}\n"
SMALL = f"suite: glue\nencodings: [nope, rope]\ntasks: [cola]\nseeds: 2\nbaseline: nope\n{TINY}"


def study_of(text: str, folder: Path, **changes: object):
    file = folder / "mine.yaml"
    file.write_text(text)
    (study,) = studies_of(file, changes).values()
    return study


def prints(plan_) -> set[str]:
    return {trial.fingerprint for trial in plan_.trials}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001), ("1E3", 1000.0), ("no", "no"), ("off", "off"), ("NO", "NO"), ("yes", "yes"), ("012", "012"),
        ("0o14", "0o14"), ("1:30", "1:30"), ("2020-01-01", "2020-01-01"), ("true", True), ("null", None), ("~", None),
        ("-7", -7), (".5", 0.5), ("'1'", "1"), (".inf", ".inf"), ("0x1F", "0x1F"), ("1_000", "1_000"),
        ("9" * 5000, "9" * 5000), ("=", "="), ("<<", "<<"),
    ],
)
def test_scalars_are_what_one_sees(text: str, value: object) -> None:
    read = parse(f"a: {text}", Path("f")).value["a"]
    assert read == value and type(read) is type(value)


def test_what_is_written_reads_as_itself_here_and_in_yaml_of_any_version() -> None:
    import yaml

    values = {"a": {"no": "off", "012": "2020-01-01", "x": ["1e-3", "", "a: b", "#", "é\n\"\\", "null", "true"]},
              "f": 0.001, "i": 12, "b": True, "n": None, "e": []}
    text = written(values)
    assert parse(text, Path("f")).value == values
    assert yaml.safe_load(text) == values


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 11))
HOSTILE = {
    "bomb": (BOMB, "line 1: aliases repeat values"),
    "many aliases": ("a: &a 1\nb: [" + "*a, " * 40 + "]", "line 2: more than 32 aliases"),
    "itself": ("a: &a [*a]", "line 1: aliases repeat values"),
    "deep": ("a: " + "[" * 5000, "line 1: nested more than 12 deep"),
    "deep blocks": ("\n".join("  " * n + "a:" for n in range(300)), "line 12: nested more than 12 deep"),
    "huge": ("# " + "x" * 1_000_000, "larger than 1,000,000 bytes"),
    "python": ("a: !!python/object/apply:os.system ['touch canary']", "line 1: the tag"),
    "python name": ("a: !!python/name:os.system", "line 1: the tag"),
    "own tag": ("suite: glue\nb: !x 1", "line 2: the tag '!x'"),
    "twice": ("suite: glue\nseeds: 1\nseeds: 2", "line 3: 'seeds' is given twice, first in line 2"),
    "twice inside": ("suite: glue\ntrain:\n  steps: 1\n  steps: 2", "line 4: 'steps' is given twice"),
    "twice, dotted": ("suite: glue\ntrain:\n  steps: 1\ntrain.steps: 2", "line 4: 'train.steps' is given twice"),
    "twice, budget": ("suite: glue\ntrain.steps: 2\nbudget: {steps: 3}", "line 3: 'train.steps' is given twice"),
    "unknown": ("suite: glue\nencoding: [rope]", "line 2: unknown key 'encoding', did you mean 'encodings'"),
    "unknown inside": ("suite: glue\ntrain:\n  stepz: 2", "line 3: unknown setting 'train.stepz', did you mean"),
    "merge": ("a: &a {steps: 1}\nsuite: glue\ntrain: {<<: *a}", "unknown key 'a'"),
    "list": ("- glue", "holds no keys"),
    "nothing": ("", "holds no keys with values: write 'KEY: VALUE', one a line"),
    "list of suites": ("seeds: 1\nsuites: [glue, lm]", "line 2: 'suites' holds no keys with values: write 'suites: {"),
    "no suite": ("seeds: 1", "names no suite"),
    "two": ("suite: glue\n---\nsuite: lm", "line 2: no YAML"),
    "broken": ("suite: glue\nseeds: [1, 2", "no YAML"),
    "nul": ("suite: glue\nseeds: 1\0", "line 2: the character U+0000"),
    "key of a list": ("suite: glue\n? [a, b]\n: 1", "line 2: a key is no name"),
    "seeds": ("suite: glue\nseeds: true", "line 2: seeds: give how many"),
    "many seeds": ("suite: glue\nseeds: 1000000000", "line 2: seeds: give how many"),
    "octal": ("suite: glue\ntrain.steps: 0o12", "line 2: train.steps = '0o12'"),
    "truth": ("suite: glue\ntrain:\n  steps: yes", "line 3: train.steps = 'yes'"),
    "truth too": ("suite: glue\ntrain:\n  steps: true", "line 3: train.steps = 'true'"),
    "bounds": ("suite: glue\nseeds: 2\ntrain:\n  learning_rate: -1", "line 4: train.learning_rate"),
    "infinite": ("suite: glue\ntrain:\n  learning_rate: inf", "line 3: train.learning_rate"),
    "option": ("suite: glue\nencodings:\n- nope\n- rope: {bas: 5}", "line 4: encoding 'rope': unknown option 'bas'"),
    "encoding": ("suite: glue\nencodings:\n- nope\n- rop", "line 4: unknown encoding 'rop', did you mean 'rope'"),
    "task": ("suite: glue\ntasks:\n- rte\n- colla", "line 4: suite 'glue' has no task 'colla'"),
    "suite": ("suite: glu", "line 1: unknown suite 'glu', did you mean 'glue'"),
    "preset": ("suite: glue\npreset: minni", "line 2: suite 'glue' has no preset 'minni'"),
    "baseline": ("suite: glue\nseeds: 1\nbaseline: alibi:x=1", "line 3: encoding 'alibi': unknown option 'x'"),
    "not there": ("suite: glue\nencodings: [nope]\nbaseline: rope", "line 3: the baseline 'rope' is not in the study"),
    "primary": ("suite: glue\nseeds: 1\nprimary: accuracy", "line 3: primary: task cola has no metric 'accuracy'"),
    "lengths": ("suite: glue\nlengths: [32, 48]", "line 2: lengths: give the trained length"),
    "lengths of rows": ("suite: glue\nlengths: [32, 64]", "line 2: lengths: rows of cola"),
    "budget": ("suite: glue\nbudget: {hours: 3}", "line 2: unknown budget 'hours'"),
    "vary": ("suite: glue\nablations:\n  choice: rope\n  vary: {base: [1]}", "'base' is neither an option"),
    "varied option": ("suite: glue\nablations:\n  choice: rope\n  vary: {rope.bas: [1]}", "unknown option 'bas'"),
    "varied setting": ("suite: glue\nablations: {choice: rope, vary: {train.lr: [1]}}", "unknown setting 'train.lr'"),
    "varied seeds": ("suite: glue\nablations: {choice: rope, vary: {train.threads: [2]}}", "is one for all encodings"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_bad_file_is_told_in_one_line_with_its_place(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    text, told = HOSTILE[name]
    with pytest.raises(UserError) as error:
        study_of(text, tmp_path)
    assert told in str(error.value) and "mine.yaml" in str(error.value) and "\n" not in str(error.value)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.yaml"]


BAD_NAMES = ["../../x", "/etc/passwd", "a/b", "a\\b", "x" * 300, "con", "NUL.txt", "a.", "..", ".", "", "a;rm -rf ~",
             "$(x)", "%2e%2e", "a#b", "a?b", "a|b", "<script>", "a\nb", "é", "-x", "a..b", "~"]


@pytest.mark.parametrize("bad", BAD_NAMES)
@pytest.mark.parametrize("form", ["suite: {}", "suites: {{{}: {{}}}}", "suite: glue\npreset: {}",
                                  "suite: glue\ntasks: [{}]", "suite: glue\nencodings: [{}]",
                                  "suite: glue\nencodings: [{{name: {}}}]", "suite: glue\nencodings: [{}.py]",
                                  "suite: glue\ndata.revision: {}"])
def test_no_name_becomes_another_path(bad: str, form: str, tmp_path: Path) -> None:
    quoted = json.dumps(bad)
    if form.endswith("[{}.py]"):
        form, quoted = form.replace(".py", ""), json.dumps(bad + ".py")
        if bad in ("con", "-x", "a..b"):
            pytest.skip("files of encodings are read, and may have any plain name")
    if form.endswith("revision: {}") and bad in ("", "con", "NUL.txt", "a.", "a..b"):
        pytest.skip("no part of a path; '' is no revision")
    with pytest.raises(UserError) as error:
        study_of(form.format(quoted), tmp_path)
    assert "\n" not in str(error.value) and str(tmp_path / "mine.yaml") in str(error.value)


@pytest.mark.parametrize("stem", ["con", "a;b", "a..b", "-x", "x" * 70])
def test_a_files_own_name_becomes_a_folders_and_is_checked_too(stem: str, tmp_path: Path) -> None:
    file = tmp_path / f"{stem}.yaml"
    file.write_text(SMALL)
    with pytest.raises(UserError, match="its name becomes a folder's"):
        studies_of(file, {})


def test_a_stored_study_with_another_path_for_a_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text(json.dumps({"suite": "../evil.py"}))
    with pytest.raises(UserError, match="a name is 1 to 64"):
        kept_in(tmp_path)


@pytest.mark.parametrize("change", [
    {"declarations": "x"}, {"declarations": [5]}, {"declarations": [{}]}, {"declarations": [{"hash": 1}]},
    {"declarations": [{"hash": "x", "primary": 1, "lengths": {}, "encodings": [], "baseline": "x", "seeds": [],
                       "alpha": 0.05}]},
    None,
], ids=str)
def test_a_study_json_that_somebody_spoilt_is_told_in_one_line(change: dict | None, tmp_path: Path) -> None:
    study = from_preset("glue", "mini", {"tasks": ["rte"]})
    claim(tmp_path, study)
    text = json.dumps(json.loads((tmp_path / "study.json").read_text()) | change) if change else "[" * 100_000
    (tmp_path / "study.json").write_text(text)
    for ask in (lambda: claim(tmp_path, study), lambda: declarations(tmp_path)):
        with pytest.raises(UserError, match=r"study\.json") as told:
            ask()
        assert "\n" not in str(told.value)
    assert (tmp_path / "study.json").read_text() == text


def test_a_file_is_the_study_that_options_make(tmp_path: Path) -> None:
    changes = {"tasks": ["cola"], "seeds": [0, 1], "baseline": "nope", "train.steps": "4", "train.evaluations": "1",
               "encodings": [{"name": "nope"}, {"name": "rope"}],
               **{f"model.{name}": value for name, value in (("width", "16"), ("heads", "2"), ("layers", "1"),
                                                            ("feedforward", "16"))}}
    assert study_of(SMALL, tmp_path) == from_preset("glue", "mini", changes)


def test_cosmetic_changes_are_the_same_study_and_the_same_trials(tmp_path: Path) -> None:
    first = study_of(SMALL.replace("steps: 4", "steps: 4, learning_rate: 1e-3").replace("rope]", "'rope:base=500']"),
                     tmp_path)
    other = study_of("""
# the same
train.learning_rate: 0.001
budget: {steps: 4.0}
train: {evaluations: 1}
baseline: "nope"
encodings:
  - rope: {base: 5e2}
  - nope
model:
  feedforward: 16
  layers: 1
  heads: 2
  width: 16
seeds: [1, 0]
tasks: cola
suite: glue
""", tmp_path)
    assert prints(plan(first)) == prints(plan(other))
    assert declaration.declare(first)["hash"] == declaration.declare(other)["hash"]
    folder = tmp_path / "out"
    claim(folder, first)
    claim(folder, other)
    assert len(declarations(folder)) == 1


@pytest.mark.parametrize("text", [
    SMALL,
    SMALL.replace("[nope, rope]", "[nope, 'rope:base=5e5', 'rope+layers=2+train.steps=8', {kerple: {}}]"),
    "suite: longtext\ntasks: [reverse, listops]\nseeds: 1\ntrain.steps: 1000\nper_task: {listops: {train.warmup: 0.2}}",
    "suite: glue\ntasks: [mrpc]\nprimary: accuracy\nseeds: 1\nbudget: {epochs: 2}\nlengths: 16",
    "suite: lm\nlengths: [16, 32, 64]\nseeds: 1",
], ids=["small", "choices", "per task", "primary", "lengths"])
def test_a_written_study_reads_as_itself(text: str, tmp_path: Path) -> None:
    study = study_of(text, tmp_path)
    file = tmp_path / "sub" / "again.yaml"
    write(study, file)
    (again,) = studies_of(file, {}).values()
    assert again == study or declaration.declare(again) == declaration.declare(study)
    assert prints(plan(again)) == prints(plan(study))
    assert [choice.label for choice in again.encodings] == [choice.label for choice in study.encodings]
    assert text_of(again, file.parent) == file.read_text()
    with pytest.raises(UserError, match="exists already"):
        write(study, file)


def test_paths_are_told_from_the_files_folder(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "words.txt").write_text("a\n")
    shutil.copy(Path(__file__).resolve().parents[1] / "encodings" / "nope.py", tmp_path / "sub" / "mine.py")
    file = tmp_path / "sub" / "s.yaml"
    file.write_text("suite: glue\nseeds: 1\nencodings: [learned, ./mine.py]\ndata: {source: folder, path: glue, "
                    "tokenizer: 'words:words.txt'}\n")
    monkeypatch.chdir(tmp_path)
    (study,) = studies_of(Path("sub/s.yaml"), {}).values()
    assert study.data.path == str(tmp_path / "sub" / "glue")
    assert study.data.tokenizer == f"words:{tmp_path / 'sub' / 'words.txt'}"
    assert study.encodings[1].name == str(tmp_path / "sub" / "mine.py")
    assert "path: glue\n" in text_of(study, tmp_path / "sub") and '"mine.py"' not in text_of(study, tmp_path / "sub")


def test_the_python_file_of_a_suite_is_no_study_file(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("suite.py", "study"):
        (tmp_path / name).write_text("")
    assert not is_study_file("./suite.py") and is_study_file("./study") and is_study_file("study.yaml")


@pytest.mark.parametrize("names, said", [
    (["nope"], "; no comparisons, as rope is not among the encodings, at alpha 0.05; "),
    (["nope", "rope"], "; 1 comparison with rope at alpha 0.05; "),
    (["nope", "rope", "alibi"], "; 2 comparisons with rope at alpha 0.05; "),
])
def test_the_declared_family_is_of_comparisons_that_can_be_made(names: list[str], said: str) -> None:
    study = from_preset("longtext", "mini", {"encodings": [{"name": name} for name in names], "tasks": ["copy"]})
    assert said in declaration.told([declaration.declare(study)])["declared"]


def test_several_suites_have_changes_and_folders_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "both.yaml"
    file.write_text("seeds: 2\nencodings: [nope, learned]\nbaseline: learned\n"
                    "suites:\n  glue: {tasks: [cola], seeds: 3}\n  lm:\n    train.steps: 5\n")
    found = studies_of(file, {})
    assert list(found) == ["both-glue", "both-lm"]
    assert [len(study.seeds) for study in found.values()] == [3, 2]
    assert found["both-lm"].train.steps == 5 and found["both-glue"].tasks == ("cola",)


def test_ablations_vary_one_factor_at_a_time_or_all_of_them(tmp_path: Path) -> None:
    text = ("suite: glue\ntasks: [cola]\nseeds: 1\nablations:\n  choice: rope\n  vary:\n"
            "    rope.base: [1000, 1e4]\n    model.layers: [2, 4]\n    train.steps: [600]\n")
    study = study_of(text, tmp_path)
    # 10000 and 2 layers are rope as it is.
    assert [choice.label for choice in study.encodings] == [
        "rope", "rope:base=1000", "rope+layers=4", "rope+train.steps=600"]
    assert study.baseline == "rope"
    trials = {trial.config.encoding.label: trial.config for trial in plan(study).trials}
    assert trials["rope+layers=4"].model.layers == 4 and trials["rope+train.steps=600"].train.steps == 600
    grid = study_of(text + "  grid: true\n", tmp_path)
    assert len(grid.encodings) == 1 + 2 * 2 * 1
    from posbench.ablation import budgets, differences

    assert budgets(study) == {"rope+layers=4": "model.layers 4 in place of 2",
                              "rope+train.steps=600": "train.steps 600 in place of 300"}
    other = study_of(text.replace("train.steps: [600]", "model.norm: [post]"), tmp_path)
    assert "rope+norm=post" in differences(other) and "rope+norm=post" not in budgets(other)


def test_settings_behind_a_plus_leave_old_labels_and_fingerprints_alone() -> None:
    from posbench.config import EncodingChoice, TrainConfig, TrialConfig
    from posbench.trial import resolve

    assert EncodingChoice.parse("rope+model.width=128") == EncodingChoice.parse("rope+width=128")
    assert EncodingChoice.parse("rope:base=5+train.steps=9+layers=3").label == "rope:base=5+layers=3+train.steps=9"
    config = TrialConfig(encoding=EncodingChoice(name="nope"), suite="glue", task="cola", seed=0,
                         train=TrainConfig(steps=4))
    # As the commit before settings of single choices computed it.
    assert resolve(config).fingerprint.startswith("217f49470e64d9f1fea0d4b9407a3eeae1e6692e")


def test_a_declared_metric_is_another_trial_only_where_it_selects_weights() -> None:
    def trial(**changes: object):
        return plan(from_preset("glue", "mini", {"tasks": ["mrpc"], "seeds": [0], **changes})).trials[0]

    plain, accuracy = trial(), trial(primary={"mrpc": "accuracy"})
    assert accuracy.task.primary == "accuracy" and accuracy.fingerprint == plain.fingerprint
    best = {"train.select": "best"}
    assert trial(**best).fingerprint != trial(primary={"mrpc": "accuracy"}, **best).fingerprint


def run(monkeypatch, capsys, home: Path, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setenv("POSBENCH_HOME", str(home))
    monkeypatch.setattr(sys, "argv", ["posbench", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def tree(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in folder.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files") / "mine.yaml"
    path.write_text(SMALL)
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, file: Path, proofs: Path) -> Path:
    folder = tmp_path_factory.mktemp("home")
    (folder / "proofs").symlink_to(proofs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSBENCH_HOME", str(folder))
        patch.setattr(sys, "argv", ["posbench", "study", str(file), "--tracker", "none", "--jobs", "1"])
        with pytest.raises(SystemExit) as stop:
            cli.main()
    assert not stop.value.code
    return folder


def test_a_file_goes_on_grows_says_so_and_refuses_other_settings(home, file, monkeypatch, capsys, tmp_path) -> None:
    mine = tmp_path / "home"
    shutil.copytree(home, mine)
    first = json.loads((mine / "mine" / "study.json").read_text())["declarations"]
    assert len(first) == 1 and first[0]["primary"] == {"cola": "mcc"} and first[0]["lengths"] == {"cola": [32]}
    arguments = ("study", str(file), "--tracker", "none", "--jobs", "1")
    code, out, err = run(monkeypatch, capsys, mine, *arguments)
    assert code == 0 and "4 of 4 trials are in the store already" in err
    assert f"hash {first[0]['hash'][:16]}" in out and "grew" not in out
    code, out, err = run(monkeypatch, capsys, mine, *arguments, "--seeds", "3", "--encodings", "nope,rope,learned")
    plain = " ".join(out.split())
    assert code == 0 and "4 of 9 trials are in the store already" in err
    assert "! Declared anew after earlier results: 20" in plain and "declaration changed" in plain
    assert "from 2 to 3 encodings (with learned)" in plain
    assert "from 2 to 3 seeds (with 2)" in plain and first[0]["hash"][:16] in plain
    code, out, err = run(monkeypatch, capsys, mine, *arguments, "--set", "train.steps=5")
    assert code == 2 and "train.steps is 4 there and 5 here" in err


def test_a_result_of_other_code_is_told_in_the_table(home, monkeypatch, capsys, tmp_path) -> None:
    mine = tmp_path / "home"
    shutil.copytree(home, mine)
    code, out, _ = run(monkeypatch, capsys, mine, "report", str(mine / "mine"))
    assert code == 0 and "versions of posbench's code" not in " ".join(out.split())
    store = Store(mine / "trials")
    name = next(store.root.glob("*/*/record.json")).parent.name
    record = store.load(name)
    store.keep(replace(record, facts={**record.facts, "code": "ab" * 32}), store.predictions(name))
    code, out, _ = run(monkeypatch, capsys, mine, "report", str(mine / "mine"))
    assert code == 0 and "results come from 2 versions of posbench's code" in " ".join(out.split())


def test_status_counts_what_the_store_has_and_only_reads(home, file, monkeypatch, capsys, tmp_path) -> None:
    from posbench.store import Record, Store

    mine = tmp_path / "home"
    shutil.copytree(home, mine)
    (study,) = studies_of(file, {"seeds": [0, 1, 2, 3, 4]}).values()
    store = Store(mine / "trials")
    trials = [trial for trial in plan(study).trials if trial.config.seed > 1]
    for trial, status in zip(trials, ("failed", "diverged", "refused"), strict=False):
        store.keep(Record(fingerprint=trial.fingerprint, label="x", config={}, status=status), {})
    store.folder(trials[3].fingerprint).mkdir(parents=True)
    before = tree(mine)
    code, out, err = run(monkeypatch, capsys, mine, "status", str(file), "--seeds", "5")
    assert code == 0 and tree(mine) == before and not err
    counts = {line.split()[0]: line.split()[1] for line in out.splitlines() if len(line.split()) == 2}
    assert (counts["failed"], counts["diverged"], counts["refused"], counts["begun"]) == ("1", "1", "1", "1")
    assert int(counts["done"]) + int(counts["degenerate"]) == 4 and counts["missing"] == "2"
    assert "10 trials: 2 encodings, 1 task, 5 seeds" in out
    code, folder, _ = run(monkeypatch, capsys, mine, "status", str(mine / "mine"))
    assert code == 0 and "planned     4 trials" in folder
    code, _, err = run(monkeypatch, capsys, mine, "status", str(mine))
    assert code == 2 and "is no study's" in err and "give one that `posbench study` wrote" in err
    code, out, _ = run(monkeypatch, capsys, tmp_path / "nothing", "status", str(file))
    assert code == 0 and "time left   an unknown time for 4 trials" in out


SOUGHT = [
    ("study", "gleu", "'gleu' is no suite and no study file, did you mean 'glue'?"),
    ("study", "mein.yaml", "'mein.yaml' is no suite and no study file, did you mean 'mine.yaml'?"),
    ("study", "out/mine", "'out/mine' is no suite and no study file, known: glue, lm, longtext, mine.yaml, "),
    ("status", "gleu", "'gleu' is no suite, no study file and no folder of a study, did you mean 'glue'?"),
    ("status", "out/mien", "'out/mien' is no suite, no study file and no folder of a study, did you mean 'out/mine'?"),
    ("status", "out", "'out' is no suite, no study file and no folder of a study, "),
    ("status", "x" * 300, "is no suite, no study file and no folder of a study, known: "),
    ("status", "a/" + "x" * 300, "is no suite, no study file and no folder of a study, known: "),
    ("status", "nul\0byte", "is no suite, no study file and no folder of a study"),
    ("status", "", "'' is no suite, no study file and no folder of a study, known: "),
]


@pytest.mark.parametrize(("command", "name", "told"), SOUGHT, ids=lambda text: ascii(text)[:24])
def test_a_name_that_is_nothing_is_told_with_what_was_looked_for_and_what_is_near(
    command: str, name: str, told: str, tmp_path, monkeypatch, capsys
) -> None:
    (tmp_path / "mine.yaml").write_text(SMALL)
    (tmp_path / "out" / "mine").mkdir(parents=True)
    (tmp_path / "out" / "mine" / "study.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    code, out, err = run(monkeypatch, capsys, tmp_path / "out", command, name)
    assert code == 2 and not out and err.startswith("posbench: error: ") and err.count("\n") == 1
    assert told in err


def test_a_dry_run_is_right_and_writes_nothing(home, file, monkeypatch, capsys) -> None:
    from posbench import cost, prospect
    from posbench.config import EncodingChoice
    from posbench.objective import objective_of
    from posbench.transformer import Transformer

    before = tree(home)
    code, out, _ = run(monkeypatch, capsys, home, "study", str(file), "--dry-run", "--encodings", "nope,t5,randomized")
    assert code == 0 and tree(home) == before
    assert "4 to run, 2 in the store" in out and "steps measured in the store" in out and "measured here" in out
    changes = {"encodings": [{"name": name} for name in ("nope", "t5", "randomized")]}
    (study,) = studies_of(file, changes).values()
    for cell in prospect.cells(study, Store(home)):
        trial = cell.trials[0]
        model = Transformer(trial.config.model, trial.encoding, trial.options,
                            vocabulary=objective_of(trial).vocabulary, length=32, head=cell.shape.head)
        found = cost.expected(trial.encoding, trial.options, trial.config.model, cell.shape)
        assert found["parameters"] == sum(p.numel() for p in model.parameters())
        (row,) = cost.measure({"": (trial.encoding, trial.options)}, trial.config.model, trial.config.train, cell.shape,
                              rounds=1)
        assert found["flops"] == row["flops"]
        assert 16 * row["parameters"] < found["memory"] < 16 * row["parameters"] + 10 * row["peak_memory"]
    assert cell.updates == 4 and isinstance(cell.config.encoding, EncodingChoice)


def test_a_plan_without_the_data_says_what_is_missing(tmp_path, monkeypatch, capsys) -> None:
    small = [part for name in ("width=64", "heads=2", "layers=1", "feedforward=64")
             for part in ("--set", f"model.{name}")]
    code, out, err = run(monkeypatch, capsys, tmp_path / "home", "study", "glue", "--preset", "paper", "--dry-run",
                         "--encodings", "learned,rope", "--tasks", "rte", *small)
    plain = " ".join(out.split())
    assert code == 0 and not (tmp_path / "home").exists() and not err
    assert "Missing data of rte: this preset reads GLUE's own files" in plain and "2,490 rows of train" in plain
    # 3 epochs of 2,490 rows in batches of 32, each row of 512 tokens.
    assert "234" in out and f"{234 * 32 * 512:.3g}" in out


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: file.stem)
def test_the_examples_run(example: Path, tmp_path, monkeypatch, capsys) -> None:
    tiny = [part for name in ("train.steps=3", "model.width=16", "model.heads=2", "model.feedforward=16",
                              "train.evaluations=1", "data.train_rows=64")
            for part in ("--set", name)]
    own = {
        "glue": ["--tasks", "mrpc"],
        "rope-base": ["--tasks", "cola", "--encodings", "rope,rope+layers=4,rope+train.steps=6"],
        "tuned": ["--tasks", "cola", "--encodings", "learned,rope", "--set", "train.evaluations=3",
                  "--set", "search.trials=5", "--set", "search.seeds=1000"],
    }[example.stem]
    code, out, err = run(monkeypatch, capsys, tmp_path, "study", str(example), "--tracker", "none", "--jobs", "1",
                         "--seeds", "1", *tiny, *own)
    plain = " ".join(out.split())
    assert code == 0, err
    if example.stem == "glue":
        assert "accuracy ↑" in out and "shaw:clip=8" in out
    elif example.stem == "tuned":
        assert "Chosen settings" in out and "tuning seeds 1000" in plain and "base" in out
    else:
        assert "‡ rope+layers=4" in out and "train.steps 6 in place of 3" in plain and "equal budget" in plain
