"""What a scoreboard shows of translations beside BLEU itself: chrF, other sentences, long sentences, and speed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posbench import bleu
from posbench.numerals import NONE, counted, number, p_value
from posbench.objective import Kept
from posbench.stats import holm, paired_difference, t_interval
from posbench.tables import Table

SPLIT = "BLEU split"
SPEED = "tokens per second"
COUNTS = {"BLEU": "bleu", "chrF": "chrf", SPLIT: "bleu-split"}
"""Names of metrics as tables print them, and as their counts are made."""

QUANTILES = (0.25, 0.5, 0.75, 0.9)
"""Of the lengths of the sources, where one bucket of lengths ends and the next begins."""


class _Grid:
    """One split's trials by encoding and seed."""

    def __init__(self, kept: Sequence[Kept], split: str) -> None:
        self.split = split
        config = kept[0].trial.config
        self.limit = config.decode.max_output or config.data.max_length
        self.encodings = list(dict.fromkeys(one.trial.config.encoding.label for one in kept))
        self.seeds = sorted({one.trial.config.seed for one in kept})
        self.status: dict[tuple[str, int], str] = {}
        self.arrays: dict[tuple[str, int], dict[str, np.ndarray]] = {}
        self.rows: dict[tuple[str, int], dict[str, float]] = {}
        for one in kept:
            cell = one.trial.config.encoding.label, one.trial.config.seed
            self.status[cell] = one.record.status
            mine = {row["metric"]: row["value"] for row in one.record.rows if row["split"] == split}
            if mine:
                self.rows[cell] = mine
                self.arrays[cell] = {name.removeprefix(f"{split}/"): array for name, array in one.arrays().items()
                                     if name.startswith(f"{split}/")}

    def trouble(self, encoding: str) -> str:
        """Why there is no mean: a mean over other seeds than its neighbour's is no comparison."""
        lost = [self.status.get((encoding, seed), "missing") for seed in self.seeds
                if (encoding, seed) not in self.arrays]
        return ", ".join(f"{lost.count(status)}/{len(self.seeds)} {status}" for status in dict.fromkeys(lost))


def tables(kept: Sequence[Kept], *, baseline: str, alpha: float) -> tuple[Table, ...]:
    """Three tables for each split that was scored."""
    splits = dict.fromkeys(row["split"] for one in kept for row in one.record.rows)
    task = kept[0].trial.config.task
    found: list[Table] = []
    for split in splits:
        grid = _Grid(kept, split)
        found.append(_scores(grid, task))
        if baseline in grid.encodings and not grid.trouble(baseline) and len(grid.encodings) > 1:
            found.append(_sentences(grid, task, baseline))
        found.append(_lengths(grid, task, baseline))
    return tuple(found)


def _scores(grid: _Grid, task: str) -> Table:
    names = list(dict.fromkeys(name for rows in grid.rows.values() for name in rows if name in COUNTS))

    def ratio(encoding: str, seed: int) -> float:
        output, reference = grid.arrays[encoding, seed]["BLEU"].sum(0)[:2]
        return float(output / reference)

    def at_limit(encoding: str, seed: int) -> float:
        return float((grid.arrays[encoding, seed]["output_tokens"] >= grid.limit).mean())

    def empty(encoding: str, seed: int) -> float:
        return float((grid.arrays[encoding, seed]["BLEU"][:, 0] == 0).mean())

    def speed_of(encoding: str, seed: int) -> float:
        return grid.rows[encoding, seed][SPEED]

    rows = []
    for encoding in grid.encodings:
        if trouble := grid.trouble(encoding):
            rows.append((encoding, trouble, *[NONE] * (len(names) + 3)))
            continue
        mark = "†" if any(grid.status[encoding, seed] == "degenerate" for seed in grid.seeds) else ""
        measured = [mark + _interval([grid.rows[encoding, seed][name] for seed in grid.seeds]) for name in names]
        length, ends, none, speed = (float(np.mean([value(encoding, seed) for seed in grid.seeds]))
                                     for value in (ratio, at_limit, empty, speed_of))
        rows.append((encoding, *measured, f"{length:.3f}", f"{ends:.1%}", f"{none:.1%}", f"{speed:,.0f}"))
    return Table(
        title=f"{task}, {grid.split}: what was written",
        columns=("encoding", *(f"{name} ↑" for name in names), "length,\nof reference", "outputs\ncut",
                 "outputs\nempty", "tokens\na second ↑"),
        rows=tuple(rows),
        notes=("Mean ± half of its 95 % t interval over seeds. Length: tokens of all outputs over those of all "
               f"references. Cut: the share of outputs that had to end at the {counted(grid.limit, 'token')} that "
               "decoding allows. Empty: the share without any word.",
               *(["† Some of these trials wrote one and the same for every source."]
                 if any(cell.startswith("†") for row in rows for cell in row) else []),
               "Tokens a second: of beam search with a cache, in processor time on a CPU, while the study's trials ran "
               "beside one another and not in turn: small differences are noise. posbench bench --decode measures "
               "encodings in turn."))


