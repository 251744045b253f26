"""Encoding: the one interface of every position encoding.

A position encoding is a module whose hooks all default to doing nothing, so that the empty subclass is a transformer
without position information. The attention code calls the hooks; an encoding never sees the model around it.

Shapes: B batch, H heads, L new tokens, Q queries, K keys, D model width, d head width.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from posbench.bounds import option as option
from posbench.bounds import within_bounds
from posbench.positions import Positions

Side = Literal["query", "key", "value", "output"]
HOOKS = ("positions", "embed", "rotate", "scores", "bias", "offset_bias", "score_mod", "values", "decay")


@dataclass(frozen=True, kw_only=True)
class Dimensions:
    """What an encoding may know of the model around it.

    Attributes:
        width: D, features of a token.
        heads: H, attention heads.
        layers: attention layers that share the stack.
        length: longest training sequence in tokens; encodings with a table take it as its default size.
        causal: queries see no later key.
        embedding_std: standard deviation of token embeddings at the start, so that vectors added to them can be given
            the same scale.
    """

    width: int
    heads: int
    layers: int = 1
    length: int = 512
    causal: bool = False
    embedding_std: float = 0.02

    @property
    def head_width(self) -> int:
        """d, features of one head."""
        return self.width // self.heads


@dataclass(frozen=True, kw_only=True)
class Paper:
    """Where an encoding comes from.

    Attributes:
        title: of the paper; of your own idea, what you call it.
        arxiv: identifier there, such as '2104.09864'; empty for what is not published there.
        equations: numbers of the equations, or the section, that the file follows.
        differs: where the file departs from the paper.
    """

    title: str
    equations: str
    arxiv: str = ""
    differs: str = "nothing"


@dataclass(frozen=True, kw_only=True)
class Properties:
    """What an encoding claims of one attention layer; `posbench check` measures every claim, in both directions.

    A claim that is True must hold within rounding; one that is False must visibly fail; one that is None is measured
    and shown, and not judged.

    Attributes:
        permutation: outputs move with the tokens when a bidirectional layer's input is permuted (P1).
        reversal: the same for the reversed sequence alone: the encoding is blind to direction (P2).
        shift: logits stay when all positions move by the same amount, or a prefix is put in front (P3, P4).
        norm: the lengths of queries and keys stay as they were (P5).
        single_key: with one key the output is its value projection, whatever the encoding (P20).
        cached: what was computed for a short sequence stays right when it grows, so that turned keys can be kept:
            false where tables or position ids depend on the current length (P6b, P9).
        beyond: what happens beyond the trained length: 'defined' values, or 'refused' by a typed error (P15).
        monotone: between equal tokens the logit falls with every step of distance, in every head (P14).
        factorises: logits are products of finitely many features of query and key, each with its position, however
            long the sequence is, as linear attention needs (P19).
    """

    permutation: bool | None = False
    reversal: bool | None = False
    shift: bool | None = False
    norm: bool | None = True
    single_key: bool | None = True
    cached: bool | None = True
    beyond: Literal["defined", "refused"] = "defined"
    monotone: bool | None = None
    factorises: bool | None = None


class Encoding(nn.Module):
    """Base of all position encodings, and by itself the absence of one.

    Class facts:
        paper: source of the method, and where this file differs from it.
        scope: one instance for the whole 'model', or one for each 'layer'.
        properties: claims that the contract suite proves or refutes.
        needs_causal: the method has no meaning where queries see later keys.
        in_cross: the hooks act in cross attention too (positions of decoder and encoder have no common origin).
        space: what a search may vary, a mapping from option to the values or bounds to try.

    Where options decide on scope, properties, needs_causal or in_cross, an instance restates them: ask instances.

    What changes in training is a buffer, or else a number, a text or a torch.Generator held as an attribute: a trial
    that is taken up in the middle gets these back, and nothing else.
    """

    paper: ClassVar[Paper]
    scope: Literal["model", "layer"] = "model"
    properties: Properties = Properties()
    needs_causal: bool = False
    in_cross: bool = False
    config: Any
    space: ClassVar[dict[str, Any]] = {}

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """The options of this encoding: its own fields and no others."""

    def __init__(self, dimensions: Dimensions, config: Any = None) -> None:
        """Creates parameters, without values: `initial` gives them, from a stream named after each.

        Raises:
            UserError: an option lies outside the bounds that its field states.
        """
        super().__init__()
        self.dimensions = dimensions
        self.config = type(self).Config() if config is None else config
        within_bounds(self.spelled(), self.config)

    @classmethod
    def spelled(cls) -> str:
        """The class's name as users write it: RopeYarn is 'rope_yarn'."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()

    @classmethod
    def built_on(cls, config: Any) -> tuple[str, ...]:
        """Names of other plugins whose code this one runs, so that a result depends on their source too."""
        return ()

    @property
    def max_length(self) -> int | None:
        """Positions end here; None where they do not end."""
        return None

    @classmethod
    def flop_count(cls, dimensions: Dimensions, config: Any, length: int) -> int | None:
        """Floating-point operations of the matrix products that one forward pass of the model over one sequence of so
        many tokens takes beyond those of the bare template, two for each multiplication; None where that is not stated.
        """
        return None

    @classmethod
    def parameter_count(cls, dimensions: Dimensions, config: Any) -> int:
        """Learned parameters in the whole model, by the paper's formula and not by counting tensors."""
        return 0

    def initial(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """Fills one parameter or persistent buffer of this encoding in place, before training.

        Args:
            name: the tensor's name inside this module.
            value: the tensor, on the CPU, in float32.
            generator: a random stream that belongs to (seed, name) alone.
        """
        value.normal_(0.0, 0.02, generator=generator)

    def tie(self, first: Self) -> None:
        """Takes over from the first layer's instance what the paper shares between layers; called once, when made.

        `self.table = first.table` is enough: a shared parameter is counted, initialised and trained once, under the
        name that it has in the first layer.

        Args:
            first: the instance of layer 0; `self` belongs to a later one. Only scope 'layer' has later ones.
        """

    # The hooks. `at` holds the absolute positions of queries and keys.

    def positions(self, at: Positions) -> Positions:
        """Other position ids for the whole stack."""
        return at

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        """(B, L, D) -> (B, L, D), once, at the input; at.q are the positions of x."""
        return x

    def rotate(self, x: Tensor, at: Positions, side: Side) -> Tensor:
        """(B, H, L, d) -> (B, H, L, d), one side at a time, so that rotated keys can be cached."""
        return x

    def scores(self, q: Tensor, k: Tensor, at: Positions) -> Tensor:
        """(B, H, Q, d), (B, H, K, d) -> (B, H, Q, K), added to the products of q and k before the scale."""
        raise NotImplementedError

    def bias(self, at: Positions) -> Tensor:
        """-> (B|1, H, Q, K) float32, added to the logits after the scale; depends on positions only."""
        bias = self.offset_bias(at.offsets().reshape(-1))
        return bias.reshape(-1, *at.offsets().shape).transpose(0, 1)

    def offset_bias(self, distance: Tensor) -> Tensor:
        """(n,) int64 key minus query positions -> (H, n) float32: a bias that depends on the offset only."""
        raise NotImplementedError

    def score_mod(self, at: Positions) -> Callable[..., Tensor]:
        """The same bias in the form that flex attention takes; by default looked up in `bias`."""
        bias = self.bias(at)

        def mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return score + bias[b if bias.shape[0] > 1 else 0, h, q, k]

        return mod

    def values(self, weights: Tensor, at: Positions) -> Tensor:
        """(B, H, Q, K) attention weights -> (B, H, Q, d), added to the attention output."""
        raise NotImplementedError

    def decay(self) -> Tensor:
        """-> (H,) log decay for each step back, for linear attention."""
        raise NotImplementedError



class Wrapper(Encoding):
    """An encoding around another: whatever a subclass does not define itself is the other's.

    Attributes:
        base: the encoding inside; its weights carry the prefix 'base.' in the state dict.
    """

    base: Encoding

    def __init__(self, dimensions: Dimensions, config: Any, base: Encoding) -> None:
        super().__init__(dimensions, config)
        self.base = base
        self.scope, self.properties = base.scope, base.properties
        self.needs_causal, self.in_cross = base.needs_causal, base.in_cross

    @property
    def max_length(self) -> int | None:
        return self.base.max_length

    def tie(self, first: Self) -> None:
        self.base.tie(first.base)

    def initial(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        self.base.initial(name.removeprefix("base."), value, generator)

    def positions(self, at: Positions) -> Positions:
        return self.base.positions(at)

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        return self.base.embed(x, at)

    def rotate(self, x: Tensor, at: Positions, side: Side) -> Tensor:
        return self.base.rotate(x, at, side)

    def scores(self, q: Tensor, k: Tensor, at: Positions) -> Tensor:
        return self.base.scores(q, k, at)

    def bias(self, at: Positions) -> Tensor:
        return self.base.bias(at)

    def offset_bias(self, distance: Tensor) -> Tensor:
        return self.base.offset_bias(distance)

    def score_mod(self, at: Positions) -> Callable[..., Tensor]:
        return self.base.score_mod(at)

    def values(self, weights: Tensor, at: Positions) -> Tensor:
        return self.base.values(weights, at)

    def decay(self) -> Tensor:
        return self.base.decay()


def overrides(encoding: Encoding | type[Encoding], *hooks: str) -> bool:
    """Whether the class defines any of these hooks itself: capability is read off the class; no flag can disagree.

    A wrapper has the hooks that it defines and those of the encoding inside, which only an instance knows.
    """
    cls = encoding if isinstance(encoding, type) else type(encoding)
    silent = Wrapper if issubclass(cls, Wrapper) else Encoding
    if any(getattr(cls, hook) is not getattr(silent, hook) for hook in hooks):
        return True
    return isinstance(encoding, Wrapper) and overrides(encoding.base, *hooks)
