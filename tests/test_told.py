"""What the commands refuse and what they say, in one line on stderr and with an exit code."""

from __future__ import annotations

import pytest

from tests.test_study_file import run

TWICE = {
    "two units": (("--set", "train.steps=3", "--set", "train.epochs=4"),
                  "--set: 'train.steps' and 'train.epochs' are both given, and only one of them can hold"),
    "data": (("--data", "x", "--set", "data.path=y"), "--data and --set data.path say the same thing: leave one out"),
    "hub": (("--data", "hub", "--set", "data.source=folder"), "--data and --set data.source say the same thing"),
    "tokenizer": (("--tokenizer", "bpe", "--set", "data.tokenizer=bytes"), "--tokenizer and --set data.tokenizer say"),
    "revision": (("--revision", "abc"), "--revision abc: a commit on the hub, which --data hub alone reads"),
    "path": (("--set", "data.path=x"), "data.path is read where data.source is folder, and it is generated"),
}


@pytest.mark.parametrize("command", ["study", "status"])
@pytest.mark.parametrize("name", TWICE)
def test_of_two_options_none_is_dropped_in_silence(name, command, tmp_path, monkeypatch, capsys) -> None:
    arguments, told = TWICE[name]
    code, out, err = run(monkeypatch, capsys, tmp_path, command, "glue", *arguments)
    assert code == 2 and not out and err.startswith("posbench: error: ") and err.count("\n") == 1
    assert told in err and not list(tmp_path.iterdir())


SMALL = ("--encodings", "nope,rope", "--tasks", "cola", "--seeds", "1", "--baseline", "nope", "--set", "model.width=16",
         "--set", "model.heads=2", "--set", "model.layers=1", "--set", "model.feedforward=16", "--set", "train.steps=4",
         "--set", "train.evaluations=1")
