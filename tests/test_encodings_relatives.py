"""Encodings that meet queries and keys (transformer_xl, deberta, cope), and what layers share, against naive loops."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from posbench import maths
from posbench.attention import dense, logits
from posbench.encoding import Dimensions
from posbench.errors import UserError
from posbench.positions import Positions
from posbench.probe import filled
from posbench.registry import ENCODINGS
from tests.test_encodings import at, made, model_of, randn

# Queries and keys: a full pass, memory before the queries, decoding, and positions with gaps.
PLACES = [(range(5), range(5)), (range(4, 7), range(7)), ([8], range(9)), ([40, 2], [2, 9, 40]), ([39], range(40))]


def where(queries: Sequence[int], keys: Sequence[int], causal: bool) -> Positions:
    """Positions that are regular exactly where they may say so."""
    runs = all(list(ids) == list(range(ids[0], ids[0] + len(ids))) for ids in (queries, keys))
    return at(list(queries), list(keys), causal=causal, regular=runs and queries[-1] == keys[-1])


def inputs(queries: Sequence[int], keys: Sequence[int]) -> tuple[Tensor, Tensor]:
    return randn(2, 2, len(queries), 16), randn(2, 2, len(keys), 16, seed=1)


def pairs(queries: Sequence[int], keys: Sequence[int]) -> list[tuple[int, int, int]]:
    """Row, column and query minus key position of every pair."""
    return [(a, b, i - j) for a, i in enumerate(queries) for b, j in enumerate(keys)]


# transformer_xl


def wave(distance: int, width: int) -> Tensor:
    """Vaswani's sinusoid of one distance, channel by channel."""
    return torch.tensor([(math.sin, math.cos)[c % 2](distance * 10000 ** (-(c - c % 2) / width)) for c in range(width)],
                        dtype=torch.float64)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("queries, keys", PLACES)
@torch.no_grad()
def test_transformer_xl_equals_a_double_loop(queries, keys, causal):
    encoding = made("transformer_xl", causal=causal).double()
    (q, k), u, v = inputs(queries, keys), encoding.content_bias, encoding.position_bias
    expected = torch.zeros(2, 2, len(queries), len(keys), dtype=torch.float64)
    for a, b, distance in pairs(queries, keys):
        for h in range(2):
            r = encoding.projection[h] @ wave(distance, 32)
            expected[:, h, a, b] = q[:, h, a] @ r + k[:, h, b] @ u[h] + v[h] @ r
    told = encoding.scores(q, k, where(queries, keys, causal))
    torch.testing.assert_close(told, expected, atol=2e-5, rtol=1e-5)  # sinusoids are float32


@pytest.mark.parametrize("queries, keys", [(5, 5), (3, 7), (1, 9), (7, 7)])
def test_relative_shift_is_right_above_the_diagonal_and_for_queries_that_are_not_the_keys(queries, keys):
    x = randn(2, queries, queries + keys - 1)
    index = torch.arange(keys) - torch.arange(queries)[:, None] + queries - 1
    assert torch.equal(maths.relative_shift(x, keys), x.gather(-1, index.expand(2, queries, keys)))


def test_transformer_xl_knows_the_direction_and_has_values_at_every_distance():
    encoding = made("transformer_xl")
    q, k = randn(1, 2, 1, 16).float(), randn(1, 2, 1, 16, seed=1).float().expand(1, 2, 7, 16)
    row = encoding.scores(q, k, at([100], [99, 93, 69, 68, 101, 107, 5000]))[0, 0, 0]
    assert row.isfinite().all() and len(set(row.tolist())) == 7


# deberta


@pytest.mark.parametrize("options", [{}, {"span": 3}, {"span": 8, "max_distance": 20}])
@pytest.mark.parametrize("queries, keys", PLACES)
@torch.no_grad()
def test_deberta_equals_a_loop_over_both_terms_and_the_sign_of_each_matters(queries, keys, options):
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    encoding = made("deberta", **options).double()
    (q, k), span = inputs(queries, keys), options.get("span", 32)

    def row(distance: int) -> int:
        """delta of Eq. 3, after the buckets of other people's code."""
        if "max_distance" in options:
            distance = int(make_log_bucket_position(torch.tensor(distance), span, options["max_distance"]))
        return 0 if distance <= -span else 2 * span - 1 if distance >= span else distance + span

    expected, flipped = (torch.zeros(2, 2, len(queries), len(keys), dtype=torch.float64) for _ in range(2))
    for a, b, distance in pairs(queries, keys):
        for h in range(2):
            keys_of = [encoding.table[row(d)] @ encoding.key_projection[h] for d in (distance, -distance)]
            queries_of = [encoding.table[row(d)] @ encoding.query_projection[h] for d in (distance, -distance)]
            expected[:, h, a, b] = q[:, h, a] @ keys_of[0] + k[:, h, b] @ queries_of[1]
            flipped[:, h, a, b] = q[:, h, a] @ keys_of[0] + k[:, h, b] @ queries_of[0]
    told = encoding.scores(q, k, where(queries, keys, causal=False))
    torch.testing.assert_close(told, expected)
    assert not torch.allclose(told, flipped, rtol=0.1)  # the loop would see a gather with the wrong sign


