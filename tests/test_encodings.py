"""Encodings against closed forms, naive loops, other people's code and golden values from outside this code."""

from __future__ import annotations

import math

import pytest
import torch

from posbench import maths
from posbench.attention import dense
from posbench.config import ModelConfig
from posbench.encoding import Dimensions, Encoding
from posbench.errors import ContextLengthExceeded, UserError
from posbench.options import build_options
from posbench.positions import Positions
from posbench.probe import filled
from posbench.registry import ENCODINGS
from posbench.transformer import Head, Transformer

# log2 of the slopes of the released code, written out by hand.
SLOPES = {
    1: [-8], 2: [-4, -8], 3: [-4, -8, -2], 4: [-2, -4, -6, -8], 5: [-2, -4, -6, -8, -1], 6: [-2, -4, -6, -8, -1, -3],
    7: [-2, -4, -6, -8, -1, -3, -5], 8: [-1, -2, -3, -4, -5, -6, -7, -8],
    9: [-1, -2, -3, -4, -5, -6, -7, -8, -0.5], 10: [-1, -2, -3, -4, -5, -6, -7, -8, -0.5, -1.5],
    11: [-1, -2, -3, -4, -5, -6, -7, -8, -0.5, -1.5, -2.5],
    12: [-1, -2, -3, -4, -5, -6, -7, -8, -0.5, -1.5, -2.5, -3.5],
    13: [-1, -2, -3, -4, -5, -6, -7, -8, -0.5, -1.5, -2.5, -3.5, -4.5],
    14: [-1, -2, -3, -4, -5, -6, -7, -8, -0.5, -1.5, -2.5, -3.5, -4.5, -5.5],
    15: [-1, -2, -3, -4, -5, -6, -7, -8, -0.5, -1.5, -2.5, -3.5, -4.5, -5.5, -6.5],
    16: [-0.5, -1, -1.5, -2, -2.5, -3, -3.5, -4, -4.5, -5, -5.5, -6, -6.5, -7, -7.5, -8],
}
# Key minus query position to bucket, 32 buckets, max_distance 128.
T5_CAUSAL = {0: 0, -1: 1, -8: 8, -12: 12, -15: 15, -16: 16, -17: 16, -20: 17, -23: 18, -31: 21, -32: 21, -64: 26,
             -127: 31, -128: 31, -1000: 31, 1: 0, 50: 0}
T5_BOTH = {-128: 15, -20: 10, -12: 9, -8: 8, -7: 7, -1: 1, 0: 0, 1: 17, 7: 23, 8: 24, 11: 24, 12: 25, 15: 25, 16: 26,
           20: 26, 23: 27, 31: 27, 32: 28, 63: 29, 64: 30, 127: 31, 128: 31}
ABSOLUTE, RELATIVE = ["sinusoidal", "learned"], ["shaw", "t5", "alibi", "placebo"]


def made(name: str, *, width: int = 32, heads: int = 2, length: int = 32, causal: bool = False, **options) -> Encoding:
    """An encoding with parameters N(0, 1)."""
    cls = ENCODINGS.load(name).value
    dimensions = Dimensions(width=width, heads=heads, length=length, causal=causal, layers=2, embedding_std=1.0)
    return filled(cls(dimensions, build_options(name, cls, options)), "test")


def at(queries: list[int], keys: list[int], **more) -> Positions:
    """Positions stated one by one."""
    return Positions(q=torch.tensor([queries]), k=torch.tensor([keys]), end=max(queries + keys) + 1, **more)


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# sinusoidal


@pytest.mark.parametrize("width", [1, 2, 3, 5, 29, 64])
def test_sinusoids_equal_the_formula_at_every_width(width):
    table = maths.sinusoids(torch.tensor([[0, 1, 7, 31, 200]]), width)[0]
    for row, p in zip(table, (0, 1, 7, 31, 200), strict=True):
        even = width + width % 2
        wave = [(math.sin, math.cos)[c % 2](p * 10000 ** (-(c - c % 2) / even)) for c in range(width)]
        torch.testing.assert_close(row, torch.tensor(wave), atol=1e-6, rtol=0)


