"""The translation suite: pairs and their batches, the loss, scores from end to end, and what is refused."""

from __future__ import annotations

import dataclasses
import itertools
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from posbench.suites.translation import SUITE

from posbench import bleu, decoding
from posbench.bench import loaded
from posbench.config import DataConfig, EncodingChoice, override
from posbench.data import data_hash
from posbench.errors import UserError
from posbench.objective import kind_of, objective_of
from posbench.runner import run
from posbench.schedule import learning_rate
from posbench.store import Store
from posbench.study import from_preset, plan
from posbench.tokens import training_batches_of_tokens
from posbench.training import averaged
from posbench.transformer import Transformer
from posbench.translation import Translation, smoothed_loss
from posbench.trial import Trial, resolve
from tests.test_runner import measured
from tests.test_study import posbench

SMALL = {"train.steps": "8", "train.evaluations": "2", "train.batch_tokens": "256", "model.width": "16",
         "model.heads": "2", "model.layers": "1", "model.feedforward": "16", "data.train_rows": "300",
         "data.evaluation_rows": "20"}
SET = [part for name, value in SMALL.items() for part in ("--set", f"{name}={value}")]


def trial(encoding: str = "rope", seed: int = 0, task: str = "en-de", **changes: str) -> Trial:
    study = from_preset("translation", "mini", {**SMALL, **{name.replace("__", "."): value
                                                            for name, value in changes.items()}})
    return resolve(study.trial(EncodingChoice.parse(encoding), task, seed))


def objective(**changes: str) -> Translation:
    made = objective_of(trial(**changes))
    assert isinstance(made, Translation)
    return made


# The generated languages.


def test_generated_pairs_are_disjoint_and_the_same_in_every_process() -> None:
    data = SUITE.load("de-en", DataConfig())
    assert {name: len(rows.texts) for name, rows in data.splits.items()} == {
        "train": 8000, "validation": 200, "test": 500}
    sources = [row[0] for rows in data.splits.values() for row in rows.texts]
    assert len(set(sources)) == len(sources)
    code = ("from posbench.config import DataConfig; from posbench.data import data_hash; "
            "from posbench.suites.translation import SUITE; "
            "print(data_hash(SUITE.load('de-en', DataConfig())))")
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={"PYTHONHASHSEED": "77", "PYTHONPATH": ":".join(sys.path)})
    assert told.stdout.strip() == data_hash(data)


def test_the_words_of_a_sentence_do_not_tell_its_translation() -> None:
    """Exchanging subject and object is a sentence of the same words, and German tells by case which is meant."""
    known = dict(SUITE.load("en-de", DataConfig()).splits["train"].texts)
    exchanged = 0
    for english, german in known.items():
        if match := re.fullmatch(r"the (\w+) (\w+) the (\w+)\.", english):
            one, verb, two = match.groups()
            if (other := known.get(f"the {two} {verb} the {one}.")) is not None:
                assert other != german
                exchanged += 1
    assert exchanged >= 8


def test_german_puts_the_verb_last_behind_dass_and_second_in_main_clauses() -> None:
    verbs = {"sieht", "jagt", "ruft", "findet", "füttert", "hört", "grüßt", "trägt", "sehen", "jagen", "rufen",
             "finden", "füttern", "hören", "grüßen", "tragen"}
    behind = front = 0
    for _, german in SUITE.load("en-de", DataConfig()).splits["test"].texts:
        for clause in re.findall(r", (?:dass|weil|wenn|obwohl|bevor) ([^,.]+)", german):
            assert clause.split()[-1] in verbs and len(verbs & set(clause.split())) == 1
            behind += 1
        if match := re.match(r"(?:heute|oft|hier|jetzt|manchmal) (\w+) ", german):
            assert match[1] in verbs
            front += 1
    assert behind > 100 and front > 50


# Tokens and batches.


def test_both_sides_share_one_vocabulary_and_come_back_whole() -> None:
    made = objective()
    pairs, tokenizer = made.splits["train"], made.tokenizer
    for row in range(20):
        for side, text in zip((pairs.source, pairs.target), pairs.texts[row], strict=True):
            ids = side.padded(np.array([row]), made.pad)[0].tolist()
            assert ids[0] == made.search.begin and ids[-1] == made.search.end
            assert tokenizer.decode(ids).removeprefix(" ") == text
            batch = side.padded(np.array([row, int(side.lengths.argmax())]), made.pad)[0]
            assert (batch[side.lengths[row] :] == made.pad).all()