def test_deberta_buckets_golden_and_equal_to_transformers():
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    golden = {0: 0, 1: 1, 7: 7, 127: 127, 128: 128, 200: 169, 511: 255}
    for sign in (1, -1):
        distance = sign * torch.tensor(list(golden))
        assert maths.deberta_buckets(distance, 256, 512).tolist() == [sign * b for b in golden.values()]
    for buckets, farthest in ((256, 512), (32, 128), (8, 64)):
        distance = torch.arange(-2000, 2001)
        theirs = make_log_bucket_position(distance, buckets, farthest).long()
        assert torch.equal(maths.deberta_buckets(distance, buckets, farthest), theirs)


def test_deberta_content_to_position_equals_transformers():
    from transformers import DebertaV2Config
    from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention

    encoding, (q, k) = made("deberta", span=8, max_distance=24), (x.float() for x in inputs(range(40), range(40)))
    theirs = DisentangledSelfAttention(DebertaV2Config(
        hidden_size=32, num_attention_heads=2, relative_attention=True, pos_att_type=["c2p"], position_buckets=8,
        max_relative_positions=24)).eval()
    with torch.no_grad():
        encoding.query_projection.zero_()
        theirs.pos_key_proj.weight.copy_(encoding.key_projection.transpose(1, 2).reshape(32, 32))
        theirs.pos_key_proj.bias.zero_()
        expected = theirs.disentangled_attention_bias(q.flatten(0, 1), k.flatten(0, 1), None, encoding.table, 1) * 4
        ours = encoding.scores(q, k, Positions.first(40))
    torch.testing.assert_close(ours.flatten(0, 1), expected, rtol=1e-4, atol=1e-3)


def test_deberta_rows_at_both_ends_serve_all_offsets_from_the_span_on():
    encoding, changed, place = made("deberta", span=4), made("deberta", span=4), Positions.first(20)
    assert encoding.table.shape == (8, 32)
    with torch.no_grad():
        changed.table[7] += 1
    q = randn(1, 2, 20, 16).float()
    touched = (encoding.scores(q, q, place) != changed.scores(q, q, place))[0, 0]
    assert torch.equal(touched, place.offsets()[0].abs() >= 3)


def test_deberta_keeps_the_templates_scale_on_all_three_terms():
    encoding, (q, k) = made("deberta").double(), inputs(range(5), range(5))
    place = Positions.first(5)
    expected = (q @ k.transpose(-1, -2) + encoding.scores(q, k, place)) / 4
    torch.testing.assert_close(logits(q, k, encoding, place), expected)


def test_deberta_refuses_buckets_that_cannot_grow():
    with pytest.raises(UserError, match=r"encoding 'deberta': max_distance = 5, but with span 8 .*: choose"):
        made("deberta", span=8, max_distance=5)


# cope


