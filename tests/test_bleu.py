"""BLEU, chrF and the paired bootstrap, held against sacreBLEU itself."""

from __future__ import annotations

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from posbench import bleu
from posbench.errors import UserError

WORDS = "the a cat dog mat sat ran fast slowly on under to-day well-known ( ) , . & quot; Ärger 3,5".split()
LIBRARY = {"bleu": BLEU(force=True), "chrf": CHRF()}


def texts(seed: int, count: int = 60, noise: float = 0.3) -> tuple[list[str], list[str]]:
    """References, and outputs in which some words are others; one of each is empty, and one output is of one word."""
    draw = np.random.default_rng(seed)
    references = [" ".join(draw.choice(WORDS, draw.integers(3, 15))) for _ in range(count)]
    outputs = [" ".join(word if draw.random() > noise else draw.choice(WORDS) for word in text.split())
               for text in references]
    outputs[3], outputs[4] = "", "cat"
    return outputs, references


@pytest.mark.parametrize("name", ["bleu", "chrf"])
@pytest.mark.parametrize(("noise", "count"), [(0.0, 5), (0.3, 60), (0.8, 60), (1.0, 5), (1.0, 6)])
def test_scores_are_those_of_the_library(name: str, noise: float, count: int) -> None:
    outputs, references = texts(1, count, noise)
    assert bleu.corpus(name, outputs, references) == pytest.approx(
        LIBRARY[name].corpus_score(outputs, [references]).score, abs=1e-9)
    for some in ([0, 1, 2], [3], [3, 4], [4]):
        few = [outputs[at] for at in some], [references[at] for at in some]
        assert bleu.corpus(name, *few) == pytest.approx(LIBRARY[name].corpus_score(few[0], [few[1]]).score, abs=1e-9)


@pytest.mark.parametrize("name", ["bleu", "chrf"])
def test_the_signature_is_the_librarys_own(name: str) -> None:
    metric = LIBRARY[name]
    metric.corpus_score(["a cat"], [["a cat"]])
    assert bleu.signature(name) == metric.get_signature().format()


def test_counts_of_a_sentence_are_kept_and_add_up() -> None:
    outputs, references = texts(2)
    counts = bleu.statistics("bleu", outputs, references)
    assert counts.shape == (60, 10)
    one = BLEU(effective_order=True).sentence_score(outputs[0], [references[0]])
    assert counts[0].tolist() == [one.sys_len, one.ref_len, *one.counts, *one.totals]
    order = np.random.default_rng(0).permutation(60)
    mixed = [outputs[at] for at in order], [references[at] for at in order]
    assert bleu.corpus("bleu", *mixed) == bleu.corpus("bleu", outputs, references)


def test_identity_is_100_one_right_sentence_is_not_and_nothing_is_0() -> None:
    _, references = texts(3)
    for name in ("bleu", "bleu-split", "chrf"):
        assert bleu.corpus(name, references, references) == pytest.approx(100)
        assert bleu.corpus(name, [""] * 60, references) == 0
        assert bleu.corpus(name, ["", "  "], ["one two three four", "five"]) == 0
    three = ["the cat sat on the mat", "x y z w v", "p q r s t"]
    assert 0 < bleu.corpus("bleu", three, [three[0], "the dog ran very far", "no word in common at all"]) < 60


def test_nothing_is_cut_off_or_scored_letter_by_letter() -> None:
    with pytest.raises(UserError, match="2 outputs stand beside 3 references"):
        bleu.statistics("bleu", ["a", "b"], ["a", "b", "c"])
    with pytest.raises(TypeError, match="letter by letter"):
        bleu.statistics("bleu", "abc", "abd")


def test_compounds_are_split_at_hyphens_on_both_sides() -> None:
    # Five tokens as one compound, or five that stand apart in reference and output alike: 'a ##AT##-##AT## b' is three.
    outputs, references = ["ein Rhein-Main-Gebiet ist dort heute."], ["ein Rhein-Main-Land ist dort heute."]
    split = [["ein Rhein ##AT##-##AT## Main ##AT##-##AT## Gebiet ist dort heute ."],
             ["ein Rhein ##AT##-##AT## Main ##AT##-##AT## Land ist dort heute ."]]
    expected = BLEU(tokenize="none", force=True).corpus_score(split[0], [split[1]]).score
    assert bleu.corpus("bleu-split", outputs, references) == pytest.approx(expected)
    assert bleu.corpus("bleu-split", outputs, references) > bleu.corpus("bleu", outputs, references)
    assert "##AT##" in bleu.signature("bleu-split")
    # perl -ple 's{(\S)-(\S)}{$1 ##AT##-##AT## $2}g', as the scripts on WMT14 do it, prints five tokens of this:
    # ein vis ##AT##-##AT## a-vis dort
    same = bleu.statistics("bleu-split", ["ein vis-a-vis dort"], ["ein vis-a-vis dort"])
    assert same[0].tolist() == [5, 5, 5, 4, 3, 2, 5, 4, 3, 2]


