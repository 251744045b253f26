"""t5: a trained bias for each head and bucket of offsets (Raffel et al. 2019).

    logit_ij = q_i . k_j / sqrt(d) + B[bucket(j - i), head]                                         (section 2.1)

Half of the buckets of a direction hold one distance each, the others grow logarithmically up to max_distance, and the
last holds all beyond. Encoders split the buckets between keys behind and keys ahead; decoders give all of them to keys
behind. One table serves all layers, as in T5, where layer 0 owns it and the others reuse it.

One convention of T5 is left out for the sake of comparison: it drops the scale 1/sqrt(d), which here is the same for
all encodings. The table starts from N(0, 1/sqrt(D)) as in the released code. Cross attention gets no bias, as there.
Distances whose logarithm falls on a bucket's border are settled by exact arithmetic.

Parameters: buckets * H.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from posbench import maths
from posbench.encoding import Dimensions, Encoding, Paper, Properties, option
from posbench.errors import UserError


class T5(Encoding):
    """A bias looked up by bucketed offset."""

    paper = Paper(
        title="Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
        arxiv="1910.10683",
        equations="none; section 2.1, and the bucket function of the released code",
        differs="logits keep the scale 1/sqrt(d) of the template",
    )
    properties = Properties(monotone=False, factorises=False, shift=True)
    space = {"buckets": [16, 32, 64], "max_distance": (64, 512)}

    @dataclass(frozen=True, kw_only=True)
    class Config:
        buckets: int = option(32, "rows of the table, shared by both directions in an encoder", at_least=2)
        max_distance: int = option(128, "distance in tokens from which on all share the last bucket", at_least=2)

    def __init__(self, dimensions: Dimensions, config: Config | None = None) -> None:
        super().__init__(dimensions, config)
        buckets, farthest = self.config.buckets, self.config.max_distance
        if not dimensions.causal and (buckets % 2 or buckets < 4):
            raise UserError(f"encoding 't5': buckets = {buckets}, but an encoder gives one half to keys behind and one "
                            "to keys ahead: choose an even number of at least 4")
        exact = buckets // (2 if dimensions.causal else 4)
        if farthest <= exact:
            raise UserError(f"encoding 't5': max_distance = {farthest}, but with {buckets} buckets the distances below "
                            f"{exact} have one each: choose a max_distance above {exact}, or fewer buckets")
        self.table = nn.Parameter(torch.empty(buckets, dimensions.heads))

    @classmethod
    def parameter_count(cls, dimensions: Dimensions, config: Any) -> int:
        return config.buckets * dimensions.heads

    def initial(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        value.normal_(0.0, self.dimensions.width**-0.5, generator=generator)

    def offset_bias(self, distance: Tensor) -> Tensor:
        bucket = maths.t5_buckets(distance, self.config.buckets, self.config.max_distance,
                                  bidirectional=not self.dimensions.causal)
        return functional.embedding(bucket, self.table).T


ENCODING = T5
