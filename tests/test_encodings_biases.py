"""Encodings whose bias depends on positions alone (tupe, kerple, sandwich, fire), against closed forms and loops."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

from posbench.attention import dense
from posbench.encoding import Dimensions
from posbench.errors import ContextLengthExceeded, UserError
from posbench.options import build_options
from posbench.positions import Positions
from posbench.probe import filled
from posbench.registry import ENCODINGS
from tests.test_encodings import at, made, model_of, randn

NEW = ["transformer_xl", "tupe", "deberta", "kerple", "sandwich", "fire", "cope"]
DISTANCES = [0, 1, 7, 31, 32, 127, 2047]  # 31 is the last one of the trained length


# tupe


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("variant", ["A", "R"])
@torch.no_grad()
def test_tupe_equals_a_loop(variant, causal):
    from transformers.models.t5.modeling_t5 import T5Attention

    encoding = made("tupe", variant=variant, causal=causal).double()
    queries, keys = [0, 5, 31], [0, 1, 5, 30, 31]
    expected = torch.zeros(1, 2, 3, 5, dtype=torch.float64)
    for a, i in enumerate(queries):
        for b, j in enumerate(keys):
            for h in range(2):
                query, key = (encoding.table[p] @ projection[h] for p, projection in
                              ((i, encoding.query_projection), (j, encoding.key_projection)))
                value = query @ key / math.sqrt(16)
                if variant == "R":
                    bucket = T5Attention._relative_position_bucket(torch.tensor(j - i), not causal, 32, 128)
                    value = value + encoding.relative[bucket, h]
                if not causal and 0 in (i, j):
                    value = encoding.cls[0 if i == 0 else 1, h]
                expected[0, h, a, b] = value
    torch.testing.assert_close(encoding.bias(at(queries, keys, causal=causal)), expected)


@pytest.mark.parametrize("variant", ["A", "R"])
def test_tupe_class_token_does_not_see_where_the_others_stand(variant):
    encoding = made("tupe", variant=variant)
    one, two = (encoding.bias(at(ids, ids)) for ids in ([0, 1, 2, 3, 4], [0, 3, 1, 20, 2]))
    assert torch.equal(one[:, :, 0], two[:, :, 0]) and torch.equal(one[..., 0], two[..., 0])
    assert (one[0, :, 0] == encoding.cls[0, :, None]).all() and (one[0, :, 1:, 0] == encoding.cls[1, :, None]).all()
    assert not torch.allclose(one[:, :, 1:, 1:], two[:, :, 1:, 1:])


@pytest.mark.parametrize("options, causal", [({"untied_cls": False}, False), ({}, True)])
def test_tupe_without_a_class_token_resets_nothing(options, causal):
    encoding = made("tupe", causal=causal, **options)
    assert encoding.cls is None and len(list(encoding.parameters())) == 3
    assert len(set(encoding.bias(Positions.first(9, causal=causal))[0, 0, 0].tolist())) == 9


@pytest.mark.parametrize("shape", ["encoder", "decoder"])
@pytest.mark.parametrize("options, limit", [({}, 32), ({"max_length": 9, "variant": "R"}, 9)])
def test_tupe_refuses_what_is_beyond_its_table_with_both_numbers(shape, options, limit):
    model = model_of("tupe", shape=shape, **options)
    assert model(torch.zeros(2, limit, dtype=torch.long)).isfinite().all()
    with pytest.raises(ContextLengthExceeded, match=f"'tupe' ends at {limit} positions and was given {limit + 1}"):
        model(torch.zeros(2, limit + 1, dtype=torch.long))


def test_tupe_computes_positions_once_for_all_layers(monkeypatch):
    model, calls = model_of("tupe", layers=4), []
    original = type(model.encodings[0]).bias
    monkeypatch.setattr(type(model.encodings[0]), "bias", lambda self, at: calls.append(1) or original(self, at))
    model(torch.zeros(1, 5, dtype=torch.long))
    assert len(calls) == 1


# kerple


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("kernel", ["log", "power"])
def test_kerple_equals_its_kernel_in_both_directions(kernel, distance):
    encoding = made("kerple", kernel=kernel)
    for h in range(2):
        raw = float(encoding.amplitude[h].detach()), float(encoding.rate[h].detach())
        r1 = math.log1p(math.exp(raw[0]))
        r2 = math.log1p(math.exp(raw[1])) if kernel == "log" else 2 / (1 + math.exp(-raw[1]))
        expected = -r1 * (math.log(1 + r2 * distance) if kernel == "log" else distance**r2)
        for sign in (1, -1):
            told = encoding.offset_bias(torch.tensor([sign * distance]))[h]
            assert float(told.detach()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("raw", [-1.0, -30.0, 30.0])
@pytest.mark.parametrize("kernel", ["log", "power"])
def test_kerple_cannot_leave_its_range_and_finds_its_way_back(kernel, raw):
    """Whatever a step makes of the free parameters, the bias is a penalty that grows, and gradients flow."""
    encoding, distance = made("kerple", kernel=kernel), torch.arange(0, 33)
    with torch.no_grad():
        encoding.amplitude.fill_(raw)
        encoding.rate.fill_(raw)
    optimizer = torch.optim.SGD(encoding.parameters(), lr=1e3)
    for _ in range(2):
        bias = encoding.offset_bias(distance)
        assert bias.isfinite().all() and (bias <= 0).all() and (bias.diff(dim=-1) <= 0).all()
        assert all((r > 0).all() for r in encoding.kernel())
        optimizer.zero_grad()
        (-bias.sum()).backward()  # a step that pulls every penalty towards zero, and further if it could
        assert all(p.grad.isfinite().all() for p in encoding.parameters())
        assert raw > 0 or all(p.grad.all() for p in encoding.parameters())
        optimizer.step()
        with torch.no_grad():
            for p in encoding.parameters():
                p.clamp_(-30, 30)


@pytest.mark.parametrize("kernel, ranges", [("log", (2, 1)), ("power", (1, 2))])
def test_kerple_starts_where_the_released_code_starts(kernel, ranges):
    model = model_of("kerple", kernel=kernel, untied=True, layers=16, heads=16)
    values = [torch.stack(r).detach() for r in zip(*(part.kernel() for part in model.encodings), strict=True)]
    for value, top in zip(values, ranges, strict=True):
        assert 0 < float(value.min()) < 0.1 * top and 0.9 * top < float(value.max()) <= top
        assert float(value.mean()) == pytest.approx(top / 2, rel=0.1)


def test_kerple_has_two_numbers_a_head_for_the_whole_model():
    """The paper counts 2 x 12 of them against T5's 32 x 12 in a model of 12 layers and 12 heads."""
    dimensions = Dimensions(width=768, heads=12, layers=12, length=512)
    kerple, t5 = (ENCODINGS.load(name).value for name in ("kerple", "t5"))
    assert [cls.parameter_count(dimensions, cls.Config()) for cls in (kerple, t5)] == [2 * 12, 32 * 12]
    for options, instances in (({}, 1), ({"untied": True}, 3)):
        model = model_of("kerple", layers=3, **options)
        assert len(model.encodings) == instances
        assert sum(p.numel() for p in model.encodings.parameters()) == instances * 2 * 2
        assert (model.encoding(2) is model.encoding(0)) == (instances == 1)