def counted(encoding, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
    """q . e[p], pair by pair as the equations have it."""
    last, out = len(encoding.table) - 1, torch.zeros(*q.shape[:3], k.shape[2], dtype=q.dtype)
    for b, h, i, j in torch.cartesian_prod(*(torch.arange(n) for n in out.shape)).tolist():
        gates = [torch.sigmoid(q[b, h, i] @ k[b, h, t] / 4) for t in range(j, k.shape[2]) if seen[i, t]]
        p = min(float(sum(gates)), last)
        low, high = math.floor(p), math.ceil(p)
        e = (1 - (p - low)) * encoding.table[low] + (p - low) * encoding.table[high]
        out[b, h, i, j] = q[b, h, i] @ e
    return out


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("positions", [2, 4, 64])
@pytest.mark.parametrize("queries, keys", [(range(7), range(7)), ([6], range(7)), (range(4, 7), range(7))])
@torch.no_grad()
def test_cope_equals_a_loop(queries, keys, positions, causal):
    encoding, (q, k) = made("cope", positions=positions, causal=causal).double(), inputs(queries, keys)
    place = where(queries, keys, causal)
    seen = (place.offsets()[0] <= 0) if causal else torch.ones(len(queries), len(keys), dtype=torch.bool)
    torch.testing.assert_close(encoding.scores(q, k, place), counted(encoding, q, k, seen))


@torch.no_grad()
def test_cope_masked_after_the_sum_would_leak_the_future_and_ours_does_not():
    encoding, (q, k) = made("cope", causal=True).double(), inputs(range(8), range(8))
    other = torch.cat([k[:, :, :5], -k[:, :, 5:]], dim=2)  # another future, seen from the queries up to 4
    causal, past = Positions.first(8, causal=True), (slice(None), slice(None), slice(5))
    assert torch.equal(*(dense(q, keys, k, encoding, causal)[past] for keys in (k, other)))
    # Gates summed without the mask, which acts afterwards: what the layer must not compute.
    late = [encoding.scores(q, keys, Positions.first(8))[past] for keys in (k, other)]
    seen = causal.offsets()[0, :5] <= 0
    assert float((late[0] - late[1])[..., seen].abs().max()) > 0.1


def test_cope_counts_tokens_where_gates_are_open_and_shares_the_last_row_beyond():
    encoding = made("cope", positions=12, causal=True)
    q = torch.full((1, 2, 40, 16), 10.0)
    told = encoding.scores(q, q, Positions.first(40, causal=True))[0, 0]
    rows = (q[0, 0] @ encoding.table.T)[0]
    for distance in (0, 1, 7, 10, 11, 12, 39):
        torch.testing.assert_close(told[39, 39 - distance], rows[min(distance + 1, 11)])


def test_cope_does_not_count_padding_or_other_documents():
    encoding, (q, k) = made("cope").double(), inputs(range(6), range(6))
    alone = encoding.scores(q[:, :, :4], k[:, :, :4], Positions.first(4))
    padded = encoding.scores(q, k, Positions.right_padded(torch.tensor([4, 4]), 6))
    documents = torch.tensor([[0, 0, 0, 0, 1, 1]])
    packed = encoding.scores(q, k, Positions.given(torch.tensor([[0, 1, 2, 3, 0, 1]]), documents=documents))
    for told in (padded, packed):
        torch.testing.assert_close(told[:, :, :4, :4], alone)


def test_cope_counts_beyond_256_in_bfloat16():
    encoding = made("cope", positions=600, causal=True)
    with torch.no_grad():
        encoding.table.zero_()
        encoding.table[:, 0] = torch.arange(600.0) % 2  # odd counts alone
    q = torch.full((1, 2, 512, 16), 8.0).bfloat16()
    row = encoding.to(torch.bfloat16).scores(q, q, Positions.first(512, causal=True))[0, 0, 511]
    assert row.flip(0).tolist() == [8.0, 0.0] * 256


# What layers share


@pytest.mark.parametrize("name, options, tied, own", [
    ("deberta", {}, ["table"], ["key_projection", "query_projection"]),
    ("deberta", {"projections": "shared"}, ["table", "key_projection", "query_projection"], []),
    ("transformer_xl", {}, ["content_bias", "position_bias"], ["projection"]),
    ("transformer_xl", {"untied": True}, [], ["content_bias", "position_bias", "projection"]),
    ("fire", {"shared": True}, ["c", "factor", "inner.weight", "outer.bias"], []),
    ("fire", {}, [], ["c", "factor", "inner.weight", "outer.bias"]),
    ("kerple", {"untied": True}, [], ["amplitude", "rate"]), ("cope", {}, [], ["table"]),
])
def test_layers_share_what_the_paper_shares(name, options, tied, own):
    model = model_of(name, layers=3, **options)
    parts = [dict(part.named_parameters()) for part in model.encodings]
    assert all(part[key] is parts[0][key] for part in parts for key in tied)
    assert all(parts[0][key] is not parts[1][key] is not parts[2][key] for key in own)


def test_a_shared_table_has_one_value_one_optimiser_slot_and_one_gradient_of_all_layers():
    model, again = model_of("deberta", layers=3), model_of("deberta", layers=3)
    table, alone = model.encodings[0].table, model_of("deberta", layers=1).encodings[0].table
    assert torch.equal(table, alone)  # named after the first layer, however many follow
    assert [name for name, _ in model.named_parameters() if "table" in name] == ["encodings.0.table"]
    groups = model.parameter_groups(0.1)
    assert sum(p is table for group in groups for p in group["params"]) == 1
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    torch.optim.AdamW(groups)
    tokens = torch.arange(12)[None] % 17
    model(tokens).square().sum().backward()
    before = table.grad.clone()
    with torch.no_grad():
        model.encodings[2].key_projection.zero_()
        model.encodings[2].query_projection.zero_()
    model.zero_grad()
    model(tokens).square().sum().backward()
    assert not torch.allclose(before, table.grad)
    filled(model.encodings[2], "test")
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(tokens), model(tokens))
    assert again.encodings[1].table is again.encodings[0].table


@pytest.mark.parametrize("name", ["deberta", "transformer_xl", "fire"])
def test_encodings_without_a_first_layer_are_whole(name):
    """`tie` is called for later layers alone; one instance by itself has all of its parts."""
    cls = ENCODINGS.load(name).value
    assert all(p.numel() for p in cls(Dimensions(width=32, heads=2)).parameters())