def _sentences(grid: _Grid, task: str, baseline: str) -> Table:
    others = [label for label in grid.encodings if label != baseline]
    able = [label for label in others if not grid.trouble(label)]
    names = [name for name in ("BLEU", "chrF") if all(name in arrays for arrays in grid.arrays.values())]
    cells: dict[tuple[str, str], tuple[str, str, str]] = {}
    for name in names:
        counts = {label: [grid.arrays[label, seed][name] for seed in grid.seeds] for label in (*able, baseline)}
        drawn = {label: bleu.paired_bootstrap(COUNTS[name], counts[label], counts[baseline]) for label in able}
        adjusted = holm([drawn[label].p if label in drawn else float("nan") for label in others])
        for label, p in zip(others, adjusted, strict=True):
            if label in drawn:
                one = drawn[label]
                cells[label, name] = (number(one.difference, 2, sign=True),
                                      f"{one.low:+.2f} to {one.high:+.2f}", p_value(p))
    rows = tuple((label, *(cell for name in names for cell in cells.get((label, name), (grid.trouble(label), NONE,
                                                                                        NONE))))
                 for label in others)
    heads = tuple(head for name in names for head in (f"{name}", "95 % over\nsentences", "p (Holm)"))
    return Table(
        title=f"{task}, {grid.split}: difference to '{baseline}' over sentences",
        columns=("encoding", *heads), rows=rows,
        notes=(f"Mean over seeds of the paired difference, and how it varies over {bleu.RESAMPLES} bootstrap resamples "
               "of the test sentences, the same for all encodings; p as sacreBLEU's paired bootstrap test gives it, "
               f"adjusted after Holm over {counted(len(others), 'comparison')}; the intervals are not adjusted.",
               "It asks whether other sentences would tell these trained models apart, and not whether models of other "
               "seeds would be: that is what the differences paired by seed ask. A claim about encodings needs both."))


def _lengths(grid: _Grid, task: str, baseline: str) -> Table:
    words = next(iter(grid.arrays.values()))["source_words"]
    edges = sorted(set(np.quantile(words, QUANTILES, method="inverted_cdf").astype(int).tolist()) - {int(words.max())})
    bucket = np.searchsorted(edges, words)
    heads = []
    for index in range(len(edges) + 1):
        own = words[bucket == index]
        heads.append(f"{own.min()} to {own.max()} words\n({len(own)})")

    def value(label: str, seed: int, index: int) -> float:
        counts = grid.arrays[label, seed]["BLEU"][bucket == index].sum(0)
        return float(bleu.scores("bleu", counts))

    last, known = len(edges), baseline in grid.encodings and not grid.trouble(baseline)
    rows = []
    for label in grid.encodings:
        if trouble := grid.trouble(label):
            rows.append((label, trouble, *[NONE] * (len(heads) - 1 + known)))
            continue
        cells = [_interval([value(label, seed, index) for seed in grid.seeds]) for index in range(len(heads))]
        if known and label == baseline:
            cells.append(NONE)
        elif known:
            sides = [[value(side, seed, last) for seed in grid.seeds] for side in (label, baseline)]
            cells.append(_interval(paired=sides))
        rows.append((label, *cells))
    return Table(
        title=f"{task}, {grid.split}: BLEU by length of the source",
        columns=("encoding", *heads, *([f"longest minus\n'{baseline}'"] if known else [])), rows=tuple(rows),
        notes=("Corpus BLEU of the sentences whose source has so many words (in brackets, how many sentences), mean "
               "± half of the 95 % t interval over seeds. Borders are the quantiles of 25, 50, 75 and 90 %. BLEU of "
               "different columns is not comparable: other sentences, other references.",))


def _interval(values: Sequence[float] = (), paired: Sequence[Sequence[float]] = ()) -> str:
    """'27.31 ±0.42', of values or of the differences of two sides."""
    estimate = paired_difference(treatment=paired[0], baseline=paired[1]) if paired else t_interval(list(values))
    half = f" ±{number(estimate.half_width, 2)}" if estimate.n > 1 else ""
    return f"{number(estimate.mean, 2, sign=bool(paired))}{half}"