def test_sinusoid_norms_and_products():
    table = maths.sinusoids(torch.arange(2001), 128).double()
    torch.testing.assert_close(table.norm(dim=-1), torch.full((2001,), 8.0, dtype=torch.float64), atol=1e-6, rtol=0)
    for distance, product in {0: 64, 1: 62.094, 10: 42.820, 50: 34.955, 100: 30.543, 1000: 10.178}.items():
        for p in (0, 7, 900):
            assert float(table[p] @ table[p + distance]) == pytest.approx(product, abs=1e-3)


def test_sinusoidal_spacing_is_the_papers():
    assert float(maths.inverse_frequencies(6, 10000.0)[-1]) == pytest.approx(0.00215, abs=1e-5)


def test_sinusoidal_keeps_the_papers_proportion_to_token_embeddings():
    cls = ENCODINGS.load("sinusoidal").value
    added = cls(Dimensions(width=64, heads=4, embedding_std=0.02)).embed(torch.zeros(1, 32, 64), Positions.first(32))
    assert float(added.square().mean().sqrt()) == pytest.approx(0.02 * math.sqrt(0.5), rel=1e-5)


# learned


def test_learned_adds_the_row_of_the_position_and_starts_like_token_embeddings():
    encoding = made("learned", length=12)
    x = torch.zeros(1, 3, 32)
    assert torch.equal(encoding.embed(x, at([11, 0, 7], [11, 0, 7]))[0], encoding.table[[11, 0, 7]])
    model = model_of("learned")
    assert model.encodings[0].table.shape == (32, 32)
    assert float(model.encodings[0].table.detach().std()) == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("shape", ["encoder", "decoder"])
@pytest.mark.parametrize("options, limit", [({}, 32), ({"max_length": 9}, 9)])
def test_learned_refuses_what_is_beyond_its_table_with_both_numbers(shape, options, limit):
    model = model_of("learned", shape=shape, **options)
    assert model(torch.zeros(2, limit, dtype=torch.long)).isfinite().all()
    message = f"'learned' ends at {limit} positions and was given {limit + 1}"
    with pytest.raises(ContextLengthExceeded, match=message) as told:
        model(torch.zeros(2, limit + 1, dtype=torch.long))
    assert (told.value.encoding, told.value.limit, told.value.got) == ("learned", limit, limit + 1)


def model_of(name: str, *, shape: str = "encoder", layers: int = 2, heads: int = 2, **options) -> Transformer:
    cls = ENCODINGS.load(name).value
    config = ModelConfig(shape=shape, width=32, heads=heads, layers=layers, feedforward=32, dropout=0.0)
    model = Transformer(config, cls, build_options(name, cls, options), vocabulary=17, length=32,
                        head=Head(kind="token", outputs=3))
    model.initialise(1)
    return model.eval()


# shaw


@pytest.mark.parametrize("queries, keys", [
    (range(9), range(9)), ([7], range(8)), (range(3, 7), range(7)), ([40, 2], [2, 9, 40]),
])
@pytest.mark.parametrize("clip", [1, 4, 16])
def test_shaw_equals_a_double_loop(queries, keys, clip):
    encoding = made("shaw", clip=clip)
    queries, keys = list(queries), list(keys)
    where = at(queries, keys)
    q, k = randn(2, 2, len(queries), 16).float(), randn(2, 2, len(keys), 16, seed=1).float()
    weights = randn(2, 2, len(queries), len(keys), seed=2).float().softmax(-1)
    scores = torch.zeros(2, 2, len(queries), len(keys))
    values = torch.zeros(2, 2, len(queries), 16)
    for i, p in enumerate(queries):
        for j, r in enumerate(keys):
            row = min(max(r - p, -clip), clip) + clip
            scores[:, :, i, j] = q[:, :, i] @ encoding.key_table[row]
            values[:, :, i] += weights[:, :, i, j, None] * encoding.value_table[row]
    torch.testing.assert_close(encoding.scores(q, k, where), scores)
    torch.testing.assert_close(encoding.values(weights, where), values)


