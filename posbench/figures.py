"""Figures of an analysis, drawn with the means of posbench.plots: by encoding to compare, or by head for one alone."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from posbench.numerals import counted
from posbench.plots import Axes, Figure, heat, line, looks, save, style

By = Literal["encoding", "head"]
WINDOW = 64
"""Tokens on either side of the query in a map of attention."""
FAINTEST = 1e-5
# Half of the distance between 1 and the next number of the format: the largest relative error of one rounding.
_ROUNDING = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
_HEADS = 8


@dataclass(frozen=True)
class Panel:
    """One pair of axes: its title, the rows that it shows, what stands at its sides, and what else is drawn there."""

    title: str
    rows: pd.DataFrame
    x: str
    labels: tuple[str, str]
    column: str = "value"
    also: Callable[[Axes], None] = lambda axis: None


def decay(frame: pd.DataFrame, path: Path, by: By) -> list[Path]:
    """The logit by distance in a decoder: RoFormer's bound, and what the encoding adds in mean and spread."""
    shown = frame[frame["shape"] == "decoder"]
    far = ("distance of the key behind the query, tokens", "change of the logit")
    wide = by == "encoding"
    if wide:
        steps = {0, *(round(2 ** (power / 4)) for power in range(80))}
        shown = shown[shown["distance"].isin(steps | {shown["distance"].max()})]

    def spaced(axis: Axes) -> None:
        if wide:
            _powers(axis, int(shown["distance"].max()), 4)

    def both(axis: Axes) -> None:
        spaced(axis)
        if wide:
            axis.set_yscale("symlog", linthresh=1)
            _plain(axis)

    equal, random = (shown[shown["content"] == content] for content in ("equal", "random"))
    panels = [
        Panel("equal tokens: mean", equal, "distance", far, also=both),
        Panel("random tokens: mean", random, "distance", far, also=both),
        Panel("random tokens: standard deviation", random, "distance", (far[0], "deviation of the change"), "spread",
              also=spaced),
    ]
    bounds = shown[shown["quantity"] == "bound"]
    if len(bounds):
        panels.insert(0, Panel("RoFormer's bound, where q and k are turned", bounds, "distance",
                               (far[0], "(2/d) Σ |Sⱼ|"), also=spaced))
    what = ("Decay of the logit with distance, decoder: with the encoding less without it"
            + (", mean over heads. Axes are logarithmic away from 0, and a part of the distances is drawn."
               if wide else "."))
    return _panels(panels, path, by, _told(what, frame), across=2)


