"""Translation: a target text for each source text, trained with the true target before it, scored by BLEU and chrF.

Shapes: B rows, S tokens of the source, L tokens of the target, V vocabulary. Source and target are framed alike,
[CLS] text [SEP], from one vocabulary; the decoder reads the target without its last token and answers with the same
one without its first.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from posbench import bleu, translation_tables
from posbench.beam import Hypothesis, Search, beam_search
from posbench.config import DataConfig
from posbench.errors import UserError
from posbench.numerals import counted
from posbench.objective import Kept, Objective, Scores
from posbench.positions import Positions
from posbench.ragged import Ragged, encode_ragged
from posbench.suite import Rows, Task
from posbench.tables import Table
from posbench.tokens import (
    CLS,
    PAD,
    SEP,
    SPECIAL,
    scoring_batches,
    tokenizer_from_file,
    trained_tokenizer,
    training_batches,
    training_batches_of_tokens,
)
from posbench.transformer import Head, Transformer
from posbench.trial import TRAINED, Trial, load_rows

SEARCHED = 256
"""Hypotheses that are searched at once."""
LEAST_RETURNED, LOOKED_AT = 0.5, 1000
"""Share of targets, among so many, that a tokenizer has to give back whole: what is lost there, no model can write."""


@dataclass(frozen=True)
class Pairs:
    """One split: both sides as token ids, and the texts; a target that is only a reference has no ids.

    Attributes:
        source, target: N rows each. texts: N pairs of source and target. cut: rows whose source lost tokens, or, of
            training rows, that were left out because a side is longer than the limit. returned: of training rows,
            the share of the targets, among the first thousand, that come back whole from their tokens.
    """

    source: Ragged
    target: Ragged | None
    texts: list[tuple[str, ...]]
    cut: int
    returned: float = 1.0


class Translation(Objective):
    """Target texts by beam search."""

    def __init__(self, trial: Trial, device: torch.device) -> None:
        super().__init__(trial, device)
        config = trial.config
        self.splits, self.tokenizer = load_pairs(config.suite, config.task, config.data)
        self.vocabulary = self.tokenizer.get_vocab_size()
        self.counts = {name: len(pairs.texts) for name, pairs in self.splits.items()}
        self.cut = {name: pairs.cut for name, pairs in self.splits.items() if name != "train"}
        ids = {name: index for name in SPECIAL if (index := self.tokenizer.token_to_id(name)) is not None}
        self.pad = ids[PAD]
        self.search = Search(
            begin=ids[CLS], end=ids[SEP], beam=config.decode.beam, length_penalty=config.decode.length_penalty,
            never=tuple(index for name, index in ids.items() if name != SEP),
            longest=config.decode.max_output or config.data.max_length,
        )
        self.metrics = [metric.name for metric in trial.task.metrics]
        if config.decode.compound_split:
            self.metrics.append(translation_tables.SPLIT)

    @classmethod
    def head(cls, task: Task, vocabulary: int) -> Head:
        return Head(kind="token", outputs=vocabulary)

    @classmethod
    def check(cls, trial: Trial, limit: int | None) -> None:
        config = trial.config
        if config.model.shape != "encoder-decoder":
            raise UserError(f"suite '{config.suite}' translates, and model.shape is '{config.model.shape}': "
                            "use model.shape=encoder-decoder")
        longest = config.decode.max_output or config.data.max_length
        if limit is not None and longest > limit:
            raise UserError(f"outputs of {counted(longest, 'token')} (decode.max_output) are longer than encoding "
                            f"'{config.encoding.label}' can express, which ends at {counted(limit, 'position')}: lower "
                            "decode.max_output, or raise the encoding's maximum (by default data.max_length)")
        splits, tokenizer = load_pairs(config.suite, config.task, config.data)
        vocabulary = tokenizer.get_vocab_size()
        if config.decode.beam > vocabulary:
            raise UserError(f"decode.beam {config.decode.beam} is larger than the vocabulary of {vocabulary} tokens: "
                            "lower it")
        widest = int(longer_sides(splits["train"]).max())
        if config.train.batch_tokens is not None and config.train.batch_tokens < widest:
            raise UserError(f"train.batch_tokens {config.train.batch_tokens} cannot hold the longest training pair of "
                            f"{widest} tokens: raise it, or lower data.max_length")
        if (share := splits["train"].returned) < LEAST_RETURNED:
            raise UserError(f"tokenizer '{config.data.tokenizer}' gives back {share:.0%} of the target texts as they "
                            "were, so that no model could write them: use data.tokenizer=bpe, or another that keeps "
                            "case, blanks and characters")

    @classmethod
    def extras(cls, kept: Sequence[Kept], *, baseline: str, alpha: float) -> tuple[Table, ...]:
        return translation_tables.tables(kept, baseline=baseline, alpha=alpha)

    def stated(self) -> dict[str, str]:
        config, train = self.trial.config, self.splits["train"]
        kind = f"joint {config.data.tokenizer}" if config.data.tokenizer in TRAINED else "from a file"
        told = {
            "vocabulary": f"{kind}, {self.vocabulary} tokens that source and target share, from the training rows",
            "decoding": f"beam {self.search.beam}, length penalty {self.search.length_penalty:g}, outputs of at most "
                        f"{counted(self.search.longest, 'token')}, cached",
            **{name: bleu.signature(translation_tables.COUNTS[name]) for name in self.metrics},
        }
        if train.returned < 1:
            told["tokenizer"] = (f"gives back {train.returned:.1%} of {min(LOOKED_AT, len(train.texts))} training "
                                 "targets as they were; the others no model can write")
        if train.cut:
            told["left out of training"] = (
                f"{counted(train.cut, 'pair')} with a side of more than {counted(config.data.max_length, 'token')}")
        return told

    def batches(self, seed: int) -> Iterator[np.ndarray]:
        pairs, train = self.splits["train"], self.trial.config.train
        lengths = longer_sides(pairs)
        if train.batch_tokens is None:
            return training_batches(lengths, train.batch_size, seed)
        return training_batches_of_tokens(lengths, train.batch_tokens, seed)

    def loss(self, model: nn.Module, batch: np.ndarray) -> Tensor:
        pairs = self.splits["train"]
        assert pairs.target is not None
        source, at_source = self._placed(pairs.source, batch)
        target, at = self._placed(pairs.target, batch, ahead=1)
        logits = model(target[:, :-1], at=at, source_ids=source, source_mask=at_source.keys)
        return smoothed_loss(logits.float(), target[:, 1:], self.pad, self.trial.config.train.label_smoothing)

    @classmethod
    def loss_drawn(cls, trial: Trial) -> tuple[str, float]:
        smoothing = trial.config.train.label_smoothing
        return "nats per target token" + (f", smoothing {smoothing:g}" if smoothing else ""), 1.0

    def weight(self, batch: np.ndarray) -> float:
        target = self.splits["train"].target
        assert target is not None
        return int((target.lengths[batch] - 1).sum())

    def score(self, model: nn.Module, split: str) -> Scores:
        assert isinstance(model, Transformer)
        pairs = self.splits[split]
        # Trials run side by side: of one thread on a processor, its own time says more than the clock on the wall.
        clock = time.process_time if self.device.type == "cpu" else time.perf_counter
        began = clock()
        found = self.translate(model, pairs.source)
        seconds = clock() - began
        outputs, references = self.texts(found), [row[1] for row in pairs.texts]
        tokens = np.array([len(hypothesis.tokens) for hypothesis in found], dtype=np.int64)
        finite = all(np.isfinite(hypothesis.score) for hypothesis in found)
        counts = {name: bleu.statistics(translation_tables.COUNTS[name], outputs, references) for name in self.metrics}

        def row(name: str, value: float, primary: bool = False) -> dict[str, Any]:
            return {"split": split, "length": self.trial.config.data.max_length, "metric": name, "value": value,
                    "n": len(outputs), "higher_is_better": True, "primary": primary}

        rows = [row(name, float(bleu.scores(translation_tables.COUNTS[name], own.sum(0))) if finite else float("inf"),
                    name == self.trial.task.primary) for name, own in counts.items()]
        text = [output.encode() for output in outputs]
        arrays = {f"{split}/{name}": own for name, own in counts.items()} | {
            f"{split}/output_tokens": tokens,
            f"{split}/source_words": np.array([len(row[0].split()) for row in pairs.texts], dtype=np.int64),
            f"{split}/output": np.frombuffer(b"".join(text), dtype=np.uint8),
            f"{split}/output_ends": np.cumsum([len(part) for part in text], dtype=np.int64),
        }
        same = len(outputs) > 1 and len(set(outputs)) == 1
        return Scores(rows=rows, arrays=arrays, degenerate=f"{split}: all {len(outputs)} outputs are equal" if same
                      else "", timed=[row(translation_tables.SPEED, float(tokens.sum() / seconds))])

    def translate(self, model: Transformer, source: Ragged) -> list[Hypothesis]:
        """The best target of every row, each in its own place."""
        found: list[Hypothesis | None] = [None] * len(source)
        for batch in scoring_batches(source.lengths, max(1, SEARCHED // self.search.beam)):
            ids, at = self._placed(source, batch)
            lengths = None if at.keys is None else torch.from_numpy(source.lengths[batch]).to(self.device)
            for row, best in zip(batch, beam_search(model, ids, lengths, self.search), strict=True):
                found[row] = best
        assert all(found)
        return [best for best in found if best is not None]

    def texts(self, found: Sequence[Hypothesis]) -> list[str]:
        """Detokenised texts, without the end token and without the blank that a text's first word brings along."""
        return detokenised(self.tokenizer, [best.tokens[:-1] for best in found])

    def sample(self) -> Tensor:
        source = self.splits["train"].source
        return torch.from_numpy(source.padded(np.array([0]), self.pad))

    def _placed(self, side: Ragged, batch: np.ndarray, *, ahead: int = 0) -> tuple[Tensor, Positions]:
        """Ids (B, S) of these rows and their positions; of a target those that leave out the last `ahead` tokens."""
        lengths = side.lengths[batch]
        width = int(lengths.max())
        ids = torch.from_numpy(side.padded(batch, self.pad)).to(self.device)
        causal = ahead > 0
        if (lengths == width).all():
            return ids, Positions.first(width - ahead, causal=causal, device=self.device)
        real = torch.from_numpy(lengths - ahead).to(self.device)
        return ids, Positions.right_padded(real, width - ahead, causal=causal)