@pytest.mark.parametrize("name", ["bleu", "chrf"])
@pytest.mark.parametrize("noises", [(0.3, 0.3), (0.28, 0.34), (0.2, 0.6)])
def test_the_paired_bootstrap_is_sacrebleus_on_the_same_resamples(name: str, noises: tuple[float, float],
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    _, references = texts(4)
    base, system = texts(4, noise=noises[0])[0], texts(4, noise=noises[1])[0]
    if noises[0] == noises[1]:
        system = [*base[1:], base[0]]  # another system of nearly the same words
    key = {"bleu": "BLEU", "chrf": "chrF2"}[name]
    test = PairedTest([("base", base), ("system", system)], {key: LIBRARY[name]}, references=[references],
                      test_type="bs", n_samples=300)
    told = test()[1][key]
    draws = np.random.default_rng(7).choice(60, size=(300, 60), replace=True)
    mine = bleu.paired_bootstrap(name, [bleu.statistics(name, system, references)],
                                 [bleu.statistics(name, base, references)], draws)
    assert mine.p == pytest.approx(told[1].p_value)
    assert mine.difference == pytest.approx(told[1].score - told[0].score, abs=1e-6)


def test_the_bootstrap_over_seeds_is_the_loop_that_it_says() -> None:
    systems, baselines = ([bleu.statistics("bleu", *texts(5, noise=noise + seed / 50)) for seed in (0, 1, 2)]
                          for noise in (0.3, 0.4))
    draws = np.random.default_rng(0).integers(0, 60, (40, 60))
    drawn = [np.mean([float(bleu.scores("bleu", a[row].sum(0))) - float(bleu.scores("bleu", b[row].sum(0)))
                      for a, b in zip(systems, baselines, strict=True)]) for row in draws]
    mine = bleu.paired_bootstrap("bleu", systems, baselines, draws)
    assert (mine.low, mine.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))
    same = bleu.paired_bootstrap("bleu", systems, systems)
    assert (same.difference, same.low, same.high, same.p) == (0, 0, 0, 1)
    assert bleu.paired_bootstrap("bleu", systems, baselines) == bleu.paired_bootstrap("bleu", systems, baselines)


@pytest.mark.parametrize(("sentences", "least"), [(1, 1.0), (2, 0.5), (5, 1 / 16), (11, 1 / 1001), (60, 1 / 1001)])
def test_few_sentences_prove_nothing_however_large_the_difference(sentences: int, least: float) -> None:
    """A sign-flip test of N pairs has 2^N outcomes, of which the two extreme ones are as large as can be."""
    right = [f"the old cat number {number} sat on the mat" for number in range(sentences)]
    wrong = ["no word in common"] * sentences
    sides = [[bleu.statistics("bleu", outputs, right)] for outputs in (right, wrong)]
    mine = bleu.paired_bootstrap("bleu", *sides)
    assert mine.difference == pytest.approx(100) and mine.p == pytest.approx(least)


def test_empty_and_equal_outputs_are_scored_and_compared() -> None:
    _, references = texts(6)
    empty, same = (bleu.statistics("bleu", outputs, references) for outputs in ([""] * 60, ["the cat"] * 60))
    assert float(bleu.scores("bleu", empty.sum(0))) == 0
    one = bleu.paired_bootstrap("bleu", [empty], [empty])
    assert (one.difference, one.low, one.high, one.p) == (0, 0, 0, 1)
    other = bleu.paired_bootstrap("bleu", [same], [empty])
    assert other.difference == pytest.approx(LIBRARY["bleu"].corpus_score(["the cat"] * 60, [references]).score)
    assert np.isfinite([other.low, other.high, other.p]).all()


def test_words_that_share_letters_alone_score_nothing() -> None:
    assert bleu.corpus("bleu", ["stone tea"], ["notes eat"]) == 0


def test_entities_and_quotes_stay_as_they_stand() -> None:
    """The metric alone reads '&quot;' as a quotation mark, on both sides."""
    written = ['He said &quot;no&quot; &amp; left &lt;b&gt; .']
    kept = list(written)
    assert bleu.corpus("bleu", ['He said "no" & left <b> .'], written) == pytest.approx(100)
    assert bleu.corpus("bleu", ["He said „no“ & left <b> ."], written) < 100
    assert bleu.corpus("chrf", ['He said "no" & left <b> .'], written) < 100
    assert written == kept
