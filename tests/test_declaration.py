"""Declarations: how a table tells what was said, and what was said anew when there were results already."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posbench.config import StudyConfig
from posbench.declaration import declare, told, warnings
from posbench.errors import UserError
from posbench.study import from_preset
from posbench.study_folder import claim, declarations


def study(names: str = "nope,rope,alibi", **changes: object) -> StudyConfig:
    return from_preset("glue", "mini", {
        "encodings": [{"name": name} for name in names.split(",")], "tasks": ["mrpc"], "seeds": [0, 1],
        "baseline": "nope", **{name.replace("__", "."): value for name, value in changes.items()}})


CHANGES = {
    "alpha up": ({"alpha": 0.1}, "alpha loosened from 0.05 to 0.1"),
    "alpha down": ({"alpha": 0.01}, "alpha tightened from 0.05 to 0.01"),
    "baseline": ({"baseline": "rope"}, "baseline from nope to rope"),
    "metric": ({"primary": {"mrpc": "accuracy"}}, "primary metric of mrpc from f1 to accuracy"),
    "lengths": ({"data__max_length": 64}, "lengths of mrpc from 32 to 64"),
    "more": ({"names": "nope,rope,alibi,t5"}, "family of comparisons from 3 to 4 encodings (with t5)"),
    "less": ({"names": "nope,rope"}, "family of comparisons from 3 to 2 encodings (without alibi)"),
    "others": ({"names": "nope,rope,t5"}, "family of comparisons still 3 encodings (with t5; without alibi)"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_has_its_own_words_and_a_warning_where_there_were_results(name: str) -> None:
    changes, text = CHANGES[name]
    history = [declare(study()), declare(study(**changes)) | {"when": "2030-01-02 03:04:05 UTC"}]
    line = told(history)["declaration changed"]
    assert line.startswith(f"2030-01-02 03:04:05 UTC {text} (first hash ") and "grew" not in told(history)
    (warning,) = warnings(history)
    assert warning.startswith(f"Declared anew after earlier results: 2030-01-02 03:04:05 UTC {text}. What is tested ")
    assert warnings([history[0], history[1] | {"seen": True}]) == (warning,)
    assert warnings([history[0], history[1] | {"seen": False}]) == ()


def test_more_seeds_and_tasks_are_told_and_decide_nothing() -> None:
    history = [declare(study()), declare(study(seeds=[0, 1, 2], tasks=["mrpc", "rte"])) | {"when": "W"}]
    line = told(history)["declaration changed"]
    assert "from 1 to 2 tasks (with rte), from 2 to 3 seeds (with 2)" in line and not warnings(history)
    assert "declaration changed" not in told(history[:1]) and not warnings(history[:1])


def test_a_search_is_declared_in_the_words_of_the_header() -> None:
    search = {"trials": 6, "seeds": [7], "space": {"train.warmup": {"low": 0.1, "high": 0.2}},
              "own": {"rope": {"base": {"low": 10, "high": 100, "log": True}}}}
    said = "6 points for each encoding and task (qmc, sampler seed 0, tuning seeds 7) in train.warmup 0.1 to 0.2; " \
           "of rope alone: base 10 to 100 (log)"
    history = [declare(study()), declare(study(search=search)) | {"when": "W"}]
    assert told(history[1:])["declared"].endswith(f"2 seeds; a search: {said}")
    assert "{" not in "".join(told(history).values())
    assert told(history)["declaration changed"].startswith(f"W the search from none to {said} (first hash ")
    assert study(search=search).search.told_space == said.partition(" in ")[2]


def test_a_folder_keeps_whether_there_were_results_when_something_was_declared(tmp_path: Path) -> None:
    claim(tmp_path / "new", study())
    claim(tmp_path / "new", study(alpha=0.1))
    assert not warnings(declarations(tmp_path / "new"))
    claim(tmp_path / "new", study(alpha=0.2), seen=True)
    (warning,) = warnings(declarations(tmp_path / "new"))
    assert "alpha loosened from 0.1 to 0.2" in warning and "0.05" not in warning
    # Tables show results too.
    claim(tmp_path / "old", study())
    (tmp_path / "old" / "tidy.csv").write_text("")
    claim(tmp_path / "old", study(alpha=0.1))
    assert "alpha loosened" in warnings(declarations(tmp_path / "old"))[0]


def test_a_spoilt_search_among_the_declarations_is_told_with_its_folder(tmp_path: Path) -> None:
    claim(tmp_path, study())
    plain = json.loads((tmp_path / "study.json").read_text())
    plain["declarations"][0]["search"] = {"trials": "x"}
    (tmp_path / "study.json").write_text(json.dumps(plain))
    with pytest.raises(UserError, match=r"declarations of study\.json are damaged"):
        declarations(tmp_path)
