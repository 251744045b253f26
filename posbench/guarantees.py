"""Guarantees that every encoding owes the models around it, whatever its method.

Models have two layers, a head for each token, and float64 weights where not stated otherwise.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import re
from dataclasses import replace

import torch
from torch import Tensor, nn

from posbench.contract import check
from posbench.encoding import Encoding, Paper, overrides
from posbench.errors import ContextLengthExceeded
from posbench.positions import Positions
from posbench.probe import (
    SEED,
    VOCABULARY,
    ContractError,
    Layer,
    Subject,
    global_state,
    largest,
    numbers,
    relative,
    stirred_state,
)
from posbench.seeds import generator

ARXIV = r"\d{4}\.\d{4,5}"


@check("P0", "declaration: paper, options, documentation", tolerance=0)
def declaration(subject: Subject) -> float:
    """The class says what it follows, and its Config is frozen, with a meaning for each option."""
    cls = subject.encoding_class
    paper = getattr(cls, "paper", None)
    if not (isinstance(paper, Paper) and paper.title and paper.equations):
        raise ContractError("cites nothing: set paper = Paper(title=..., equations=..., arxiv='YYMM.NNNNN')")
    if paper.arxiv and not re.fullmatch(ARXIV, paper.arxiv):
        raise ContractError(f"arxiv = {paper.arxiv!r} is no id such as '2104.09864': leave it out if unpublished")
    if not (dataclasses.is_dataclass(cls.Config) and cls.Config.__dataclass_params__.frozen):  # type: ignore[attr-defined]
        raise ContractError("Config is no frozen dataclass: decorate it with @dataclass(frozen=True, kw_only=True)")
    for field in dataclasses.fields(cls.Config):
        if not field.metadata.get("meaning"):
            raise ContractError(f"option '{field.name}' has no meaning: make it option(DEFAULT, 'meaning with unit')")
    if not inspect.getdoc(cls) or inspect.getdoc(cls) == inspect.getdoc(Encoding):
        raise ContractError("the class has no docstring")
    return 0.0


@check("P6", "no look into the future", shapes=("decoder",), tolerance=0)
def causality(subject: Subject) -> float:
    """Other tokens behind i leave the outputs up to i alike bit by bit; no gradient flows from i to a later token."""
    model, tokens = subject.model(), subject.tokens()
    other = (tokens + 1) % VOCABULARY
    x = subject.inputs().requires_grad_()
    layer = subject.layer()
    y, before = layer(x, subject.at(subject.length)), model(tokens)
    errors = []
    for i in (0, 1, subject.length // 2, subject.length - 2):
        after = model(torch.cat([tokens[:, : i + 1], other[:, i + 1 :]], dim=1))
        errors.append(largest(before[:, : i + 1], after[:, : i + 1]))
        gradient, = torch.autograd.grad(y[:, i].sum(), x, retain_graph=True)
        errors.append(gradient[:, i + 1 :].abs().max().item())
    return max(errors)


@check("P6b", "outputs do not depend on the total length", shapes=("decoder",), claim="cached", tolerance=1e-6)
def length_blindness(subject: Subject) -> float:
    """f(X)[:t] = f(X[:t]), X being of twice the trained length."""
    model, tokens = subject.model(), subject.tokens(length=subject.long)
    full = model(tokens)
    return max(relative(full[:, :t], model(tokens[:, :t])) for t in (1, 7, subject.length - 1, subject.long - 1))


@check("P7", "padding and packing change nothing", tolerance=1e-6)
def padding(subject: Subject) -> float:
    """A row gives the same logits alone, padded on either side, and packed; beyond the trained length too."""
    model, width = subject.model(), subject.long
    lengths = (width, width - 3, 2, 1)
    rows = [subject.tokens(1, n, name=f"row {n}") for n in lengths]
    alone = [model(row) for row in rows]
    errors = []
    for left in (False, True):
        batch, mask = subject.tokens(len(rows), width, name="padding"), torch.zeros(len(rows), width, dtype=torch.bool)
        places = [slice(width - n, width) if left else slice(n) for n in lengths]
        for index, (row, place) in enumerate(zip(rows, places, strict=True)):
            batch[index, place], mask[index, place] = row[0], True
        padded = model(batch, attention_mask=mask)
        errors += [relative(one[0], padded[i, place]) for i, (one, place) in enumerate(zip(alone, places, strict=True))]
    first, second = rows[1], rows[2]
    ids = torch.cat([torch.arange(row.shape[1]) for row in (first, second)])[None]
    documents = torch.tensor([[0] * first.shape[1] + [1] * second.shape[1]])
    at = Positions.given(ids, causal=subject.causal, documents=documents)
    packed = model(torch.cat([first, second], dim=1), at=at)
    errors.append(relative(torch.cat(alone[1:3], dim=1), packed))
    return max(errors)


@check("P8", "rows of a batch are independent", tolerance=0)
def batch_independence(subject: Subject) -> float:
    """Reordered rows give reordered outputs, and other rows do not matter, bit by bit at the same batch size."""
    model, tokens = subject.model(), subject.tokens(4)
    full, order = model(tokens), torch.tensor([2, 0, 3, 1])
    others = tokens.clone()
    others[1:] = subject.tokens(3, name="mates")
    if relative(full[:1], model(tokens[:1])) > 1e-5:
        raise ContractError("a row alone differs from the same row in a batch")
    return max(largest(full[order], model(tokens[order])), largest(full[0], model(others)[0]))


@check("P10", "no randomness and no side effects", tolerance=0)
def determinism(subject: Subject) -> float:
    """Two evaluations are alike; inputs, random streams and global switches stay as they were."""
    encoding, at = subject.encoding(torch.float32), subject.at(subject.length)
    model, tokens = subject.model(torch.float32), subject.tokens()
    before = stirred_state()
    first, again = answers(encoding, at), answers(encoding, at)
    outputs = model(tokens), model(tokens)
    if global_state() != before:
        raise ContractError("evaluation draws from a global random stream, or changes a global switch")
    return max(largest(*outputs), difference(first, again))


@check("P13", "no state between calls, casts and reloads", tolerance=0)
def statelessness(subject: Subject) -> float:
    """A short input after a long one, a cast to bfloat16 and back, and loading into an empty copy change no answer.

    The empty copy is built on the meta device, as large models are: buffers outside the state dict would be garbage.
    """
    encoding = subject.encoding(torch.float32)
    short, long = subject.at(subject.length), subject.at(4 * subject.length if subject.limit is None else subject.limit)
    first = answers(encoding, short)
    answers(encoding, long)
    if difference(first, answers(encoding, short)):
        raise ContractError("a long input changes the answer to a later short one")
    cast = copy.deepcopy(encoding).to(torch.bfloat16).to(torch.float32)
    with torch.no_grad():
        for rounded, exact in zip(cast.parameters(), encoding.parameters(), strict=True):
            rounded.copy_(exact)
    if difference(first, answers(cast, short)):
        raise ContractError("a cast of the model to bfloat16 damages a fixed table: form it in float32 when it is used")
    with torch.device("meta"):
        empty = subject.bare()
    empty = empty.to_empty(device="cpu").eval()
    with torch.no_grad():
        for tensor in (*empty.parameters(), *empty.buffers()):
            tensor.fill_(float("nan") if tensor.is_floating_point() else 0)
    empty.load_state_dict(encoding.state_dict())
    if difference(first, answers(empty, short)):
        raise ContractError("loading weights loses a table: make it a persistent buffer, or form it when it is used")
    return 0.0


@check("P15", "defined beyond the trained length", claim="beyond", tolerance=0)
def beyond(subject: Subject) -> float:
    """0 when outputs are finite at four times the trained length, 1 when a typed error refuses the first one beyond."""
    model = subject.model(torch.float32)
    last = subject.limit or subject.dimensions.length
    tokens = subject.tokens(1, 8)
    if not model(tokens, at=subject.at(8, last - 8)).isfinite().all():
        raise ContractError("outputs are not finite within the trained length")
    try:
        for n in (last + 1, 4 * last):
            if not model(tokens, at=subject.at(8, n - 8)).isfinite().all():
                raise ContractError(f"outputs are not finite at position {n - 1}")
        if subject.limit is None and not model(subject.tokens(1, 4 * last)).isfinite().all():
            raise ContractError(f"outputs are not finite with {4 * last} tokens")
    except ContextLengthExceeded as error:
        if (error.limit, error.got) != (subject.limit, last + 1):
            told = f"refuses {error.got} positions beyond {error.limit}, but max_length is {subject.limit}"
            raise ContractError(told) from error
        return 1.0
    return 0.0


@check("P16", "gradients are finite, complete and right", tolerance=0)
def gradients(subject: Subject) -> float:
    """With 1, 2, T and 4T tokens gradients are finite; all parameters get one; finite differences agree in float64."""
    model = subject.model(torch.float32)
    for n in (1, 2, subject.length, 4 * subject.length):
        if subject.fits(n):
            y = model(subject.tokens(length=n))
            (y * numbers(*y.shape, name="cotangent", dtype=torch.float32)).sum().backward()
            bad = [name for name, p in model.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
            if bad:
                raise ContractError(f"the gradient of {bad[0]} is not finite with {n} tokens")
    dead = [name for name, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
    if dead:
        raise ContractError(f"no gradient reaches {dead[0]}: a parameter without use")
    return differences(subject)


def differences(subject: Subject) -> float:
    """Gradients of the layer's output to its input and to the encoding's parameters, against finite differences."""
    layer = Layer(subject.encoding(dimensions=subject.narrow()))
    names, values = zip(*layer.named_parameters(), strict=True) if any(True for _ in layer.parameters()) else ((), ())
    at = subject.at(5)
    # A hook that answers in float32, which the interface allows, limits finite differences to coarse steps.
    told = answers(layer.encoding, at, torch.float64).values()
    coarse = any(answer.requires_grad and answer.dtype != torch.float64 for answer in told)
    eps, atol, rtol = (1e-2, 1e-2, 1e-2) if coarse else (1e-6, 1e-6, 1e-4)

    def f(x: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x, replace(at)))

    x = numbers(1, 5, layer.dimensions.width, name="differences").requires_grad_()
    leaves = [value.detach().clone().requires_grad_() for value in values]
    torch.autograd.gradcheck(f, (x, *leaves), fast_mode=True, eps=eps, atol=atol, rtol=rtol)
    return 0.0


@check("P17", "number of parameters as the formula says", tolerance=0)
def parameters(subject: Subject) -> float:
    """The difference between parameter_count and the parameters that are there."""
    said = subject.encoding_class.parameter_count(subject.dimensions, subject.bare().config)
    there = sum(p.numel() for p in subject.model().encodings.parameters())
    if said != there:
        raise ContractError(f"parameter_count says {said}, the model has {there}")
    return 0.0


@check("P24", "nothing else in the model changes", tolerance=0)
def exclusiveness(subject: Subject) -> float:
    """All other weights have the names and first values, and dropout the masks, of a model without encoding."""
    before = stirred_state()
    encoding = subject.bare()
    if global_state() != before:
        raise ContractError("the constructor draws from a global random stream or changes a global switch: create "
                            "tensors with torch.empty, modules with torch.nn.utils.skip_init, and fill in `initial`")
    for name, tensor in encoding.state_dict().items():
        encoding.initial(name, torch.empty(tensor.shape), generator(SEED, name))
    if global_state() != before:
        raise ContractError("`initial` draws from a global random stream: pass it the generator that it is given")
    ours, plain = (subject.model(torch.float32, cls, dropout=0.25, attention_dropout=0.25)
                   for cls in (None, Encoding))
    weights, expected = shared(ours), shared(plain)
    if weights.keys() != expected.keys():
        raise ContractError(f"the model has other parts: {sorted(weights.keys() ^ expected.keys())}")
    states = []
    for model in (ours, plain):
        torch.manual_seed(SEED)
        model.train()(subject.tokens())
        states.append(torch.get_rng_state())
    if not torch.equal(*states):
        raise ContractError("training draws other random numbers than without encoding: dropout is no longer paired")
    return max(largest(weights[name], expected[name]) for name in weights)


def shared(model: nn.Module) -> dict[str, Tensor]:
    """What belongs to no encoding."""
    return {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("encodings.")}


def answers(encoding: Encoding, at: Positions, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """What each hook that the class defines answers to fixed inputs; no hook may change its inputs."""
    at = replace(at)
    heads, d, width = encoding.dimensions.heads, encoding.dimensions.head_width, encoding.dimensions.width
    x = numbers(1, at.queries, width, name="x", dtype=dtype)
    q, k = (numbers(1, heads, n, d, name=name, dtype=dtype) for name, n in (("q", at.queries), ("k", at.length)))
    weights = numbers(1, heads, at.queries, at.length, name="weights", dtype=dtype).softmax(-1)
    distance = torch.arange(-at.length, at.length)
    inputs = (x, q, k, weights, distance, at.q, at.k)
    copies = [tensor.clone() for tensor in inputs]
    calls = {
        "positions": lambda: encoding.positions(at).q,
        "embed": lambda: encoding.embed(x, at),
        "rotate": lambda: torch.stack([encoding.rotate(q if side == "query" else k, at, side)
                                       for side in ("query", "key", "value", "output")]),
        "scores": lambda: encoding.scores(q, k, at),
        "bias": lambda: encoding.bias(at),
        "offset_bias": lambda: encoding.offset_bias(distance),
        "values": lambda: encoding.values(weights, at),
        "decay": lambda: encoding.decay(),
    }
    told = {}
    for hook, call in calls.items():
        if overrides(encoding, hook):
            told[hook] = call()
            if any(not torch.equal(tensor, kept) for tensor, kept in zip(inputs, copies, strict=True)):
                raise ContractError(f"{hook} changes its input in place")
    return told


def difference(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    """The largest difference between two sets of answers; infinite where shapes, or numbers and NaN, disagree."""
    errors = [0.0]
    for hook, a in first.items():
        b = second[hook]
        alike = a.shape == b.shape and torch.equal(a.isfinite(), b.isfinite())
        errors.append(largest(a.nan_to_num(), b.nan_to_num()) if alike else float("inf"))
    return max(errors)
