"""Attention: the fast forms against the reference, the reference against loops in plain Python, masks and dropout."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from posbench.attention import LONG, attention_weights, dense, drop, logits, rotated, softmax_attention
from posbench.encoding import Dimensions, Encoding
from posbench.errors import EncodingFault
from posbench.maths import toeplitz
from posbench.options import build_options
from posbench.positions import Positions
from posbench.probe import filled
from posbench.registry import ENCODINGS

NAMES = ["nope", "sinusoidal", "learned", "shaw", "t5", "rope", "alibi", "placebo"]
HEADS, WIDTH = 3, 8


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def made(name: str, causal: bool = False) -> Encoding:
    cls = ENCODINGS.load(name).value
    dimensions = Dimensions(width=HEADS * WIDTH, heads=HEADS, causal=causal, length=64)
    return filled(cls(dimensions, build_options(name, cls, {})), "test")


class Everything(Encoding):
    """Acts in every place, by numbers that a loop can repeat."""

    def scores(self, q, k, at):
        return (q[..., :1] * k[..., None, :, 0]) * at.offsets()[:, None]

    def bias(self, at):
        heads = torch.arange(1.0, HEADS + 1, dtype=torch.float64)[None, :, None, None]
        return heads * (at.q[:, None, :, None] - 2 * at.k[:, None, None, :]) / 10

    def values(self, weights, at):
        return (weights * at.offsets()[:, None]).sum(-1, keepdim=True).expand(*weights.shape[:3], WIDTH)


def positions(kind: str, causal: bool) -> Positions:
    """Queries, keys and masks as they occur."""
    mask = torch.ones(2, 6, dtype=torch.bool)
    if kind == "full":
        return Positions.first(6, causal=causal)
    if kind == "shifted":
        return Positions.first(6, causal=causal, start=40)
    if kind == "right":
        return Positions.right_padded(torch.tensor([6, 2]), 6, causal=causal)
    if kind == "left":
        mask[1, :4] = False
        return Positions.from_mask(mask, causal=causal)
    if kind == "packed":
        ids = torch.tensor([[0, 1, 2, 0, 1, 2], [0, 1, 0, 0, 1, 2]])
        return Positions.given(ids, causal=causal, documents=torch.tensor([[0, 0, 0, 1, 1, 1], [0, 0, 1, 2, 2, 2]]))
    if kind == "step":
        return Positions(q=torch.tensor([[5]]), k=torch.arange(6)[None], end=6, causal=causal)
    assert kind == "last two"
    return Positions(q=torch.tensor([[4, 5]]), k=torch.arange(6)[None], end=6, causal=causal, regular=True)


KINDS = ["full", "shifted", "right", "left", "packed", "step", "last two"]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_dense_equals_loops(kind, causal):
    at = positions(kind, causal)
    encoding = Everything(Dimensions(width=HEADS * WIDTH, heads=HEADS))
    q, k, v = (randn(2, HEADS, n, WIDTH, seed=s) for s, n in enumerate((at.queries, at.length, at.length)))
    expected = torch.zeros(2, HEADS, at.queries, WIDTH, dtype=torch.float64)
    for b in range(2):
        for h in range(HEADS):
            for i in range(at.queries):
                shown = []
                for j in range(at.length):
                    row = b if len(at.q) > 1 else 0
                    p, r = int(at.q[row, i]), int(at.k[row, j])
                    if (causal and r > p) or (at.keys is not None and not at.keys[b, j]):
                        continue
                    if at.documents is not None and at.documents[0][b, i] != at.documents[1][b, j]:
                        continue
                    product = sum(float(q[b, h, i, c] * k[b, h, j, c]) for c in range(WIDTH))
                    product += float(q[b, h, i, 0] * k[b, h, j, 0]) * (r - p)
                    shown.append((j, r - p, product / math.sqrt(WIDTH) + (h + 1) * (p - 2 * r) / 10))
                total = sum(math.exp(logit) for _, _, logit in shown)
                for j, offset, logit in shown:
                    expected[b, h, i] += math.exp(logit) / total * (v[b, h, j] + offset)
    torch.testing.assert_close(dense(q, k, v, encoding, at), expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_fast_equals_dense_forward_and_backward(name, kind, causal, training):
    encoding, results = made(name, causal), []
    for kernel in (dense, softmax_attention):
        at = replace(positions(kind, causal))
        q, k, v = (randn(2, HEADS, n, WIDTH, seed=s, dtype=torch.float32).requires_grad_(training)
                   for s, n in enumerate((at.queries, at.length, at.length)))
        with torch.set_grad_enabled(training):
            y = kernel(rotated(encoding, q, at, "query"), rotated(encoding, k, at, "key"), v, encoding, at)
        gradients = torch.autograd.grad((y * randn(*y.shape, seed=7).float()).sum(), [q, k, v, *encoding.parameters()],
                                        allow_unused=True) if training else ()
        results.append((y, *gradients))
    for reference, fast in zip(*results, strict=True):
        assert (reference is None) == (fast is None)
        if reference is not None:
            torch.testing.assert_close(fast, reference, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernel", [dense, softmax_attention])
@pytest.mark.parametrize("name", NAMES)
def test_a_row_without_real_tokens_gives_zeros_and_finite_gradients(name, kernel, dtype):
    at = Positions.right_padded(torch.tensor([4, 0]), 4)
    encoding = made(name).to(dtype)
    q, k, v = (randn(2, HEADS, 4, WIDTH, seed=s).to(dtype).requires_grad_() for s in range(3))
    y = kernel(q, k, v, encoding, at)
    assert y[0].any() and not y[1].any() and y.isfinite().all()
    y.float().sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


def test_one_query_sees_all_cached_keys():
    """The fused kernel's own causal flag would align the mask with the first key, and show that alone."""
    q, k, v = randn(1, 2, 1, 4), randn(1, 2, 5, 4, seed=1), randn(1, 2, 5, 4, seed=2)
    at = Positions(q=torch.tensor([[4]]), k=torch.arange(5)[None], end=5, causal=True, regular=True)
    expected = torch.softmax(q @ k.transpose(-1, -2) / 2, -1) @ v
    torch.testing.assert_close(softmax_attention(q, k, v, None, at), expected)