@pytest.mark.parametrize("kernel", ["log", "power"])
def test_kerple_tells_near_from_far_in_bfloat16(kernel):
    encoding = made("kerple", kernel=kernel).to(torch.bfloat16)
    bias = encoding.offset_bias(torch.arange(256, 300))
    assert bias.dtype == torch.float32 and (bias.diff(dim=-1) < 0).all()


# sandwich


def test_sandwich_is_the_product_of_sinusoids_golden():
    golden = {0: 64, 1: 62.094, 10: 42.820, 50: 34.955, 100: 30.543, 1000: 10.178}
    bias = made("sandwich", heads=8, width=32).offset_bias(torch.tensor(list(golden)))
    for h in range(8):
        assert (bias[h] * (h + 1) + 64).tolist() == pytest.approx(list(golden.values()), abs=1e-2)


@pytest.mark.parametrize("heads", [2, 12])
def test_sandwich_equals_products_of_whole_tables_up_to_a_constant(heads):
    positions, i = np.arange(300)[:, None], np.arange(64)
    angle = positions / 1e4 ** (2 * i / 128)
    table = np.concatenate([np.sin(angle), np.cos(angle)], axis=-1)
    theirs = (table @ table.T)[None] / (np.arange(1, heads + 1) * 8 / heads)[:, None, None]
    ours = made("sandwich", width=heads * 2, heads=heads).bias(Positions.first(300))[0]
    assert torch.equal(ours, ours.transpose(1, 2)) and not ours.diagonal(dim1=1, dim2=2).any()
    torch.testing.assert_close(ours.double(), torch.tensor(theirs - theirs[:, :1, :1]), atol=1e-4, rtol=1e-5)