REFUSED = {
    "own of another": (
        "search: {trials: 5, own: {shaw: {clip: {low: 2, high: 4}}}}", "search.own: 'shaw' is no encoding"),
    "own that cannot be built": ("search: {trials: 5, own: {rope: {fraction: {low: 0.1, high: 1}}}}", "rope"),
    "one and the same": ("encodings: [nope, rope, 'rope:base=10000']", "are one and the same: name one of them"),
    "table ends": ("encodings: [nope, rope, 'learned:max_length=8']", "encoding 'learned' ends at 8 positions"),
    "files": ("data: {source: folder, path: here, tokenizer: none.txt}", "none.txt"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_plan_and_a_standing_are_refused_where_the_run_is(name, tmp_path, monkeypatch, capsys) -> None:
    said, told = REFUSED[name]
    monkeypatch.chdir(tmp_path)
    text = {"suite": "glue", "encodings": "[nope, rope]", "tasks": "[cola]", "seeds": "1", "baseline": "nope",
            "model": "{width: 16, heads: 2, layers: 1, feedforward: 16}", "train": "{steps: 4, evaluations: 1}"}
    key, _, value = said.partition(": ")
    (tmp_path / "mine.yaml").write_text("".join(f"{name}: {own}\n" for name, own in {**text, key: value}.items()))
    (tmp_path / "here" / "CoLA").mkdir(parents=True)
    for part in ("train", "dev"):
        (tmp_path / "here" / "CoLA" / f"{part}.tsv").write_text("".join(f"x\t{n % 2}\t\ta b {n}\n" for n in range(40)))
    errors = set()
    for command in (("study",), ("study", "--dry-run"), ("status",)):
        code, out, err = run(monkeypatch, capsys, tmp_path / "home", command[0], "mine.yaml", *command[1:])
        assert code == 2 and not out and told in err and not (tmp_path / "home").exists()
        errors.add(err)
    assert len(errors) == 1


def test_a_plan_is_refused_with_every_plugin_that_fails(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    head = "from posbench.encoding import Encoding, Paper, Properties\n"
    (tmp_path / "second.py").write_text(
        f'"""second: changes nothing."""\nimport os\n{head}class Second(Encoding):\n    """Leaves."""\n'
        "    paper = Paper(title='t', arxiv='2104.09864', equations='1')\n    properties = Properties()\n"
        "    def embed(self, x, at):\n        os._exit(7)\nENCODING = Second\n")
    (tmp_path / "third.py").write_text((tmp_path / "second.py").read_text().replace("Second", "Third"))
    errors = set()
    for more in ((), ("--dry-run",)):
        code, out, err = run(monkeypatch, capsys, tmp_path / "home", "study", "glue", *SMALL, "--encodings",
                             "nope,./second.py,./third.py", *more)
        assert code == 2 and not out and err.count("\n") == 1 and not (tmp_path / "home").exists()
        for name in ("second", "third"):
            assert f"encoding '{name}' fails its contract in 1 check, the first: P0 the checks can be made" in err
        assert "status 7" in err or "code 7" in err
        assert ": the study is refused and nothing is trained: mend what fails, or leave it out" in err
        errors.add(err)
    assert len(errors) == 1


def test_status_counts_what_runs_now_and_says_of_no_time_that_was_not_measured_from_what_it_is(
    tmp_path, monkeypatch, capsys
) -> None:
    from posbench.store import Record, Store
    from posbench.study import from_preset, plan

    changes = {name: value for name, _, value in (text.partition("=") for text in SMALL[9::2])}
    searched = (*SMALL, "--set", "search.trials=3", "--set", "search.sampler=random")

    def lines(*arguments: str) -> dict[str, str]:
        code, out, err = run(monkeypatch, capsys, tmp_path, "status", "glue", *arguments)
        assert code == 0 and not err
        head = " ".join(line if line.startswith(" ") else f"|{line}" for line in out.split("\n\n")[1].splitlines())
        return {" ".join(name.split()): " ".join(text.split()) for name, text in
                (line.split("  ", 1) for line in head.split("|") if "  " in line)}

    whole = {"encodings": [{"name": "nope"}, {"name": "rope"}], "tasks": ["cola"], "seeds": [0], "baseline": "nope"}
    store, first = Store(tmp_path / "trials"), plan(from_preset("glue", "mini", whole | changes)).trials
    told = lines(*SMALL)
    assert told["begun"] == "0"
    assert told["time left"] == "an unknown time for 2 trials, as none like them was measured"
    store.keep(Record(fingerprint=first[1].fingerprint, label="rope", config={}, status="failed"), {})
    with store.claim(first[0].fingerprint):
        told = lines(*SMALL)
        assert (told["begun"], told["failed"], told["missing"]) == ("1, 1 of which runs now", "1", "0")
        with store.claim(first[1].fingerprint):
            told = lines(*SMALL)
            assert (told["begun"], told["failed"]) == ("2, 2 of which run now", "0"), "a failed one that runs again"
    changes |= {"search.trials": "3", "search.sampler": "random"}
    tuning = plan(from_preset("glue", "mini", whole | changes)).tuning
    assert lines(*searched)["tuning"] == "0 of 6 trials of the search have a result"
    with store.claim(tuning[0].fingerprint):
        assert lines(*searched)["tuning"] == "0 of 6 trials of the search have a result, 1 runs now"


@pytest.mark.parametrize(("planned", "stored", "at_once", "told"), [
    (6, 0, 2, "6 trials to run, 2 at a time\n"),
    (6, 0, 1, "6 trials to run, one after the other\n"),
    (9, 4, 2, "5 trials to run, 2 at a time; 4 of 9 trials are in the store already\n"),
    (3, 1, 8, "2 trials to run, 2 at a time; 1 of 3 trials is in the store already\n"),
    (4, 3, 8, "1 trial to run; 3 of 4 trials are in the store already\n"),
    (4, 4, 2, "4 of 4 trials are in the store already\n"),
    (6, 0, 0, "6 trials to run\n"),  # a cluster says by itself how many
])
def test_a_study_says_what_it_begins_with(planned, stored, at_once, told, capsys) -> None:
    from posbench.console import Progress

    with Progress(planned, stored, at_once=at_once):
        assert capsys.readouterr().err == told


def test_a_study_says_before_its_first_trial_what_is_to_run(tmp_path, monkeypatch, capsys) -> None:
    from posbench.store import Record, Store

    code, _, err = run(monkeypatch, capsys, tmp_path, "study", "glue", *SMALL, "--tracker", "none", "--jobs", "1")
    proof, first, *trials = err.splitlines()
    assert code == 0 and proof.startswith("proving ") and len(trials) == 2
    assert first == "2 trials to run, one after the other"
    store = Store(tmp_path / "trials")
    name = next(store.root.glob("*/*/record.json")).parent.name
    store.keep(Record(fingerprint=name, label="x", config={}, status="failed"), {})
    code, _, err = run(monkeypatch, capsys, tmp_path, "study", "glue", *SMALL, "--tracker", "none", "--jobs", "2")
    assert code == 0 and err.splitlines()[0] == "1 trial to run; 1 of 2 trials is in the store already"