def test_shaw_last_row_belongs_to_all_keys_that_lie_k_or_more_ahead():
    encoding, changed, where = made("shaw", clip=4), made("shaw", clip=4), Positions.first(20)
    assert encoding.key_table.shape == (9, 16)
    with torch.no_grad():
        changed.key_table[8] += 1
        changed.value_table[8] += 1
    q, eye = randn(1, 2, 20, 16).float(), torch.eye(20).expand(1, 2, 20, 20)
    far = where.offsets()[0] >= 4
    touched = (encoding.scores(q, q, where) != changed.scores(q, q, where))[0, 0]
    assert torch.equal(touched, far)
    for shift in range(20):  # all the weight of a query on the key `shift` places ahead, as far as there is one
        weights = eye.roll(shift, dims=-1)
        moved = (encoding.values(weights, where) != changed.values(weights, where))[0, 0].any(-1)
        assert torch.equal(moved, (weights[0, 0].bool() & far).any(-1))


def test_shaw_without_values_has_half_the_parameters_and_leaves_the_output_alone():
    encoding = made("shaw", values=False)
    assert sum(p.numel() for p in encoding.parameters()) == 33 * 16
    weights = torch.full((1, 2, 4, 4), 0.25)
    assert not encoding.values(weights, Positions.first(4)).any()
    assert encoding.properties.single_key and not made("shaw").properties.single_key


# t5


def test_t5_buckets_golden():
    for golden, both in ((T5_CAUSAL, False), (T5_BOTH, True)):
        distance = torch.tensor(list(golden))
        assert maths.t5_buckets(distance, 32, 128, bidirectional=both).tolist() == list(golden.values())


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("buckets, farthest", [(32, 128), (16, 64), (64, 256)])
def test_t5_buckets_equal_transformers(both, buckets, farthest):
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = torch.arange(-3000, 3001)
    theirs = T5Attention._relative_position_bucket(distance, both, buckets, farthest)
    assert torch.equal(maths.t5_buckets(distance, buckets, farthest, bidirectional=both), theirs)


@pytest.mark.parametrize("causal", [True, False])
def test_t5_bias_is_looked_up_by_bucket_of_key_minus_query(causal):
    encoding = made("t5", causal=causal)
    bias = encoding.bias(at([40, 7], [40, 39, 33, 9, 200]))
    assert torch.equal(bias[0, :, 0, 1], encoding.table[1])
    assert torch.equal(bias[0, :, 0, 2], encoding.table[7])
    assert torch.equal(bias[0, :, 0, 4], encoding.table[0 if causal else 31])
    assert torch.equal(bias[0, :, 1, 3], encoding.table[0 if causal else 18])
    assert torch.equal(bias[0, :, 1, 4], encoding.table[0 if causal else 31])


def test_t5_has_one_table_that_acts_in_every_layer():
    model = model_of("t5", layers=4, heads=8)
    assert sum(p.numel() for p in model.encodings.parameters()) == 256
    table, tokens = model.encodings[0].table, torch.arange(12)[None]
    with torch.no_grad():
        table.normal_()
    inputs = []
    model.blocks[-1].attention.register_forward_hook(lambda module, given, output: inputs.append((given, output)))
    model(tokens)
    (x, encoding, *_), before = inputs[0]
    with torch.no_grad():
        table.zero_()
        after = model.blocks[-1].attention(x, encoding, Positions.first(12))
    assert not torch.allclose(before, after)


@pytest.mark.parametrize("shape, options, told", [
    ("encoder", {"buckets": 31}, "buckets = 31"), ("encoder", {"buckets": 2}, "buckets = 2"),
    ("encoder", {"max_distance": 8}, "max_distance = 8"), ("decoder", {"max_distance": 16}, "max_distance = 16"),
])
def test_t5_refuses_tables_that_cannot_be_cut(shape, options, told):
    with pytest.raises(UserError, match=f"encoding 't5': {told}, but .*: choose"):
        model_of("t5", shape=shape, **options)


