"""Analysis: what an encoding does to the logits of one attention layer, untrained, as tidy tables.

Each table is a function of a Stand, which says what stands around the encoding.

Shapes: H heads, K keys, d head width.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from posbench import attention
from posbench.config import EncodingChoice
from posbench.encoding import Encoding, overrides
from posbench.errors import ContextLengthExceeded, UserError, reason_of
from posbench.numerals import counted
from posbench.options import build_options, encoding_class
from posbench.positions import Positions
from posbench.probe import Shape, isolated
from posbench.registry import ENCODINGS
from posbench.stand import Setup, Stand

FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
POSITIONS = (0, *(2**power for power in range(17)))
MULTIPLES = (1, 2, 4, 8)
NEAR = 5
"""Tokens between query and key where precision is measured."""


@dataclass(frozen=True)
class Verdict:
    """How a curve over distance runs (P14): text says it; flat_from is the distance from which nothing changes."""

    text: str
    monotone: bool
    flat_from: int | None


def verdict(curve: np.ndarray, spread: np.ndarray) -> Verdict:
    """The verdict on the means and spreads at the distances 0, 1, 2, ...

    Monotone means that no step of the mean rises, as in a decay. Steps below a millionth of the largest value are
    rounding. A mean that is constant while the spread is not is an encoding that acts through the content alone.
    """
    rounding = 1e-6 * max(np.abs(curve).max(), np.abs(spread).max()) + 1e-12
    steps = np.diff(curve)
    still = np.abs(curve - curve[-1]) <= rounding
    moved = np.flatnonzero(~(still & (np.abs(spread - spread[-1]) <= rounding)))
    if not len(moved):
        return Verdict("constant", True, 0)
    flat = int(moved[-1]) + 1
    told = f", flat from {flat}" if flat < len(curve) - 1 else ""
    falling = bool((steps <= rounding).all())
    if falling and (steps < -rounding).all() and (len(steps) < 2 or np.abs(np.diff(steps)).max() <= 2 * rounding):
        return Verdict("falls linearly", True, None)
    text = ("only through content" if still.all() else "falls" if falling else "rises" if (steps >= -rounding).all()
            else "not monotone")
    return Verdict(text + told, falling and not still.all(), flat if told else None)


def decay(stand: Stand) -> pd.DataFrame:
    """Change of the logit by distance: the last query of the trained length against the keys behind it.

    Value is the mean over contents and spread their standard deviation. Random contents are measured in the decoder
    alone; there too, where the encoding turns queries and keys, rows of quantity 'bound' hold RoFormer's bound.
    """
    at, parts = stand.at(stand.trained - 1, stand.trained), []
    for content, x, y in stand.contents():
        # What depends on the content knows of no mask either; it is what takes the time.
        if content == "random" and not stand.dimensions.causal:
            continue
        change = torch.cat([stand.change(*pair, at) for pair in zip(x.split(8), y.split(8), strict=True)]).flip(-1)
        parts.append(_by_head(change.mean(0), "distance", quantity="change", content=content,
                              spread=change.std(0).flatten().numpy(), unit="logit"))
    # A rotation knows of no mask: its bound is the same in an encoder.
    bounds = bound(stand) if stand.dimensions.causal else None
    if bounds is not None:
        parts.append(_by_head(bounds, "distance", quantity="bound", content="any", spread=0.0, unit="pairs"))
    return pd.concat(parts, ignore_index=True)


def bound(stand: Stand) -> Tensor | None:
    """(H, K) the mean of |S_j| over j, (2/d) sum_j |S_j|, at the distances 0 ... K-1 (RoFormer section 3.4.3).

    S_j sums e^(i n theta) over the j pairs of channels that turn fastest, n being the distance. The angles are read off
    the hook: they are those of the eigenvalues of the map between a query one step ahead and a key. None where the
    hook's maps at two distances do not commute, as then it turns no pairs.
    """
    encoding, d = stand.encoding, stand.dimensions.head_width
    if not overrides(encoding, "rotate"):
        return None

    def turn(vectors: Tensor, distances: Tensor, side: Any) -> Tensor:
        at = Positions(q=distances[None], k=torch.zeros_like(distances[None]), end=int(distances.max()) + 1)
        wide = vectors[:, :, None].expand(-1, -1, len(distances), -1)
        return attention.rotated(encoding, wide, attention.placed(encoding, at), side)

    def maps(distance: int) -> Tensor:
        """(H, d, d) with entries <turned unit query, unit key>."""
        unit = torch.eye(d, dtype=torch.float64)[:, None].expand(-1, stand.dimensions.heads, -1)
        where = torch.tensor([distance])
        return torch.einsum("ahlc,bhlc->hab", turn(unit, where, "query"), turn(unit, where, "key"))

    last = stand.trained - 1
    step, far = maps(min(1, last)), maps(last)
    if (step @ far - far @ step).abs().max() > 1e-6 * step.abs().max() * far.abs().max():
        return None
    eigenvalues, vectors = torch.linalg.eig(step)
    order = eigenvalues.angle().argsort(dim=-1, descending=True)[:, : d // 2]
    # (d/2, H, d): the eigenvectors of the pairs, the fastest first.
    vectors = vectors.gather(2, order[:, None].expand(-1, d, -1)).permute(2, 0, 1)
    origin = torch.zeros(1, dtype=torch.int64)
    k = torch.complex(turn(vectors.real, origin, "key"), turn(vectors.imag, origin, "key"))
    found = []
    for distances in torch.arange(last + 1).split(16):
        # <turned conjugate of v, v> is the eigenvalue at this distance.
        q = torch.complex(turn(vectors.real, distances, "query"), turn(-vectors.imag, distances, "query"))
        found.append((q @ k.transpose(-1, -2))[..., 0].cumsum(0).abs().sum(0) * 2 / d)
    return torch.cat(found, dim=-1)


def attention_map(stand: Stand) -> pd.DataFrame:
    """Softmax weights of the query in the middle on every key, by offset, where all tokens are alike."""
    query = stand.trained // 2
    at, x = stand.at(query, stand.trained), stand.equal()
    frame = _by_head(stand.weights(x, x, at).mean(0), "key", quantity="weight", content="equal", unit="share")
    return frame.assign(query=query, offset=frame["key"] - query)


def precision(stand: Stand) -> pd.DataFrame:
    """Error of a logit in a narrower format against float64, by position, in units of |q||k|/sqrt(d).

    Both sides have the same rounded tokens and parameters, so that the error is what the format makes of positions and
    products. The key stands at the position, the query NEAR tokens behind it. A format that cannot hold the value, and
    a position that is refused, has a row without a value and with a note.
    """
    rows = []
    x, y = stand.random("near queries", 16), stand.random("near keys", 16, NEAR + 1)
    for name, dtype in FORMATS.items():
        low, high = stand.made().to(dtype), stand.made()
        high.load_state_dict(low.state_dict())
        coarse = x.to(dtype), y.to(dtype)
        exact = coarse[0].double(), coarse[1].double()
        for position in POSITIONS:
            error, note = torch.full((1, stand.dimensions.heads), math.nan), ""
            index = torch.arange(position, position + NEAR + 1)[None]
            at = Positions(q=index[:, -1:], k=index, end=position + NEAR + 1, causal=stand.dimensions.causal,
                           regular=True)
            try:
                found = stand.logits(*coarse, at, low)[..., 0].double()
                wanted = stand.logits(*exact, at, high)[..., 0]
                # Lengths before the encoding acts: what it makes longer or shorter must not change the unit.
                q, k = stand.turned(stand.plain, *exact, at)
                sizes = q[:, :, 0].norm(dim=-1) * k[:, :, 0].norm(dim=-1) * q.shape[-1] ** -0.5
                error = (found - wanted).abs() / sizes
                if not error.isfinite().all():
                    note = f"{name} cannot hold it: not finite in {int((~error.isfinite()).any(-1).sum())} of 16 draws"
                    error = torch.full((1, stand.dimensions.heads), math.nan)
            except ContextLengthExceeded as refusal:
                note = f"refused: ends at {counted(refusal.limit, 'position')}"
            for quantity, value in (("largest error", error.amax(0)), ("rms error", error.square().mean(0).sqrt())):
                rows += [{"quantity": quantity, "head": head, "distance": NEAR, "position": position, "dtype": name,
                          "value": one, "unit": "|q||k|/sqrt(d)", "note": note}
                         for head, one in enumerate(value.tolist())]
    return pd.DataFrame(rows)


def beyond(stand: Stand) -> pd.DataFrame:
    """Attention at 1, 2, 4 and 8 times the trained length, of a decoder's last query or an encoder's middle one.

    Quantities: 'entropy' of the weights in nat, 'mass in window', the share of the weights on keys nearer than the
    trained length, and 'out of range', the share of keys at which the change of the logit of equal tokens leaves the
    range that it has at the trained length. A length that the encoding refuses is a row without a value.
    """
    rows: list[dict[str, Any]] = []
    lowest = highest = torch.empty(0)
    for multiple in MULTIPLES:
        length = multiple * stand.trained
        at = stand.at(length - 1 if stand.dimensions.causal else length // 2, length)
        near = at.offsets()[0, 0].abs() < stand.trained

        def add(quantity: str, content: str, values: Tensor, unit: str, length: int = length,
                multiple: int = multiple) -> None:
            rows.extend({"quantity": quantity, "content": content, "head": head, "length": length, "multiple": multiple,
                         "value": mean, "spread": spread, "unit": unit, "note": ""}
                        for head, (mean, spread) in enumerate(zip(values.mean(0).tolist(),
                                                                  values.std(0).tolist(), strict=True)))

        try:
            x, many = stand.random("far queries", 4), stand.random(f"far keys {multiple}", 4, at.length)
            weights = torch.cat([stand.weights(*pair, at) for pair in zip(x.split(1), many.split(1), strict=True)])
            for content, own in (("equal", stand.weights(stand.equal(), stand.equal(), at)), ("random", weights)):
                add("entropy", content, torch.special.entr(own).sum(-1), "nat")
                add("mass in window", content, (own * near).sum(-1), "share")
            change = stand.change(stand.equal(), stand.equal(), at)
            if multiple == 1:
                lowest, highest = change.amin((0, 2)), change.amax((0, 2))
            margin = 1e-6 * torch.maximum(lowest.abs(), highest.abs()) + 1e-12
            outside = (change < (lowest - margin)[:, None]) | (change > (highest + margin)[:, None])
            add("out of range", "equal", outside.double().mean(-1), "share")
        except ContextLengthExceeded as refusal:
            rows.append({"quantity": "refused", "content": "any", "head": math.nan, "length": length,
                         "multiple": multiple, "value": math.nan, "spread": math.nan, "unit": "",
                         "note": f"refused at length {length}: ends at {counted(refusal.limit, 'position')}"})
    frame = pd.DataFrame(rows)
    return frame.assign(head=frame["head"].astype("Int64"))


def _by_head(values: Tensor, axis: str, **more: Any) -> pd.DataFrame:
    """(H, n) values, n along the axis, as tidy rows."""
    heads, n = values.shape
    rows = {"head": np.repeat(np.arange(heads), n), axis: np.tile(np.arange(n), heads),
            "value": values.flatten().numpy()}
    words = {name: more.pop(name) for name in ("quantity", "content")}
    return pd.DataFrame({**{name: [word] * heads * n for name, word in words.items()}, **rows, **more})


def verdicts(frame: pd.DataFrame) -> pd.DataFrame:
    """How the curves of `decay` run, one row for each head, for the bound and for equal tokens."""
    shown = frame[frame["content"] != "random"]
    rows = []
    for (quantity, head), own in shown.groupby(["quantity", "head"], sort=False):
        told = verdict(own["value"].to_numpy(), own["spread"].to_numpy())
        rows.append({"quantity": quantity, "head": head, "verdict": told.text, "monotone": told.monotone,
                     "flat_from": told.flat_from})
    return pd.DataFrame(rows).astype({"flat_from": "Int64"})


TABLES = {"decay": decay, "attention": attention_map, "precision": precision, "beyond": beyond}


def resolved(choice: EncodingChoice) -> tuple[type[Encoding], Any]:
    """The class and the Config that a choice names.

    Raises:
        UserError: an unknown name, a plugin that is no encoding, a wrong option.
    """
    cls = encoding_class(choice.name, ENCODINGS.load(choice.name).value)
    return cls, build_options(choice.name, cls, choice.options)


def analyse(choice: EncodingChoice, setup: Setup) -> dict[str, pd.DataFrame]:
    """The tables of one encoding by name: those of TABLES and 'verdicts', in an encoder and in a decoder.

    The columns encoding, options, parameters ('none', or that they are initial values and of which seed) and shape
    come first. Precision is measured in the decoder alone.

    Raises:
        UserError: an unknown name, a wrong option, sizes that the encoding refuses, or a plugin that breaks down.
    """
    cls, config = resolved(choice)
    options = ":".join(f"{name}={value}" for name, value in dataclasses.asdict(config).items())
    parts: dict[str, list[pd.DataFrame]] = {name: [] for name in (*TABLES, "verdicts")}
    shapes: tuple[Shape, ...] = ("decoder",) if cls.needs_causal else ("encoder", "decoder")
    try:
        for shape in shapes:
            with isolated(), torch.no_grad():
                stand = Stand(cls, config, setup, shape)
                found = {name: make(stand) for name, make in TABLES.items()
                         if shape == "decoder" or name != "precision"}
            found["verdicts"] = verdicts(found["decay"])
            state = f"initial values, seed {setup.seed}" if stand.encoding.state_dict() else "none"
            for name, frame in found.items():
                for column, value in (("shape", shape), ("parameters", state), ("options", options),
                                      ("encoding", choice.label)):
                    frame.insert(0, column, value)
                parts[name].append(frame)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"encoding '{choice.label}' cannot be analysed: {reason_of(error)} "
                        f"(posbench check {choice.name} shows what it lacks)") from error
    return {name: pd.concat(frames, ignore_index=True) for name, frames in parts.items()}
