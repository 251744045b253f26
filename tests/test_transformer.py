"""The template: the same weights whatever the encoding, padding that changes nothing, models that survive a move."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from posbench.config import ModelConfig
from posbench.encoding import Encoding
from posbench.errors import UserError
from posbench.options import build_options
from posbench.positions import Positions
from posbench.probe import filled
from posbench.registry import ENCODINGS
from posbench.transformer import Head, SequenceHead, Transformer

NAMES = ["nope", "sinusoidal", "learned", "shaw", "t5", "rope", "alibi", "placebo"]
TOKEN = Head(kind="token", outputs=3)


def model_of(name: str = "rope", *, head: Head = TOKEN, seed: int = 1, vocabulary: int = 17, length: int = 32,
             **settings) -> Transformer:
    cls = ENCODINGS.load(name).value
    config = ModelConfig(**{"width": 32, "heads": 4, "layers": 2, "feedforward": 48, "dropout": 0.0, **settings})
    model = Transformer(config, cls, build_options(name, cls, {}), vocabulary=vocabulary, length=length, head=head)
    model.initialise(seed)
    return model.eval()


def tokens(batch: int = 3, length: int = 9, vocabulary: int = 17, seed: int = 0) -> torch.Tensor:
    return torch.randint(vocabulary, (batch, length), generator=torch.Generator().manual_seed(seed))


def shared(model: Transformer) -> dict[str, torch.Tensor]:
    return {name: value for name, value in model.state_dict().items() if not name.startswith("encodings.")}


# The exclusive guarantee: an encoding changes nothing but positions.


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("shape", ["encoder", "decoder"])
@pytest.mark.parametrize("name", NAMES)
def test_shared_weights_are_bit_equal_whatever_the_encoding(name, shape, norm):
    head = Head(kind="classification", outputs=5)
    plain = shared(model_of("nope", shape=shape, norm=norm, head=head))
    ours = shared(model_of(name, shape=shape, norm=norm, head=head))
    assert plain.keys() == ours.keys()
    assert all(torch.equal(plain[key], ours[key]) for key in plain)


def test_first_values_depend_on_seed_and_name_and_not_on_the_global_stream():
    torch.manual_seed(1)
    first = shared(model_of(seed=1))
    torch.manual_seed(2)
    again, other = shared(model_of(seed=1)), shared(model_of(seed=2))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["blocks.0.attention.qkv.weight"], other["blocks.0.attention.qkv.weight"])
    assert not torch.equal(first["blocks.0.attention.qkv.weight"], first["blocks.1.attention.qkv.weight"])


def test_first_values_have_the_stated_scales():
    model = model_of(width=128, feedforward=256, vocabulary=500, initial_std=0.03, embedding_std=0.5)
    state = {key: value.detach() for key, value in model.state_dict().items()}
    assert float(state["tokens.weight"].std()) == pytest.approx(0.5, rel=0.02)
    assert float(state["blocks.0.attention.qkv.weight"].std()) == pytest.approx(0.03, rel=0.02)
    assert not state["blocks.0.attention.qkv.bias"].any()
    assert bool((state["norm.weight"] == 1).all()) and not state["norm.bias"].any()


@pytest.mark.parametrize("name", NAMES)
def test_dropout_draws_the_same_numbers_for_every_encoding(name):
    states = []
    for encoding in ("nope", name):
        model = model_of(encoding, dropout=0.1, attention_dropout=0.1).train()
        torch.manual_seed(3)
        model(tokens())
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_layers_share_an_encoding_or_have_their_own_as_its_scope_says():
    assert len(model_of("t5", layers=3).encodings) == 1
    shaw = model_of("shaw", layers=3)
    assert len(shaw.encodings) == 3 and not torch.equal(shaw.encodings[0].key_table, shaw.encodings[1].key_table)
    assert shaw.encoding(2) is shaw.encodings[2] and model_of("t5").encoding(1) is not None


# Padding and pooling


@pytest.mark.parametrize("pad", [0, 1, 16])
@pytest.mark.parametrize("name", NAMES)
def test_the_padding_id_does_not_matter(name, pad):
    model, row = model_of(name), tokens(1, 5)
    padded = torch.cat([row, torch.full((1, 4), pad)], dim=1)
    mask = torch.tensor([[1] * 5 + [0] * 4])
    torch.testing.assert_close(model(padded, attention_mask=mask)[:, :5], model(row))


@pytest.mark.parametrize("kind", ["classification", "regression"])
@pytest.mark.parametrize("pool", ["cls", "mean", "last"])
@pytest.mark.parametrize("shape", ["encoder", "decoder"])
@pytest.mark.parametrize("name", ["learned", "rope", "t5"])
def test_pooled_answers_do_not_depend_on_padding(name, shape, pool, kind):
    model = model_of(name, shape=shape, pool=pool, head=Head(kind=kind, outputs=4 if kind == "classification" else 1))
    with torch.no_grad():
        filled(model.encodings[0], "test")
    row, filler = tokens(1, 5), tokens(1, 3, seed=9)
    alone = model(row)
    assert alone.shape == ((1, 4) if kind == "classification" else (1,))
    right = model(torch.cat([row, filler], 1), attention_mask=torch.tensor([[1] * 5 + [0] * 3]))
    left = model(torch.cat([filler, row], 1), attention_mask=torch.tensor([[0] * 3 + [1] * 5]))
    given = model(row, at=Positions.first(5, causal=shape == "decoder"))
    for answer in (right, left, given):
        torch.testing.assert_close(answer, alone)


def test_pooling_reads_the_stated_tokens():
    x = torch.arange(24.0).view(1, 6, 4)
    at = Positions.from_mask(torch.tensor([[0, 1, 1, 1, 0, 0]]))
    for pool, expected in {"cls": x[:, 1], "last": x[:, 3], "mean": x[:, 1:4].mean(1)}.items():
        config = ModelConfig(width=4, heads=1, layers=1, feedforward=4, pool=pool)
        assert torch.equal(SequenceHead(config, 2).pooled(x, at), expected)
    empty = Positions.first(6, keys=torch.zeros(1, 6, dtype=torch.bool))
    assert not SequenceHead(ModelConfig(width=4, heads=1, pool="mean"), 2).pooled(x, empty).any()


def test_segments_are_the_first_one_by_default():
    model, row = model_of(), tokens(2, 6)
    zeros, ones = torch.zeros_like(row), torch.ones_like(row)
    assert torch.equal(model(row), model(row, token_type_ids=zeros))
    assert not torch.allclose(model(row), model(row, token_type_ids=ones))
    assert model_of(token_types=0)(row).isfinite().all()


def test_position_ids_are_taken_as_they_are():
    model, row = model_of("sinusoidal"), tokens(1, 6)
    ids = torch.arange(6)[None]
    torch.testing.assert_close(model(row, position_ids=ids), model(row))
    assert not torch.allclose(model(row, position_ids=ids + 20), model(row), atol=1e-4)


def test_positions_used_again_do_not_remember_older_weights():
    model, at, row = model_of("t5"), Positions.first(9), tokens()
    before = model(row, at=at)
    with torch.no_grad():
        model.encodings[0].table.normal_(0, 3)
    assert not torch.allclose(before, model(row, at=at))
    assert torch.equal(model(row, at=at), model(row))
    for _ in range(2):  # a kept table would carry a graph that is gone
        model(row, at=at).sum().backward()


# The template


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_norm_stands_where_it_is_said_to(norm):
    model = model_of("nope", norm=norm, layers=1)
    x, block, at = model.tokens(tokens()) + model.token_types.weight[0], model.blocks[0], Positions.first(9)
    encoding = model.encoding(0)
    if norm == "pre":
        x = x + block.attention(block.attention_norm(x), encoding, at)
        x = model.norm(x + block.feedforward(block.feedforward_norm(x)))
    else:
        x = model.norm(x)
        x = block.attention_norm(x + block.attention(x, encoding, at))
        x = block.feedforward_norm(x + block.feedforward(x))
    torch.testing.assert_close(model.hidden(tokens(), None, at), x)


@pytest.mark.parametrize("head, shape", [
    (Head(kind="classification", outputs=4), (3, 4)), (Head(kind="regression"), (3,)),
    (Head(kind="token", outputs=7), (3, 9, 7)),
])
def test_heads(head, shape):
    assert model_of(head=head)(tokens()).shape == shape


def test_more_heads_split_the_same_width():
    counts = {heads: sum(p.numel() for p in model_of(heads=heads).parameters()) for heads in (1, 2, 4, 8)}
    assert len(set(counts.values())) == 1


@pytest.mark.parametrize("activation, function", [("gelu", torch.nn.functional.gelu), ("relu", torch.relu)])
def test_activation(activation, function):
    part, x = model_of(activation=activation).blocks[0].feedforward, torch.randn(2, 32)
    torch.testing.assert_close(part(x), part.outer(function(part.inner(x))))


def test_a_causal_encoding_is_refused_in_an_encoder():
    cls = type("Backward", (Encoding,), {"needs_causal": True})
    config = ModelConfig(width=8, heads=2, layers=1, feedforward=8)
    with pytest.raises(UserError, match="'backward' is for causal models"):
        Transformer(config, cls, vocabulary=5, length=8, head=TOKEN)
    Transformer(replace(config, shape="decoder"), cls, vocabulary=5, length=8, head=TOKEN)


@pytest.mark.parametrize("name", NAMES)
def test_matrices_decay_and_norms_biases_and_positions_do_not(name):
    model = model_of(name, head=Head(kind="classification", outputs=3))
    decayed, kept = model.parameter_groups(0.05)
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.05, 0.0)
    names = {id(parameter): key for key, parameter in model.named_parameters()}
    groups = [[names[id(parameter)] for parameter in group["params"]] for group in (decayed, kept)]
    assert sorted(groups[0] + groups[1]) == sorted(names.values())
    assert all(key.endswith("weight") and "norm" not in key and "encodings" not in key for key in groups[0])
    assert all(key.endswith("bias") or "norm" in key or key.startswith("encodings.") for key in groups[1])


def test_matrices_inside_an_encoding_do_not_decay():
    class Inner(Encoding):
        def __init__(self, dimensions, config=None):
            super().__init__(dimensions, config)
            self.map = torch.nn.Linear(2, 2)

    config = ModelConfig(width=8, heads=2, layers=1, feedforward=8)
    model = Transformer(config, Inner, vocabulary=5, length=8, head=TOKEN)
    decayed, kept = ([id(p) for p in group["params"]] for group in model.parameter_groups(0.1))
    assert all(id(p) in kept and id(p) not in decayed for p in model.encodings.parameters())


def test_no_order_without_positions_in_one_causal_layer_but_in_two():
    """Without an encoding the mask alone tells order, and that from the second layer on."""
    for layers, blind in ((1, True), (2, False)):
        model = model_of("nope", shape="decoder", layers=layers, initial_std=0.3).double()
        row = tokens(1, 12, seed=4)
        moved = torch.cat([row[:, :11].flip(1), row[:, 11:]], dim=1)
        difference = (model(row)[:, -1] - model(moved)[:, -1]).abs().max().item()
        assert difference < 1e-12 if blind else difference > 1e-3


# Moves: casts, state dicts, the meta device


@pytest.mark.parametrize("name", NAMES)
def test_state_dict_round_trip_and_casts(name):
    model, row = model_of(name, seed=1), tokens()
    other = model_of(name, seed=2)
    assert not torch.equal(model(row), other(row))
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(row), other(row))
    # Cast, then load exact weights: what is left of the cast would be damage to a fixed table.
    other.to(torch.bfloat16).to(torch.float32)
    with torch.no_grad():
        for mine, exact in zip(other.parameters(), model.parameters(), strict=True):
            mine.copy_(exact)
    assert torch.equal(model(row), other(row))


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_model_is_close_to_float32(name):
    model, row = model_of(name, initial_std=0.1), tokens()
    exact = model(row)
    rounded = model.to(torch.bfloat16)(row).float()
    assert ((exact - rounded).abs().max() / exact.abs().max()).item() < 0.05


@pytest.mark.parametrize("name", NAMES)
def test_a_model_built_on_the_meta_device_and_loaded_is_the_same(name):
    model, row = model_of(name), tokens()
    with torch.device("meta"):
        empty = Transformer(model.model, type(model.encoding(0)), vocabulary=17, length=32, head=TOKEN)
    empty = empty.to_empty(device="cpu").eval()
    with torch.no_grad():
        for tensor in (*empty.parameters(), *empty.buffers()):
            tensor.fill_(float("nan"))
    empty.load_state_dict(model.state_dict())
    assert torch.equal(model(row), empty(row))


@pytest.mark.parametrize("name", NAMES)
def test_train_without_dropout_equals_evaluation(name):
    model, mask = model_of(name), torch.tensor([[1] * 9, [1] * 4 + [0] * 5, [1] + [0] * 8])
    trained = model.train()(tokens(), attention_mask=mask)
    with torch.no_grad():
        evaluated = model.eval()(tokens(), attention_mask=mask)
    assert trained.shape == evaluated.shape
    torch.testing.assert_close(trained[mask.bool()], evaluated[mask.bool()])


@pytest.mark.parametrize("shape", ["encoder", "decoder"])
@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_gets_a_gradient(name, shape):
    model = model_of(name, shape=shape, head=Head(kind="classification", outputs=3), pool="mean").train()
    model(tokens()).square().sum().backward()
    assert not [key for key, p in model.named_parameters() if p.grad is None or not p.grad.any()]