@pytest.mark.parametrize("side", ["right", "left"])
def test_masked_keys_do_not_matter_whatever_they_hold(side):
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0] if side == "right" else [0, 0, 0, 1, 1]])
    at = Positions.from_mask(mask)
    q, k, v = (randn(2, HEADS, 5, WIDTH, seed=s) for s in range(3))
    hidden = ~mask.bool()[:, None, :, None]
    for kernel in (dense, softmax_attention):
        changed = kernel(q, k.masked_fill(hidden, 9.0), v.masked_fill(hidden, -9.0), made("alibi"), replace(at))
        assert torch.equal(kernel(q, k, v, made("alibi"), replace(at)), changed)


def test_positions_count_real_tokens_on_either_side():
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    assert Positions.from_mask(mask).q.tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]]
    right = Positions.from_mask(mask.flip(1))
    assert right.q.tolist() == [[0, 1, 2, 3, 4]] and right.regular and torch.equal(right.keys, mask.flip(1).bool())
    lengths = Positions.right_padded(torch.tensor([3, 5]), 5)
    assert torch.equal(lengths.keys, right.keys) and lengths.end == 5


def test_positions_are_in_order_where_each_real_token_stands_behind_the_one_before():
    ids, keys = torch.tensor([[7, 7, 0, 1, 5]]), torch.tensor([[False, False, True, True, True]])
    assert Positions.given(ids, keys=keys).ordered and not Positions.given(ids).ordered
    assert Positions.given(ids[:, 2:]).ordered and not Positions.given(ids[:, 2:].flip(1)).ordered
    assert Positions.first(3).ordered and Positions.from_mask(keys).ordered
    assert not Positions.given(torch.tensor([[0, 9, 1]]), keys=torch.tensor([[True, False, True]])).regular
    # One query that is the newest of a run sees all keys, so that a step of decoding needs no mask.
    step = Positions(q=torch.tensor([[4]]), k=torch.arange(5)[None], end=5, causal=True, regular=True)
    assert step.visible() is None and Positions.first(2, causal=True).visible() is not None


def test_softmax_attention_takes_the_causal_kernel_only_where_it_is_the_same(monkeypatch):
    calls = []
    fused = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention",
                        lambda *given, **more: calls.append(more) or fused(*given, **more))
    q = k = v = randn(1, HEADS, 6, WIDTH)
    softmax_attention(q, k, v, made("rope"), Positions.first(6, causal=True))
    assert calls.pop() == {"is_causal": True}
    softmax_attention(q, k, v, made("alibi"), Positions.first(6, causal=True))
    assert calls.pop()["attn_mask"].shape == (1, HEADS, 6, 6)
    softmax_attention(q, k, v, made("t5"), Positions.first(6, causal=True))  # a learned bias needs its gradient
    softmax_attention(q, k, v, made("rope"), Positions.first(6, causal=True), dropout=0.5)
    assert not calls


# Toeplitz


@pytest.mark.parametrize("queries, keys", [(1, 1), (1, 9), (3, 7), (5, 5), (7, 3), (2, 1)])
def test_toeplitz_equals_a_double_loop_forward_and_backward(queries, keys):
    values = randn(2, queries + keys - 1).requires_grad_()
    matrix = toeplitz(values, queries, keys)
    weights, expected = randn(2, queries, keys, seed=1), torch.zeros(2, queries + keys - 1, dtype=torch.float64)
    for i in range(queries):
        for j in range(keys):
            assert torch.equal(matrix[:, i, j], values[:, j - i + queries - 1])
            expected[:, j - i + queries - 1] += weights[:, i, j]
    (matrix * weights).sum().backward()
    torch.testing.assert_close(values.grad, expected)
    assert torch.autograd.gradcheck(lambda x: toeplitz(x, queries, keys), values)