def longer_sides(pairs: Pairs) -> np.ndarray:
    """(N,) tokens of the longer side of each training pair."""
    assert pairs.target is not None
    return np.maximum(pairs.source.lengths, pairs.target.lengths)


def smoothed_loss(logits: Tensor, labels: Tensor, pad: int, smoothing: float) -> Tensor:
    """Mean over real tokens of (1 - e) (-log p(label)) + e (mean over V of -log p); padding is in neither term.

    Args:
        logits: (B, L, V). labels: (B, L) int64. pad: id of labels that are none. smoothing: e.
    """
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=pad, label_smoothing=smoothing)


@functools.lru_cache(maxsize=4)
def load_pairs(suite: str, task: str, data: DataConfig) -> tuple[dict[str, Pairs], Tokenizer]:
    """Every split as token ids, with the tokenizer; a vocabulary is trained on both sides of the training rows.

    Raises:
        UserError: no training pair is within the length limit.
    """
    rows, _ = load_rows(suite, task, data)
    if data.tokenizer in TRAINED:
        texts = (text for row in rows.splits["train"].texts for text in row)
        tokenizer = trained_tokenizer(data.tokenizer, texts, data.vocabulary)
    else:
        tokenizer = tokenizer_from_file(Path(data.tokenizer))
    splits = {name: _scored(tokenizer, split, data.max_length) for name, split in rows.splits.items()
              if name != "train"}
    return {"train": _trained(tokenizer, rows.splits["train"], data.max_length), **splits}, tokenizer


