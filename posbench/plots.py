"""Figures as PNG and SVG; the only importer of seaborn and matplotlib.

Figures are drawn on their own canvas and never through pyplot's current figure, so a caller's backend and figures are
left alone and nothing needs a display. The same input gives the same bytes.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from posbench import panels
from posbench.comparison import Comparison, Ranking
from posbench.errors import UserError
from posbench.panels import Ranges
from posbench.store import write_atomically

CURVE_COLUMNS = ("encoding", "task", "seed", "step", "metric", "value")

_DASHES = [(), (4, 1.5), (1.2, 1.2), (5, 1.2, 1.2, 1.2)]
_MARKS = ["o", "s", "^", "D", "v", "P"]


def learning_curves(frame: pd.DataFrame, path: Path, *, ranges: Ranges = MappingProxyType({}),
                    note: str = "") -> list[Path]:
    """One panel for each task and metric: mean over seeds, with its 95 % Student-t interval as a band.

    A line is drawn as far as all of its seeds have a finite value, because a mean over the seeds that are left jumps
    where one leaves; a cross marks the end of a line that stops before its longest seed.

    Args:
        frame: columns CURVE_COLUMNS, one row a point; step counts optimizer steps.
        path: where to write, without a suffix.
        ranges: of scores by task and metric, beyond which no band is drawn.
        note: ends the caption, such as 'generated data'.
    """
    missing = [name for name in CURVE_COLUMNS if name not in frame]
    if missing or frame.empty:
        lack = f"no columns {', '.join(missing)}" if missing else "no points"
        raise UserError(f"learning curves {path.name}: {lack}; give rows with {', '.join(CURVE_COLUMNS)}")
    encodings = list(dict.fromkeys(frame["encoding"]))
    chosen = looks(encodings)
    parts = list(frame.groupby(["task", "metric"], sort=False, dropna=False))
    caption = ("Mean over seeds, band: 95 % t interval, cut at the panel's edge, which is the range of the seeds' "
               f"values; large cross: a seed has no finite value beyond. {note}")
    return panelled(parts, encodings, lambda axis, key, points: _curves(axis, points, chosen,
                                                                        ranges.get(key, panels.UNLIMITED)),
                    path, across="optimizer step", caption=caption)


def by_length(frame: pd.DataFrame, path: Path, *, trained: Mapping[str, int],
              ranges: Ranges = MappingProxyType({}), note: str = "") -> list[Path]:
    """One panel for each task and metric: mean over seeds against the length, the band as in `learning_curves`.

    Args:
        frame: scored rows of the tidy table, of tasks that are scored at several lengths.
        path: where to write, without a suffix.
        trained: by task the length of training, where a vertical line stands.
        ranges, note: as in `learning_curves`.
    """
    parts = [(key, rows) for key, rows in frame[frame["length"].notna()].groupby(["task", "metric"], sort=False)
             if rows["length"].nunique() > 1]
    parts = [part for place, part in enumerate(parts)
             if not any(panels.repeats(part, earlier) for earlier in parts[:place])]
    encodings = list(dict.fromkeys(frame["encoding"]))
    chosen = looks(encodings)

    def draw(axis: Axes, key: tuple[str, str], points: pd.DataFrame) -> None:
        axis.set_xscale("log", base=2)
        axis.axvline(trained[key[0]], color="0.3", lw=1.0, ls=":")
        for place, (encoding, look) in enumerate(chosen.items()):
            own = points[points["encoding"] == encoding].astype({"length": int})
            if own.empty:
                continue
            thin = {"linewidth": 2.8 - 1.2 * place / len(chosen), "markersize": 7 - 2.5 * place / len(chosen)}
            sns.lineplot(data=own, x="length", y="value", ax=axis, label=encoding, legend=False,
                         errorbar=partial(panels.band, within=ranges.get(key, panels.UNLIMITED)),
                         err_kws={"alpha": 0.4 / max(len(chosen), 3), "linewidth": 0}, **{**look, **thin})
        shown = sorted(set(map(int, points["length"])))
        axis.set_xticks(shown, [str(length) for length in shown], fontsize=8)
        axis.minorticks_off()
        axis.set_ylim(panels.limits(points["value"]))

    caption = ("Mean over seeds, band: 95 % t interval, cut at the panel's edge, which is the range of the scores; "
               f"dotted line: trained length. Where a line ends early the encoding is refused beyond. {note}")
    return panelled(parts, encodings, draw, path, across="tokens", caption=caption)


def panelled(parts: list, encodings: list[str], draw: Callable[[Axes, tuple[str, str], pd.DataFrame], None],
             path: Path, *, across: str, caption: str) -> list[Path]:
    """A panel for each ((task, metric), points), up to three in a row, with one legend beside and a caption over them.

    Args:
        parts, encodings: what is drawn, and the names in the legend's order.
        draw: fills one panel, given its task and metric.
        path: where to write, without a suffix.
        across: label of the axis below. caption: its text, for whose lines room is made.
    """
    columns = min(3, len(parts))
    down = math.ceil(len(parts) / columns)
    with style():
        wide = 4.0 * columns
        # Inches beside the panels for the legend; the caption keeps out of them.
        legend = 0.9 + 0.1 * max(len(str(name)) for name in encodings)
        title = textwrap.fill(caption.strip(), int(12 * wide))
        above = 0.2 + 0.17 * len(title.split("\n"))
        figure = Figure(figsize=(wide + legend, 2.9 * down + above), layout="constrained")
        axes = figure.subplots(down, columns, squeeze=False).ravel()
        for axis in axes[len(parts):]:
            axis.set_axis_off()
        for axis, ((task, metric), points) in zip(axes, parts, strict=False):
            draw(axis, (str(task), str(metric)), points)
            axis.set_title(f"{task} (n = {panels.seeds(points)})" if "seed" in points else str(task))
            axis.set_xlabel(across)
            axis.set_ylabel(str(metric))
        lines = {line.get_label(): line for axis in axes for line in axis.get_lines()}
        named = [name for name in encodings if name in lines]
        figure.legend([lines[name] for name in named], named, loc="outside right upper", title="encoding",
                      frameon=False)
        figure.suptitle(title, fontsize=10, x=0.01, ha="left")
        return save(figure, path)


def rank_plot(comparison: Comparison, path: Path, *, note: str = "") -> list[Path]:
    """Average ranks on a line, best to the left; a bar joins encodings that Nemenyi's test does not tell apart.

    After Demsar (2006), figure 1. The caption states the critical difference and Friedman's p, and ends with the note.
    """
    ranking = comparison.ranking
    if ranking is None:
        raise UserError(f"rank plot {path.name}: no ranks; compare two encodings or more on two tasks or more")
    names = sorted(ranking.average, key=lambda name: (ranking.average[name], name))
    ranks = np.array([ranking.average[name] for name in names])
    bars = _cliques(ranks, ranking.critical_difference)
    half = math.ceil(len(names) / 2)
    height = 1.5 + 0.26 * half + 0.13 * len(bars)
    with style():
        figure = Figure(figsize=(8.5, height + 0.5), layout="constrained")
        axis = figure.subplots()
        k, below = len(names), 0.3 + 0.28 * len(bars)
        axis.set_xlim(1 - 0.42 * (k - 1), k + 0.42 * (k - 1))
        axis.set_ylim(-below - 0.62 * half, 1.6)
        axis.set_axis_off()
        _ruler(axis, k, ranking.critical_difference, comparison.alpha)
        for level, (first, last) in enumerate(bars):
            y = -0.22 - 0.28 * level
            axis.plot([ranks[first] - 0.04, ranks[last] + 0.04], [y, y], color="0.25", lw=3.5, solid_capstyle="butt")
        for place, (name, rank) in enumerate(zip(names, ranks, strict=True)):
            left = place < half
            y = -below - 0.6 * (place if left else len(names) - 1 - place)
            end = 1 - 0.06 * (k - 1) if left else k + 0.06 * (k - 1)
            axis.plot([rank, rank, end], [0, y, y], color="0.45", lw=0.9, zorder=1)
            # A name is text and never mathematics, whatever dollar signs it holds.
            axis.text(end + (-0.05 if left else 0.05), y, f"{name}  {rank:.2f}" if left else f"{rank:.2f}  {name}",
                      ha="right" if left else "left", va="center", fontsize=10, parse_math=False)
        figure.suptitle(_rank_caption(ranking, comparison.alpha) + (f"\n{note}" if note else ""), fontsize=9.5)
        return save(figure, path)


def _rank_caption(ranking: Ranking, alpha: float) -> str:
    test = ranking.friedman
    p = f"p = {test.p:.3f}" if test.p >= 0.001 else "p < 0.001"
    return (f"Average rank of {test.k} encodings over {test.n} tasks, 1 is best. Friedman chi² = {test.chi2:.2f}, "
            f"F = {test.f:.2f}, {p} (permutation).\nA bar joins encodings nearer than the critical difference "
            f"{ranking.critical_difference:.2f} (Nemenyi, alpha = {alpha:g}).")


def _ruler(axis: Axes, k: int, distance: float, alpha: float) -> None:
    axis.plot([1, k], [0, 0], color="black", lw=1.2)
    for rank in range(1, k + 1):
        axis.plot([rank, rank], [0, 0.12], color="black", lw=1.2)
        axis.text(rank, 0.2, str(rank), ha="center", va="bottom", fontsize=9)
    start, end = 1.0, 1 + distance
    axis.plot([start, start, start, end, end, end], [0.8, 1.0, 0.9, 0.9, 0.8, 1.0], color="black", lw=1.2)
    axis.text((start + end) / 2, 1.02, f"critical difference {distance:.2f}", ha="center", va="bottom", fontsize=9)


def _cliques(ranks: np.ndarray, distance: float) -> list[tuple[int, int]]:
    """First and last index of each largest run of sorted ranks that lie within the distance."""
    runs: list[tuple[int, int]] = []
    for first in range(len(ranks)):
        last = int(np.searchsorted(ranks, ranks[first] + distance, side="right")) - 1
        if last > first and (not runs or last > runs[-1][1]):
            runs.append((first, last))
    return runs


def _curves(axis: Axes, points: pd.DataFrame, looks: dict[str, dict], within: tuple[float, float]) -> None:
    shown, ends = panels.whole(points)
    if shown.empty:
        return
    axis.set_ylim(panels.limits(shown["value"]))
    for encoding, look in looks.items():
        own = shown[shown["encoding"] == encoding]
        if own.empty:
            continue
        sns.lineplot(data=own, x="step", y="value", ax=axis, label=encoding, legend=False,
                     errorbar=partial(panels.band, within=within),
                     err_kws={"alpha": 0.4 / max(len(looks), 3), "linewidth": 0}, **look)
        if encoding in ends:
            at = own[own["step"] == ends[encoding]]
            axis.plot([ends[encoding]], [at["value"].mean()], marker="X", ms=11, mec="black", mew=1.2,
                      color=look["color"], ls="none", zorder=5)


def line(axis: Axes, x: np.ndarray, y: np.ndarray, label: str, look: dict, place: float) -> None:
    """One line of many; about eight of its points are marked.

    Lines with a later place, from 0 to 1, are thinner, so that those that coincide can be seen below each other.
    """
    step = max(1, len(x) // 8)
    look = {**look, "linewidth": 2.6 - 1.5 * place, "markersize": 7 - 3.5 * place}
    if len(x) > 200:
        look |= {"linestyle": "-", "linewidth": 1.2}  # dashes would be lost in the turns of a rough curve
    sns.lineplot(x=x, y=y, ax=axis, errorbar=None, label=label, legend=False,
                 markevery=(int(place * (step - 1)), step), **look)


def heat(axis: Axes, table: pd.DataFrame, lowest: float) -> Any:
    """A heat map of shares from `lowest` to 1 on a logarithmic scale; what is unknown stays grey. Returns the map."""
    axis.set_facecolor("0.85")
    axis.grid(False)
    sns.heatmap(table.clip(lower=lowest), ax=axis, norm=LogNorm(lowest, 1), cmap="rocket", cbar=False,
                xticklabels=False, yticklabels=False)
    return axis.collections[0]


def looks(encodings: list[str]) -> dict[str, dict]:
    """Colour, dashes and mark of each encoding: colours that colour-blind readers tell apart, and more than colour."""
    colours = sns.color_palette("colorblind", 10)
    return {
        name: {
            "color": colours[place % len(colours)],
            "dashes": False,
            "linestyle": (0, _DASHES[place % len(_DASHES)]) if _DASHES[place % len(_DASHES)] else "-",
            "marker": _MARKS[place % len(_MARKS)],
            "markersize": 4,
            "markeredgewidth": 0,
        }
        for place, name in enumerate(encodings)
    }


@contextmanager
def style() -> Iterator[None]:
    """The look of every figure, for as long as it is drawn; the caller's settings come back."""
    # The fixed salt names an SVG's parts alike in every run.
    fixed: Any = {"svg.hashsalt": "posbench", "font.family": "DejaVu Sans", "text.usetex": False,
                  "text.parse_math": False}
    with sns.axes_style("whitegrid"), sns.plotting_context("paper", font_scale=1.1), matplotlib.rc_context(fixed):
        yield


def save(figure: Figure, path: Path) -> list[Path]:
    """Writes PATH.png and PATH.svg and returns them."""
    written = []
    path.parent.mkdir(parents=True, exist_ok=True)
    # Dates and program versions would change the bytes and say nothing of the figure.
    for kind, silent in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, dpi=160, metadata=silent)
        target = path.with_name(f"{path.name}.{kind}")
        write_atomically(target, buffer.getvalue())
        written.append(target)
    return written
