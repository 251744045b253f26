"""Decoding with a cache: token by token, or the prompt split anywhere, every answer is that of the full pass."""

from __future__ import annotations

import pytest
import torch

from posbench.cache import Cache, LayerCache
from posbench.errors import ContextLengthExceeded, UserError
from posbench.options import build_options
from posbench.positions import Positions
from posbench.probe import Subject
from posbench.registry import ENCODINGS
from posbench.transformer import Transformer

NAMES = ["nope", "sinusoidal", "learned", "shaw", "t5", "rope", "alibi", "placebo"]
LINEAR = ["nope", "sinusoidal", "learned", "rope", "alibi"]
KINDS = [*((name, "softmax", {}) for name in NAMES), *((name, "linear", {}) for name in LINEAR),
         ("rope", "linear", {"rotation": "before"}), ("rope", "linear", {"rotation": "both", "feature_map": "elu"}),
         ("alibi", "linear", {"feature_map": "elu"})]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
L = 12


def subject(name: str, attention: str = "softmax", shape: str = "decoder", **options) -> Subject:
    cls = ENCODINGS.load(name).value
    return Subject(cls, build_options(name, cls, options), shape, attention)


def splits(length: int, dtype: torch.dtype = torch.float64) -> list[list[int]]:
    """Lengths of the pieces that a sequence comes in; float32 differs in rounding alone and gets fewer."""
    some = [[1] * length, [7, length - 7]]
    return some if dtype == torch.float32 else [*some, [1, length - 1], [length - 1, 1], [3, 1, 4, length - 8]]


def stepwise(model: Transformer, tokens: torch.Tensor, pieces: list[int], **more) -> torch.Tensor:
    """All answers, from pieces of the tokens and of their mask."""
    cache, mask, start, answers = Cache(), more.pop("attention_mask", None), 0, []
    for piece in pieces:
        part = slice(start, start + piece)
        given = {} if mask is None else {"attention_mask": mask[:, part]}
        answers.append(model(tokens[:, part], **given, **more, cache=cache))
        start += piece
    assert cache.length == start
    return torch.cat(answers, dim=1)


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=TOLERANCE[a.dtype] * float(a.abs().max()))


def masks(side: str) -> torch.Tensor:
    mask = torch.ones(3, L, dtype=torch.bool)
    mask[1, :3] = mask[2, :6] = False
    return mask if side == "left" else mask.flip(1)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name, attention, settings", KINDS)
def test_pieces_equal_the_full_pass(name, attention, settings, dtype):
    """With 12 tokens, and with 3 + 12 at positions that lie beyond the 32 of training."""
    probe = subject(name, attention)
    model, tokens = probe.model(dtype, **settings), probe.tokens(length=L)
    full = model(tokens)
    for pieces in splits(L, dtype):
        close(full, stepwise(model, tokens, pieces))
    if probe.limit is None:
        ids = torch.arange(100, 100 + L)[None]
        cache = Cache()
        first = model(tokens[:, :5], position_ids=ids[:, :5], cache=cache)
        rest = [model(tokens[:, t : t + 1], cache=cache) for t in range(5, L)]  # positions carry on by themselves
        close(model(tokens, position_ids=ids), torch.cat([first, *rest], dim=1))
        assert cache.seen.end == 100 + L


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name, attention, settings", KINDS)
def test_padded_pieces_equal_the_full_pass(name, attention, settings, dtype, side):
    probe, mask = subject(name, attention), masks(side)
    model, tokens = probe.model(dtype, **settings), probe.tokens(length=L)
    full = model(tokens, attention_mask=mask)
    for pieces in splits(L, dtype):
        close(full[mask], stepwise(model, tokens, pieces, attention_mask=mask)[mask])
    # After a padded prompt, new tokens are real ones and carry on where each row ended.
    longer, more = torch.cat([tokens, probe.tokens(length=4, name="more")], dim=1), torch.ones(3, 4, dtype=torch.bool)
    whole = torch.cat([mask, more], dim=1)
    cache = Cache()
    model(tokens, attention_mask=mask, cache=cache)
    steps = [model(longer[:, t : t + 1], cache=cache) for t in range(L, L + 4)]
    close(model(longer, attention_mask=whole)[:, L:], torch.cat(steps, dim=1))


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_packed_pieces_equal_the_full_pass(name):
    probe = subject(name)
    model, tokens = probe.model(), probe.tokens(2, length=L)
    ids = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6], [0, 1, 0, 1, 2, 3, 4, 5, 6, 0, 1, 2]])
    documents = torch.tensor([[0] * 5 + [1] * 7, [0] * 2 + [1] * 7 + [2] * 3])
    full = model(tokens, at=Positions.given(ids, causal=True, documents=documents))
    for pieces in splits(L):
        cache, start, answers = Cache(), 0, []
        for piece in pieces:
            part = slice(start, start + piece)
            at = Positions.given(ids[:, part], causal=True, documents=documents[:, part])
            answers.append(model(tokens[:, part], at=at, cache=cache))
            start += piece
        close(full, torch.cat(answers, dim=1))
    cache = Cache()
    at = Positions.given(ids[:, :10], causal=True, documents=documents[:, :10])
    model(tokens[:, :10], at=at, cache=cache)  # the last document goes on by itself
    close(full[:, 10:], model(tokens[:, 10:], cache=cache))