def _trained(tokenizer: Tokenizer, rows: Rows, limit: int) -> Pairs:
    """Pairs whose sides are whole: a target that lost its end would teach to stop in the middle."""
    source, target = (encode_ragged(tokenizer, [row[side] for row in rows.texts], limit + 1) for side in (0, 1))
    kept = (source.lengths <= limit) & (target.lengths <= limit)
    if not kept.any():
        raise UserError(f"every training pair has a side of more than {limit} tokens: raise data.max_length")
    texts = list(itertools.compress(rows.texts, kept))
    return Pairs(source.part(kept), target.part(kept), texts, len(rows.texts) - len(texts),
                 returned(tokenizer, [row[1] for row in texts[:LOOKED_AT]]))


def _scored(tokenizer: Tokenizer, rows: Rows, limit: int) -> Pairs:
    source = encode_ragged(tokenizer, [row[0] for row in rows.texts], limit)
    return Pairs(source, None, rows.texts, int((source.full > source.lengths).sum()))


def detokenised(tokenizer: Tokenizer, rows: Sequence[Sequence[int]]) -> list[str]:
    """Texts of token ids that hold no special token."""
    return [text.removeprefix(" ") for text in tokenizer.decode_batch([list(row) for row in rows])]


def returned(tokenizer: Tokenizer, texts: Sequence[str]) -> float:
    """Share of the texts that come back whole, but for the width of blanks, from their tokens."""
    coded = encode_ragged(tokenizer, texts, max(map(len, texts)) * 4 + 2)  # a character is four bytes at most
    back = detokenised(tokenizer, [coded.ids[begin + 1 : end - 1].tolist()
                                   for begin, end in itertools.pairwise(coded.starts)])
    return float(np.mean([one.split() == other.split() for one, other in zip(back, texts, strict=True)]))
