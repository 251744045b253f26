"""Rotations against naive loops, closed forms and transformers; variants of a trained rope model; xpos; self-extend."""

from __future__ import annotations

import math

import pytest
import torch

from posbench.attention import dense, logits
from posbench.encoding import Dimensions, Encoding, Properties
from posbench.errors import ContextLengthExceeded, UserError
from posbench.positions import Positions
from posbench.probe import relative
from posbench.registry import ENCODINGS
from posbench.rotary import Rotary
from posbench.testing import check_encoding
from tests.test_encodings import at, made, model_of, randn

# What theory says, as in the contract tests: shift, norm, cached; all see order and are defined at any length.
TRUTH = {
    "rope": (True, True, True),
    "rope_linear": (True, True, True),
    "rope_ntk": (True, True, True),
    "rope_dynamic": (False, True, False),
    "rope_yarn": (True, False, True),
    "rope_longrope": (False, False, False),
    "rope_llama3": (True, True, True),
    "xpos": (True, False, True),
    "self_extend": (False, True, True),
}
SCALED = ["rope_linear", "rope_ntk", "rope_dynamic", "rope_yarn", "rope_longrope", "rope_llama3"]
SHORT, LONG = [1 + 0.01 * i for i in range(32)], [1 + 0.4 * i for i in range(32)]
# Our options and transformers' parameters for head width 64 and 2048 trained tokens.
LIBRARY = [
    ("rope_linear", {"factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
    ("rope_dynamic", {"factor": 2.0}, {"rope_type": "dynamic", "factor": 2.0}),
    ("rope_dynamic", {}, {"rope_type": "dynamic", "factor": 1.0}),
    ("rope_yarn", {"factor": 4.0}, {"rope_type": "yarn", "factor": 4.0}),
    ("rope_yarn", {"factor": 32.0, "beta_fast": 16.0, "beta_slow": 2.0, "base": 500000.0},
     {"rope_type": "yarn", "factor": 32.0, "beta_fast": 16.0, "beta_slow": 2.0, "rope_theta": 500000.0}),
    ("rope_yarn", {"factor": 4.0, "attention_factor": 1.0},
     {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.0}),
    ("rope_longrope",
     {"factor": 8.0, "short_factors": "/".join(map(str, SHORT)), "long_factors": "/".join(map(str, LONG))},
     {"rope_type": "longrope", "factor": 8.0, "short_factor": SHORT, "long_factor": LONG}),
    ("rope_llama3", {}, {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}),
    ("rope_llama3", {"factor": 32.0, "low": 2.0, "high": 5.0},
     {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 2.0, "high_freq_factor": 5.0}),
]


def library(parameters: dict, length: int, fraction: float = 1.0) -> tuple[torch.Tensor, float]:
    """transformers' frequencies and attention factor for an input of this length."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {"rope_theta": 10000.0, "original_max_position_embeddings": 2048, "partial_rotary_factor": fraction,
                  **parameters}
    config = LlamaConfig(hidden_size=128, num_attention_heads=2, head_dim=64, max_position_embeddings=2048,
                         rope_parameters=parameters)
    return ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"), seq_len=length)


def naive(x: torch.Tensor, positions: list[int], frequencies: list[float], layout: str = "interleaved") -> torch.Tensor:
    """(B, H, L, d) turned number by number."""
    y, pairs = x.clone(), len(frequencies)
    for row, p in enumerate(positions):
        for i, frequency in enumerate(frequencies):
            a, b = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + pairs)
            cos, sin = math.cos(p * frequency), math.sin(p * frequency)
            y[..., row, a] = x[..., row, a] * cos - x[..., row, b] * sin
            y[..., row, b] = x[..., row, b] * cos + x[..., row, a] * sin
    return y


def plain(width: int, base: float = 10000.0) -> list[float]:
    return [base ** (-2 * i / width) for i in range(width // 2)]


def padded(rows: list[int], width: int, left: bool) -> torch.Tensor:
    """(B, width) mask of rows with so many real tokens."""
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for row, n in zip(mask, rows, strict=True):
        row[slice(width - n, width) if left else slice(n)] = True
    return mask


# what is declared


@pytest.mark.parametrize("name", TRUTH)
def test_declarations_are_the_truth_table(name):
    shift, norm, cached = TRUTH[name]
    cls = ENCODINGS.load(name).value
    assert cls.properties == Properties(shift=shift, norm=norm, cached=cached, monotone=False,
                                        factorises=name != "self_extend")
    assert made(name, causal=True).properties == cls.properties
    assert cls.needs_causal == (name in ("xpos", "self_extend"))


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize("name, options, claims", [
    ("rope_yarn", {"attention_factor": 1}, {"norm": True}), ("rope_yarn", {"factor": 1}, {"norm": True}),
    ("rope_longrope", {"factor": 1}, {"norm": True, "cached": True, "shift": True}),
    ("self_extend", {"group": "none"}, {"shift": True}), ("self_extend", {"group": 1}, {"shift": True}),
    ("self_extend", {"window": 3, "group": 2, "layout": "half"}, {"shift": False}),
    ("rope_dynamic", {"original_length": 40, "factor": 2, "fraction": 0.5}, {"cached": False}),
    ("rope_longrope", {"attention_factor": 1, "long_factors": "1/2/4/6/8/10/12/16"}, {"norm": True, "cached": False}),
    ("xpos", {"fraction": 0.5, "layout": "half", "scale_base": 1024}, {"norm": False}),
])
def test_contract_holds_with_other_options(name, options, claims):
    properties = made(name, causal=True, **options).properties
    assert {claim: getattr(properties, claim) for claim in claims} == claims
    assert not [(v.check, v.shape, v.reason) for v in check_encoding(name, options) if not v.passed]


@pytest.mark.parametrize("base, cached", [("rope_dynamic", True), ("rope", False)])
def test_a_false_claim_on_cached_keys_is_caught_in_both_directions(base, cached):
    cls = ENCODINGS.load(base).value
    lie = type("Lie", (cls,), {"properties": Properties(shift=cached, cached=cached), "__doc__": "A lie."})
    failed = {verdict.check for verdict in check_encoding(lie) if not verdict.passed}
    assert {"P6b", "P9"} <= failed


def test_a_length_that_is_counted_over_the_batch_is_found():
    """As libraries count it: one past the largest position of the whole batch."""
    cls = ENCODINGS.load("rope_dynamic").value

    class OfTheBatch(cls):
        """Reads the length off the batch."""

        def size(self, at, side):
            return torch.full((1, 1, 1), at.end, device=at.q.device)

    assert {verdict.check for verdict in check_encoding(OfTheBatch) if not verdict.passed} == {"P7"}


# variants of a trained rope model


@pytest.mark.parametrize("length", [7, 2048, 2049, 4096, 10000])
@pytest.mark.parametrize("fraction", [1.0, 0.25])
@pytest.mark.parametrize("name, options, parameters", LIBRARY)
def test_frequencies_equal_transformers(name, options, parameters, fraction, length):
    if "long_factors" in options and fraction < 1:
        options = options | {key: "/".join(options[key].split("/")[:8]) for key in ("short_factors", "long_factors")}
        parameters = parameters | {"short_factor": SHORT[:8], "long_factor": LONG[:8]}
    encoding = made(name, width=128, length=2048, fraction=fraction, **options)
    theirs, gain = library(parameters, length, fraction)
    ours = encoding.frequencies(Positions.first(length), "key").flatten()
    torch.testing.assert_close(ours, theirs.double(), atol=0, rtol=2e-6)  # theirs are float32
    assert encoding.gain == pytest.approx(gain, rel=1e-12)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("name, options, parameters", LIBRARY[:1] + LIBRARY[2:4] + LIBRARY[6:8])
def test_rotation_equals_a_loop_with_transformers_frequencies(name, options, parameters, layout):
    """At distances 1, 7, L - 1, and beyond the trained length."""
    positions = [0, 1, 7, 2047, 4000]
    encoding, x = made(name, width=128, length=2048, layout=layout, **options), randn(1, 2, 5, 64)
    frequencies, gain = library(parameters, 4001)
    theirs = naive(x, positions, frequencies.double().tolist(), layout) * gain
    for side in ("query", "key"):
        ours = encoding.rotate(x, at(positions, positions), side)
        torch.testing.assert_close(ours, theirs, atol=4001 * 2e-6, rtol=0)
    assert encoding.rotate(x, at(positions, positions), "value") is x


def test_a_fixed_larger_base():
    encoding = made("rope_ntk", width=128, factor=4.0)
    base = 10000 * 4 ** (64 / 62)
    assert encoding.frequencies(Positions.first(9), "key").tolist() == pytest.approx(plain(64, base), rel=1e-12)
    assert made("rope_ntk", width=4, heads=2).frequencies(Positions.first(9), "key").tolist() == [1]  # a single pair


def test_dynamic_base_golden():
    encoding = made("rope_dynamic", width=128, length=2048, factor=2.0)
    for length, base in ((4096, 31082.2), (2048, 10000), (5, 10000)):
        last = float(encoding.frequencies(Positions.first(length), "query").flatten()[-1])
        assert last ** (-64 / 62) == pytest.approx(base, rel=2e-6)


@pytest.mark.parametrize("factor, m", [(4, 1.13863), (32, 1.34657), (1, 1)])
def test_yarn_multiplies_logits_by_m_squared_once(factor, m):
    q, k, where = randn(1, 2, 40, 16), randn(1, 2, 40, 16, seed=1), Positions.first(40)
    products = []
    for options in ({}, {"attention_factor": 1.0}):
        encoding = made("rope_yarn", factor=factor, **options)
        products.append(logits(*(encoding.rotate(x, where, side) for x, side in ((q, "query"), (k, "key"))),
                               encoding, where))
    torch.testing.assert_close(products[0], products[1] * m**2, rtol=1e-5, atol=1e-5)
    if factor == 4:
        assert m**2 == pytest.approx(1.29648, abs=1e-5)


def test_longrope_default_series_and_factor():
    """1 / 4^(2i/(r-2)) for long inputs, nothing for short ones; sqrt(1 + ln 4 / ln 32) on queries and keys."""
    encoding = made("rope_longrope")
    expected = [f / 4 ** (2 * i / 14) for i, f in enumerate(plain(16))]
    assert encoding.frequencies(Positions.first(33), "key").flatten().tolist() == pytest.approx(expected)
    assert encoding.frequencies(Positions.first(32), "key").flatten().tolist() == pytest.approx(plain(16))
    assert encoding.gain == pytest.approx(math.sqrt(1.4))


@pytest.mark.parametrize("name, options", [
    ("rope_linear", {"factor": 1}), ("rope_ntk", {"factor": 1}), ("rope_dynamic", {}), ("rope_yarn", {"factor": 1}),
    ("rope_longrope", {"factor": 1}), ("rope_llama3", {"factor": 1}), ("self_extend", {"group": 1}),
    ("self_extend", {"window": 32}),
])
def test_weights_of_a_trained_rope_model_load_into_every_variant(name, options):
    """Without scaling, and within the trained length, every variant is rope."""
    trained = model_of("rope", shape="decoder")
    tokens = torch.randint(17, (4, 32), generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-2)
    for _ in range(3):
        torch.nn.functional.cross_entropy(trained(tokens).flatten(0, 1), tokens.flatten() % 3).backward()
        optimizer.step()
        optimizer.zero_grad()
    variant = model_of(name, shape="decoder", **options)
    assert variant.state_dict().keys() == trained.state_dict().keys()
    assert not variant.encodings.state_dict()
    variant.load_state_dict(trained.state_dict())
    torch.testing.assert_close(variant(tokens), trained(tokens), atol=2e-6, rtol=1e-5)
    scaled = model_of(name, shape="decoder")
    scaled.load_state_dict(trained.state_dict())
    assert relative(scaled(tokens.repeat(1, 3)), trained(tokens.repeat(1, 3))) > 1e-4


@pytest.mark.parametrize("name", TRUTH)
def test_a_long_input_leaves_the_answer_to_a_short_one(name):
    model = model_of(name, shape="decoder")
    short, long = torch.arange(9)[None] % 17, torch.arange(100)[None] % 17
    first, _, again = model(short), model(long), model(short)
    assert torch.equal(first, again)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("name", ["rope_dynamic", "rope_longrope", "rope_yarn"])
def test_the_length_is_that_of_the_row_and_document_and_not_of_the_batch(name, left):
    model, lengths = model_of(name).double(), [80, 50, 20]
    rows = [torch.arange(n)[None] * 3 % 17 for n in lengths]
    mask = padded(lengths, 80, left)
    batch = torch.zeros(3, 80, dtype=torch.long)
    batch[mask] = torch.cat(rows, dim=1)[0]
    together = model(batch, attention_mask=mask)
    for index, row in enumerate(rows):
        torch.testing.assert_close(together[index, mask[index]], model(row)[0])
    ids = torch.cat([torch.arange(n) for n in lengths])[None]
    documents = torch.tensor([[5] * 80 + [2] * 50 + [9] * 20])
    packed = model(torch.cat(rows, dim=1), at=Positions.given(ids, documents=documents))
    torch.testing.assert_close(packed, torch.cat([model(row) for row in rows], dim=1))


def test_sizes_of_sequences_under_packing_padding_and_caches():
    ids, documents = torch.tensor([[0, 1, 2, 0, 1, 0]]), torch.tensor([[4, 4, 4, 1, 1, 1], [4, 4, 4, 4, 4, 4]])
    keys = torch.tensor([[True] * 5 + [False], [True] * 2 + [False] * 4])
    where = Positions(q=ids, k=ids, end=3, keys=keys, documents=(documents, documents))
    assert where.sizes()[1].tolist() == [[3, 3, 3, 2, 2, 2], [2] * 6]
    where = Positions(q=ids[:, 4:5], k=ids, end=3, documents=(documents[:, 4:5], documents))
    assert where.sizes()[0].tolist() == [[2], [3]]
    assert [size.tolist() for size in at([9], [3, 9, 4]).sizes()] == [[[10]], [[10]]]


@pytest.mark.parametrize("name", TRUTH)
def test_angles_are_not_formed_in_bfloat16(name):
    where, x = at([256, 257, 4096, 4097], [256, 257, 4096, 4097]), randn(1, 2, 4, 16).bfloat16()
    encoding = made(name, causal=True)
    for side in ("query", "key"):
        low, high = encoding.rotate(x, where, side).double(), encoding.rotate(x.double(), where, side)
        assert float(((low - high).abs().amax(-1) / high.norm(dim=-1)).max()) < 2**-7


@pytest.mark.parametrize("name, options, told", [
    ("rope_yarn", {"beta_fast": 1}, "beta_fast = 1 and beta_slow = 1, but .*: choose"),
    ("rope_llama3", {"low": 4}, "low = 4 and high = 4, but .*: choose"),
    ("rope_longrope", {"long_factors": "1/2"}, "long_factors = '1/2', but it must be 8 numbers"),
    ("rope_longrope", {"short_factors": "1/2/3/4/5/6/7/x"}, ".*, but it must be 8 numbers"),
    ("rope_linear", {"factor": 0.5}, "factor = 0.5, but it must be at least 1"),
    ("rope_dynamic", {"original_length": 1}, "original_length = 1, but it must be at least 2"),
    ("self_extend", {"group": 0}, "group = 0, but it must be at least 1"),
    ("rope_ntk", {"fraction": 0.3}, "fraction 0.3 of a head of 16 channels is 4.8, but"),
])
def test_wrong_options_are_told_in_one_line(name, options, told):
    with pytest.raises(UserError, match=f"^encoding '{name}': {told}"):
        made(name, **options)


# xpos


def zeta(width: int) -> list[float]:
    return [(2 * i / width + 0.4) / 1.4 for i in range(width // 2)]


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("queries, keys", [([0, 1, 7, 31], [0, 1, 7, 31]), ([2000], [0, 1993, 1999, 2000])])
def test_xpos_equals_a_loop_over_pairs(layout, queries, keys):
    """sum over channel pairs of zeta^((m - n)/512) times rope's product."""
    encoding = made("xpos", causal=True, layout=layout)
    q, k = randn(1, 2, len(queries), 16), randn(1, 2, len(keys), 16, seed=1)
    where = at(queries, keys, causal=True)
    ours = encoding.rotate(q, where, "query") @ encoding.rotate(k, where, "key").transpose(-1, -2)
    expected = torch.zeros_like(ours)
    turned_q, turned_k = naive(q, queries, plain(16), layout), naive(k, keys, plain(16), layout)
    for i, z in enumerate(zeta(16)):
        pair = [2 * i, 2 * i + 1] if layout == "interleaved" else [i, i + 8]
        for a, m in enumerate(queries):
            for b, n in enumerate(keys):
                product = (turned_q[:, :, a, pair] * turned_k[:, :, b, pair]).sum(-1)
                expected[:, :, a, b] += z ** ((m - n) / 512) * product
    torch.testing.assert_close(ours, expected)


def test_xpos_decodes_with_cached_keys_beyond_the_trained_length():
    encoding = made("xpos", causal=True)
    q, k, v = (randn(1, 2, 70, 16, seed=seed) for seed in range(3))
    where = Positions.first(70, causal=True)
    turned = encoding.rotate(q, where, "query"), encoding.rotate(k, where, "key")
    full = dense(*turned, v, encoding, where)
    cached = torch.cat([encoding.rotate(k[:, :, t : t + 1], at([t], [t]), "key") for t in range(70)], dim=2)
    row = dense(encoding.rotate(q[:, :, 69:], at([69], list(range(70))), "query"), cached, v, encoding,
                at([69], list(range(70)), causal=True))
    torch.testing.assert_close(row, full[:, :, 69:])


def test_xpos_refuses_positions_before_its_powers_overflow():
    """zeta_0 = .2857; float16 holds zeta_0^(-n/512) up to n = 4532, float32 up to 36260."""
    encoding = made("xpos", causal=True)
    assert zeta(16)[0] == pytest.approx(0.2857, abs=1e-4)
    for dtype, overflow in ((torch.float16, 4532), (torch.float32, 36260), (torch.bfloat16, 36260)):
        if dtype != torch.bfloat16:  # whose largest number lies a little below float32's
            assert zeta(16)[0] ** (-overflow / 512) < torch.finfo(dtype).max < zeta(16)[0] ** (-(overflow + 1) / 512)
        last = encoding.centre + encoding.reach(dtype) - 1
        assert 0.85 * overflow < last < overflow
        x = torch.ones(1, 2, 1, 16, dtype=dtype)
        for side in ("query", "key"):
            y = encoding.rotate(x, at([last], [last]), side)
            assert y.isfinite().all()
            assert float(y.double().unflatten(-1, (-1, 2)).norm(dim=-1).min()) > torch.finfo(dtype).tiny
            with pytest.raises(ContextLengthExceeded, match=f"'xpos' ends at {last + 1} positions and was given"):
                encoding.rotate(x, at([last + 1], [last + 1]), side)


# self-extend


def merged(encoding: Encoding, q: torch.Tensor, k: torch.Tensor, queries: list[int], keys: list[int]) -> torch.Tensor:
    """Rope's logits pair by pair, at the exact offset for neighbours and at the grouped one for the others."""
    w, group = encoding.window, encoding.config.group
    products = torch.zeros(*q.shape[:3], len(keys), dtype=q.dtype)
    for a, m in enumerate(queries):
        for b, n in enumerate(keys):
            far = w if group is None else m // group + w - w // group - n // group
            offset = m - n if m - n < w else far
            turned = naive(q[:, :, a : a + 1], [offset], plain(16), encoding.config.layout)
            products[:, :, a, b] = (turned[:, :, 0] * k[:, :, b]).sum(-1)
    return products / 4


@pytest.mark.parametrize("options", [
    {}, {"group": 3, "window": 5}, {"group": 8, "window": 1, "layout": "half"}, {"group": None}, {"group": 1},
    {"window": 500},
])
@pytest.mark.parametrize("queries, keys", [(range(40), range(40)), ([200], [0, 1, 150, 193, 199, 200]), ([5], [3, 5])])
def test_self_extend_equals_a_loop_over_pairs(options, queries, keys):
    encoding = made("self_extend", causal=True, **options)
    queries, keys = list(queries), list(keys)
    q, k = randn(1, 2, len(queries), 16), randn(1, 2, len(keys), 16, seed=1)
    where = at(queries, keys, causal=True)
    ours = logits(encoding.rotate(q, where, "query"), encoding.rotate(k, where, "key"), encoding, where)
    seen = where.visible()
    torch.testing.assert_close(ours * seen, merged(encoding, q, k, queries, keys) * seen)


def test_self_extend_meets_no_offset_that_was_not_trained_up_to_its_reach():
    """(L - w) G + w tokens: 104 for L = 32, w = 8, G = 4."""
    encoding = made("self_extend", causal=True)
    positions = torch.arange(104)
    far = encoding.grouped(positions, "query")[:, None] - encoding.grouped(positions, "key")
    distance = positions[:, None] - positions
    assert int(far[distance >= 8].max()) < 32 <= int(far[distance >= 8].max()) + 1
    assert int(far[distance >= 8].min()) >= 8


def test_every_rotation_shares_one_module():
    assert all(issubclass(ENCODINGS.load(name).value, Rotary) for name in TRUTH)


def test_xpos_with_powers_that_do_not_reach_the_first_position_is_refused():
    """zeta_0 = 2/7: float32 holds 69 positions of a scale base of 1, and the centre of 200 tokens is 100 away."""
    cls = ENCODINGS.load("xpos").value
    dimensions = Dimensions(width=8, heads=1, length=200, causal=True)
    with pytest.raises(UserError, match="scale_base = 1, but powers hold for 69 positions"):
        cls(dimensions, cls.Config(scale_base=1.0))
    cls(dimensions, cls.Config(scale_base=2.0))
