"""GLUE: metrics against known numbers, and generated tasks in which order decides."""

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
from posbench.suites.glue import SUITE
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline

from posbench.config import DataConfig, StudyConfig, build, override
from posbench.data import data_hash

TASKS = tuple(SUITE.tasks)
# Not sst2, mnli and wnli, where words and the usual roles are good for a guess.
ORDER_ONLY = ("cola", "mrpc", "stsb", "qqp", "qnli", "rte")
GENERATED = {task: SUITE.load(task, DataConfig()) for task in TASKS}


def score(metric: str, task: str, gold, predicted) -> float:
    function = next(entry for entry in SUITE.tasks[task].metrics if entry.name == metric).function
    return function(gold=np.array(gold), predicted=np.array(predicted))


# Metrics.


def test_tasks_in_glues_order_with_the_metrics_of_the_published_table():
    assert TASKS == ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
    primary = dict.fromkeys(TASKS, "accuracy") | {"cola": "mcc", "mrpc": "f1", "qqp": "f1", "stsb": "spearman"}
    assert {name: task.primary for name, task in SUITE.tasks.items()} == primary
    assert {task.name: {m.name for m in task.metrics} for task in SUITE.tasks.values() if len(task.metrics) > 1} == {
        "mrpc": {"f1", "accuracy"}, "qqp": {"f1", "accuracy"}, "stsb": {"spearman", "pearson"}}


def test_all_positive_on_mrpcs_dev_set():
    # 279 of its 408 pairs are paraphrases: accuracy 279/408, F1 = 2 * 279 / (279 + 408).
    gold = [1] * 279 + [0] * 129
    assert score("accuracy", "mrpc", gold, [1] * 408) == pytest.approx(0.68382, abs=1e-5)
    assert score("f1", "mrpc", gold, [1] * 408) == pytest.approx(0.81223, abs=1e-5)
    assert score("f1", "mrpc", gold, [0] * 408) == 0


def test_f1_is_of_the_whole_and_not_a_mean_of_batches():
    # Two batches of four, of F1 0 and 1, whose mean is 0.5.
    gold, predicted = [0, 0, 0, 0, 1, 1, 1, 1], [1, 0, 0, 0, 1, 1, 1, 1]
    assert score("f1", "qqp", gold, predicted) == pytest.approx(8 / 9)


def test_arguments_are_not_exchanged():
    # Two positives, five predicted, both found: tp 2, fp 3, tn 3. MCC = (2*3 - 0) / sqrt(5 * 2 * 6 * 3).
    gold, predicted = [1, 1, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0, 0]
    assert score("mcc", "cola", gold, predicted) == pytest.approx(6 / math.sqrt(180))
    with pytest.raises(TypeError):
        SUITE.tasks["mrpc"].metrics[0].function(np.array(gold), np.array(predicted))
    # Constant gold is undefined, constant predictions are not.
    assert math.isnan(score("mcc", "cola", [1, 1, 1, 1], [1, 0, 1, 0]))
    assert score("mcc", "cola", [1, 0, 1, 0], [1, 1, 1, 1]) == 0


@pytest.mark.parametrize(("gold", "predicted", "expected"), [
    ([0, 1, 0, 1], [0, 1, 0, 1], 1), ([0, 1, 0, 1], [1, 0, 1, 0], -1), ([0, 1, 0, 1], [0, 0, 0, 0], 0),
    ([1, 1, 1], [1, 1, 1], math.nan), ([0, 0, 0], [1, 1, 1], math.nan),
])
def test_mcc_of_degenerate_cases(gold, predicted, expected):
    assert score("mcc", "cola", gold, predicted) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
def test_correlations(metric, recwarn):
    assert math.isnan(score(metric, "stsb", [0.0, 2.5, 5.0], [2.5, 2.5, 2.5]))
    assert math.isnan(score(metric, "stsb", [1.0, 1.0, 1.0], [1.0, 2.0, 3.0]))
    assert score(metric, "stsb", [0.0, 2.5, 5.0], [-1.0, 0.0, 1.0]) == pytest.approx(1)
    assert not recwarn
    # Ranks 1 2 3 4 against 1 2 4 3: 1 - 6 * 2 / (4 * 15); the numbers themselves correlate otherwise.
    expected = {"spearman": 0.8, "pearson": np.corrcoef([0, 1, 2, 5], [0, 1, 9, 2])[0, 1]}[metric]
    assert score(metric, "stsb", [0.0, 1.0, 2.0, 5.0], [0.0, 1.0, 9.0, 2.0]) == pytest.approx(expected)


@pytest.mark.parametrize("task", TASKS)
def test_scores_do_not_depend_on_the_order_of_rows(task):
    random = np.random.default_rng(0)
    kind = SUITE.tasks[task]
    gold, predicted = (random.integers(0, len(kind.labels) or 6, 200) for _ in range(2))
    order = random.permutation(200)
    for metric in kind.metrics:
        one = metric.function(gold=gold, predicted=predicted)
        assert metric.function(gold=gold[order], predicted=predicted[order]) == pytest.approx(one, abs=1e-12)


# Generated tasks.


