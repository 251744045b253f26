"""Stand: one encoding at its initial values between tokens and logits, in one attention layer without weights.

Tokens are queries and keys at once: features of unit variance pass through the encoding's hooks as in the template,
embedded, split into heads and turned, with no projection between. So what is measured belongs to the encoding, and is
nothing that training made of it. What an encoding does to values and outputs is not seen.

Shapes: B contents, H heads, Q queries, K keys, D model width, d head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from posbench import attention
from posbench.encoding import Dimensions, Encoding
from posbench.errors import UserError
from posbench.positions import Positions
from posbench.probe import Shape
from posbench.seeds import generator

LARGEST = 2**23
"""Width times length; eight times the length take some gigabytes of it in float64."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The layer around the encoding.

    Attributes:
        width: D, features of a token. heads: H. length: of training, in tokens.
        draws: random pairs of contents. seed: of contents and initial values.
    """

    width: int = 512
    heads: int = 4
    length: int = 1024
    draws: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise UserError(f"width {self.width} is no multiple of heads {self.heads}: choose one that is")
        if self.width * self.length > LARGEST:
            raise UserError(f"width {self.width} times length {self.length} is above {LARGEST}, which takes gigabytes "
                            "at eight times the length: choose a smaller one")


class Stand:
    """One encoding at its initial values between tokens and logits.

    Attributes:
        trained: the setup's length, or fewer tokens where the encoding's positions end before.
    """

    def __init__(self, cls: type[Encoding], config: Any, setup: Setup, shape: Shape) -> None:
        self.cls, self.config, self.setup, self.shape = cls, config, setup, shape
        # Tokens of deviation 1 and an encoding that knows of it keep the template's proportion of position to content.
        self.dimensions = Dimensions(width=setup.width, heads=setup.heads, length=setup.length,
                                     causal=shape == "decoder", embedding_std=1.0)
        self.encoding, self.plain = self.made(), Encoding(self.dimensions)
        self.trained = min(setup.length, self.encoding.max_length or setup.length)

    def made(self) -> Encoding:
        """A new instance in float64, with the values that the template would give its first layer."""
        encoding = self.cls(self.dimensions, self.config)
        for name, tensor in encoding.state_dict().items():
            value = torch.empty(tensor.shape, dtype=torch.float32)
            encoding.initial(name, value, generator(self.setup.seed, "initial", f"encodings.0.{name}"))
            tensor.copy_(value)
        return encoding.double().eval()

    def at(self, query: int, keys: int) -> Positions:
        """One query among keys 0 ... keys - 1; in a decoder those behind it alone."""
        keys = query + 1 if self.dimensions.causal else keys
        return Positions(q=torch.tensor([[query]]), k=torch.arange(keys)[None], end=keys,
                         causal=self.dimensions.causal, regular=query == keys - 1)

    def turned(self, encoding: Encoding, x: Tensor, y: Tensor, at: Positions) -> tuple[Tensor, Tensor]:
        """Tokens x (B, Q, D) and y (B, K, D) -> queries (B, H, Q, d) and keys (B, H, K, d); `at` as placed."""
        q = attention.checked(encoding, "embed", encoding.embed(x, at), x.shape, x.dtype)
        k = attention.checked(encoding, "embed", encoding.embed(y, replace(at, q=at.k)), y.shape, y.dtype)
        q, k = (z.unflatten(-1, (self.dimensions.heads, -1)).transpose(1, 2) for z in (q, k))
        return attention.rotated(encoding, q, at, "query"), attention.rotated(encoding, k, at, "key")

    def logits(self, x: Tensor, y: Tensor, at: Positions, encoding: Encoding | None = None) -> Tensor:
        """(B, 1, D) and (B, K, D) -> (B, H, K); a single token y (B, 1, D) stands at every key."""
        encoding = encoding or self.encoding
        at = attention.placed(encoding, at)
        q, k = self.turned(encoding, x, y.expand(-1, at.length, -1), at)
        return attention.logits(q, k, encoding, at)[:, :, 0]

    def change(self, x: Tensor, y: Tensor, at: Positions) -> Tensor:
        """(B, H, K) what the encoding adds to the logits: those with it less those of the same tokens without it."""
        return self.logits(x, y, at) - self.logits(x, y, at, self.plain)

    def weights(self, x: Tensor, y: Tensor, at: Positions) -> Tensor:
        """(B, H, K) attention weights."""
        return attention.attention_weights(self.logits(x, y, at)[:, :, None], at)[:, :, 0]

    def equal(self) -> Tensor:
        """(2, 1, D) a token of ones and one of minus ones: in their mean, what is odd in the content drops out."""
        return torch.ones(2, 1, self.setup.width, dtype=torch.float64) * torch.tensor([1.0, -1.0])[:, None, None]

    def random(self, name: str, count: int, length: int = 1) -> Tensor:
        """(count, length, D) standard normal tokens that depend on seed, name and shape alone."""
        stream = generator(self.setup.seed, "analysis", name)
        return torch.randn(count, length, self.setup.width, generator=stream, dtype=torch.float64)

    def contents(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Names and pairs of tokens; a random pair comes with all four signs, for the same reason as in `equal`."""
        yield "equal", self.equal(), self.equal()
        x, y = self.random("queries", self.setup.draws), self.random("keys", self.setup.draws)
        yield "random", torch.cat([x, x, -x, -x]), torch.cat([y, -y, y, -y])
