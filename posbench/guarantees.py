"""Guarantees on outputs that every encoding owes the models around it, whatever its method.

Models have two layers, a head for each token, and float64 weights where not stated otherwise.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from posbench.cache import Cache
from posbench.contract import check
from posbench.errors import ContextLengthExceeded
from posbench.positions import Positions
from posbench.probe import (
    CAUSAL,
    KINDS,
    SEED,
    SHAPES,
    VOCABULARY,
    ContractError,
    Subject,
    largest,
    relative,
    worst,
)
from posbench.properties import one_by_one
from posbench.transformer import Transformer

STEPS = 30
"""Updates of the model that must learn nothing; one that sees the next token has learnt it by then."""


@check("P6", "no look into the future", shapes=CAUSAL, kinds=KINDS, tolerance=0)
def causality(subject: Subject) -> float:
    """Other tokens behind i leave the outputs up to i alike bit by bit; no gradient flows from i to a later token."""
    model, tokens = subject.model(), subject.tokens()
    other = (tokens + 1) % VOCABULARY
    x = subject.inputs().requires_grad_()
    layer = subject.layer()
    y, before = layer(x, subject.at(subject.length)), subject.read(model, tokens)
    errors = []
    for i in (0, 1, subject.length // 2, subject.length - 2):
        after = subject.read(model, torch.cat([tokens[:, : i + 1], other[:, i + 1 :]], dim=1))
        errors.append(largest(before[:, : i + 1], after[:, : i + 1]))
        gradient, = torch.autograd.grad(y[:, i].sum(), x, retain_graph=True)
        errors.append(gradient[:, i + 1 :].abs().max().item())
    return worst(errors)


@check("P6b", "outputs do not depend on the total length", shapes=CAUSAL, kinds=KINDS, claim="cached", tolerance=1e-6)
def length_blindness(subject: Subject) -> float:
    """f(X)[:t] = f(X[:t]), X being of twice the trained length."""
    model, tokens = subject.model(), subject.tokens(length=subject.long)
    full = subject.read(model, tokens)
    return worst(relative(full[:, :t], subject.read(model, tokens[:, :t]))
                 for t in (1, 7, subject.length - 1, subject.long - 1))


@check("P7", "padding and packing change nothing", shapes=SHAPES, kinds=KINDS, tolerance=1e-6)
def padding(subject: Subject) -> float:
    """A row gives the same logits alone, padded on either side, and packed; beyond the trained length too."""
    model, width = subject.model(), subject.long
    lengths = (width, width - 3, 2, 1)
    rows = [subject.tokens(1, n, name=f"row {n}") for n in lengths]
    alone = [subject.read(model, row) for row in rows]
    errors = []
    for left in (False, True):
        batch, mask = subject.tokens(len(rows), width, name="padding"), torch.zeros(len(rows), width, dtype=torch.bool)
        places = [slice(width - n, width) if left else slice(n) for n in lengths]
        for index, (row, place) in enumerate(zip(rows, places, strict=True)):
            batch[index, place], mask[index, place] = row[0], True
        padded = subject.read(model, batch, attention_mask=mask)
        errors += [relative(one[0], padded[i, place]) for i, (one, place) in enumerate(zip(alone, places, strict=True))]
    first, second = rows[1], rows[2]
    ids = torch.cat([torch.arange(row.shape[1]) for row in (first, second)])[None]
    documents = torch.tensor([[0] * first.shape[1] + [1] * second.shape[1]])
    at = Positions.given(ids, causal=subject.causal, documents=documents)
    packed = subject.read(model, torch.cat([first, second], dim=1), at=at)
    errors.append(relative(torch.cat(alone[1:3], dim=1), packed))
    if subject.shape == "encoder-decoder":
        errors += padded_source(subject, model, rows[0], alone[0])
    return worst(errors)


def padded_source(subject: Subject, model: Transformer, row: Tensor, alone: Tensor) -> list[float]:
    """Errors of a row whose source is padded on either side."""
    source, filler = subject.source(), subject.tokens(1, 4, name="padding")
    real, unreal = torch.ones_like(source, dtype=torch.bool), torch.zeros_like(filler, dtype=torch.bool)
    sides = [(torch.cat(ids, dim=1), torch.cat(mask, dim=1))
             for ids, mask in (((source, filler), (real, unreal)), ((filler, source), (unreal, real)))]
    return [relative(alone, model(row, source_ids=ids, source_mask=mask)) for ids, mask in sides]


@check("P8", "rows of a batch are independent", shapes=SHAPES, kinds=KINDS, tolerance=0)
def batch_independence(subject: Subject) -> float:
    """Reordered rows give reordered outputs, and other rows do not matter, bit by bit at the same batch size."""
    model, tokens = subject.model(), subject.tokens(4)
    full, order = subject.read(model, tokens), torch.tensor([2, 0, 3, 1])
    others = tokens.clone()
    others[1:] = subject.tokens(3, name="mates")
    if not relative(full[:1], subject.read(model, tokens[:1])) <= 1e-5:
        raise ContractError("a row alone differs from the same row in a batch")
    return worst((largest(full[order], subject.read(model, tokens[order])),
                  largest(full[0], subject.read(model, others)[0])))


@check("P9", "token by token equals all at once", shapes=CAUSAL, kinds=KINDS, claim="cached", tolerance=1e-5)
def incremental(subject: Subject) -> float:
    """Decoding with a cache gives the rows of the full pass: token by token, prompts split anywhere, padded prompts.

    It goes on to twice the trained length, where tables that depend on the current length have changed.
    """
    model, tokens = subject.model(), subject.tokens(2, subject.long)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[1, : min(3, subject.long - 2)] = False
    errors = [one_by_one(subject)] if (subject.shape, subject.attention) == ("decoder", "softmax") else []
    length = subject.long
    plans = ((torch.ones_like(mask), (range(1, length), (1,), (length - 1,))), (mask, ((min(7, length - 1),),)))
    for seen, splits in plans:
        full = subject.read(model, tokens, attention_mask=seen)
        for cuts in splits:
            parts, cache = [], Cache()
            for start, end in itertools.pairwise((0, *cuts, length)):
                parts.append(subject.read(model, tokens[:, start:end], cache=cache, attention_mask=seen[:, start:end]))
            errors.append(relative(full[seen], torch.cat(parts, dim=1)[seen]))
    return worst(errors)


@check("P15", "defined beyond the trained length", shapes=SHAPES, kinds=KINDS, claim="beyond", tolerance=0)
def beyond(subject: Subject) -> float:
    """0 when outputs are finite at four times the trained length, 1 when a typed error refuses the first one beyond."""
    model = subject.model(torch.float32)
    last = subject.limit or subject.dimensions.length
    tokens = subject.tokens(1, 8)
    if not subject.read(model, tokens, at=subject.at(8, last - 8)).isfinite().all():
        raise ContractError("outputs are not finite within the trained length")
    try:
        for n in (last + 1, 4 * last):
            if not subject.read(model, tokens, at=subject.at(8, n - 8)).isfinite().all():
                raise ContractError(f"outputs are not finite at position {n - 1}")
        if subject.limit is None and not subject.read(model, subject.tokens(1, 4 * last)).isfinite().all():
            raise ContractError(f"outputs are not finite with {4 * last} tokens")
    except ContextLengthExceeded as error:
        if (error.limit, error.got) != (subject.limit, last + 1):
            told = f"refuses {error.got} positions beyond {error.limit}, but max_length is {subject.limit}"
            raise ContractError(told) from error
        return 1.0
    return 0.0


@check("P23", "random text is not foretold", shapes=CAUSAL, tolerance=1)
def canary(subject: Subject) -> float:
    """Trained on random tokens, the model foretells fresh ones no better than chance; in units of 3 standard errors.

    It trains and is scored in training mode as well, where an encoding might do what it does not do in evaluation.
    """
    model = subject.model(torch.float32)
    model.initialise(SEED)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    classes, excess = 3, []
    frequent = -(-VOCABULARY // classes) / VOCABULARY  # the share of the most frequent remainder
    for step in range(STEPS + 2):
        text = subject.tokens(16, subject.length + 1, name=f"text {step}")
        answers, wanted = subject.read(model.train(step < STEPS + 1), text[:, :-1]), text[:, 1:] % classes
        if step < STEPS:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(answers.flatten(0, 1), wanted.flatten()).backward()
            optimizer.step()
        else:
            hits = (answers.argmax(-1) == wanted).double().mean().item()
            error = (frequent * (1 - frequent) / wanted.numel()) ** 0.5
            excess.append((hits - frequent) / (3 * error))
    return worst(excess)
