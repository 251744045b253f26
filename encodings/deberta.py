"""deberta: content to position and position to content (He et al. 2020).

    A_ij = qc_i . kc_j + qc_i . kr_{D(i,j)} + kc_j . qr_{D(j,i)},   logit = A / sqrt(3d)             (Eq. 4)
    D(i, j) = i - j + k, between 0 for i - j <= -k and 2k - 1 for i - j >= k                         (Eq. 3)
    kr = P W_kr and qr = P W_qr, of one table P of 2k rows

All layers share P; each has its own projections, or with `projections=shared` one pair serves all. Versions 2 and 3
may project P with the weights of the content (share_att_key): an encoding does not see the model, so that is not here.
`max_distance` gives their logarithmic buckets: i - j keeps its value up to k/2 and grows logarithmically to k beyond.

The last term has the index D(j, i) of the paper; the released code reads D(i, j) there. The template scales by
1/sqrt(d) whatever the encoding, where the paper has 1/sqrt(3d): the three terms keep their proportion, and their sum is
larger by sqrt(3). The enhanced mask decoder, which adds absolute positions before the output, belongs to its
pretraining and is left out.

Tensors of Q x K x d are never formed: q and k meet the 2k rows, and products are looked up by offset. P starts from
N(0, 1), where the layer norm of versions 2 and 3 puts it, the projections from N(0, 0.02). In a decoder the second term
reads rows k and above, the third rows k and below.

Parameters: 2k D + 2 N D^2 in N layers; 2k D + 2 D^2 with shared projections.
"""

from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from posbench import maths
from posbench.encoding import Dimensions, Encoding, Paper, Properties, option
from posbench.errors import UserError
from posbench.positions import Positions


class Deberta(Encoding):
    """Vectors of the clipped offset that meet queries and keys."""

    paper = Paper(
        title="DeBERTa: Decoding-enhanced BERT with Disentangled Attention",
        arxiv="2006.03654",
        equations="2, 3, 4",
        differs="the scale is the template's 1/sqrt(d) in place of 1/sqrt(3d); no enhanced mask decoder",
    )
    scope = "layer"
    properties = Properties(monotone=False, factorises=False, shift=True)

    @dataclass(frozen=True, kw_only=True)
    class Config:
        span: int | None = option(None, "k, half the rows of the table; the longest training sequence if none",
                                  at_least=2)
        max_distance: int | None = option(None, "distance in tokens that falls in the last logarithmic bucket, plus 1; "
                                          "none clips offsets at k")
        projections: Literal["own", "shared"] = option("own", "one pair of projections a layer, or one for all layers")

    def __init__(self, dimensions: Dimensions, config: Config | None = None) -> None:
        super().__init__(dimensions, config)
        self.span, far = self._span(dimensions, self.config), self.config.max_distance
        if far is not None and far <= self.span // 2 + 1:
            raise UserError(f"encoding 'deberta': max_distance = {far}, but with span {self.span} the distances up to "
                            f"{self.span // 2} have a row each: choose a max_distance above {self.span // 2 + 1}")
        width, heads, d = dimensions.width, dimensions.heads, dimensions.head_width
        self.table = nn.Parameter(torch.empty(2 * self.span, width))
        self.key_projection = nn.Parameter(torch.empty(heads, width, d))
        self.query_projection = nn.Parameter(torch.empty(heads, width, d))

    def tie(self, first: Self) -> None:
        self.table = first.table
        if self.config.projections == "shared":
            self.key_projection, self.query_projection = first.key_projection, first.query_projection

    @staticmethod
    def _span(dimensions: Dimensions, config: Config) -> int:
        return max(dimensions.length, 2) if config.span is None else config.span

    @classmethod
    def parameter_count(cls, dimensions: Dimensions, config: Any) -> int:
        pairs = dimensions.layers if config.projections == "own" else 1
        inner = dimensions.heads * dimensions.head_width
        return 2 * cls._span(dimensions, config) * dimensions.width + pairs * 2 * dimensions.width * inner

    @classmethod
    def flop_count(cls, dimensions: Dimensions, config: Any, length: int) -> int:
        return dimensions.layers * 8 * cls._span(dimensions, config) * dimensions.width * (dimensions.width + length)

    def initial(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        value.normal_(0.0, 1.0 if name == "table" else 0.02, generator=generator)

    def scores(self, q: Tensor, k: Tensor, at: Positions) -> Tensor:
        there, back = at.once((Deberta, "rows", self.span, self.config.max_distance), lambda: self._rows(at))
        keys, queries = (maths.precise(self.table) @ maths.precise(projection)
                         for projection in (self.key_projection, self.query_projection))
        pairs = (*q.shape[:3], at.length)
        # Both terms are summed before they are rounded: at random they are larger than the content beside them.
        to_position = (maths.precise(q) @ keys.transpose(-1, -2)).gather(-1, there.expand(pairs))
        # Row j of the products belongs to key j: its gathered matrix is (K, Q).
        by_key = maths.precise(k) @ queries.transpose(-1, -2)
        to_content = by_key.gather(-1, back.expand(pairs).transpose(-1, -2))
        return (to_position + to_content.transpose(-1, -2)).to(q.dtype)

    def _rows(self, at: Positions) -> tuple[Tensor, Tensor]:
        """D(i, j) and D(j, i), each (B|1, 1, Q, K), made once a pass for all layers."""
        far, span = self.config.max_distance, self.span
        distance = -at.offsets() if far is None else maths.deberta_buckets(-at.offsets(), span, far)
        there, back = ((signed + span).clamp(0, 2 * span - 1)[:, None] for signed in (distance, -distance))
        return there, back


ENCODING = Deberta
