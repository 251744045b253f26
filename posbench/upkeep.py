"""Upkeep: what every encoding owes as a module: what it keeps, draws and leaves alone."""

from __future__ import annotations

import contextlib
import copy
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from posbench.contract import check
from posbench.encoding import Encoding, overrides
from posbench.positions import Positions
from posbench.probe import (
    KINDS,
    SEED,
    SHAPES,
    ContractError,
    Layer,
    Subject,
    global_state,
    largest,
    numbers,
    stirred_state,
    streams,
    worst,
)
from posbench.residence import Residence
from posbench.seeds import generator


@check("P10", "no randomness and no side effects", shapes=SHAPES, kinds=KINDS, tolerance=0)
def determinism(subject: Subject) -> float:
    """Two evaluations are alike; inputs, random streams and global switches stay as they were."""
    encoding, at = subject.encoding(torch.float32), subject.at(subject.length)
    model, tokens = subject.model(torch.float32), subject.tokens()
    before = stirred_state()
    first, again = answers(encoding, at), answers(encoding, at)
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    outputs = subject.read(model, tokens), subject.read(model, tokens)
    if global_state() != before:
        raise ContractError("evaluation draws from a global random stream, or changes a global switch")
    for name, tensor in model.state_dict().items():
        if not torch.equal(tensor, kept[name]):
            raise ContractError(f"evaluation changes {name}, which belongs to the model's state")
    return worst((largest(*outputs), difference(first, again)))


@check("P13", "no state between calls, casts and reloads", tolerance=0)
def statelessness(subject: Subject) -> float:
    """What an encoding saw before, a cast to bfloat16 and back, and loading into an empty copy change no answer.

    The empty copy is built on the meta device, as large models are: buffers outside the state dict would be garbage.
    Gradients are off, as they are when a model is scored: some plugins keep things only then.
    """
    with torch.no_grad():
        encoding, at = subject.encoding(torch.float32), subject.at(subject.length)
        first = answers(encoding, at)
        history(subject, encoding, first)
        for used in (False, True):
            cast = subject.encoding(torch.bfloat16) if used else copy.deepcopy(encoding).to(torch.bfloat16)
            if used:
                answers(cast, at, torch.bfloat16)
            cast = cast.to(torch.float32)
            for rounded, exact in zip(cast.parameters(), encoding.parameters(), strict=True):
                rounded.copy_(exact)
            if difference(first, answers(cast, at)):
                raise ContractError("a cast of the model to bfloat16 damages a fixed table: form it in float32 when it "
                                    "is used")
        with torch.device("meta"):
            empty = subject.bare()
        empty = empty.to_empty(device="cpu").eval()
        for tensor in (*empty.parameters(), *empty.buffers()):
            tensor.fill_(float("nan") if tensor.is_floating_point() else 0)
        empty.load_state_dict(encoding.state_dict())
        if difference(first, answers(empty, at)):
            raise ContractError("loading weights loses a table: make it a persistent buffer, or form it when it is "
                                "used")
    return 0.0


def history(subject: Subject, encoding: Encoding, first: dict[str, Tensor]) -> None:
    """Refuses an encoding that remembers what is no part of its state dict; `first` is what it answered first."""
    at = subject.at(subject.length)
    answers(encoding, subject.at(4 * subject.length if subject.limit is None else subject.limit))
    if difference(first, answers(encoding, at)):
        raise ContractError("a long input changes the answer to a later short one")
    used = subject.encoding(torch.float32)
    answers(used, at, name="other ")
    if difference(first, answers(used, at)):
        raise ContractError("the content of an earlier input changes the answer to a later one")
    # Weights that a training step, or a checkpoint, has changed.
    fresh = subject.encoding(torch.float32)
    for model in (used, fresh):
        for key, parameter in model.named_parameters():
            parameter.copy_(numbers(*parameter.shape, name=f"changed {key}", dtype=torch.float32))
    if difference(answers(fresh, at), answers(used, at)):
        raise ContractError("a table that was made of earlier weights is used with later ones: form it when it is used")
    # A run that is stopped and resumed goes on from the state dict, and from the streams that the runner keeps.
    resumed = subject.encoding(torch.float32)
    answers(fresh.train(), at)
    resumed.load_state_dict(fresh.state_dict())
    told = []
    for model in (fresh, resumed):
        torch.manual_seed(SEED)
        told.append(answers(model.train(), at))
    if difference(*told):
        raise ContractError("training cannot be resumed: something that it depends on is not in the state dict")


