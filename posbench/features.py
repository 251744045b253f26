"""Feature maps of linear attention, f with f(q).f(k) in place of exp(q.k / sqrt(d)).

Shapes: B batch, H heads, L tokens, d head width, m features.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from posbench.seeds import generator


class Favor(nn.Module):
    """FAVOR+, positive orthogonal random features of the softmax kernel (Choromanski et al. 2021, arXiv 2009.14794).

        f(x) = exp(w.x - |x|^2 / 2) / sqrt(m),   E f(q).f(k) = exp(q.k)                             (Lemma 1)

    x is divided by d^(1/4), so that the kernel is that of softmax(q.k / sqrt(d)). Rows of w are Gaussian and orthogonal
    (section 2.4), which no more than d of them can be: more come in blocks of d.
    """

    projection: Tensor

    def __init__(self, width: int, features: int | None = None) -> None:
        """m = d log d, the order of section 3, to the nearest multiple of d where `features` is None."""
        super().__init__()
        count = width * max(round(math.log(width)), 1) if features is None else features
        self.register_buffer("projection", torch.empty(count, width))

    def initial(self, name: str, value: Tensor, stream: torch.Generator) -> None:
        """Fills the projection with a first draw."""
        value.copy_(orthogonal_rows(value.shape[0], value.shape[1], stream))

    def redraw(self, stream: torch.Generator) -> None:
        """Another draw, in a new tensor: a backward pass to come may still need the old one."""
        rows, width = self.projection.shape
        self.projection = orthogonal_rows(rows, width, stream).to(self.projection)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, H, L, d) -> features (B, H, L, m) of each token divided by the largest, and the log of that, (B, H, L).

        A maximum over several tokens would tell early tokens of later ones.
        """
        x = x * x.shape[-1] ** -0.25
        exponent = x @ self.projection.to(x.dtype).T - x.square().sum(-1, keepdim=True) / 2
        top = exponent.detach().amax(-1, keepdim=True)
        return (exponent - top).exp() * self.projection.shape[0] ** -0.5, top[..., 0]


class Elu(nn.Module):
    """f(x) = elu(x) + 1 (Katharopoulos et al. 2020, arXiv 2006.16236, Eq. 7)."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, H, L, d) -> features of the same shape, and zeros (B, H, L).

        Formed without the difference exp(x) - 1 + 1, which is 0 from x = -17 on in float32.
        """
        return functional.relu(x) + x.clamp(max=0).exp(), x.new_zeros(x.shape[:-1])


class Redraw(nn.Module):
    """When FAVOR+ features are drawn anew: a private stream and a count of training passes, both in the state dict.

    Nothing is drawn in evaluation, nor from a global stream, and a resumed run draws what an unbroken one would.
    """

    clock: Tensor

    def __init__(self, interval: int) -> None:
        super().__init__()
        self.interval = interval
        self.register_buffer("clock", torch.zeros(2, dtype=torch.int64))

    def initial(self, name: str, value: Tensor, stream: torch.Generator) -> None:
        """The seed of the private stream, and no pass yet."""
        value[0], value[1] = torch.randint(2**62, (1,), generator=stream).item(), 0

    def advance(self, maps: dict[str, Favor]) -> None:
        """Counts one training pass, and draws the features of the named maps anew when their time has come."""
        seed, passes = self.clock.tolist()
        if self.interval and passes and passes % self.interval == 0:
            for name, favor in maps.items():
                favor.redraw(generator(seed, "features", name, passes // self.interval))
        self.clock[1] += 1


def orthogonal_rows(rows: int, width: int, stream: torch.Generator) -> Tensor:
    """(rows, width) float32: blocks of orthogonal directions, with the lengths that Gaussian vectors have."""
    blocks = torch.randn(-(-rows // width), width, width, generator=stream, dtype=torch.float64)
    lengths = torch.randn(rows, width, generator=stream, dtype=torch.float64).norm(dim=1, keepdim=True)
    q, r = torch.linalg.qr(blocks)
    # The signs make the directions uniform: the factorisation alone prefers some (Mezzadri 2007).
    q = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None, :]
    return (q.transpose(-1, -2).reshape(-1, width)[:rows] * lengths).float()
