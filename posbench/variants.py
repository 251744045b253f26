"""Variants: another encoding in the place of a trained one, with the trained weights and without further training.

So are rotations stretched for inputs longer than those of training: position interpolation, NTK-aware bases, YaRN.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from posbench.encoding import Encoding
from posbench.errors import UserError
from posbench.transformer import Head, Transformer
from posbench.trial import Variant


@contextmanager
def exchanged(model: Transformer, variant: Variant, *, vocabulary: int, length: int, head: Head) -> Iterator[None]:
    """The model with the variant's encoding inside, which takes the trained parameters over by name.

    Args:
        vocabulary, length, head: what the model was built with.

    Raises:
        UserError: the variant has other parameters than the trained encoding, so that some would be untrained.
    """
    trained = model.encodings
    other = Transformer(model.model, variant.plugin.value, variant.options, vocabulary=vocabulary, length=length,
                        head=head).encodings
    theirs, mine = ({name: tuple(value.shape) for name, value in part.state_dict().items()}
                    for part in (trained, other))
    if theirs != mine or len(trained) != len(other):
        first = trained[0]
        assert isinstance(first, Encoding)
        raise UserError(f"evaluation.variants: '{variant.label}' cannot take the place of a trained "
                        f"'{first.spelled()}', as its parameters are others ({_shown(mine)} in place of "
                        f"{_shown(theirs)}): name one that shares them")
    other.load_state_dict(trained.state_dict())
    model.encodings = other.to(model.tokens.weight.device)
    try:
        yield
    finally:
        model.encodings = trained


def _shown(shapes: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items()) or "none"