def test_pairs_that_are_too_long_are_left_out_of_training_and_counted_never_cut() -> None:
    made = objective(data__max_length="12")
    train, test = made.splits["train"], made.splits["test"]
    assert train.cut > 0 and len(train.texts) + train.cut == 300
    assert train.source.lengths.max() <= 12 and train.target.lengths.max() <= 12
    assert (train.target.ids[train.target.starts[1:] - 1] == made.search.end).all()
    assert len(test.texts) == 20 and test.cut > 0 and made.cut["test"] == test.cut
    assert f"{train.cut} pairs" in made.stated()["left out of training"]
    with pytest.raises(UserError, match="every training pair"):
        objective(data__max_length="4")


def test_batches_hold_so_many_tokens_at_most_and_every_row_once_a_pass() -> None:
    lengths = np.random.default_rng(0).integers(3, 30, 500)
    lengths[7] = 100
    batches, seen = training_batches_of_tokens(lengths, 64, seed=3), []
    while len(seen) < 500:
        batch = next(batches)
        assert len(batch) * lengths[batch].max() <= 64 or len(batch) == 1
        seen += batch.tolist()
    assert sorted(seen) == list(range(500))
    first, second, other = (next(training_batches_of_tokens(lengths, 64, seed=seed)) for seed in (3, 3, 4))
    assert first.tolist() == second.tolist() != other.tolist()


# Loss, schedule, average.


def test_smoothing_leaves_padding_out_of_both_terms() -> None:
    logits = torch.randn(3, 5, 11, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[4, 5, 6, 7, 8], [4, 2, 0, 0, 0], [3, 0, 0, 0, 0]])
    total, count = 0.0, 0
    for row in range(3):
        for place in range(5):
            if labels[row, place] != 0:
                ways = logits[row, place].log_softmax(-1)
                total += -0.9 * float(ways[labels[row, place]]) - 0.1 * float(ways.mean())
                count += 1
    assert float(smoothed_loss(logits, labels, 0, 0.1)) == pytest.approx(total / count, rel=1e-5)
    wider = torch.cat([logits, 100 * torch.ones(3, 4, 11)], 1), torch.cat([labels, torch.zeros(3, 4).long()], 1)
    assert float(smoothed_loss(*wider, 0, 0.1)) == pytest.approx(total / count, rel=1e-5)


def test_the_loss_does_not_depend_on_the_mates_of_a_batch() -> None:
    made = objective()
    model = Transformer(made.trial.config.model, made.trial.encoding, made.trial.options, vocabulary=made.vocabulary,
                        length=40, head=made.head(made.trial.task, made.vocabulary))
    model.initialise(0)
    model.eval().requires_grad_(False)
    lengths = made.splits["train"].target.lengths
    rows = np.array([int(lengths.argmin()), int(lengths.argmax())])
    tokens = lengths[rows] - 1
    alone = [float(made.loss(model, rows[at : at + 1])) for at in (0, 1)]
    assert float(made.loss(model, rows)) == pytest.approx(float(np.average(alone, weights=tokens)), rel=1e-5)