def test_t5_decoder_may_have_an_odd_number_of_buckets():
    model_of("t5", shape="decoder", buckets=31)


# alibi


@pytest.mark.parametrize("heads", SLOPES)
def test_alibi_slopes_golden(heads):
    assert maths.alibi_slopes(heads).double().log2().tolist() == pytest.approx(SLOPES[heads], abs=1e-6)


@pytest.mark.parametrize("heads", range(1, 17))
def test_alibi_equals_transformers_under_the_softmax(heads):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    # Theirs is m j, which differs from -m (i - j) by a constant of the row.
    theirs = build_alibi_tensor(torch.ones(1, 40, dtype=torch.long), heads, torch.float32)
    seen = torch.ones(40, 40, dtype=torch.bool).tril()
    ours = made("alibi", width=heads * 2, heads=heads, causal=True).bias(Positions.first(40, causal=True))[0]
    weights = [bias.expand(heads, 40, 40).masked_fill(~seen, -math.inf).softmax(-1) for bias in (ours, theirs)]
    torch.testing.assert_close(*weights)


def test_alibi_in_an_encoder_is_symmetric_with_its_largest_values_on_the_diagonal():
    bias = made("alibi", heads=8).bias(Positions.first(50))[0]
    assert torch.equal(bias, bias.transpose(1, 2))
    assert (bias <= 0).all() and not bias.diagonal(dim1=1, dim2=2).any()
    assert (bias[:, 0].diff(dim=-1) < 0).all()
    for distance in (1, 7, 49):
        assert bias[:, 0, distance].tolist() == [-(2.0**-h) * distance for h in range(1, 9)]


def test_alibi_flex_form_and_decay():
    encoding = made("alibi", heads=8)
    mod = encoding.score_mod(at([40], [40, 39, 3]))
    index = torch.tensor
    assert float(mod(index(1.0), index(0), index(2), index(0), index(2))) == 1 - 37 / 8
    assert encoding.decay().tolist() == [-(2.0**-h) for h in range(1, 9)]


# placebo


def test_placebo_is_a_constant_on_the_token_itself_and_nothing_else():
    encoding = made("placebo")
    bias = encoding.bias(at([5, 9], [3, 9, 5]))[0]
    a = encoding.constant
    zero = torch.zeros(2)
    assert torch.equal(bias, torch.stack([torch.stack([zero, zero, a], -1), torch.stack([zero, a, zero], -1)], 1))
    assert not list(encoding.parameters())


def test_placebo_depends_on_the_seed_and_survives_casts():
    models = [model_of("placebo") for _ in range(3)]
    models[2].initialise(2)
    first, same, other = (model.encodings[0].constant for model in models)
    assert torch.equal(first, same) and not torch.equal(first, other)
    assert torch.equal(first, models[0].to(torch.bfloat16).float().encodings[0].constant)


# rope


