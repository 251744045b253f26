"""Encoder-decoder: what cross attention sees, what an encoding may do there, and weights that no encoding changes."""

from __future__ import annotations

import pytest
import torch

from posbench.attention import dense
from posbench.cache import Cache
from posbench.config import ModelConfig, build
from posbench.encoding import Encoding
from posbench.errors import ContextLengthExceeded, UserError
from posbench.options import build_options
from posbench.positions import Positions
from posbench.probe import Subject
from posbench.registry import ENCODINGS
from posbench.transformer import Head, Transformer

NAMES = ["nope", "sinusoidal", "learned", "shaw", "t5", "rope", "alibi", "placebo"]
ATTENTION = ["shaw", "t5", "rope", "alibi", "placebo"]
SETTINGS = {"shape": "encoder-decoder", "width": 32, "heads": 2, "layers": 2, "feedforward": 48, "dropout": 0.0}


def subject(name: str, attention: str = "softmax") -> Subject:
    cls = ENCODINGS.load(name).value
    return Subject(cls, build_options(name, cls, {}), "encoder-decoder", attention)


def model_of(name: str, *, head: Head | None = None, vocabulary: int = 17, **settings) -> Transformer:
    cls = ENCODINGS.load(name).value
    model = Transformer(ModelConfig(**{**SETTINGS, **settings}), cls, vocabulary=vocabulary, length=32,
                        head=head or Head(kind="token", outputs=vocabulary))
    model.initialise(1)
    return model.eval()


def tokens(batch: int = 2, length: int = 6, seed: int = 0) -> torch.Tensor:
    return torch.randint(17, (batch, length), generator=torch.Generator().manual_seed(seed))


def shared(model: Transformer) -> dict[str, torch.Tensor]:
    return {name: value for name, value in model.state_dict().items() if not name.startswith("encodings.")}


# The exclusive guarantee