@pytest.mark.parametrize("task", TASKS)
def test_generated_splits_are_disjoint_balanced_and_short(task):
    data, kind = GENERATED[task], SUITE.tasks[task]
    sizes = {"train": 2400, "validation": 240} | dict.fromkeys(data.scored, 400)
    assert {name: len(rows.texts) for name, rows in data.splits.items()} == sizes
    assert data.scored == (("test_matched", "test_mismatched") if task == "mnli" else ("test",))
    assert data.selection == "validation" and set(data.notes.values()) == {"generated"}
    texts = [row for rows in data.splits.values() for row in rows.texts]
    assert len(set(texts)) == len(texts)
    assert {len(row) for row in texts} == {len(kind.texts)}
    for rows in data.splits.values():
        _, counts = np.unique(rows.labels, return_counts=True)
        assert len(counts) == (len(kind.labels) or 7) and counts.max() - counts.min() <= 1
        # No run of rows is of one class, so that the first n would do no harm either.
        assert len(set(rows.labels[:40])) == len(counts)
    # With [CLS] and a [SEP] behind each text; every word is one token.
    assert max(sum(len(text.split()) + 1 for text in row) + 1 for row in texts) <= 24


def test_generated_rows_are_the_same_in_every_process():
    code = ("from posbench.config import DataConfig; from posbench.data import data_hash; "
            "from posbench.suites.glue import SUITE; "
            "print(*(data_hash(SUITE.load(task, DataConfig())) for task in SUITE.tasks))")
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={"PYTHONHASHSEED": "77"})
    assert told.stdout.split() == [data_hash(GENERATED[task]) for task in TASKS]


def told_words(rows) -> list[str]:
    """Words of each row, marked by the text that they are in."""
    return [" ".join(f"{place}_{word}" for place, text in enumerate(row) for word in text.split())
            for row in rows.texts]


def fitted(task: str, features) -> float:
    data, kind = GENERATED[task], SUITE.tasks[task]
    regression = kind.kind == "regression"
    model = make_pipeline(features, Ridge() if regression else LogisticRegression(max_iter=2000))
    train, test = data.splits["train"], data.splits[data.scored[0]]
    model.fit(told_words(train), train.labels)
    predicted, gold = model.predict(told_words(test)), np.array(test.labels)
    return score("spearman", task, gold, predicted) if regression else float((predicted == gold).mean())


def bag() -> CountVectorizer:
    return CountVectorizer(token_pattern=r"\S+")


@pytest.mark.parametrize("task", ORDER_ONLY)
def test_a_bag_of_words_stays_at_chance_where_order_decides(task):
    chance = 0.0 if task == "stsb" else 0.5
    assert abs(fitted(task, bag()) - chance) < 0.1


@pytest.mark.parametrize(("task", "low", "high"), [("sst2", 0.65, 0.95), ("mnli", 0.55, 0.75)])
def test_a_bag_of_words_comes_part_of_the_way_elsewhere(task, low, high):
    assert low < fitted(task, bag()) < high


def rule(task: str, row: tuple[str, ...]) -> float:
    """The label of a scored row, read off the text by another way than the one in which it was made."""
    words = [text.split() for text in row]
    if task == "cola":
        pronouns = [word for word in words[0] if word in "i he she they we me him her them us".split()]
        return float(pronouns[0] in "i he she they we".split())
    if task == "sst2":
        return float(words[0][-1] in "superb charming funny moving bright clever".split())
    if task == "stsb":
        wrong = sum(words[1].index(one) > words[1].index(two)
                    for one, two in itertools.combinations([word for word in words[0] if word != "then"], 2))
        return round(5 * (1 - wrong / 6), 2)
    if task == "qqp":
        start = [text[text.index("from") + 1] for text in words]
        return float(start[0] == start[1])
    roles = [[text[index + 1] for index, word in enumerate(text) if word == "the" and text[index + 1] != "river"]
             for text in (text.replace("after the rain", "").split() for text in row)]
    if task == "mrpc":
        return float(roles[0] == roles[1])
    if task == "mnli":
        if row[1].endswith(("for an hour", "with a friend", "after the rain", "near the river")):
            return 1
        return 0 if roles[0] == roles[1] else 2
    if task == "qnli":
        return float(roles[1][1] != roles[0][0])
    if task == "rte":
        return float(roles[0][0] != roles[1][0])
    meant = roles[0][row[1].split()[-1] in "lost hurt slow weak".split()]
    return float(meant == roles[1][0])


@pytest.mark.parametrize("task", TASKS)
def test_labels_of_scored_rows_follow_from_the_order_of_words(task):
    for split in GENERATED[task].scored:
        rows = GENERATED[task].splits[split]
        assert [rule(task, row) for row in rows.texts] == rows.labels


@pytest.mark.parametrize("task", ["cola", "rte"])
def test_words_with_their_neighbours_solve_what_words_do_not(task):
    assert fitted(task, CountVectorizer(token_pattern=r"\S+", ngram_range=(1, 3))) > 0.85


def test_mnlis_other_genre_is_of_known_words_in_new_company():
    splits = GENERATED["mnli"].splits
    known = {word for row in splits["train"].texts for text in row for word in text.split()}
    scenes = {"last night", "this week", "last morning", "outside town", "this night"}
    assert {word for row in splits["test_mismatched"].texts for text in row for word in text.split()} <= known
    assert all(any(scene in row[0] for scene in scenes) for row in splits["test_mismatched"].texts)
    assert not any(scene in row[0] for scene in scenes for row in splits["train"].texts)


# Presets.


@pytest.mark.parametrize("preset", ["mini", "real-mini", "small", "paper"])
def test_presets_are_settings(preset):
    settings = dict(SUITE.presets[preset])
    base = build(StudyConfig, {"suite": "glue", "preset": preset, "encodings": [], "tasks": list(TASKS), "seeds": [0],
                               "train": {"steps": 1}}, where="test")
    config = override(base, settings)
    assert len(config.seeds) >= 3 and config.model.width % config.model.heads == 0
    assert (config.data.source == "generated") == (preset == "mini")