def turned(x: torch.Tensor, positions: list[int], width: int, base: float = 10000.0) -> torch.Tensor:
    """Complex numbers in place of pairs: (..., L, d) with the first `width` channels turned, interleaved."""
    head = torch.view_as_complex(x[..., :width].double().unflatten(-1, (-1, 2)).contiguous())
    frequency = torch.tensor([base ** (-2 * i / width) for i in range(width // 2)], dtype=torch.float64)
    angle = torch.tensor(positions, dtype=torch.float64)[:, None] * frequency
    head = torch.view_as_real(head * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
    return torch.cat([head, x[..., width:].double()], -1)


@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.25])
def test_rope_equals_complex_multiplication(fraction):
    positions = [0, 1, 7, 31, 700, 2300]
    encoding = made("rope", fraction=fraction)
    x = randn(2, 2, 6, 16)
    for side in ("query", "key"):
        y = encoding.rotate(x, at(positions, positions), side)
        torch.testing.assert_close(y, turned(x, positions, int(16 * fraction)))
        assert torch.equal(y[..., int(16 * fraction):], x[..., int(16 * fraction):])
    for side in ("value", "output"):
        assert encoding.rotate(x, at(positions, positions), side) is x


def test_rope_partial_frequencies_use_the_turned_width():
    golden = [1, 0.316228, 0.1, 0.031623, 0.01, 0.0031623, 0.001, 0.00031623]
    assert made("rope", width=128, heads=2, fraction=0.25).turned == 16
    assert maths.inverse_frequencies(16, 10000.0).tolist() == pytest.approx(golden, rel=1e-4)


def test_rope_layouts_are_one_rotation_up_to_a_permutation_of_channels():
    x, where = randn(1, 2, 9, 16), Positions.first(9, start=5)
    order = torch.cat([torch.arange(0, 16, 2), torch.arange(1, 16, 2)])  # pairs side by side -> halves
    interleaved = made("rope", layout="interleaved").rotate(x, where, "query")
    half = made("rope", layout="half").rotate(x[..., order], where, "query")
    torch.testing.assert_close(interleaved[..., order], half, atol=0, rtol=0)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rope_equals_transformers(layout):
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as gptj
    from transformers.models.gptj.modeling_gptj import create_sinusoidal_positions
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as llama

    positions, x = torch.tensor([[0, 1, 7, 31, 700]]), randn(1, 2, 5, 16).float()
    if layout == "half":
        rotary = LlamaRotaryEmbedding(LlamaConfig(hidden_size=32, num_attention_heads=2, head_dim=16))
        theirs, _ = llama(x, x, *rotary(x, positions))
    else:
        sin, cos = create_sinusoidal_positions(1000, 16)[positions].chunk(2, dim=-1)
        theirs = gptj(x.transpose(1, 2), sin, cos).transpose(1, 2)
    ours = made("rope", layout=layout).rotate(x, at(positions[0].tolist(), positions[0].tolist()), "query")
    torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=0)  # their angles are float32


@pytest.mark.parametrize("width, golden", [
    (128, {0: 32.5, 1: 31.538, 10: 17.954, 50: 12.629, 100: 10.227, 200: 7.245, 1000: 4.471}),
    (64, {0: 16.5, 1: 15.948, 10: 8.814, 50: 5.733, 100: 7.465}),
])
def test_rope_decay_bound(width, golden):
    """(2/d) sum_j |S_j| of RoFormer, section 3.4.3; at d = 64 it is not monotone."""
    angles = maths.angles(torch.tensor(list(golden)), maths.inverse_frequencies(width, 10000.0))
    bound = 2 / width * torch.polar(torch.ones_like(angles), angles).cumsum(-1).abs().sum(-1)
    assert bound.tolist() == pytest.approx(list(golden.values()), abs=1e-3)


@pytest.mark.parametrize("width, heads, options", [
    (60, 4, {}), (32, 2, {"fraction": 0.3}), (32, 2, {"fraction": 0.1875}),
])
def test_rope_refuses_channels_that_make_no_pairs(width, heads, options):
    with pytest.raises(UserError, match=r"encoding 'rope': fraction .* of a head of \d+ channels is .*: choose"):
        made("rope", width=width, heads=heads, **options)


# precision


def test_angles_are_formed_in_float64_whatever_the_default_and_the_models_dtype():
    x, where = randn(1, 1, 2, 16).bfloat16(), at([4096, 4097], [4096, 4097])
    exact = turned(x, [4096, 4097], 16)
    torch.set_default_dtype(torch.bfloat16)
    try:
        y = made("rope", width=16, heads=1).rotate(x, where, "query")
        table = maths.sinusoids(where.q, 4)[0]
    finally:
        torch.set_default_dtype(torch.float32)
    assert float((y.double() - exact).abs().max()) < 0.03
    assert table[:, 1].tolist() == pytest.approx([0.8040, 0.9348], abs=1e-4)  # cos 4096, cos 4097


# all of them


@pytest.mark.parametrize("name", RELATIVE)
def test_memory_before_the_queries_moves_no_offset(name):
    """Four queries that see six keys stand at 2 ... 5: their rows are the last four of the full pass."""
    encoding = made(name, causal=True).double()
    q, k, v = (randn(1, 2, 6, 16, seed=seed) for seed in range(3))
    full = dense(q, k, v, encoding, Positions.first(6, causal=True))
    rows = dense(q[:, :, 2:], k, v, encoding, at([2, 3, 4, 5], [0, 1, 2, 3, 4, 5], causal=True))
    torch.testing.assert_close(full[:, :, 2:], rows)


@pytest.mark.parametrize("name", ABSOLUTE)
def test_absolute_tables_follow_positions_and_not_places(name):
    encoding, x = made(name), torch.zeros(1, 5, 32)
    whole = encoding.embed(torch.zeros(1, 12, 32), Positions.first(12))
    assert torch.equal(encoding.embed(x, Positions.first(5, start=7)), whole[:, 7:])


@pytest.mark.parametrize("name, option, value, bound", [
    ("rope", "base", 1, "above 1"), ("rope", "fraction", 0, "above 0"), ("rope", "fraction", 1.5, "at most 1"),
    ("sinusoidal", "base", 0.5, "above 1"), ("sinusoidal", "base", "nan", "a finite number"),
    ("learned", "max_length", 0, "at least 1"), ("shaw", "clip", 0, "at least 1"), ("t5", "buckets", 1, "at least 2"),
])
def test_bounds_are_told_in_one_line_from_text_and_from_python(name, option, value, bound):
    cls = ENCODINGS.load(name).value
    with pytest.raises(UserError, match=rf"^encoding '{name}': {option} = .*, but it must be {bound}$"):
        build_options(name, cls, {option: str(value)})
    with pytest.raises(UserError, match=rf"^encoding '{name}': {option} = .*, but it must be {bound}$"):
        cls(Dimensions(width=32, heads=2), cls.Config(**{option: float(value) if value == "nan" else value}))


@pytest.mark.parametrize("name, options, told", [
    ("rope", {"bse": 2}, "encoding 'rope': unknown option 'bse', did you mean 'base'\\?"),
    ("nope", {"base": 2}, "encoding 'nope': unknown option 'base', it takes none"),
    ("rope", {"layout": "hlf"}, "encoding 'rope': layout = 'hlf', but it must be 'interleaved' or 'half'"),
    ("shaw", {"clip": "1.5"}, "encoding 'shaw': clip = '1.5', but it must be a whole number"),
    ("shaw", {"clip": True}, "encoding 'shaw': clip = True, but it must not be true or false"),
])
def test_wrong_options_are_told_in_one_line(name, options, told):
    with pytest.raises(UserError, match=told):
        build_options(name, ENCODINGS.load(name).value, options)


def test_options_become_the_fields_types():
    build = {name: ENCODINGS.load(name).value for name in ("rope", "shaw", "learned")}
    assert vars(build_options("rope", build["rope"], {"base": "500000", "layout": "half"})) == {
        "base": 500000.0, "layout": "half", "fraction": 1.0}
    assert vars(build_options("shaw", build["shaw"], {"clip": "8", "values": "off"})) == {"clip": 8, "values": False}
    assert build_options("learned", build["learned"], {"max_length": "none"}).max_length is None
    assert build_options("learned", build["learned"], {"max_length": "12"}).max_length == 12


@pytest.mark.parametrize("name, count", [
    ("nope", 0), ("sinusoidal", 0), ("rope", 0), ("alibi", 0), ("placebo", 0), ("learned", 128 * 48),
    ("shaw", 3 * 2 * 33 * 12), ("t5", 32 * 4),
])
def test_parameter_counts_golden(name, count):
    cls = ENCODINGS.load(name).value
    dimensions = Dimensions(width=48, heads=4, layers=3, length=128)
    assert cls.parameter_count(dimensions, cls.Config()) == count
    per = 3 if cls.scope == "layer" else 1
    assert sum(p.numel() for p in cls(dimensions).parameters()) * per == count