@pytest.mark.parametrize("settings", [{}, {"norm": "post"}, {"tied_embeddings": True}], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_shared_weights_and_dropout_are_the_same_whatever_the_encoding(name, settings):
    plain, ours = model_of("nope", **settings), model_of(name, **settings)
    assert shared(plain).keys() == shared(ours).keys()
    assert all(torch.equal(value, shared(ours)[key]) for key, value in shared(plain).items())
    states = []
    for model in (model_of(name, dropout=0.1, attention_dropout=0.1, **settings).train() for name in ("nope", name)):
        torch.manual_seed(3)
        model(tokens(), source_ids=tokens(2, 5))
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_the_decoder_has_the_weights_that_it_has_alone():
    """Names and values: a decoder is an encoder-decoder without its source."""
    pair, alone = shared(model_of("rope")), shared(model_of("rope", shape="decoder"))
    assert alone.keys() < pair.keys()
    assert all(torch.equal(value, pair[key]) for key, value in alone.items())
    added = {key.split(".")[0] if "cross" not in key else "cross" for key in pair.keys() - alone.keys()}
    assert added == {"source_blocks", "source_norm", "cross"}


@pytest.mark.parametrize("name", NAMES)
def test_each_stack_has_its_own_instances_by_scope(name):
    model = model_of(name)
    each = 2 if name == "shaw" else 1
    assert [e.dimensions.causal for e in model.encodings] == [True] * each + [False] * each
    assert model.encoding(1) is model.encodings[each - 1] and model.encoding(1, "source") is model.encodings[-1]


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("name", ATTENTION)
def test_every_parameter_gets_a_gradient(name, cross):
    model = model_of(name, cross_encoding=cross, initial_std=0.2).train()
    model(tokens(), source_ids=tokens(2, 5, 1)).square().sum().backward()
    assert not [key for key, p in model.named_parameters() if p.grad is None or not p.grad.any()]


# Cross attention


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("attention", ["softmax", "linear"])
def test_encoder_outputs_permuted_with_their_mask_change_nothing(name, attention):
    """No position acts between target and source: T5's bias, for one, was once computed there by mistake."""
    if attention == "linear" and name not in ("nope", "sinusoidal", "learned", "rope"):
        pytest.skip("refused")
    probe = subject(name, attention)
    model, ids = probe.model(), probe.tokens(2, 5)
    memory = model.encode(probe.tokens(2, 7, name="source"), torch.tensor([[1] * 7, [1] * 4 + [0] * 3]))
    order = torch.tensor([4, 2, 6, 0, 5, 1, 3])
    moved = type(memory)(memory.states[:, order], Positions.given(memory.at.k, keys=memory.at.keys[:, order]))
    torch.testing.assert_close(model(ids, memory=memory), model(ids, memory=moved), atol=1e-10, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("name", ATTENTION[:4])
def test_an_encoding_that_acts_across_by_option_sees_both_positions(name):
    """Named as an ablation: cross attention equals the reference with the encoding's own bidirectional instance."""
    probe = subject(name)
    model, plain = probe.model(cross_encoding=True), probe.model()
    ids, source = probe.tokens(2, 5), probe.tokens(2, 7, name="source")
    assert not torch.allclose(model(ids, source_ids=source), plain(ids, source_ids=source))
    assert not model.encoding(0, "cross").dimensions.causal
    assert len(model.encodings) == len(plain.encodings) // 2 * 3
    memory, block = model.encode(source), model.blocks[0].cross
    seen = model._source(Positions.first(5, causal=True), memory, None)
    x = torch.randn(2, 5, 32, dtype=torch.float64)
    q = block.q(x).view(2, 5, 2, 16).transpose(1, 2)
    k, v = block.kv(memory.states).view(2, 7, 2, 2, 16).permute(2, 0, 3, 1, 4)
    encoding = model.encoding(0, "cross")
    at = Positions(q=torch.arange(5)[None], k=torch.arange(7)[None], end=7)
    y = dense(encoding.rotate(q, at, "query"), encoding.rotate(k, at, "key"), v, encoding, at)
    torch.testing.assert_close(block(x, seen, encoding), block.out(y.transpose(1, 2).flatten(2)))


@torch.no_grad()
def test_a_class_that_acts_across_does_so_without_the_option():
    cls = type("Across", (ENCODINGS.load("t5").value,), {"in_cross": True})
    model = Transformer(ModelConfig(**SETTINGS), cls, vocabulary=17, length=32, head=Head(kind="token", outputs=17))
    assert len(model.encodings) == 3 and not model.encodings[2].dimensions.causal


@torch.no_grad()
@pytest.mark.parametrize("attention", ["softmax", "linear"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["learned", "rope", "nope"])
def test_padding_of_source_and_target_changes_nothing(name, side, attention):
    probe = subject(name, attention)
    model, ids, source, filler = probe.model(), probe.tokens(1, 5), probe.tokens(1, 6, name="s"), probe.tokens(1, 4)
    alone = model(ids, source_ids=source)

    def padded(row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        real, hidden = torch.ones_like(row), torch.zeros_like(filler)
        parts = ((filler, row), (hidden, real)) if side == "left" else ((row, filler), (real, hidden))
        return torch.cat(parts[0], 1), torch.cat(parts[1], 1)

    (many, mask), (text, text_mask) = padded(ids), padded(source)
    answer = model(many, mask, source_ids=text, source_mask=text_mask)
    torch.testing.assert_close(answer[mask.bool()][None], alone, atol=1e-10, rtol=0)
    empty = model(ids, source_ids=source, source_mask=torch.zeros_like(source))
    assert empty.isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_the_target_sees_all_of_the_source_and_nothing_of_its_own_future(name):
    probe = subject(name)
    model, ids, source = probe.model(), probe.tokens(2, 6), probe.tokens(2, 7, name="source")
    before = model(ids, source_ids=source)
    for i in (0, 2, 4):
        other = torch.cat([ids[:, : i + 1], (ids[:, i + 1 :] + 1) % 17], 1)
        after = model(other, source_ids=source)
        assert torch.equal(before[:, : i + 1], after[:, : i + 1]) and not torch.equal(before, after)
    changed = source.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 17
    assert not torch.isclose(model(ids, source_ids=changed)[:, 0], before[:, 0]).all()


@torch.no_grad()
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_steps_equal_the_full_pass_and_read_the_source_once(name, cross, norm, monkeypatch):
    if cross and name not in ATTENTION:
        pytest.skip("refused")
    probe = subject(name)
    model, ids, source = probe.model(cross_encoding=cross, norm=norm), probe.tokens(2, 9), probe.tokens(2, 7, name="s")
    mask = torch.tensor([[1] * 7, [0] * 3 + [1] * 4])
    full = model(ids, source_ids=source, source_mask=mask)
    calls = []
    for block in (*model.source_blocks, *(part.cross.kv for part in model.blocks)):
        block.register_forward_hook(lambda *given: calls.append(given[0]))
    cache = Cache()
    rows = [model(ids[:, :4], source_ids=source, source_mask=mask, cache=cache)]
    rows += [model(ids[:, t : t + 1], cache=cache) for t in range(4, 9)]
    torch.testing.assert_close(full, torch.cat(rows, 1), atol=1e-10, rtol=0)
    assert len(calls) == 4 == len(set(calls))


def test_weights_tied_to_the_embeddings():
    model, plain = model_of("rope", tied_embeddings=True), model_of("rope")
    assert "head.weight" not in model.state_dict() and torch.equal(model.tokens.weight, plain.tokens.weight)
    ids, source = tokens(), tokens(2, 5, 1)
    x = model.hidden(ids, None, Positions.first(6, causal=True), model.encode(source))
    torch.testing.assert_close(model(ids, source_ids=source), x @ model.tokens.weight.T + model.head.bias)
    model(ids, source_ids=source).sum().backward()
    assert model.tokens.weight.grad.abs().sum(1).bool().all()  # every row, also of tokens that were not read
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in plain.parameters()) - 17 * 32


# What does not fit together


@pytest.mark.parametrize("values, told", [
    ({"cross_encoding": True}, "cross_encoding asks for cross attention, which shape 'encoder' has not"),
    ({"attention": "linear", "attention_dropout": 0.1}, "linear attention forms no weights to drop"),
    ({"features": 64}, "features is a setting of attention 'linear'"),
    ({"attention": "linear", "feature_map": "elu", "features": 64}, "features is a setting of attention 'linear'"),
    ({"attention": "linear", "features": 100}, "features 100 is no multiple of the head width 64"),
])
def test_settings_without_a_meaning_are_refused_in_one_line(values, told):
    with pytest.raises(UserError, match=told) as error:
        build(ModelConfig, values, where="model")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["nope", "sinusoidal", "learned"])
def test_an_encoding_that_does_nothing_in_attention_cannot_act_across(name):
    with pytest.raises(UserError, match=f"encoding '{name}' does nothing in attention"):
        model_of(name, cross_encoding=True)


def test_causal_encodings_and_heads_that_do_not_fit():
    cls = type("Backward", (Encoding,), {"needs_causal": True})
    with pytest.raises(UserError, match="'backward' is for causal models, and shape 'encoder-decoder'"):
        Transformer(ModelConfig(**SETTINGS), cls, vocabulary=5, length=8, head=Head(kind="token", outputs=5))
    with pytest.raises(UserError, match="tied_embeddings asks for a head over the vocabulary of 17 tokens"):
        model_of("rope", tied_embeddings=True, head=Head(kind="token", outputs=3))


def test_a_source_is_asked_for_and_refused_where_it_has_no_place():
    with pytest.raises(UserError, match="needs a source"):
        model_of("rope")(tokens())
    with pytest.raises(UserError, match="reads no source"):
        model_of("rope", shape="decoder")(tokens(), source_ids=tokens())


def test_a_source_beyond_the_table_is_refused():
    with pytest.raises(ContextLengthExceeded, match="'learned' ends at 32 positions and was given 33"):
        model_of("learned")(tokens(), source_ids=tokens(2, 33))


@pytest.mark.parametrize("settings", [{}, {"attention": "linear"}], ids=str)
def test_a_model_built_on_the_meta_device_and_loaded_is_the_same(settings):
    model = model_of("rope", tied_embeddings=True, **settings)
    with torch.device("meta"):
        empty = Transformer(model.model, type(model.encoding(0)), vocabulary=17, length=32,
                            head=Head(kind="token", outputs=17))
    empty = empty.to_empty(device="cpu").eval()
    with torch.no_grad():
        for tensor in (*empty.parameters(), *empty.buffers()):
            tensor.fill_(float("nan") if tensor.is_floating_point() else 0)
    empty.load_state_dict(model.state_dict())
    assert torch.equal(model(tokens(), source_ids=tokens()), empty(tokens(), source_ids=tokens()))
