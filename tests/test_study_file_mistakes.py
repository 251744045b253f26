"""Study files with a mistake: none is dropped in silence, and each is told with its thing, its line and its mend."""

from __future__ import annotations

from pathlib import Path

import pytest

from posbench.config import EncodingChoice
from posbench.errors import UserError
from posbench.study import from_preset
from posbench.study_file import studies_of

SIMPLE = "suite: glue\nencodings: [nope, rope]\ntasks: [cola]\nseeds: 2\nbaseline: nope\n"
"""Five lines: what is added begins in line 6."""
SEARCH = f"{SIMPLE}search:\n  trials: 6\n"
VARIED = f"{SIMPLE}ablations:\n  choice: rope\n  vary:\n"


def without(text: str, line: str, other: str) -> str:
    """The text with another line in the place of one."""
    assert line in text
    return text.replace(line, other)


def refusal(text: str, folder: Path, **changes: object) -> str:
    file = folder / "mine.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as error:
        studies_of(file, {name.replace("__", "."): value for name, value in changes.items()})
    told = str(error.value)
    assert "\n" not in told and told.startswith(str(file)) and error.value.exit_code == 2
    return told.removeprefix(str(file))


ONE = "are both given, and only one of them can hold: leave one out"
MISTAKES = {
    # Of two keys one would be dropped.
    "budget": (SIMPLE + "budget: {steps: 10, epochs: 2}", f"line 6: 'train.steps' (line 6) and 'train.epochs' {ONE}"),
    "train": (SIMPLE + "train:\n  epochs: 10\n  steps: 2", f"line 8: 'train.epochs' (line 7) and 'train.steps' {ONE}"),
    "budget and train": (SIMPLE + "budget: {steps: 3}\ntrain.epochs: 2",
                         f"line 7: 'train.steps' (line 6) and 'train.epochs' {ONE}"),
    "batch": (SIMPLE + "train: {batch_size: 8}\ntrain.batch_tokens: 64",
              f"line 7: 'train.batch_size' (line 6) and 'train.batch_tokens' {ONE}"),
    "of a task": (SIMPLE + "per_task:\n  cola:\n    train.steps: 1\n    train.epochs: 2",
                  f"line 9: per_task: 'train.steps' and 'train.epochs' {ONE}"),
    "of a choice": (without(SIMPLE, "rope]", "'rope+train.steps=2+train.epochs=3']"),
                    f"line 2: encoding 'rope+train.epochs=3+train.steps=2': 'train.steps' and 'train.epochs' {ONE}"),
    "of a grid": (f"{VARIED}    train.steps: [4]\n    train.epochs: [5]\n  grid: true", ONE),
    "an option by two names": (f"{VARIED}    rope.base: [4]\n    options.base: [5]\n  grid: true",
                               "line 6: ablations: 'options.base' is varied twice"),
    "lengths": (SIMPLE + "lengths: 32\ndata: {max_length: 16}", "'data.max_length' is given twice"),
    "a path that nothing reads": (SIMPLE + "data: {path: x}", "line 6: data.path is read where data.source is folder, "
                                  "and it is generated: say data.source folder too (--data DIR), or leave data.path"),
    "a commit that nothing reads": (SIMPLE + "data.revision: abc", "line 6: data.revision is read where data.sour"),
    "searched and fixed": (without(SEARCH, "rope]", "'rope+train.learning_rate=1']") + "  space:\n    train.warmup: "
                           "{low: 0.1, high: 0.2}\n    train.learning_rate: {low: 0.1, high: 0.2}",
                           "line 10: search.space: encoding 'rope+train.learning_rate=1' fixes 'train.learning_rate'"),
    # A search is checked with the file.
    "own of another": (SEARCH + "  own:\n    shaw: {clip: {low: 2, high: 5}}",
                       "line 9: search.own: 'shaw' is no encoding of the study, known: nope, rope"),
    "own option": (SEARCH + "  own:\n    rope:\n      bse: {low: 2, high: 5}",
                   "line 10: encoding 'rope': unknown option 'bse', did you mean 'base'?"),
    "own bounds": (SEARCH + "  own:\n    rope:\n      base: {low: -10, high: 5}",
                   "line 10: encoding 'rope': base = -10.0, but it must be above 1"),
    "own fixed": (without(SEARCH, "rope]", "'rope:base=5']") +
                  "  own:\n    'rope:base=5':\n      base: {low: 2, high: 5}",
                  "line 10: search.own: encoding 'rope:base=5' fixes the option 'base', which is searched too"),
    "space name": (SEARCH + "  space:\n    train.lr: {low: 1, high: 2}", "line 9: search: space: 'train.lr' is no "
                   "setting that a search may choose without changing data, size or budget, did you mean "
                   "'train.learning_rate'?"),
    "space bounds": (SEARCH + "  space:\n    train.warmup: {low: 0.1, high: 2}",
                     "line 9: search.space: train.warmup = 2.0: must be below 1"),
    "stop": (SEARCH + "  pruning: median\n  stop_from: 9", "line 9: search.stop_from 9 leaves no evaluation of task"),
    # Nothing, or something else, where a name is needed.
    "no suite": (without(SIMPLE, "glue", ""), "line 1: 'suite' has nothing where a name is needed"),
    "no encodings": (without(SIMPLE, "[nope, rope]", ""), "line 2: 'encodings' has nothing where a name is needed"),
    "no tasks": (without(SIMPLE, "[cola]", ""), "line 3: 'tasks' has nothing where a name is needed"),
    "no baseline": (without(SIMPLE, "baseline: nope", "baseline:"), "line 5: 'baseline' has nothing where a name"),
    "no preset": (SIMPLE + "preset:", "line 6: 'preset' has nothing where a name is needed"),
    "no preset inside": ("suites:\n  glue:\n    preset: 5", "line 3: 'preset' has 5 where a name is needed"),
    "no primary": (SIMPLE + "primary:", "line 6: 'primary' has nothing where a name is needed"),
    "no primary of a task": (SIMPLE + "primary:\n  cola:", "line 7: 'cola' has nothing where a name is needed"),
    "no lengths": (SIMPLE + "lengths:", "line 6: lengths: give the trained length"),
    "no search": (SIMPLE + "search:", "line 6: 'search' holds no keys with values"),
    "no ablations": (SIMPLE + "ablations: []", "line 6: 'ablations' is empty"),
    "no choice": (SIMPLE + "ablations: {vary: {rope.base: [1]}}", "line 6: ablations: 'choice' is missing: write"),
    "an empty choice": (SIMPLE + "ablations:\n  choice:\n  vary: {rope.base: [1]}", "line 7: 'choice' has nothing"),
    "no vary": (SIMPLE + "ablations: {choice: rope}", "line 6: ablations: 'vary' is missing"),
    "number": (without(SIMPLE, "rope]", "5]"), "line 2: 'encodings' has 5 where a name is needed"),
    "fraction": (SIMPLE + "preset: 1.5", "line 6: 'preset' has 1.5 where a name is needed"),
    "truth": (SIMPLE + "preset: true", "line 6: 'preset' has true where a name is needed"),
    "several": (SIMPLE + "preset: [mini]", "line 6: 'preset' has several values where a name is needed"),
    "options of no name": (without(SIMPLE, "rope]", "{rope: 5}]"), "line 2: 'encodings' holds no keys with values"),
    # Empty lists, and what comes twice.
    "0 seeds": (without(SIMPLE, "seeds: 2", "seeds: 0"), "line 4: seeds: give how many, from 1 to 1000, or which"),
    "-2 seeds": (without(SIMPLE, "seeds: 2", "seeds: -2"), "line 4: seeds: give how many, from 1 to 1000, or which"),
    "seeds of none": (without(SIMPLE, "seeds: 2", "seeds: []"), "line 4: seeds: give how many, from 1 to 1000"),
    "a negative seed": (without(SIMPLE, "seeds: 2", "seeds:\n- 1\n- -1"), "line 6: seeds: -1 is no seed"),
    "a huge seed": (without(SIMPLE, "seeds: 2", "seeds: [3000000000]"), "line 4: seeds: 3000000000 is no seed"),
    "a seed twice": (without(SIMPLE, "seeds: 2", "seeds:\n- 1\n- 1"), "line 6: the study names seed 1 twice"),
    "encodings of none": (without(SIMPLE, "[nope, rope]", "[]"), "line 2: 'encodings' is empty: name at least one"),
    "tasks of none": (without(SIMPLE, "[cola]", "[]"), "line 3: 'tasks' is empty: name at least one"),
    "an encoding twice": (without(SIMPLE, "[nope, rope]", "\n- nope\n- nope"), "line 4: the study names encoding nope "
                          "twice: name each once"),
    "a task twice": (without(SIMPLE, "[cola]", "\n- cola\n- cola"), "line 5: the study names task cola twice"),
    # Values that do not fit each other, and where they stand.
    "heads": (SIMPLE + "model:\n  heads: 3", "line 7: model: width 64 is no multiple of heads 3"),
    "dotted heads": (SIMPLE + "alpha: 0.1\nmodel.heads: 3", "line 7: model: width 64 is no multiple of heads 3"),
    "heads of a task": (SIMPLE + "per_task:\n  cola:\n    model.heads: 3", "line 8: model: width 64 is no multiple of"),
    "another task": (SIMPLE + "per_task:\n  colla:\n    model.heads: 2", "line 7: per_task: suite 'glue' has no task"),
    # What an ablation varies.
    "no value": (f"{VARIED}    rope.base: []", "line 9: 'rope.base' is empty: name at least one"),
    "no factor": (SIMPLE + "ablations:\n  choice: rope\n  vary: {}", "line 8: ablations: vary is empty: name what is"),
    "nothing new": (f"{VARIED}    rope.base: [10000]", "line 8: ablations: every value is that of 'rope' as it is"),
    "option of another": (f"{VARIED}    shaw.clip: [4]", "line 6: ablations: 'shaw.clip' is of encoding 'shaw', and "
                          "what is varied is 'rope': write rope.clip for an option of its own, or a setting, such as"),
    "option of nothing": (f"{VARIED}    foo.clip: [4]", "line 6: ablations: 'foo.clip' is of nothing here, and what"),
    "grid": (f"{VARIED}    rope.base: [4]\n  grid: yes", "line 10: 'grid' has 'yes' where true or false is needed"),
    "option behind a plus": (without(SIMPLE, "rope]", "'rope+shaw.clip=3']"), "line 2: encoding 'rope+shaw.clip=3': "
                             "'shaw.clip' is no setting, and options are written rope:OPTION=VALUE; a choice may have"),
    "model among settings": (without(SIMPLE, "rope]", "{name: rope, settings: {model.layers: 3}}]"), "line 2: encoding "
                             "'rope+model.layers=3': 'model.layers' stands among settings of other parts: write it as"),
    "unknown": (SIMPLE + "zzz: 1", "search, seeds, suite, suites, tasks, train"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_with_its_thing_its_line_and_its_mend(name: str, tmp_path: Path) -> None:
    text, told = MISTAKES[name]
    found = refusal(text, tmp_path)
    assert told in found and "line " in found


def test_options_win_over_a_file_also_where_it_says_something_of_one_task_or_in_another_unit(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"{SIMPLE}budget: {{epochs: 2}}\nper_task: {{cola: {{train.epochs: 3, train.warmup: 0.2}}}}\n"
                    "data: {source: folder, path: x}\n")
    (study,) = studies_of(file, {"train.steps": "7", "data.source": "generated"}).values()
    train = study.trial(study.encodings[0], "cola", 0).train
    assert (train.steps, train.epochs, train.warmup) == (7, None, 0.2) and study.data.path is None
    (study,) = studies_of(file, {}).values()
    assert study.trial(study.encodings[0], "cola", 0).train.epochs == 3 and study.data.path == str(tmp_path / "x")


def test_a_null_beside_the_other_unit_claims_nothing(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(SIMPLE + "train: {steps: 10, epochs: null}\n")
    (study,) = studies_of(file, {}).values()
    assert (study.train.steps, study.train.epochs) == (10, None)


def test_rows_of_an_update_take_the_place_of_its_tokens() -> None:
    """A preset that counts tokens would otherwise drop the batch_size that was asked for."""
    assert from_preset("translation", "mini", {}).train.rows(8) != 16
    assert from_preset("translation", "mini", {"train.batch_size": "16"}).train.rows(8) == 16


def test_a_choice_wins_over_its_task_in_another_unit() -> None:
    study = from_preset("glue", "mini", {"tasks": ["cola"], "per_task": {"cola": {"train.epochs": 2}}})
    choice = EncodingChoice.parse("rope+train.steps=9")
    assert (study.trial(choice, "cola", 0).train.steps, study.trial(choice, "cola", 0).train.epochs) == (9, None)


def test_an_ablation_of_a_file_names_its_options_as_the_tables_do(tmp_path: Path) -> None:
    (tmp_path / "my_rope.py").write_text((Path(__file__).resolve().parents[1] / "encodings" / "rope.py").read_text())
    file = tmp_path / "mine.yaml"
    file.write_text("suite: glue\ntasks: [cola]\nseeds: 1\n"
                    "ablations: {choice: ./my_rope.py, vary: {my_rope.base: [5]}}\n")
    (study,) = studies_of(file, {}).values()
    assert [choice.label for choice in study.encodings] == ["my_rope", "my_rope:base=5"]
