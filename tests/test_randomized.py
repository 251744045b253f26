"""Random ordered positions around any encoding: what is drawn, when, and that nothing else notices."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import pytest
import torch

from posbench import cost
from posbench.config import ModelConfig, TrainConfig
from posbench.encoding import HOOKS, Dimensions, Encoding, Properties, Wrapper, overrides
from posbench.errors import ContextLengthExceeded, UserError
from posbench.positions import Positions
from posbench.registry import ENCODINGS
from posbench.testing import check_encoding
from posbench.transformer import Head
from tests.test_encodings import at, made, model_of, randn
from tests.test_runner import trial

CLS = ENCODINGS.load("randomized").value


def places(encoding: Encoding, where: Positions) -> list[list[int]]:
    return encoding.positions(where).k.tolist()


def mask_of(lengths: list[int], width: int, left: bool) -> torch.Tensor:
    back = torch.arange(width - 1, -1, -1) if left else torch.arange(width)
    return back < torch.tensor(lengths)[:, None]


# the contract


def test_declarations():
    assert CLS.properties == Properties(cached=False, beyond="refused", monotone=False, factorises=True)
    assert made("randomized").properties == CLS.properties
    assert made("randomized", base="placebo").properties == Properties(
        permutation=True, reversal=True, shift=True, beyond="refused", monotone=False, factorises=False)
    assert made("randomized", base="learned").properties == Properties(
        norm=False, single_key=False, cached=False, beyond="refused", monotone=False, factorises=True)


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize("options", [
    {"base": "nope"}, {"base": "learned"}, {"base": "shaw"}, {"base": "alibi", "range": 200}, {"base": "sinusoidal"},
    {"base": "xpos"}, {"range": 32}, {"base": "t5", "range": 4096},
])
def test_contract_holds_around_other_encodings(options):
    assert not [(v.check, v.shape, v.reason) for v in check_encoding("randomized", options) if not v.passed]


# evaluation


@pytest.mark.parametrize("limit, n", [(8, 1), (8, 3), (9, 5), (7, 7), (10, 9)])
def test_evaluation_stands_at_the_mean_of_all_samples(limit, n):
    """The mean over every subset of n out of `limit` positions, rounded down."""
    samples = list(itertools.combinations(range(limit), n))
    means = [math.floor(Fraction(sum(sample[i] for sample in samples), len(samples))) for i in range(n)]
    encoding = made("randomized", length=4, range=limit).eval()
    moved = encoding.positions(Positions.first(n, causal=True))
    assert moved.k.tolist() == moved.q.tolist() == [means]
    assert moved.causal and moved.end == means[-1] + 1 and not moved.regular


def test_evaluation_is_the_same_for_the_same_length_and_spreads_over_the_range():
    encoding = made("randomized").eval()
    assert encoding.base.dimensions.length == encoding.max_length == 512
    for n in (1, 2, 31, 32, 33, 511, 512):
        first = places(encoding, Positions.first(n))[0]
        encoding.positions(Positions.first(500))
        assert places(encoding, Positions.first(n))[0] == first == sorted(set(first)) and first[-1] < 512
        assert first[-1] - first[0] >= 512 * (n - 1) / (n + 1) - 1
    assert places(encoding, Positions.first(512))[0] == list(range(512))
    assert int(encoding.passes) == int(made("randomized").passes)


@pytest.mark.parametrize("training", [False, True])
def test_a_row_keeps_its_positions_whatever_the_padding_and_the_pack(training):
    encoding = made("randomized").train(training)
    lengths, state = [13, 20, 1, 20], {name: tensor.clone() for name, tensor in encoding.state_dict().items()}

    def now(where: Positions) -> torch.Tensor:
        encoding.load_state_dict(state)
        return encoding.positions(where).k

    right = now(Positions.right_padded(torch.tensor(lengths), 20))
    left = now(Positions.from_mask(mask_of(lengths, 20, left=True)))
    ids = torch.cat([torch.arange(n) for n in lengths])[None]
    documents = torch.cat([torch.full((n,), 7 - i) for i, n in enumerate(lengths)])[None]
    packed = now(Positions.given(ids, documents=documents))[0].split(lengths)
    for index, n in enumerate(lengths):
        assert torch.equal(right[index, :n], left[index, 20 - n :])
        assert torch.equal(right[index, :n], packed[index])
        assert (right[index, :n].diff() > 0).all()
        if not training:
            assert torch.equal(right[index, :n], now(Positions.first(n))[0])
    assert torch.equal(right[1], right[3])


def test_equal_ids_stay_equal():
    for training in (False, True):
        moved = places(made("randomized").train(training), at([0, 1, 1, 5], [0, 1, 1, 5]))[0]
        assert moved[1] == moved[2] < moved[3]


# training


def test_training_draws_every_subset_alike_without_replacement():
    """2 of 5 positions: ten subsets, each with probability 1/10; chi-square with 9 degrees of freedom."""
    encoding = made("randomized", length=2, range=5).train()
    counts = Counter(tuple(places(encoding, Positions.first(2))[0]) for _ in range(2000))
    assert set(counts) == set(itertools.combinations(range(5), 2))
    assert sum((count - 200) ** 2 / 200 for count in counts.values()) < 27.9  # the 0.1 % point


def test_the_largest_position_is_told_right():
    encoding = made("randomized").train()
    for _ in range(5):
        moved = encoding.positions(Positions.right_padded(torch.tensor([9, 4]), 9))
        assert moved.end == int(moved.k.max()) + 1 <= 512


def test_training_draws_from_no_global_stream_and_resumes_where_it_stopped():
    torch.manual_seed(0)
    one, other = (model_of("randomized").train() for _ in range(2))
    before = torch.get_rng_state()
    samples = [places(one.encodings[0], Positions.first(9)) for _ in range(3)]
    kept = {name: tensor.clone() for name, tensor in one.state_dict().items()}
    goes_on = [places(one.encodings[0], Positions.first(9)) for _ in range(3)]
    assert torch.equal(before, torch.get_rng_state())
    assert [places(other.encodings[0], Positions.first(9)) for _ in range(3)] == samples
    other.load_state_dict(kept)
    assert [places(other.encodings[0], Positions.first(9)) for _ in range(3)] == goes_on
    assert len({str(sample) for sample in samples + goes_on}) == 6


def test_a_pass_is_counted_once_and_only_in_training():
    model = model_of("randomized", layers=3, base="shaw").train()
    first, tokens = int(model.encodings[0].passes), torch.zeros(2, 7, dtype=torch.long)
    model(tokens), model(tokens), model.eval()(tokens)
    assert int(model.encodings[0].passes) == first + 2


def test_each_seed_has_samples_of_its_own_and_casts_keep_the_counter():
    one, other = model_of("randomized"), model_of("randomized")
    other.initialise(2)
    start, different = (int(model.encodings[0].passes) for model in (one, other))
    assert start != different
    assert int(one.to(torch.bfloat16).encodings[0].passes) == start


# limits and options


@pytest.mark.parametrize("training", [False, True])
def test_more_tokens_than_positions_are_refused_with_both_numbers(training):
    model = model_of("randomized", range=40).train(training)
    model(torch.zeros(1, 40, dtype=torch.long))
    with pytest.raises(ContextLengthExceeded, match=r"'randomized' ends at 40 .* given 41: raise its range") as told:
        model(torch.zeros(1, 41, dtype=torch.long))
    assert (told.value.limit, told.value.got) == (40, 41)


@pytest.mark.parametrize("options, told", [
    ({"base": "rop"}, "unknown encoding 'rop', did you mean 'rope'"), ({"base": "randomized"}, "choose another"),
    ({"range": 31}, "range = 31, but training sequences have up to 32 tokens: choose"), ({"range": 0}, "at least"),
])
def test_wrong_options_are_told_in_one_line(options, told):
    with pytest.raises(UserError, match=told):
        made("randomized", **options)


# what is inside


def test_the_base_is_built_for_the_range_and_counted():
    dimensions = Dimensions(width=48, heads=4, layers=3, length=128)
    for base, count in (("rope", 0), ("learned", 16 * 128 * 48), ("shaw", 3 * 2 * 33 * 12), ("t5", 32 * 4)):
        assert CLS.parameter_count(dimensions, CLS.Config(base=base)) == count
    model = model_of("randomized", base="learned")
    assert set(model.encodings.state_dict()) == {"0.passes", "0.base.table"}
    assert model.encodings[0].base.table.shape == (512, 32)
    assert float(model.encodings[0].base.table.detach().std()) == pytest.approx(0.02, rel=0.1)


def test_the_base_sees_the_drawn_positions():
    encoding, x = made("randomized", base="learned").eval(), torch.zeros(1, 3, 32)
    moved = encoding.positions(Positions.first(3))
    assert torch.equal(encoding.embed(x, moved)[0], encoding.base.table[[127, 255, 383]])  # 513 (1, 2, 3) / 4 - 1


@pytest.mark.parametrize("base", ["nope", "rope", "alibi", "t5", "shaw", "learned", "placebo", "xpos", "self_extend"])
def test_a_wrapper_has_the_hooks_and_facts_of_what_is_inside(base):
    plain = made(base, causal=True)

    class Around(Wrapper):
        """Nothing of its own."""

    wrapped = Around(plain.dimensions, None, plain)
    assert [overrides(wrapped, hook) for hook in HOOKS] == [overrides(plain, hook) for hook in HOOKS]
    assert not overrides(Around, *HOOKS)
    for fact in ("scope", "needs_causal", "in_cross", "properties", "max_length"):
        assert getattr(wrapped, fact) == getattr(plain, fact)
    where = Positions.first(9, causal=True)
    q, k, weights = randn(1, 2, 9, 16).float(), randn(1, 2, 9, 16, seed=1).float(), randn(1, 2, 9, 9).float()
    for hook, given in {"embed": (randn(1, 9, 32).float(), where), "rotate": (q, where, "query"), "bias": (where,),
                        "scores": (q, k, where), "values": (weights, where), "decay": ()}.items():
        if overrides(plain, hook) or (hook == "bias" and overrides(plain, "offset_bias")):
            assert torch.equal(getattr(wrapped, hook)(*given), getattr(plain, hook)(*given))


def test_scope_and_causality_are_asked_of_the_instance():
    assert len(model_of("randomized", layers=3, base="shaw").encodings) == 3
    assert len(model_of("randomized", layers=3).encodings) == 1
    with pytest.raises(UserError, match="'randomized' is for causal models"):
        model_of("randomized", base="xpos")
    assert {verdict.shape for verdict in check_encoding("randomized", {"base": "xpos"})} == {"decoder"}


def test_costs_take_no_wrapper_for_the_bare_template():
    shape = cost.Shape(rows=2, tokens=8, vocabulary=11, head=Head(kind="token", outputs=2))
    encodings = {"randomized": (CLS, CLS.Config(base="nope")), "nope": (ENCODINGS.load("nope").value, None)}
    ratios = {row["encoding"]: row["step_ratio"] for row in cost.measure(
        encodings, ModelConfig(width=8, heads=2, layers=1, feedforward=8), TrainConfig(steps=1), shape)}
    assert ratios["nope"] == 1 and ratios["randomized"] is not None


def test_a_trial_depends_on_the_source_of_the_base(monkeypatch):
    before, sources = trial("randomized:base=alibi"), trial("randomized:base=alibi").sources
    load = type(ENCODINGS).load

    def changed(self, name):
        plugin = load(self, name)
        return type(plugin)(plugin.name, plugin.value, plugin.origin, "other") if name == "alibi" else plugin

    monkeypatch.setattr(type(ENCODINGS), "load", changed)
    after = trial("randomized:base=alibi")
    assert before.fingerprint != after.fingerprint
    assert len({sources, after.sources, trial("randomized:base=t5").sources}) == 3