@pytest.mark.parametrize("name", ["t5", "alibi", "placebo"])
@pytest.mark.parametrize("kind", ["full", "shifted", "last two"])
def test_toeplitz_bias_equals_the_look_up(name, kind):
    encoding, at = made(name), positions(kind, causal=False)
    q, k = torch.zeros(1, HEADS, at.queries, WIDTH), torch.zeros(1, HEADS, at.length, WIDTH)
    torch.testing.assert_close(logits(q, k, encoding, at), encoding.bias(replace(at)))


# hooks and dropout


@pytest.mark.parametrize("hook, result, told", [
    ("bias", torch.zeros(1, HEADS, 4, 5), "bias returned (1, 3, 4, 5)"),
    ("scores", torch.zeros(1, HEADS, 4, 4), "scores returned (1, 3, 4, 4) torch.float32"),
    ("values", torch.zeros(2, HEADS, 4, WIDTH, dtype=torch.float32), "values returned (2, 3, 4, 8) torch.float32"),
    ("offset_bias", torch.zeros(7, HEADS), "offset_bias returned (7, 3)"),
])
def test_hooks_are_held_to_their_shape_and_dtype(hook, result, told):
    cls = type("Wrong", (Encoding,), {hook: lambda self, *given: result})
    q = randn(2, HEADS, 4, WIDTH)
    with pytest.raises(EncodingFault) as error:
        dense(q, q, q, cls(Dimensions(width=HEADS * WIDTH, heads=HEADS)), Positions.first(4))
    assert f"encoding 'Wrong': {told}" in str(error.value) and "return that shape and dtype" in str(error.value)


@pytest.mark.parametrize("probability", [0.1, 0.25, 0.5, 0.9, 0.999])
def test_dropout_statistics(probability):
    torch.manual_seed(0)
    x = torch.ones(400, 500)
    y = drop(x, probability)
    exact = min(round(probability * 256), 255) / 256
    zeros = (y == 0).double().mean()
    assert float(zeros) == pytest.approx(exact, abs=5 * math.sqrt(exact * (1 - exact) / x.numel()))
    assert torch.allclose(y[y != 0], torch.tensor(1 / (1 - exact)))
    assert abs(float(torch.corrcoef(torch.stack([y[:, :-1].flatten(), y[:, 1:].flatten()]))[0, 1])) < 0.01
    assert drop(x, 0.0) is x


def test_dropout_gradient_is_its_mask():
    torch.manual_seed(0)
    x = torch.ones(50, 3, requires_grad=True)
    y = drop(x, 0.3)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


@pytest.mark.parametrize("name", NAMES)
def test_attention_dropout_draws_the_same_mask_for_every_encoding(name):
    q, k, v = (randn(2, HEADS, 6, WIDTH, seed=s).float() for s in range(3))
    torch.manual_seed(5)
    softmax_attention(q, k, v, made(name), Positions.first(6), dropout=0.25)
    after = torch.get_rng_state()
    torch.manual_seed(5)
    drop(torch.ones(2, HEADS, 6, 6), 0.25)
    assert torch.equal(after, torch.get_rng_state())


def test_weights_sum_to_one_over_visible_keys():
    at = positions("left", causal=True)
    weights = attention_weights(randn(2, HEADS, 6, 6), at)
    assert torch.allclose(weights.sum(-1), torch.ones(2, HEADS, 6, dtype=torch.float64))
    assert not weights.masked_select(~at.visible()).any()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries, keys", [(LONG, LONG), (1, LONG + 3), (37, LONG)])
def test_a_bias_read_along_its_diagonals_is_the_dense_one(causal, queries, keys):
    """Long sequences read one number an offset, against reversed keys; new queries end with the keys."""
    encoding = ENCODINGS.load("alibi").value(Dimensions(width=32, heads=4, causal=causal))
    index = torch.arange(keys)[None]
    regular = Positions(q=index[:, keys - queries :], k=index, end=keys, causal=causal, regular=True)
    inputs = [torch.randn(2, 4, n, 8, generator=torch.Generator().manual_seed(n), dtype=torch.float64,
                          requires_grad=True)
              for n in (queries, keys, keys)]
    results = []
    for kernel, at in ((softmax_attention, regular), (dense, replace(regular, regular=False))):
        y = kernel(*inputs, encoding, at)
        results.append((y, *torch.autograd.grad(y.square().sum(), inputs)))
    for fast, reference in zip(*results, strict=True):
        assert torch.allclose(fast, reference, atol=1e-10)
