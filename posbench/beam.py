"""Beam search: the best target for each source, all rows of a batch at once, with a cache or without one.

Shapes: B sources, S tokens of a source, k hypotheses of each, V vocabulary, t tokens written so far.

A target ends with its end token, which counts as one of its |Y| tokens. Targets are ranked by
log P(Y|X) / ((5 + |Y|) / 6)^alpha (Wu et al. 2016, arXiv 1609.08144, Eq. 14, without its coverage term). No source
waits for, or is changed by, another one of its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from posbench.cache import Cache
from posbench.positions import Positions
from posbench.transformer import Memory, Transformer

NEVER = float("-inf")


@dataclass(frozen=True, kw_only=True)
class Search:
    """How to look for a target.

    Attributes:
        begin, end: ids of the tokens that every target begins and ends with.
        never: ids that no target holds, such as padding.
        beam: hypotheses kept of each source; one is greedy search.
        length_penalty: alpha; 0 ranks by the probability of the whole target, which favours short ones.
        longest: tokens of a target with its end token; a hypothesis that gets so far has to end there.
        shortest: tokens of a target with its end token, before which none ends.
        cached: keep keys and values of earlier tokens in place of computing them anew at every step.
    """

    begin: int
    end: int
    never: tuple[int, ...] = ()
    beam: int = 4
    length_penalty: float = 0.6
    longest: int = 128
    shortest: int = 1
    cached: bool = True


@dataclass(frozen=True)
class Hypothesis:
    """A target without its begin token, ending with its end token, and its score; minus infinity where none came."""

    tokens: tuple[int, ...]
    score: float


def penalty(tokens: int, alpha: float) -> float:
    """What the log-probability of a target of so many tokens is divided by."""
    return ((5 + tokens) / 6) ** alpha


@torch.no_grad()
def beam_search(model: Transformer, source: Tensor, lengths: Tensor | None, search: Search) -> list[Hypothesis]:
    """The best target of each source.

    At each step the k best ways to go on are looked at: those that end are finished, and the k best that do not end go
    on. A source is done when k hypotheses are finished, or when no other can come to a better score than the best.

    Args:
        model: an encoder-decoder with a head over the vocabulary, in evaluation.
        source: (B, S) int64, padded on the right. lengths: (B,) real tokens of each row; None where all are S.
        search: how to look.
    """
    at = (Positions.first(source.shape[1], device=source.device) if lengths is None
          else Positions.right_padded(lengths, source.shape[1]))
    state = _State(model, model.encode(source, at=at), len(source), search)
    for length in range(1, search.longest + 1):
        state.step(length)
        if not len(state.rows):
            break
    return [Hypothesis(tuple(tokens), score)
            for tokens, score in zip(state.best_tokens, state.best_scores, strict=True)]


class _State:
    """Hypotheses that go on, of the sources that are not done."""

    def __init__(self, model: Transformer, memory: Memory, sources: int, search: Search) -> None:
        self.model, self.search = model, search
        device = memory.states.device
        every = torch.arange(sources, device=device).repeat_interleave(search.beam)
        self.memory: Memory | None = _of_rows(memory, every)
        self.cache = Cache() if search.cached else None
        # All hypotheses of a source begin alike: one of them counts, the others are ways of probability 0.
        self.scores = torch.full((sources, search.beam), NEVER, device=device)
        self.scores[:, 0] = 0.0
        self.tokens = torch.full((sources, search.beam, 1), search.begin, device=device)
        self.rows = torch.arange(sources, device=device)
        self.best_scores = [NEVER] * sources
        self.best_tokens: list[Sequence[int]] = [()] * sources
        self.best = torch.full((sources,), NEVER, device=device)
        self.finished = torch.zeros(sources, dtype=torch.long, device=device)

    def step(self, length: int) -> None:
        """Every hypothesis gets its token number `length`."""
        search, beam = self.search, self.search.beam
        ways = self._ways(length)
        vocabulary = ways.shape[-1]
        scores, index = ways.flatten(1).topk(min(2 * beam, beam * vocabulary), dim=1)
        token, origin = index % vocabulary, index // vocabulary
        ends = (token == search.end) & (scores > NEVER)
        self._finish(scores[:, :beam].where(ends[:, :beam], NEVER), origin[:, :beam], length)
        self.finished += ends[:, :beam].sum(1)
        if length == search.longest:
            self.rows = self.rows[:0]
            return
        # The best that go on: among 2k ways at most k end, one for each hypothesis.
        going, place = scores.where(~ends, NEVER).topk(beam, dim=1)
        token, origin = token.gather(1, place), origin.gather(1, place)
        most = going[:, 0] / penalty(search.longest, search.length_penalty)
        stay = ((self.finished < beam) & (most > self.best)).nonzero()[:, 0]
        self._go_on(stay, going, origin, token)

    def _ways(self, length: int) -> Tensor:
        """(B, k, V) log-probability of each hypothesis with each next token."""
        search = self.search
        rows = self.tokens.flatten(0, 1)
        if self.cache is None:
            logits = self.model(rows, memory=self.memory)[:, -1]
        else:
            logits = self.model(rows[:, -1:], memory=self.memory, cache=self.cache)[:, -1]
            self.memory = None  # the cache has all of it now
        ways = logits.float().log_softmax(-1).view(len(self.rows), search.beam, -1)
        ways[..., list(search.never)] = NEVER
        if length == search.longest:
            last = ways[..., search.end].clone()
            ways.fill_(NEVER)
            ways[..., search.end] = last
        elif length < search.shortest:
            ways[..., search.end] = NEVER
        return ways + self.scores[..., None]

    def _finish(self, scores: Tensor, origin: Tensor, length: int) -> None:
        """Takes in the hypotheses that end now, (B, k) of minus infinity where none does."""
        score, place = (scores / penalty(length, self.search.length_penalty)).max(1)
        better = score > self.best
        self.best = torch.where(better, score, self.best)
        for row in better.nonzero()[:, 0].tolist():
            written = self.tokens[row, origin[row, place[row]], 1:].tolist()
            source = int(self.rows[row])
            self.best_scores[source] = float(score[row])
            self.best_tokens[source] = [*written, self.search.end]

    def _go_on(self, stay: Tensor, scores: Tensor, origin: Tensor, token: Tensor) -> None:
        """Keeps the sources that `stay`, with the hypotheses chosen for each."""
        beam = self.search.beam
        self.rows, self.best, self.finished = self.rows[stay], self.best[stay], self.finished[stay]
        if not len(stay):
            return
        chosen = (stay[:, None] * beam + origin[stay]).flatten()
        if self.cache is not None and not torch.equal(chosen, torch.arange(self.scores.numel(), device=stay.device)):
            self.cache.reorder(chosen)
        elif self.cache is None and len(stay) < len(self.scores) and self.memory is not None:
            self.memory = _of_rows(self.memory, chosen)  # a source's hypotheses share its states
        self.tokens = torch.cat([self.tokens.flatten(0, 1)[chosen].view(len(stay), beam, -1),
                                 token[stay][..., None]], dim=-1)
        self.scores = scores[stay]


def _of_rows(memory: Memory, index: Tensor) -> Memory:
    """The memory of these rows; rows may be repeated."""
    keys = memory.at.keys
    return Memory(memory.states[index], replace(memory.at, keys=None if keys is None else keys[index]))