@check("P16", "gradients are finite, complete and right", shapes=SHAPES, kinds=KINDS, tolerance=0)
def gradients(subject: Subject) -> float:
    """With 1, 2, T and 4T tokens gradients are finite; all parameters get one; finite differences agree in float64."""
    model = subject.model(torch.float32)
    for n in (1, 2, subject.length, 4 * subject.length):
        if subject.fits(n):
            y = subject.read(model, subject.tokens(length=n))
            (y * numbers(*y.shape, name="cotangent", dtype=torch.float32)).sum().backward()
            bad = [name for name, p in model.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
            if bad:
                raise ContractError(f"the gradient of {bad[0]} is not finite with {n} tokens")
    dead = [name for name, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
    if dead:
        raise ContractError(f"no gradient reaches {dead[0]}: a parameter without use")
    plain = subject.shape != "encoder-decoder" and subject.attention == "softmax"
    return differences(subject) if plain else 0.0


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


@check("P24", "nothing else in the model changes", shapes=SHAPES, kinds=KINDS, tolerance=0)
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
    # Linear attention has no weights of its own that could be dropped.
    dropout = {"dropout": 0.25, **({"attention_dropout": 0.25} if subject.attention == "softmax" else {})}
    ours, plain = (subject.model(torch.float32, cls, **dropout) for cls in (None, Encoding))
    weights, expected = shared(ours), shared(plain)
    if weights.keys() != expected.keys():
        raise ContractError(f"the model has other parts: {sorted(weights.keys() ^ expected.keys())}")
    states = []
    others = streams()[1:]
    for model in (ours, plain):
        torch.manual_seed(SEED)
        subject.read(model.train(), subject.tokens())
        states.append(streams()[0])
    if states[0] != states[1] or streams()[1:] != others:
        raise ContractError("training draws other random numbers than without encoding: dropout is no longer paired")
    return worst(largest(weights[name], expected[name]) for name in weights)


def shared(model: nn.Module) -> dict[str, Tensor]:
    """What belongs to no encoding."""
    return {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("encodings.")}


@check("P22", "tensors are made where the model is", tolerance=0)
def residence(subject: Subject) -> float:
    """No hook answers with a tensor that would lie on the CPU beside a model that does not, or mixes both."""
    follow = Residence()
    told = answers(subject.encoding(torch.float32), subject.at(subject.length), around=follow)
    for hook, answer in told.items():
        # The core moves decays, which are made of no input.
        if hook != "decay" and follow.stays(answer):
            raise ContractError(f"{hook} answers with a tensor that was made without a device: pass device=x.device")
    return 0.0


def answers(encoding: Encoding, at: Positions, dtype: torch.dtype = torch.float32, name: str = "",
            around: AbstractContextManager[Any] | None = None) -> dict[str, Tensor]:
    """What each hook that the class defines answers to the inputs of this name; no hook may change its inputs.

    Args:
        around: what is entered for each call, and left after it.
    """
    at = replace(at)
    heads, d, width = encoding.dimensions.heads, encoding.dimensions.head_width, encoding.dimensions.width
    x = numbers(1, at.queries, width, name=f"{name}x", dtype=dtype)
    q, k = (numbers(1, heads, n, d, name=f"{name}{side}", dtype=dtype)
            for side, n in (("q", at.queries), ("k", at.length)))
    weights = numbers(1, heads, at.queries, at.length, name=f"{name}weights", dtype=dtype).softmax(-1)
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
            with around or contextlib.nullcontext():
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
    return worst(errors)