@torch.no_grad()
@pytest.mark.parametrize("shape", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("name, attention, settings", KINDS)
def test_reordered_rows_go_on_as_the_rows_they_were(name, attention, settings, padded, shape):
    """Beam search: rows are repeated, left out and exchanged between steps."""
    if shape == "encoder-decoder" and name == "alibi" and attention == "linear":
        pytest.skip("refused: its encoder looks both ways")
    probe, order = subject(name, attention, shape), torch.tensor([2, 0, 0, 1])
    model, tokens, next_token = probe.model(**settings), probe.tokens(length=6), probe.tokens(4, 1, name="next")
    mask = masks("left")[:, 3:9] if padded else torch.ones(3, 6, dtype=torch.bool)
    source = {} if shape == "decoder" else {"source_ids": probe.tokens(3, 5, name="source")}
    cache = Cache()
    model(tokens, attention_mask=mask if padded else None, cache=cache, **source)
    cache.reorder(order)
    step = model(next_token, cache=cache)
    full = model(torch.cat([tokens[order], next_token], dim=1),
                 attention_mask=torch.cat([mask[order], torch.ones(4, 1, dtype=torch.bool)], dim=1),
                 **{key: value[order] for key, value in source.items()})
    close(full[:, -1:], step)


@torch.no_grad()
def test_one_row_becomes_several_beams():
    probe = subject("rope")
    model, tokens, beams = probe.model(), probe.tokens(1, 6), probe.tokens(3, 1, name="beams")
    cache = Cache()
    model(tokens, cache=cache)
    cache.reorder(torch.zeros(3, dtype=torch.long))
    close(model(torch.cat([tokens.expand(3, -1), beams], dim=1))[:, -1:], model(beams, cache=cache))


@torch.no_grad()
@pytest.mark.parametrize("shape", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize("prompt", [1, 5, 9])
def test_a_table_that_ends_is_refused_and_not_wrapped_around(prompt, shape):
    probe = subject("learned", shape=shape, max_length=9)
    model, tokens = probe.model(), probe.tokens(2, 10)
    more = {} if shape == "decoder" else {"source_ids": probe.tokens(2, 4, name="source")}
    full = model(tokens[:, :9], **more)
    cache = Cache()
    answers = [model(tokens[:, :prompt], cache=cache, **more)]
    answers += [model(tokens[:, t : t + 1], cache=cache) for t in range(prompt, 9)]
    close(full, torch.cat(answers, dim=1))
    with pytest.raises(ContextLengthExceeded, match="'learned' ends at 9 positions and was given 10"):
        model(tokens[:, 9:], cache=cache)


@torch.no_grad()
def test_padding_does_not_use_up_the_table():
    probe = subject("learned", max_length=9)
    model, tokens = probe.model(), probe.tokens(2, 8)
    cache, mask = Cache(), torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1, 1, 1]])
    model(tokens, attention_mask=mask, cache=cache)
    for _ in range(4):  # 5 + 4 real tokens in the longer row
        model(tokens[:, :1], cache=cache)
    with pytest.raises(ContextLengthExceeded, match="was given 10"):
        model(tokens[:, :1], cache=cache)


@torch.no_grad()
@pytest.mark.parametrize("shape", ["encoder", "decoder"])
def test_padding_on_the_right_does_not_use_up_the_table_either(shape):
    """As when all rows are padded to one width: 9 and 4 real tokens of 12, and a table of 9."""
    probe = subject("learned", shape=shape, max_length=9)
    model, tokens = probe.model(), probe.tokens(2, 12)
    mask = torch.arange(12) < torch.tensor([[9], [4]])
    padded = model(tokens, attention_mask=mask)
    for row, real in zip(range(2), (9, 4), strict=True):
        close(model(tokens[row : row + 1, :real])[0], padded[row, :real])
    with pytest.raises(ContextLengthExceeded, match="was given 10"):
        model(tokens, attention_mask=torch.arange(12) < torch.tensor([[10], [4]]))


def test_what_is_kept_grows_by_doubling_and_stays_as_it_was():
    layer, keys, stores = LayerCache(), torch.randn(2, 3, 300, 4), set()
    for t in range(300):
        kept, values = layer.append(keys[:, :, t : t + 1], -keys[:, :, t : t + 1])
        stores.add(kept.untyped_storage().data_ptr())
        assert kept.shape[2] == t + 1
    assert torch.equal(kept, keys) and torch.equal(values, -keys)
    assert len(stores) <= 6


@torch.no_grad()
def test_steps_of_linear_attention_keep_sums_of_one_size():
    probe, cache = subject("rope", "linear"), Cache()
    model, sizes = probe.model(), set()
    for token in probe.tokens(2, 8).unbind(1):
        model(token[:, None], cache=cache)
        sizes.add(sum(sums.values.numel() for sums in cache.layer(0).sums))
    assert len(sizes) == 1


def test_a_model_that_looks_both_ways_has_no_cache():
    probe = subject("rope", shape="encoder")
    with pytest.raises(UserError, match="an encoder has no cache"):
        probe.model()(probe.tokens(), cache=Cache())


@torch.no_grad()
def test_linear_attention_decodes_no_packed_documents():
    probe = subject("rope", "linear")
    ids, documents = torch.tensor([[0, 1, 0, 1]]), torch.tensor([[0, 0, 1, 1]])
    with pytest.raises(UserError, match="decodes one document a row"):
        probe.model()(probe.tokens(1, 4), at=Positions.given(ids, causal=True, documents=documents), cache=Cache())