def test_the_inverse_square_root_schedule_and_the_mean_of_weights() -> None:
    rates = [learning_rate(step, 100, 0.1, "inverse-sqrt") for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert rates[39] == pytest.approx(0.5) and rates[89] == pytest.approx(1 / 3)
    states = [{"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3)}, {"w": torch.tensor([3.0, 8.0]),
                                                                      "n": torch.tensor(5)}]
    mean = averaged(states, {"n"})
    assert mean["w"].tolist() == [2.0, 5.0] and mean["w"].dtype == torch.float32 and int(mean["n"]) == 5


def test_settings_that_came_later_leave_earlier_trials_their_names() -> None:
    base = trial()
    assert trial(train__average="1").fingerprint != base.fingerprint, "the preset averages two"
    for changed in ({"decode__beam": "2"}, {"train__schedule": "linear"}, {"train__label_smoothing": "0"},
                    {"train__batch_tokens": "255"}, {"model__cross_encoding": "true"}):
        assert trial(**changed).fingerprint != base.fingerprint
    glue = from_preset("glue", "mini", {}).trial(EncodingChoice.parse("rope"), "cola", 0)
    at_defaults = override(glue, {"train.schedule": "linear", "train.average": 1, "decode.beam": 4})
    assert resolve(glue).fingerprint == resolve(at_defaults).fingerprint


# From end to end.


def test_scores_are_those_of_the_texts_that_are_kept() -> None:
    record, arrays = run(trial(train__steps="30"))
    ends = [0, *arrays["test/output_ends"].tolist()]
    joined = arrays["test/output"].tobytes()
    outputs = [joined[begin:end].decode() for begin, end in itertools.pairwise(ends)]
    references = [row[1] for row in objective(train__steps="30").splits["test"].texts]
    for row in record.rows:
        if row["metric"] in ("BLEU", "chrF"):
            name = {"BLEU": "bleu", "chrF": "chrf"}[row["metric"]]
            assert row["value"] == pytest.approx(bleu.corpus(name, outputs, references))
            assert row["n"] == 20 == len(arrays[f"test/{row['metric']}"])
    assert record.facts["stated"]["BLEU"].startswith("nrefs:1|case:mixed")
    assert {row["metric"] for row in record.rows} == {"BLEU", "chrF", "tokens per second"}
    again, _ = run(trial(train__steps="30"))
    clock = "tokens per second"
    same = [{**measured(one), "rows": [row for row in one.rows if row["metric"] != clock]} for one in (record, again)]
    assert same[0] == same[1], "the clock alone tells two runs of one trial apart"


def test_the_weights_that_are_scored_are_the_mean_of_the_last_evaluations() -> None:
    one, _ = run(trial(train__average="1", train__steps="30"))
    two, _ = run(trial(train__average="2", train__steps="30"))
    assert one.curves == two.curves and one.rows[1]["value"] != two.rows[1]["value"]


def test_weights_that_are_no_numbers_are_divergence() -> None:
    record, _ = run(trial(train__learning_rate="1e12", train__clip="1e30", train__warmup="0"))
    assert record.status == "diverged" and not record.rows


def test_tables_of_a_study_show_sentences_lengths_and_what_is_missing(tmp_path: Path) -> None:
    from posbench.execute import run_and_keep
    from posbench.outcome import study_results

    choices = [{"name": "sinusoidal"}, {"name": "rope"}, {"name": "nope"}]
    wanted = plan(from_preset("translation", "mini", {**SMALL, "train.steps": "20", "encodings": choices,
                                                      "seeds": [0, 1]}))
    store = Store(tmp_path / "trials")
    records = {one.fingerprint: run_and_keep(one, store) for one in wanted.trials
               if (one.config.encoding.name, one.config.seed) != ("nope", 1)}
    results = study_results(wanted, records, tmp_path, store)
    written, sentences, lengths = results.extras
    assert [row[0] for row in written.rows] == ["sinusoidal", "rope", "nope"]
    assert written.rows[2][1] == "1/2 missing" and set(written.rows[2][2:]) == {"-"}
    assert [row[0] for row in sentences.rows] == ["rope", "nope"] and sentences.rows[1][1] == "1/2 missing"
    for status in ("done", "degenerate"):
        ended = {name: dataclasses.replace(record, status=status) for name, record in records.items()}
        shown = study_results(wanted, ended, tmp_path, store).extras[0]
        marked = any(cell.startswith("†") for row in shown.rows for cell in row)
        assert marked == any(note.startswith("†") for note in shown.notes) == (status == "degenerate")
    one = [store.predictions(found.fingerprint)["test/BLEU"] for found in wanted.trials[:1] + wanted.trials[3:4]]
    other = [store.predictions(found.fingerprint)["test/BLEU"] for found in wanted.trials[1:2] + wanted.trials[4:5]]
    expected = bleu.paired_bootstrap("bleu", other, one)
    assert sentences.rows[0][1] == f"{expected.difference:+.2f}"
    counted = [int(re.search(r"\((\d+)\)", head)[1]) for head in lengths.columns[1:-1]]
    assert sum(counted) == 20 and len(counted) >= 2
    assert results.header["BLEU"] == bleu.signature("bleu") and "beam 4" in results.header["decoding"]


def test_compound_split_bleu_stands_beside_the_other_where_asked_for() -> None:
    record, arrays = run(trial(decode__compound_split="true"))
    assert "BLEU split" in {row["metric"] for row in record.rows} and "test/BLEU split" in arrays
    assert sum(row["primary"] for row in record.rows) == 1
    assert SUITE.presets["paper"]["decode.compound_split"] is True


@pytest.mark.parametrize("preset", ["mini", "real-mini", "small", "paper"])
def test_presets_are_settings(preset: str) -> None:
    study = from_preset("translation", preset, {})
    assert study.tasks == ("en-de",) and len(study.seeds) >= 3
    assert (study.data.source == "generated") == (preset == "mini")
    assert study.model.shape == "encoder-decoder" and study.model.tied_embeddings
    assert study.baseline in [choice.label for choice in study.encodings]


# What is refused.


@pytest.mark.parametrize(("changes", "told"), [
    ({"model__shape": "encoder"}, "model.shape=encoder-decoder"),
    ({"decode__beam": "900"}, "decode.beam 900 is larger than the vocabulary of"),
])
def test_settings_that_do_not_fit_are_refused_before_anything_runs(changes: dict, told: str) -> None:
    one = trial(**changes)
    with pytest.raises(UserError, match=re.escape(told)):
        kind_of(one).check(one, None)


@pytest.mark.parametrize(("changes", "told"), [
    ({"encodings": [{"name": "learned"}], "decode.max_output": 41}, "outputs of 41 tokens"),
    ({"train.batch_tokens": 100, "train.epochs": 2, "train.steps": None}, "batch_tokens"),
    ({"train.average": 7}, "average 7 asks for more weights"),
    ({"train.steps": 1}, "average 2 asks for more weights than there are evaluations (1)"),
    ({"data.tokenizer": "wordpiece"}, "tokenizer 'wordpiece' gives back 0% of the target texts"),
    ({"train.batch_tokens": 12}, "train.batch_tokens 12 cannot hold the longest training pair of"),
    ({"data.vocabulary": 260}, "give 261 or more"),
    ({"train.select": "best"}, "leave one out"),
    ({"tasks": ["en-fr"]}, "generated data are in en and de alone"),
    ({"data.source": "folder"}, "--data DIR"),
    ({"decode.beam": 0}, "decode.beam"),
])
def test_a_mistake_is_told_when_the_study_is_planned(changes: dict, told: str) -> None:
    with pytest.raises(UserError, match=re.escape(told)):
        plan(from_preset("translation", "mini", {**SMALL, "train.evaluations": "6", **changes}))


def test_the_command_trains_prints_and_ends_a_mistake_with_2(tmp_path: Path) -> None:
    done = posbench(tmp_path, "study", "translation", "--encodings", "rope,nope", "--seeds", "1", "--jobs", "1",
                    "--tracker", "none", *SET)
    assert done.returncode == 0, done.stderr
    for told in ("BLEU by length of the source", "what was written", "nrefs:1|case:mixed"):
        assert told in done.stdout
    assert (tmp_path / "translation-mini" / "scoreboard.html").is_file()
    done = posbench(tmp_path, "study", "translation", *SET, "--data", str(tmp_path / "nowhere"))
    assert (done.returncode, done.stderr.strip().count("\n")) == (2, 0) and "does not exist" in done.stderr


def test_decoding_is_measured_with_a_cache_and_without() -> None:
    bench = override(decoding.STANDARD, {"lengths": [6], "rows": 2, "rounds": 2, "model.width": 16, "model.heads": 2,
                                         "model.layers": 1, "model.feedforward": 16})
    choices = [EncodingChoice.parse(name) for name in ("rope", "learned:max_length=5")]
    table = decoding.measure(loaded(choices), bench).set_index("encoding")
    assert list(table.index) == ["nope", "rope", "learned:max_length=5"]
    fast, slow = table.loc["rope", ["cached_tokens_per_second", "plain_tokens_per_second"]]
    assert table.loc["rope", "ratio"] == pytest.approx(fast / slow)
    assert "5" in table.loc["learned:max_length=5", "reason"]
    shown = decoding.document(table.reset_index(), bench)
    assert shown.parts[0].rows[2] == ("learned:max_length=5", "-", "-", "-") and len(shown.warnings) == 1
    assert ("clock", "processor time of one thread") in shown.header
    two = override(bench, {"train.threads": 2, "train.device": "cpu"})
    assert ("clock", "time on the wall") in decoding.document(table.reset_index(), two).header