def test_sandwich_refuses_an_odd_width():
    cls = ENCODINGS.load("sandwich").value
    with pytest.raises(UserError, match=r"encoding 'sandwich': width = 65, but .*: choose an even number"):
        cls(Dimensions(width=32, heads=2), cls.Config(width=65))


# fire


def interpolated(encoding, i: int, j: int, h: int) -> float:
    """f(psi(|i - j|) / psi(max(L, i))) number by number."""
    c, bound = abs(float(encoding.c)), abs(float(encoding.factor) * encoding.threshold)
    share = math.log1p(c * abs(i - j)) / (math.log1p(c * max(bound, i)) + 1e-6)
    hidden = [max(0.0, float(w) * share + float(b))
              for w, b in zip(encoding.inner.weight[:, 0], encoding.inner.bias, strict=True)]
    weights, constant = encoding.outer.weight[h], float(encoding.outer.bias[h])
    return sum(float(w) * x for w, x in zip(weights, hidden, strict=True)) + constant


@torch.no_grad()
def test_fire_equals_a_loop_near_and_far():
    encoding = made("fire", threshold=20.0)
    queries, keys = [0, 1, 19, 31, 700], [0, 1, 7, 30, 693, 700]
    bias = encoding.bias(at(queries, keys))
    expected = [[[interpolated(encoding, i, j, h) for j in keys] for i in queries] for h in range(2)]
    torch.testing.assert_close(bias[0], torch.tensor(expected), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_fire_depends_on_the_offset_alone_up_to_its_threshold_and_not_beyond():
    encoding = made("fire", threshold=16.0)
    encoding.factor.fill_(1.0)
    bias = encoding.bias(Positions.first(40))[0]
    near = bias[:, :17, :17]
    assert torch.equal(near, near.transpose(1, 2)) and torch.equal(near[:, 1:, 1:], near[:, :-1, :-1])
    assert not torch.allclose(bias[:, 18:, 18:], bias[:, 17:-1, 17:-1], atol=1e-4)


@torch.no_grad()
def test_fire_never_looks_at_the_current_length():
    encoding = made("fire", threshold=4.0, causal=True)
    short, long = (encoding.bias(Positions.first(n, causal=True)) for n in (12, 200))
    assert torch.equal(short, long[:, :, :12, :12])
    torch.testing.assert_close(encoding.bias(at([150], list(range(151))))[:, :, 0], long[:, :, 150, :151])
    assert torch.equal(short, encoding.bias(Positions.first(12, causal=True)))


@torch.no_grad()
def test_fire_starts_like_the_papers_listing():
    encoding = model_of("fire").encodings[0]
    assert float(encoding.c) == pytest.approx(0.1)
    assert (float(encoding.factor), encoding.threshold) == (1.0, 8.0)
    assert 0.8 < float(encoding.inner.weight.abs().max()) <= 1
    assert 0.8 < float(encoding.outer.weight.abs().max()) * math.sqrt(32) <= 1


@pytest.mark.parametrize("shared, calls", [(True, 1), (False, 3)])
def test_fire_layers_that_share_the_network_ask_it_once(shared, calls):
    model, asked = model_of("fire", layers=3, shared=shared), []
    for part in model.encodings:
        part._bias = lambda at, kept=part._bias: asked.append(1) or kept(at)
    model(torch.zeros(1, 5, dtype=torch.long))
    assert len(asked) == calls


# all of them


@pytest.mark.parametrize("name", NEW)
@torch.no_grad()
def test_memory_before_the_queries_moves_no_position(name):
    """Four queries that see six keys stand at 2 ... 5: their rows are the last four of the full pass."""
    encoding = made(name, causal=True).double()
    q, k, v = (randn(1, 2, 6, 16, seed=seed) for seed in range(3))
    full = dense(q, k, v, encoding, Positions.first(6, causal=True))
    rows = dense(q[:, :, 2:], k, v, encoding, at([2, 3, 4, 5], [0, 1, 2, 3, 4, 5], causal=True))
    torch.testing.assert_close(full[:, :, 2:], rows)


@pytest.mark.parametrize("shape", ["encoder", "decoder"])
@pytest.mark.parametrize("name", NEW)
@torch.no_grad()
def test_mixed_precision_leaves_the_models_answer_as_it_was(name, shape):
    model = model_of(name, shape=shape)
    for index, part in enumerate(model.encodings):
        filled(part, f"encodings.{index}")
    tokens = torch.arange(40)[None] % 17 if model.encodings[0].max_length is None else torch.arange(32)[None] % 17
    exact = model(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(tokens)
    assert float((mixed.float() - exact).abs().max() / exact.abs().max()) < 0.05


@pytest.mark.parametrize("name, options, count", [
    ("transformer_xl", {}, 3 * 48 * 48 + 2 * 48), ("transformer_xl", {"untied": True}, 3 * (48 * 48 + 2 * 48)),
    ("tupe", {}, 128 * 48 + 2 * 48 * 48 + 2 * 4), ("tupe", {"untied_cls": False}, 128 * 48 + 2 * 48 * 48),
    ("tupe", {"variant": "R", "max_length": 9}, 9 * 48 + 2 * 48 * 48 + 2 * 4 + 32 * 4),
    ("deberta", {}, 2 * 128 * 48 + 3 * 2 * 48 * 48), ("deberta", {"span": 16}, 32 * 48 + 3 * 2 * 48 * 48),
    ("deberta", {"projections": "shared"}, 2 * 128 * 48 + 2 * 48 * 48), ("sandwich", {}, 0),
    ("kerple", {}, 2 * 4), ("kerple", {"untied": True}, 3 * 2 * 4),
    ("fire", {}, 3 * (2 * 32 + 32 * 4 + 4 + 2)), ("fire", {"shared": True, "hidden": 8}, 16 + 32 + 4 + 2),
    ("cope", {}, 3 * 64 * 12), ("cope", {"positions": 10}, 3 * 10 * 12),
])
def test_parameter_counts_golden(name, options, count):
    cls = ENCODINGS.load(name).value
    dimensions = Dimensions(width=48, heads=4, layers=3, length=128)
    assert cls.parameter_count(dimensions, build_options(name, cls, options)) == count


@pytest.mark.parametrize("name, option, value, bound", [
    ("tupe", "max_length", 0, "at least 1"), ("deberta", "span", 1, "at least 2"),
    ("sandwich", "width", 1, "at least 2"), ("fire", "threshold", 0, "above 0"), ("fire", "hidden", 0, "at least 1"),
    ("cope", "positions", 1, "at least 2"),
    ("kerple", "kernel", "exp", "'log' or 'power'"), ("tupe", "variant", "B", "'A' or 'R'"),
])
def test_options_outside_their_bounds_are_told_in_one_line(name, option, value, bound):
    told = rf"^encoding '{name}': {option} = .*, but it must be {re.escape(bound)}$"
    with pytest.raises(UserError, match=told):
        build_options(name, ENCODINGS.load(name).value, {option: str(value)})