def attention(frame: pd.DataFrame, path: Path, by: By) -> list[Path]:
    """Attention weights of the middle query by offset, a row of each map being a head."""
    window = min(WINDOW, int(frame["offset"].abs().max()))
    near = frame[frame["offset"].abs() <= window]
    encodings, shapes = list(dict.fromkeys(near["encoding"])), list(dict.fromkeys(near["shape"]))
    heads = near["head"].nunique()
    with style():
        tall = min(3.0, max(0.5, 0.16 * heads)) * (2 if by == "head" else 1)
        figure = Figure(figsize=(8.5, (tall + 0.35) * len(encodings) + 1.5), layout="constrained")
        axes = figure.subplots(len(encodings), len(shapes), squeeze=False)
        drawn = None
        for across, shape in enumerate(shapes):
            for down, encoding in enumerate(encodings):
                axis = axes[down, across]
                own = near[(near["shape"] == shape) & (near["encoding"] == encoding)]
                if own.empty:
                    axis.set_axis_off()
                    continue
                table = own.pivot(index="head", columns="offset", values="value")
                drawn = heat(axis, table.reindex(columns=range(-window, window + 1)), FAINTEST)
                ticks = sorted({0, *(side * window // part for side in (-1, 1) for part in (1, 2))})
                axis.set_xticks([tick + window + 0.5 for tick in ticks], [f"{tick:+d}" if tick else "0"
                                                                        for tick in ticks])
                axis.set_yticks([0.5, heads - 0.5][:heads], ["0", str(heads - 1)][:heads])
                axis.tick_params(labelbottom=down == len(encodings) - 1, labelsize=8)
                axis.set_title(f"{encoding}, {shape}" if by == "encoding" else shape, fontsize=9, parse_math=False)
                axis.set_ylabel("head" if across == 0 else "", fontsize=9)
                axis.set_xlabel("offset of the key, tokens" if down == len(encodings) - 1 else "")
        assert drawn is not None
        bar = figure.colorbar(drawn, ax=axes, location="right", fraction=0.05,
                              shrink=min(1.0, 3 / figure.get_figheight() + 0.3))
        bar.set_label("attention weight")
        shares = [10.0**power for power in range(round(math.log10(FAINTEST)), 1)]
        bar.set_ticks(shares, labels=[f"≤ {FAINTEST:g}", *(f"{share:g}" for share in shares[1:])])
        what = "Attention of the query in the middle where all tokens are alike; grey: no key, or hidden by the mask."
        _caption(figure, _told(what, frame), 8.5)
        return save(figure, path)


def precision(frame: pd.DataFrame, path: Path, by: By) -> list[Path]:
    """Error of a logit against float64 by position, a panel for each format."""
    shown = frame[frame["quantity"] == "largest error"]
    near = int(shown["distance"].iloc[0])

    def panel(dtype: str, place: int) -> Panel:
        def scaled(axis: Axes) -> None:
            known = shown.loc[(shown["dtype"] == dtype) & (shown["value"] > 0), "value"]
            bottom, top = (min([*known, _ROUNDING[dtype]]), max([*known, 3 * _ROUNDING[dtype]]))
            axis.set_yscale("log")
            # Whole decades, so that the axis has two numbers at least.
            axis.set_ylim(10.0 ** math.floor(math.log10(bottom)), 10.0 ** math.ceil(math.log10(top)))
            _plain(axis)
            _powers(axis, int(shown["position"].max()), 16)
            axis.axhline(3 * _ROUNDING[dtype], color="0.3", lw=1, ls=":", label="three roundings of the format")

        sides = ("position of the key, tokens", "largest error, units of |q||k|/√d" if place == 0 else "")
        return Panel(dtype, shown[shown["dtype"] == dtype], "position", sides, also=scaled)

    panels = [panel(dtype, place) for place, dtype in enumerate(dict.fromkeys(shown["dtype"]))]
    what = (f"Error of the logit {counted(near, 'token')} apart against float64, by position"
            + (", the worst head." if by == "encoding" else ".")
            + (" A large cross ends a line: refused, or not finite, beyond." if shown["value"].isna().any() else ""))
    return _panels(panels, path, by, _told(what, frame), across=3, over_heads="max")


def beyond(frame: pd.DataFrame, path: Path, by: By) -> list[Path]:
    """Entropy and reach of attention at multiples of the trained length, in a decoder."""
    shown = frame[frame["shape"] == "decoder"]
    multiples = np.array(sorted(shown["multiple"].unique()))
    # An encoding that ends before the trained length has shorter ones.
    trained = int(shown.loc[shown["multiple"] == 1, "length"].max())

    def panel(quantity: str, content: str, side: str) -> Panel:
        def scaled(axis: Axes) -> None:
            axis.set_xscale("log", base=2)
            axis.set_xticks(multiples, [f"{multiple}×" for multiple in multiples])
            axis.set_xlim(0.85, multiples[-1] * 1.18)
            axis.minorticks_off()
            uniform = {"entropy": np.log(multiples * trained), "mass in window": 1 / multiples}.get(quantity)
            if uniform is not None:
                axis.plot(multiples, uniform, color="0.3", lw=1, ls=":", label="uniform attention", zorder=1)
            if side != "nat":
                axis.set_ylim(-0.05, 1.05)

        # A refused length has no head; it is a point without a value on every line of its encoding.
        own = shown[(shown["quantity"] == quantity) & (shown["content"] == content)]
        refused = shown[shown["quantity"] == "refused"].drop(columns="head")
        own = pd.concat([own, own[["encoding", "head"]].drop_duplicates().merge(refused, on="encoding")])
        words = {"entropy": "entropy, nat", "mass in window": "share of the weight", "out of range": "share of keys"}
        title = {"mass in window": "weight within the trained length", "out of range": "logits outside trained range"}
        return Panel(f"{title.get(quantity, quantity)}, {content} tokens", own, "multiple",
                     ("multiple of the trained length", words[quantity]), also=scaled)

    panels = [panel("entropy", "equal", "nat"), panel("mass in window", "equal", "share"),
              panel("out of range", "equal", "share"), panel("entropy", "random", "nat"),
              panel("mass in window", "random", "share")]
    what = (f"Attention of a decoder's last query beyond the trained length of {trained} tokens"
            + (", mean over heads." if by == "encoding" else ".")
            + (" A large cross ends a line: refused beyond." if shown["value"].isna().any() else ""))
    return _panels(panels, path, by, _told(what, frame), across=3)


def _panels(panels: list[Panel], path: Path, by: By, caption: str, *, across: int,
            over_heads: str = "mean") -> list[Path]:
    """Lines by encoding, or by head, on every panel, with one legend beside them."""
    lines = [_lines(panel, by, over_heads) for panel in panels]
    # The last panel has every encoding, in the order of the table, so that colours agree between figures.
    names = (list(dict.fromkeys(map(str, panels[-1].rows["encoding"]))) if by == "encoding"
             else sorted({name for own in lines for name in own}, key=lambda name: (len(name), name)))
    chosen = looks(names)
    across = min(across, len(panels))
    down = math.ceil(len(panels) / across)
    with style():
        wide, tall = 3.9 * across, 2.9 * down + 0.8
        columns = math.ceil((len(names) + 2) / (5 * tall))
        legend = (0.9 + 0.09 * max(len(name) for name in [*names, "three roundings of the"])) * columns
        figure = Figure(figsize=(wide + legend, tall), layout="constrained")
        axes = figure.subplots(down, across, squeeze=False).ravel()
        for axis in axes[len(panels):]:
            axis.set_axis_off()
        for axis, panel, own in zip(axes, panels, lines, strict=False):
            for name, (x, y) in own.items():
                _one(axis, x, y, name, chosen[name], names.index(name) / len(names))
            if all(np.nanmax(np.abs(y), initial=0) < 1e-9 for _, y in own.values()):
                axis.set_ylim(-1, 1)  # nothing but rounding, which would fill the axis
            panel.also(axis)
            axis.set_title(panel.title, fontsize=10)
            axis.set_xlabel(panel.labels[0])
            axis.set_ylabel(panel.labels[1])
        handles = {handle.get_label(): handle for axis in axes for handle in axis.get_lines()
                   if not str(handle.get_label()).startswith("_")}
        others = [name for name in handles if name not in names]
        labels = [*(name for name in names if name in handles), *others]
        figure.legend([handles[name] for name in labels], [textwrap.fill(name, 30) for name in labels],
                      loc="outside right upper", title=by if by == "encoding" else None, frameon=False, ncols=columns)
        _caption(figure, caption, wide)
        return save(figure, path)


def _one(axis: Axes, x: np.ndarray, y: np.ndarray, name: str, look: dict, place: float) -> None:
    known = np.isfinite(y)
    end = len(y) if known.all() else int(np.argmin(known))
    if end == 0:
        return
    line(axis, x[:end], y[:end], name, look, place)
    if end < len(y):
        axis.plot(x[end - 1 : end], y[end - 1 : end], marker="X", ms=10, mec="black", mew=1.1, color=look["color"],
                  ls="none", zorder=5)


def _lines(panel: Panel, by: By, over_heads: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Points by name. One encoding by head: heads with the same curve are one line, and of many heads some are shown.

    Args:
        over_heads: what stands for the heads of an encoding, 'mean' or 'max'.
    """
    if by == "encoding":
        # A value that any head lacks is lacking.
        means = panel.rows.groupby(["encoding", panel.x], sort=False)[panel.column].agg(
            lambda values: values.agg(over_heads, skipna=False))
        return {str(name): _points(own.droplevel(0)) for name, own in means.groupby(level=0, sort=False)}
    rows = panel.rows.astype({"head": int})
    curves = {head: _points(rows[rows["head"] == head].set_index(panel.x)[panel.column])
              for head in sorted(set(rows["head"]))}
    groups: list[list[int]] = []
    for head, (_, y) in curves.items():
        same = next((group for group in groups if np.allclose(curves[group[0]][1], y, rtol=1e-6, equal_nan=True)), None)
        if same is None:
            groups.append([head])
        else:
            same.append(head)
    if len(groups) > _HEADS:
        groups = [groups[place] for place in np.linspace(0, len(groups) - 1, _HEADS).round().astype(int)]
    return {_heads(group, len(curves)): curves[group[0]] for group in groups}


def _points(values: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    ordered = values.sort_index()
    return ordered.index.to_numpy(dtype=float), ordered.to_numpy(dtype=float)


def _heads(group: list[int], heads: int) -> str:
    if len(group) == heads > 1:
        return "all heads"
    return f"head {group[0]}" if len(group) == 1 else f"heads {', '.join(map(str, group[:4]))}" + (
        " …" if len(group) > 4 else "")


def _powers(axis: Axes, last: int, step: int) -> None:
    """A logarithmic axis that begins with 0, with ticks at powers of `step`."""
    axis.set_xscale("symlog", base=2, linthresh=1)
    ticks = [0, *(step**power for power in range(20) if step**power <= last + 1)]
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.set_xlim(-0.2, last * 1.2)


def _plain(axis: Axes) -> None:
    """Numbers at a logarithmic axis as plain text, as the style reads no mathematics."""
    axis.yaxis.set_major_formatter(lambda value, place: f"{value:g}")
    axis.yaxis.set_minor_formatter(lambda value, place: "")


def _told(what: str, frame: pd.DataFrame) -> str:
    """The caption: what is shown, of what, and which parameters are at initial values."""
    names = list(dict.fromkeys(frame["encoding"]))
    initial = list(dict.fromkeys(frame.loc[frame["parameters"] != "none", "encoding"]))
    state = ""
    if initial:
        seed = frame.loc[frame["parameters"] != "none", "parameters"].iloc[0]
        state = f" Untrained, at {seed}" + (f": {', '.join(initial)}." if len(names) > 1 else ".")
    return (f"{names[0]}. " if len(names) == 1 else "") + what + state


def _caption(figure: Figure, text: str, wide: float) -> None:
    figure.suptitle(textwrap.fill(text, int(12 * wide)), fontsize=10, x=0.01, ha="left")


FIGURES: dict[str, Any] = {"decay": decay, "attention": attention, "precision": precision, "beyond": beyond}
