"""Beam search: the best of all targets where the beam holds them all, and the same for any batch, cached or not."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

from posbench.beam import Search, beam_search, penalty
from posbench.config import ModelConfig
from posbench.registry import ENCODINGS
from posbench.transformer import Head, Transformer

NAMES = ["nope", "sinusoidal", "learned", "shaw", "t5", "rope", "alibi", "placebo"]
V, BEGIN, END = 6, 0, 1
SEARCH = Search(begin=BEGIN, end=END, never=(BEGIN,), beam=4, length_penalty=1.5, longest=5)


def model(name: str = "rope", seed: int = 2, vocabulary: int = V, **settings) -> Transformer:
    """With first weights so wide that its answers are far from equal."""
    config = ModelConfig(shape="encoder-decoder", width=16, heads=2, layers=2, feedforward=16, token_types=0,
                         tied_embeddings=True, initial_std=0.8, embedding_std=0.6, **settings)
    made = Transformer(config, ENCODINGS.load(name).value, None, vocabulary=vocabulary, length=16,
                       head=Head(kind="token", outputs=vocabulary))
    made.initialise(seed)
    return made.double().eval()


def sources(rows: int = 7, vocabulary: int = V) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of other lengths, padded with a token that has a meaning elsewhere."""
    draw = torch.Generator().manual_seed(5)
    ids = torch.randint(2, vocabulary, (rows, 8), generator=draw)
    lengths = torch.randint(2, 9, (rows,), generator=draw)
    lengths[0] = 8
    return ids, lengths


@torch.no_grad()
def log_probability(made: Transformer, source: torch.Tensor, target: tuple[int, ...]) -> float:
    """By one full pass over the target, without cache and batch."""
    ids = torch.tensor([[BEGIN, *target[:-1]]])
    ways = made(ids, source_ids=source[None])[0].log_softmax(-1)
    return float(sum(ways[place, token] for place, token in enumerate(target)))


def exhaustive(made: Transformer, source: torch.Tensor, longest: int, alpha: float) -> tuple[tuple[int, ...], float]:
    """The best of all targets that end with END after at most so many tokens."""
    inner = [token for token in range(V) if token not in (BEGIN, END)]
    every = [(*words, END) for length in range(longest) for words in itertools.product(inner, repeat=length)]
    scored = {target: log_probability(made, source, target) / ((5 + len(target)) / 6) ** alpha for target in every}
    best = max(scored, key=lambda target: scored[target])
    return best, scored[best]


def test_the_penalty_is_that_of_the_paper() -> None:
    assert penalty(1, 0.6) == 1.0
    assert penalty(7, 1.0) == 2.0
    assert penalty(19, 0.5) == 2.0
    assert penalty(100, 0.0) == 1.0


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_beam_that_holds_everything_finds_the_best_of_all_targets(alpha: float, seed: int) -> None:
    made = model(seed=seed)
    ids, lengths = sources(2)
    search = replace(SEARCH, beam=4**3 + 4**2 + 4 + 1, longest=4, length_penalty=alpha)
    for row, found in enumerate(beam_search(made, ids, lengths, search)):
        target, score = exhaustive(made, ids[row, : lengths[row]], 4, alpha)
        assert found.tokens == target
        assert found.score == pytest.approx(score, abs=1e-6)


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize(("name", "settings"), [
    *((name, {}) for name in NAMES), ("transformer_xl", {}), ("deberta", {}), ("rope", {"norm": "post"}),
    ("t5", {"cross_encoding": True}), ("rope", {"attention": "linear", "feature_map": "elu"})])
def test_the_best_of_all_targets_is_found_with_any_encoding(name: str, settings: dict, cached: bool) -> None:
    made = model(name, seed=1, **settings)
    ids, lengths = sources(3)
    search = replace(SEARCH, beam=4**2 + 4 + 1, longest=3, length_penalty=0.6, cached=cached)
    for row, found in enumerate(beam_search(made, ids, lengths, search)):
        target, score = exhaustive(made, ids[row, : lengths[row]], 3, 0.6)
        assert found.tokens == target
        assert found.score == pytest.approx(score, abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_a_beam_of_one_is_greedy(seed: int) -> None:
    made = model(seed=seed)
    ids, lengths = sources()
    for row, found in enumerate(beam_search(made, ids, lengths, replace(SEARCH, beam=1, longest=12))):
        target: list[int] = []
        while not target or target[-1] != END:
            with torch.no_grad():
                ways = made(torch.tensor([[BEGIN, *target]]), source_ids=ids[row : row + 1, : lengths[row]])[0, -1]
            ways[BEGIN] = -math.inf
            target.append(END if len(target) == 11 else int(ways.argmax()))
        assert found.tokens == tuple(target)


@pytest.mark.parametrize("settings", [{}, {"cross_encoding": True}, {"attention": "linear", "feature_map": "elu"}])
@pytest.mark.parametrize("name", NAMES)
def test_with_a_cache_or_without_the_same_is_found(name: str, settings: dict) -> None:
    if settings and name != "rope":
        pytest.skip("variants of the template are tried with one encoding")
    made = model(name, **settings)
    ids, lengths = sources()
    search = replace(SEARCH, longest=12)
    cached, plain = (beam_search(made, ids, lengths, replace(search, cached=cached)) for cached in (True, False))
    assert [found.tokens for found in cached] == [found.tokens for found in plain]
    assert [found.score for found in cached] == pytest.approx([found.score for found in plain], abs=1e-6)
    assert len({len(found.tokens) for found in cached}) > 1, "the sources are done at different steps"


@pytest.mark.parametrize("name", ["sinusoidal", "rope", "t5"])
def test_no_source_is_changed_by_its_batch(name: str) -> None:
    made = model(name)
    ids, lengths = sources()
    search = replace(SEARCH, longest=12)
    whole = beam_search(made, ids, lengths, search)
    for size in (1, 2, 4):
        parts = [beam_search(made, ids[at : at + size], lengths[at : at + size], search)
                 for at in range(0, len(ids), size)]
        assert [found.tokens for part in parts for found in part] == [found.tokens for found in whole]
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    mixed = beam_search(made, ids[order], lengths[order], search)
    assert [found.tokens for found in mixed] == [whole[row].tokens for row in order.tolist()]
    alone = beam_search(made, ids[1:2, : lengths[1]], None, search)
    assert alone[0].tokens == whole[1].tokens, "padding is no token"


def test_what_is_never_written_is_not_and_lengths_are_kept() -> None:
    made = model()
    ids, lengths = sources()
    found = beam_search(made, ids, lengths, replace(SEARCH, never=(BEGIN, 3, 4), longest=6, shortest=3))
    for best in found:
        assert 3 <= len(best.tokens) <= 6 and best.tokens[-1] == END and best.tokens.count(END) == 1
        assert not {BEGIN, 3, 4} & set(best.tokens)
    assert {len(best.tokens) for best in beam_search(made, ids, lengths, replace(SEARCH, longest=5, shortest=5))} == {5}


def test_a_model_without_finite_answers_finds_nothing_and_says_so() -> None:
    made = model()
    with torch.no_grad():
        made.norm.weight.fill_(math.nan)
    ids, lengths = sources(2)
    assert [(found.tokens, found.score) for found in beam_search(made, ids, lengths, SEARCH)] == [((), -math.inf)] * 2
