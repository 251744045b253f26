"""BLEU and chrF by sacreBLEU, kept as counts of each sentence, and the paired bootstrap over sentences.

The only importer of sacrebleu, which cuts texts and counts. Scores are made here from sums of counts, for many sums at
once: a bootstrap draws a thousand test sets, and a table asks for sentences of one length.

Shapes: N sentences, C counts of one sentence, R resamples. Scores are percentages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.version import __version__

from posbench.errors import UserError
from posbench.seeds import numpy_generator

RESAMPLES = 1000
ORDER = 4
_HYPHEN = re.compile(r"(\S)-(\S)")


def statistics(name: str, outputs: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """(N, C) int64 counts of each sentence, whose sums over sentences are all that a corpus score depends on.

    BLEU counts tokens of output and reference, n-grams that match and n-grams of the output (n = 1 to 4); chrF counts
    character n-grams of output, reference and both (n = 1 to 6). References are taken as they are; texts are cut by
    the metric alone.

    Args:
        name: 'bleu', 'bleu-split' or 'chrf'.
        outputs, references: detokenised texts, one of each a sentence.

    Raises:
        UserError: they are not equally many: one would be scored against another's reference.
    """
    for texts in (outputs, references):
        if isinstance(texts, str):
            raise TypeError("a list of texts is needed; a single text would be scored letter by letter")
    if len(outputs) != len(references):
        raise UserError(f"{len(outputs)} outputs stand beside {len(references)} references: give one for each")
    if name == "bleu-split":
        outputs, references = ([_split(text) for text in texts] for texts in (outputs, references))
    metric = _METRICS[name]
    return np.array(metric._extract_corpus_statistics(outputs, [references]), dtype=np.int64)


def scores(name: str, sums: np.ndarray) -> np.ndarray:
    """(..., C) sums of counts -> (...) scores from 0 to 100."""
    return _chrf(sums.astype(np.float64)) if name == "chrf" else _bleu(sums.astype(np.float64))


def corpus(name: str, outputs: Sequence[str], references: Sequence[str]) -> float:
    """The score of all sentences together."""
    return float(scores(name, statistics(name, outputs, references).sum(0)))


def signature(name: str) -> str:
    """What a number must be quoted with, so that another can be held against it."""
    if name == "bleu-split":
        return (f"nrefs:1|case:mixed|eff:no|tok:13a, then words split at hyphens (X ##AT##-##AT## Y)|smooth:exp"
                f"|version:{__version__}")
    if name == "chrf":
        return f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{__version__}"
    return f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{__version__}"


_METRICS = {
    # Forced: it would warn of outputs that end in ' .', as those of a model that has learned little may.
    "bleu": BLEU(force=True),
    "bleu-split": BLEU(force=True, tokenize="none"),
    "chrf": CHRF(),
}


def _split(text: str) -> str:
    """Tokens of mteval-v13a with compounds taken apart, as the papers on WMT14 en-de before sacreBLEU scored.

    By the pattern of tensor2tensor's get_ende_bleu.sh, to the letter: it takes both neighbours of a hyphen, so that of
    'vis-a-vis' the second one stays.
    """
    return _HYPHEN.sub(r"\1 ##AT##-##AT## \2", _METRICS["bleu"]._preprocess_segment(text))


def _bleu(sums: np.ndarray) -> np.ndarray:
    output, reference = sums[..., 0], sums[..., 1]
    correct, total = sums[..., 2 : 2 + ORDER], sums[..., 2 + ORDER :]
    with np.errstate(divide="ignore", invalid="ignore"):
        # Smoothing 'exp': the k-th order without a match counts as 2^-k of one.
        matches = np.where(correct > 0, correct, 0.5 ** (correct == 0).cumsum(-1))
        mean = np.log(matches / total).mean(-1)
        brevity = np.where(output < reference, np.exp(1 - reference / output), 1.0)
        value = 100 * brevity * np.exp(mean)
    # Without any match, or where the outputs have no n-grams of some order, the score is 0.
    return np.where((correct > 0).any(-1) & (total > 0).all(-1), value, 0.0)


def _chrf(sums: np.ndarray, beta: float = 2.0) -> np.ndarray:
    output, reference, match = (sums[..., part::3] for part in range(3))
    known = (output > 0) & (reference > 0)
    orders = known.sum(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(known, match / output, 0.0).sum(-1) / orders
        recall = np.where(known, match / reference, 0.0).sum(-1) / orders
        value = 100 * (1 + beta**2) * precision * recall / (beta**2 * precision + recall)
    return np.nan_to_num(value)


@dataclass(frozen=True, kw_only=True)
class Resampled:
    """A difference of corpus scores and what other test sentences would make of it.

    Attributes:
        difference: on the test set itself. low, high: 2.5 and 97.5 % of the resamples' differences.
        p: two-sided, of sacreBLEU's paired bootstrap test, but for two things: 1 where both sides score alike in every
            resample, for which that test gives its smallest p; and never below 2^(1 - N), which is as far as any paired
            test over N sentences can go: resamples of one sentence are all that sentence, and say nothing of others.
    """

    difference: float
    low: float
    high: float
    p: float


def paired_bootstrap(name: str, systems: Sequence[np.ndarray], baselines: Sequence[np.ndarray],
                     draws: np.ndarray | None = None) -> Resampled:
    """System minus baseline over resamples of the sentences, which are the same for both (Koehn 2004).

    Args:
        name: of the metric.
        systems, baselines: (N, C) counts, one array a seed, paired by seed; the difference is the mean over seeds of
            the difference of corpus scores.
        draws: (R, N) indices of the sentences of each resample; from a stream of their own by default.
    """
    size = len(systems[0])
    if draws is None:
        draws = numpy_generator(0, "bootstrap", size).integers(0, size, (RESAMPLES, size))
    # How often each sentence stands in each resample: sums over resamples are one product.
    times = np.stack([np.bincount(row, minlength=size) for row in draws]).astype(np.float64)
    pairs = list(zip(systems, baselines, strict=True))
    real = float(np.mean([scores(name, a.sum(0)) - scores(name, b.sum(0)) for a, b in pairs]))
    drawn = np.mean([scores(name, times @ a) - scores(name, times @ b) for a, b in pairs], axis=0)
    distance = np.abs(drawn)
    beyond = int((distance - distance.mean() > abs(real)).sum())
    low, high = np.quantile(drawn, [0.025, 0.975])
    p = max((beyond + 1) / (len(drawn) + 1), 2.0 ** (1 - size)) if real or drawn.any() else 1.0
    return Resampled(difference=real, low=float(low), high=float(high), p=p)
