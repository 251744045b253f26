"""Rotary: what all encodings share that turn queries and keys pair of channels by pair.

    <R(m) q, R(n) k> = <q, R(n - m) k>,   R(p) turning pair i by p f_i        (Su et al. 2021, Eq. 16 and 34)

A subclass says how fast each pair turns, f_i in radians a position. Most of them are variants of a trained `rope` for
longer sequences: they have no weights either, so that a trained model takes any of them in place of its own.

Shapes: B batch, H heads, L tokens, d head width, r turned channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from posbench import maths
from posbench.encoding import Dimensions, Encoding, Side, option
from posbench.errors import UserError
from posbench.positions import Positions


class Rotary(Encoding):
    """Rotation of queries and keys. Values are not turned, and cross attention is left alone.

    Attributes:
        turned: r, the first channels of a head, which turn; the others stay as they are.
        gain: factor on the turned channels of queries and keys alike, so that their products grow by its square.
        sided: queries and keys have amplitudes of their own.
    """

    gain: float = 1.0
    sided: ClassVar[bool] = False

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Options that rotations share."""

        base: float = option(10000.0, "theta, the base of the geometric series of frequencies", above=1)
        layout: maths.Layout = option("interleaved", "pairs (2i, 2i+1) as in the paper, or (i, i + r/2)")
        fraction: float = option(1.0, "share of a head's channels that is turned", above=0, at_most=1)

    def __init__(self, dimensions: Dimensions, config: Any = None) -> None:
        super().__init__(dimensions, config)
        turned = self.config.fraction * dimensions.head_width
        self.turned = int(turned)
        if turned != self.turned or self.turned % 2:
            raise UserError(
                f"encoding '{self.spelled()}': fraction {self.config.fraction} of a head of {dimensions.head_width} "
                f"channels is {turned:g}, but channels turn in pairs: choose a head width or fraction that gives an "
                "even number"
            )

    def frequencies(self, at: Positions, side: Side) -> Tensor:
        """Radians that each pair turns from one position to the next, for the tokens of this side.

        Returns:
            (r/2,) float64, or (B|1, L|1, r/2) where it depends on the length of a token's sequence.
        """
        return maths.inverse_frequencies(self.turned, self.config.base, at.q.device)

    def amplitudes(self, at: Positions, side: Side) -> Tensor | float:
        """(B|1, L, r/2) float64 or one number: what multiplies the turned pairs of this side."""
        return self.gain

    def rotate(self, x: Tensor, at: Positions, side: Side) -> Tensor:
        if side not in ("query", "key"):
            return x
        # Where queries and keys are the same tokens they turn alike, and share a table.
        shared = at.q is at.k and not self.sided
        cos, sin = at.once((self, shared or side, x.dtype), lambda: self._table(at, side, x.dtype))
        return self.turn(x, cos, sin)

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x (B, H, L, d) with its first channels turned by angles given as cos, sin (B|1, 1, L, r/2)."""
        if self.turned == x.shape[-1]:
            return maths.rotate(x, cos, sin, self.config.layout)
        head = maths.rotate(x[..., : self.turned], cos, sin, self.config.layout)
        return torch.cat([head, x[..., self.turned :]], dim=-1)

    def _table(self, at: Positions, side: Side, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin with their amplitude, each (B|1, 1, L, r/2), rounded only when finished."""
        amplitudes = self.amplitudes(at, side)
        angles = maths.angles(at.q if side == "query" else at.k, self.frequencies(at, side))
        return tuple((wave * amplitudes)[:, None].to(dtype) for wave in (angles.cos(), angles.sin()))  # type: ignore[return-value]


class ScaledRotary(Rotary):
    """Rotation of a model that was trained on shorter sequences than it shall read.

    Attributes:
        original: L0, the trained length in tokens.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Rotary.Config):
        """Options that rotations for longer sequences share."""

        factor: float = option(4.0, "s, how many times longer than trained on the sequences may be", at_least=1)
        original_length: int | None = option(
            None, "L0, longest sequence in tokens that the model was trained on; the study's if none", at_least=2)

    @property
    def original(self) -> int:
        return self.dimensions.length if self.config.original_length is None else self.config.original_length

    def size(self, at: Positions, side: Side) -> Tensor:
        """(B|1, L|1, 1) int64: tokens of the sequence that each token of this side belongs to, in this pass alone."""
        return at.sizes()[0 if side == "query" else 1][..., None]

    def stretched(self, stretch: Tensor | float, device: torch.device) -> Tensor:
        """(r/2,) or (..., r/2) float64 frequencies for the base b s^(r/(r-2)), s being `stretch`, a number or (..., 1).

        The fastest pair keeps its frequency and the slowest turns exactly s times slower (NTK-aware interpolation).
        """
        plain = maths.inverse_frequencies(self.turned, self.config.base, device)
        pair = torch.arange(self.turned // 2, dtype=torch.float64, device=device)
        # The same as that base to the power -2i/r, and defined for a single pair too.
        return plain * stretch ** (-2 * pair / max(self.turned - 2, 1))
