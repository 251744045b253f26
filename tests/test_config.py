"""Settings: what is refused, how it is told, and that equal settings have equal digests."""

from __future__ import annotations

import dataclasses

import pytest

from posbench.config import (
    EncodingChoice,
    ModelConfig,
    StudyConfig,
    TrainConfig,
    TrialConfig,
    build,
    digest,
    override,
    to_plain,
)
from posbench.errors import UserError, nearest
from posbench.space import SEARCHABLE

TRIAL = TrialConfig(
    encoding=EncodingChoice(name="rope"), suite="glue", task="cola", seed=0, train=TrainConfig(steps=10)
)


@pytest.mark.parametrize(
    ("text", "name", "options", "label"),
    [
        ("rope", "rope", {}, "rope"),
        ("rope:base=500000:layout=half", "rope", {"base": "500000", "layout": "half"}, "rope:base=500000:layout=half"),
        ("some/where/mine.py:slope=2", "some/where/mine.py", {"slope": "2"}, "mine:slope=2"),
        ("C:/x/mine.py", "C:/x/mine.py", {}, "mine"),
    ],
)
def test_an_encoding_is_written_as_name_and_options(text: str, name: str, options: dict, label: str) -> None:
    choice = EncodingChoice.parse(text)
    assert (choice.name, choice.options, choice.label) == (name, options, label)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"train.lrr": "1"}, "unknown setting 'train.lrr'"),
        ({"train.learning_rat": "1"}, "did you mean 'learning_rate'"),
        ({"trian.steps": "1"}, "did you mean 'train'"),
        ({"train.steps": "abc"}, "train.steps = 'abc'"),
        ({"train.steps": "0"}, "train.steps = '0': must be at least 1"),
        ({"model.width": "30", "model.heads": "4"}, "width 30 is no multiple of heads 4"),
        ({"train.steps": None}, "state either steps or epochs"),
        ({"model.norm": "both"}, "'pre' or 'post'"),
        ({"seed": "-1"}, "seed = '-1'"),
    ],
)
def test_a_wrong_setting_is_told_in_one_line(changes: dict, told: str) -> None:
    with pytest.raises(UserError) as error:
        override(TRIAL, changes)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("changes", "told"), [
    ({"train.steps": "x"}, "train.steps = 'x': must be a whole number"),
    ({"train.steps": 1.5}, "train.steps = 1.5: must be a whole number"),
    ({"train.steps": "9" * 5000}, " ...: must be a whole number of less than 4300 digits"),
    ({"train.learning_rate": "x"}, "train.learning_rate = 'x': must be a number"),
    ({"train.learning_rate": "inf"}, "train.learning_rate = 'inf': must be a finite number"),
    ({"train.learning_rate": "-1"}, "train.learning_rate = '-1': must be above 0"),
    ({"train.beta2": 1}, "train.beta2 = 1: must be below 1"),
    ({"model.width": 65537}, "model.width = 65537: must be at most 65536"),
    ({"train.clip": None}, "train.clip = none: must be a number"),
    ({"model.tied_embeddings": "perhaps"}, "model.tied_embeddings = 'perhaps': must be true or false"),
    ({"model.norm": True}, "model.norm = true: must be 'pre' or 'post'"),
    ({"data.path": 5}, "data.path = 5: must be a text"),
    ({"data.revision": "$"}, "data.revision = '$': must be of the form "),
    ({"encoding": 5}, "encoding = 5: must be names with values"),
    ({"encoding": {"options": {}}}, "encoding.name: must be given"),
    ({"encoding": {"name": "rope", "options": {"base": [1]}}},
     "setting: encoding.options.base = [1]: must be one text, number or truth value"),
    ({"tuning": {"thresholds": 5}}, "tuning.thresholds = 5: must be a list"),
])
def test_no_wrong_value_is_told_in_the_words_of_the_library_that_reads_it(changes: dict, told: str) -> None:
    with pytest.raises(UserError) as error:
        override(TRIAL, changes)
    assert told in str(error.value) and len(str(error.value)) < 200
    assert not [word for word in ("Input", "should", "valid", "parse", "instance", "Field") if word in str(error.value)]


@pytest.mark.parametrize(("name", "told"), [
    ("train.lr", "did you mean 'train.learning_rate'?"),
    ("lr", "did you mean 'train.learning_rate'?"),
    ("train.wd", "did you mean 'train.weight_decay'?"),
    ("train.rate", "did you mean 'train.learning_rate'?"),
    ("model.drop", "did you mean 'model.dropout'?"),
    ("train.warm", "did you mean 'train.warmup'?"),
    ("learning_rate", "did you mean 'train.learning_rate'?"),
])
def test_a_near_name_is_near_in_what_it_says_and_not_in_its_section(name: str, told: str) -> None:
    assert nearest(name, SEARCHABLE) == told


def test_known_names_are_listed_once() -> None:
    assert nearest("x", ["b", "a", "b"]) == "known: a, b"


@pytest.mark.parametrize("text", ["1e-4", "0.0001", ".0001", "1E-4"])
def test_numbers_are_numbers_however_they_are_written(text: str) -> None:
    assert override(TRIAL, {"train.learning_rate": text}).train.learning_rate == 1e-4


def test_stating_epochs_takes_the_place_of_steps() -> None:
    train = override(TRIAL, {"train.epochs": "3"}).train
    assert (train.steps, train.epochs) == (None, 3.0)


def test_settings_survive_a_round_trip_and_cannot_be_changed() -> None:
    assert build(TrialConfig, to_plain(TRIAL), where="test") == TRIAL
    with pytest.raises(dataclasses.FrozenInstanceError):
        TRIAL.seed = 1  # type: ignore[misc]
    with pytest.raises(UserError, match="unknown setting 'sed'"):
        build(TrialConfig, {**to_plain(TRIAL), "sed": 1}, where="test")


def test_digests_depend_on_values_and_not_on_the_order_of_keys() -> None:
    assert digest({"a": 1, "b": [1.5, None]}) == digest({"b": [1.5, None], "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})
    # printf '{"a":1}' | sha256sum
    assert digest({"a": 1}) == "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"
    with pytest.raises(ValueError, match="not JSON compliant"):
        digest({"a": float("nan")})


def test_a_tasks_own_settings_reach_its_trials_alone() -> None:
    study = StudyConfig(
        suite="glue",
        preset="mini",
        encodings=(EncodingChoice(name="rope"),),
        tasks=("cola", "rte"),
        seeds=(0,),
        train=TrainConfig(steps=10),
        per_task={"rte": {"train.steps": 20}},
    )
    assert [study.trial(study.encodings[0], task, 0).train.steps for task in study.tasks] == [10, 20]
    assert study.model == ModelConfig()
