"""Linear attention: its sums against its own quadratic form, FAVOR+ against the softmax, and what it must not tell."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import replace

import pytest
import torch

from posbench.attention import dense
from posbench.config import ModelConfig
from posbench.encoding import Dimensions, Encoding
from posbench.errors import UserError
from posbench.features import Elu, Favor, orthogonal_rows
from posbench.linear import LinearAttention, causal_sums
from posbench.options import build_options
from posbench.positions import Positions
from posbench.probe import Subject, filled
from posbench.registry import ENCODINGS
from posbench.transformer import Head, Transformer

HEADS, D, L = 2, 8, 21
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
CASES = [("nope", "numerator"), ("rope", "before"), ("rope", "numerator"), ("rope", "both"), ("alibi", "numerator")]


def made(name: str, causal: bool = False) -> Encoding:
    cls = ENCODINGS.load(name).value
    dimensions = Dimensions(width=HEADS * D, heads=HEADS, causal=causal, length=64)
    return filled(cls(dimensions, build_options(name, cls, {})), "test")


def kernel(feature_map: str = "favor", placement: str = "numerator", features: int | None = None,
           width: int = D) -> LinearAttention:
    part = LinearAttention(width, feature_map, features, placement)
    if feature_map == "favor":
        part.map.initial("projection", part.map.projection, torch.Generator().manual_seed(3))
    return part


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def positions(kind: str, causal: bool) -> Positions:
    mask = torch.ones(2, L, dtype=torch.bool)
    if kind == "full":
        return Positions.first(L, causal=causal)
    if kind == "far":
        return Positions.first(L, causal=causal, start=5000)
    mask[1, : L - 6] = False
    return Positions.from_mask(mask if kind == "left" else mask.flip(1), causal=causal)


def loops(part: LinearAttention, q, k, v, encoding: Encoding, at: Positions) -> torch.Tensor:
    """The definition with plain features, no stabiliser, and one number for each pair of tokens."""

    def plain(x: torch.Tensor) -> torch.Tensor:
        if isinstance(part.map, Elu):
            return torch.where(x > 0, x + 1, x.exp())
        x, w = x / D**0.25, part.map.projection.to(x.dtype)
        return (x @ w.T - (x * x).sum(-1, keepdim=True) / 2).exp() / math.sqrt(len(w))

    def turn(x: torch.Tensor, side: str) -> torch.Tensor:
        return torch.cat([encoding.rotate(x[..., i : i + D], at, side) for i in range(0, x.shape[-1], D)], dim=-1)

    if part.placement == "before":
        q, k = turn(q, "query"), turn(k, "key")
    below = plain(q) @ plain(k).transpose(-1, -2)
    above = below
    if part.placement != "before":
        above = turn(plain(q), "query") @ turn(plain(k), "key").transpose(-1, -2)
    below = above if part.placement == "both" else below
    seen = torch.ones(2, 1, L, L, dtype=torch.bool) if at.visible() is None else at.visible()
    weights = seen.to(q.dtype)
    if type(encoding).__name__ == "Alibi":
        slopes = torch.tensor([2.0**-4, 2.0**-8], dtype=q.dtype)  # two heads
        distance = (at.q[:, :, None] - at.k[:, None, :]).clamp(min=0)
        weights = weights * (-slopes[:, None, None] * distance[:, None]).exp()
    return (above * weights) @ v / (below * weights).sum(-1, keepdim=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", ["full", "far", "left", "right"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("feature_map", ["favor", "elu"])
@pytest.mark.parametrize("name, placement", CASES)
def test_sums_equal_the_quadratic_form_forward_and_backward(name, placement, feature_map, causal, kind, dtype,
                                                            monkeypatch):
    if name == "alibi" and not causal:
        pytest.skip("refused")
    monkeypatch.setattr("posbench.linear.CHUNK", 5)
    part, encoding, at = kernel(feature_map, placement), made(name, causal), positions(kind, causal)
    real = torch.ones(2, L, dtype=torch.bool) if at.keys is None else at.keys
    results = []
    for form in (loops, None):
        x = [randn(2, HEADS, L, D, seed=s, dtype=dtype).requires_grad_() for s in range(3)]
        fresh = replace(at)
        y = loops(part, *x, encoding, fresh) if form else part(*x, encoding, fresh)[0]
        y = y.transpose(1, 2)[real]
        weights = randn(*y.shape, seed=7, dtype=dtype)
        if placement == "both":  # the denominator may come near 0, and the error then grows as its inverse
            weights = weights * (y.detach().abs().amax((-1, -2)) < 20)[:, None, None]
            y = y * (weights != 0)
        results.append((y, *torch.autograd.grad((y * weights).sum(), x)))
    for expected, got in zip(*results, strict=True):
        scale = max(float(expected.detach().abs().max()), 1.0) * (20 if placement == "both" else 1)
        torch.testing.assert_close(got, expected, rtol=0, atol=TOLERANCE[dtype] * scale)


@pytest.mark.parametrize("name, placement", CASES)
@pytest.mark.parametrize("causal", [True, False])
def test_packed_documents_equal_documents_alone(name, placement, causal):
    if name == "alibi" and not causal:
        pytest.skip("refused")
    part, encoding = kernel("favor", placement), made(name, causal)
    x = [randn(1, HEADS, 12, D, seed=s) for s in range(3)]
    ids, documents = torch.tensor([[*range(5), *range(7)]]), torch.tensor([[0] * 5 + [1] * 7])
    packed, _ = part(*x, encoding, Positions.given(ids, causal=causal, documents=documents))
    alone = [part(*(t[:, :, place] for t in x), encoding, Positions.first(n, causal=causal))[0]
             for place, n in ((slice(5), 5), (slice(5, 12), 7))]
    torch.testing.assert_close(packed, torch.cat(alone, dim=2), atol=1e-10, rtol=0)


def test_positions_out_of_order_take_the_quadratic_form():
    part, encoding = kernel(), made("rope", True)
    x, order = [randn(1, HEADS, 9, D, seed=s) for s in range(3)], torch.tensor([3, 8, 0, 5, 1, 7, 2, 6, 4])
    plain, _ = part(*x, encoding, Positions.first(9, causal=True))
    moved, _ = part(*(t[:, :, order] for t in x), encoding, Positions.given(order[None], causal=True))
    torch.testing.assert_close(moved, plain[:, :, order], atol=1e-10, rtol=0)


# FAVOR+


def test_blocks_of_rows_are_orthogonal_and_long_as_gaussian_vectors():
    rows = orthogonal_rows(4000, 16, torch.Generator().manual_seed(0)).double()
    block = rows[:16] / rows[:16].norm(dim=1, keepdim=True)
    torch.testing.assert_close(block @ block.T, torch.eye(16, dtype=torch.float64), atol=1e-6, rtol=0)
    assert float(rows.square().sum(1).mean()) == pytest.approx(16, abs=5 * math.sqrt(32 / 4000))
    # Each coordinate is N(0, 1): mean, variance and kurtosis, at five standard errors of 64000 of them.
    assert abs(float(rows.mean())) < 5 / math.sqrt(64000)
    assert float(rows.square().mean()) == pytest.approx(1, abs=5 * math.sqrt(2 / 64000))
    assert float(rows.pow(4).mean()) == pytest.approx(3, abs=5 * math.sqrt(96 / 64000))


def test_the_number_of_features_is_the_papers():
    """d log d, to the nearest multiple of d: 64 log 64 = 266.2, 16 log 16 = 44.4, 128 log 128 = 621.1."""
    assert [len(Favor(d).projection) for d in (16, 64, 128)] == [48, 256, 640]
    assert len(Favor(16, 80).projection) == 80


def test_features_are_unbiased_for_the_softmax_kernel():
    """The mean of f(q).f(k) over draws is exp(q.k / sqrt(d)), Lemma 1, within five standard errors."""
    q, k, draws = randn(1, 1, 1, D), randn(1, 1, 1, D, seed=1), []
    for seed in range(400):
        part = Favor(D, 64)
        part.initial("projection", part.projection, torch.Generator().manual_seed(seed))
        (fq, tq), (fk, tk) = part(q), part(k)
        draws.append(float((fq * fk).sum() * (tq + tk).exp()))
    draws = torch.tensor(draws)
    exact = math.exp(float((q * k).sum()) / math.sqrt(D))
    assert float(draws.mean()) == pytest.approx(exact, abs=5 * float(draws.std()) / math.sqrt(400))


@pytest.mark.parametrize("causal", [True, False])
def test_favor_comes_nearer_to_softmax_attention_with_more_features(causal):
    """Mean squared error over draws falls as 1/m; a factor of 16 in m must give at least one of 6."""
    q, k, v = (randn(1, HEADS, L, D, seed=s) / 2 for s in range(3))
    at, errors = Positions.first(L, causal=causal), []
    exact = dense(q, k, v, None, at)
    for features in (32, 512):
        squares = []
        for seed in range(30):
            part = kernel(features=features)
            part.map.redraw(torch.Generator().manual_seed(seed))
            squares.append(float((part(q, k, v, None, at)[0] - exact).square().mean()))
        errors.append(sum(squares) / len(squares))
    assert errors[0] > 6 * errors[1]
    assert errors[1] < 0.02 * float(exact.square().mean())


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("size", [1e-3, 30.0])
def test_nothing_overflows_and_the_denominator_does_not_vanish(causal, size):
    """Exponents reach hundreds; without a stabiliser, exp(500) is infinite in float32."""
    q, k, v = (size * randn(1, HEADS, 64, 64, seed=s, dtype=torch.float32).requires_grad_() for s in range(3))
    encoding = made("nope")
    y, _ = kernel(width=64)(q, k, v, encoding, Positions.first(64, causal=causal))
    assert y.isfinite().all()
    bound = float(v.detach().abs().max())  # a mean of values, with positive weights
    assert float(y.detach().abs().max()) <= bound * (1 + 1e-4)
    y.sum().backward()


def test_elu_features_stay_positive_where_the_difference_would_be_nought():
    features, _ = Elu()(torch.tensor([[[[-30.0, -17.5, 0.0, 3.0]]]]))
    expected = [math.exp(-30), math.exp(-17.5), 1, 4]
    torch.testing.assert_close(features.flatten(), torch.tensor(expected), rtol=1e-6, atol=0)


@pytest.mark.parametrize("feature_map", ["favor", "elu"])
def test_the_denominator_is_a_sum_of_positive_numbers_where_the_numerator_alone_is_turned(feature_map):
    at, encoding = Positions.first(L, causal=True), made("rope", True)
    q, k = (3 * randn(1, HEADS, L, D, seed=s) for s in range(2))
    for placement, positive in (("numerator", True), ("before", True), ("both", False)):
        part = kernel(feature_map, placement)
        queries, (keys, _) = part._queries(q, encoding, at), part._keys(k, encoding, at)
        assert bool((queries[-1] @ keys[-1].transpose(-1, -2) > 0).all()) == positive
    ones = torch.ones(1, HEADS, L, D, dtype=torch.float64)
    torch.testing.assert_close(kernel(feature_map)(q, k, ones, made("nope", True), at)[0], ones)


@pytest.mark.parametrize("feature_map", ["favor", "elu"])
@pytest.mark.parametrize("causal", [True, False])
def test_a_row_of_padding_gives_zeros_and_finite_gradients(feature_map, causal):
    at = Positions.right_padded(torch.tensor([L, 0]), L, causal=causal)
    x = [randn(2, HEADS, L, D, seed=s, dtype=torch.float32).requires_grad_() for s in range(3)]
    y, _ = kernel(feature_map)(*x, made("rope"), at)
    assert not y[1].any() and y[0].all()
    y.sum().backward()
    assert all(t.grad.isfinite().all() for t in x)


@pytest.mark.parametrize("feature_map", ["favor", "elu"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("side", ["left", "right"])
def test_what_padding_holds_does_not_matter(feature_map, causal, side):
    at = positions(side, causal)
    q, k, v = (randn(2, HEADS, L, D, seed=s) for s in range(3))
    hidden = ~at.keys[:, None, :, None]
    part = kernel(feature_map)
    changed, _ = part(q, k.masked_fill(hidden, 9.0), v.masked_fill(hidden, -9.0), made("rope"), replace(at))
    before, _ = part(q, k, v, made("rope"), replace(at))
    assert torch.equal(before[at.keys[:, None].expand(-1, HEADS, -1)], changed[at.keys[:, None].expand(-1, HEADS, -1)])


@pytest.mark.parametrize("feature_map", ["favor", "elu"])
@pytest.mark.parametrize("name, placement", CASES)
def test_no_token_learns_of_the_future_bit_by_bit(name, placement, feature_map, monkeypatch):
    """Around the borders of chunks; a maximum over all keys, as a stabiliser, would tell."""
    monkeypatch.setattr("posbench.linear.CHUNK", 8)
    part, encoding = kernel(feature_map, placement), made(name, True)
    q, k, v = (randn(2, HEADS, L, D, seed=s, dtype=torch.float32).requires_grad_() for s in range(3))
    at = Positions.first(L, causal=True)
    before, _ = part(q, k, v, encoding, replace(at))
    for i in (0, 6, 7, 8, 15, 16, 19):
        behind = torch.arange(L)[:, None] > i
        after, _ = part(*(torch.where(behind, 5 * x + 3, x) for x in (q, k, v)), encoding, replace(at))
        assert torch.equal(before[:, :, : i + 1], after[:, :, : i + 1])
        for gradient in torch.autograd.grad(before[:, :, i].sum(), (k, v), retain_graph=True):
            assert not gradient[:, :, i + 1 :].any() and gradient[:, :, : i + 1].any()


@pytest.mark.parametrize("name", ["nope", "alibi"])
def test_memory_of_the_causal_form_grows_with_the_length_alone(name):
    """What the backward pass keeps: four times as much for four times the length, not sixteen."""
    kept = []
    for length in (512, 2048):
        sizes: dict[int, int] = {}

        def note(x: torch.Tensor, sizes=sizes) -> torch.Tensor:
            sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        x = [randn(1, HEADS, length, D, seed=s).requires_grad_() for s in range(3)]
        with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            y, _ = kernel()(*x, made(name, True), Positions.first(length, causal=True))
        kept.append((sum(sizes.values()), y)[0])
    assert kept[1] < 5 * kept[0]


def test_chunks_of_any_size_give_the_same_sums():
    q, k, v, scale = randn(2, 2, L, 6).abs(), randn(2, 2, L, 6, seed=1).abs(), randn(2, 2, L, 3), randn(2, 2, L) * 30
    decay, at = torch.tensor([-0.5, -0.01]), Positions.first(L, causal=True)
    whole, kept = causal_sums(q, k, v, scale, at, decay, chunk=L)
    for chunk in (1, 4, 20):
        parts, left = causal_sums(q, k, v, scale, at, decay, chunk=chunk)
        torch.testing.assert_close(parts, whole)
        torch.testing.assert_close(left.values, kept.values)


# Models


def model_of(name: str = "rope", *, seed: int = 1, **settings) -> Transformer:
    cls = ENCODINGS.load(name).value
    settings = {"shape": "decoder", "width": 32, "heads": 2, "layers": 2, "feedforward": 32, "dropout": 0.0,
                "attention": "linear", "initial_std": 0.2, **settings}
    model = Transformer(ModelConfig(**settings), cls, vocabulary=17, length=32, head=Head(kind="token", outputs=3))
    model.initialise(seed)
    return model.eval()


TOKENS = torch.randint(17, (2, 9), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["sinusoidal", "learned", "rope", "alibi"])
def test_shared_weights_and_features_are_the_same_whatever_the_encoding(name):
    plain, ours = ({key: value for key, value in model_of(name).state_dict().items() if "encodings" not in key}
                   for name in ("nope", name))
    assert plain.keys() == ours.keys() and all(torch.equal(plain[key], ours[key]) for key in plain)
    first, second = (ours[f"blocks.{i}.attention.linear.map.projection"] for i in range(2))
    assert first.shape == (48, 16) and not torch.equal(first, second)
    other = model_of(name, seed=2).state_dict()
    assert not torch.equal(other["redraw.clock"], ours["redraw.clock"])


def test_features_are_drawn_anew_in_training_alone_and_from_their_own_stream():
    model, states = model_of(redraw=3), []
    key = "blocks.0.attention.linear.map.projection"
    assert torch.equal(model(TOKENS), model(TOKENS))
    for _ in range(8):
        torch.manual_seed(0)
        before = torch.get_rng_state()
        model.train()(TOKENS).sum().backward()
        assert torch.equal(before, torch.get_rng_state())
        torch.manual_seed(len(states))  # another seed of dropout is no other projection
        states.append(model.state_dict()[key].clone())
        model.eval()(TOKENS)
    same = [torch.equal(a, b) for a, b in itertools.pairwise(states)]
    assert same == [True, True, False, True, True, False, True]


def test_a_resumed_run_draws_the_same_features():
    def steps(model: Transformer, count: int) -> list[torch.Tensor]:
        return [model.train()(TOKENS).detach() for _ in range(count)]

    unbroken, resumed, first = model_of(redraw=2), model_of(seed=9, redraw=2), model_of(redraw=2)
    answers = steps(unbroken, 9)
    steps(first, 5)
    resumed.load_state_dict(copy.deepcopy(first.state_dict()))
    assert all(torch.equal(a, b) for a, b in zip(answers[5:], steps(resumed, 4), strict=True))
    assert not torch.equal(answers[0], answers[-1])


def test_two_passes_before_one_backward_survive_a_redraw():
    model = model_of(redraw=1).train()
    (model(TOKENS).sum() + model(TOKENS).sum()).backward()


@pytest.mark.parametrize("placement", ["numerator", "both"])
def test_features_turned_after_the_map_know_offsets_and_no_absolute_place(placement):
    """Turned before it they do not: f(R q).f(R k) depends on the offset in expectation alone."""
    model = model_of("rope", rotation=placement).double()
    ids = torch.arange(9)[None]
    here, there = (model(TOKENS, position_ids=ids + start) for start in (0, 300))
    torch.testing.assert_close(here, there, atol=1e-5, rtol=0)
    assert not torch.allclose(here, model_of("nope", rotation=placement).double()(TOKENS), atol=1e-3)


@pytest.mark.parametrize("shape", ["encoder", "decoder", "encoder-decoder"])
@pytest.mark.parametrize("name", ["shaw", "t5", "placebo", "alibi"])
def test_what_cannot_live_there_is_refused_with_the_reason(name, shape):
    if name == "alibi" and shape == "decoder":
        assert model_of(name)(TOKENS).isfinite().all()
        return
    reason = {"alibi": "its decay counts steps back", "shaw": "its scores and values need a number for each pair"}
    with pytest.raises(UserError, match=f"'{name}' cannot live in linear attention: "
                       + reason.get(name, "its offset_bias needs a number for each pair")):
        model_of(name, shape=shape)


def test_half_precision_sums_are_formed_in_single():
    model = model_of("rope")
    exact, rounded = model(TOKENS), model.to(torch.bfloat16)(TOKENS)
    assert rounded.dtype == torch.bfloat16
    assert float((exact - rounded.float()).abs().max() / exact.abs().max()) < 0.1


def test_checks_can_build_models_of_linear_attention():
    cls = ENCODINGS.load("rope").value
    for shape in ("encoder", "decoder", "encoder-decoder"):
        subject = Subject(cls, None, shape, "linear")
        assert subject.read(subject.model(), subject.tokens()).isfinite().all()
