"""Between texts and tokens: what is written has no trace of its tokens, and what is kept compactly is what it was."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from posbench.beam import Hypothesis, beam_search
from posbench.config import EncodingChoice
from posbench.ragged import encode_ragged
from posbench.runner import _Run
from posbench.study import from_preset
from posbench.tokens import encode
from posbench.transformer import Transformer
from posbench.trial import resolve
from tests.test_translation import SMALL, objective


@pytest.mark.parametrize("kind", ["bpe", "bytes", "characters", "spaced"])
def test_a_written_text_has_no_trace_of_its_tokens(kind: str) -> None:
    """What a perfect model writes is the reference, with any tokenizer that lets it."""
    made = objective(data__tokenizer=kind, data__max_length="200")
    references = [row[1] for row in made.splits["validation"].texts]
    coded = encode_ragged(made.tokenizer, references, 200)
    found = [Hypothesis(tuple(coded.ids[begin + 1 : end].tolist()), 0.0)
             for begin, end in itertools.pairwise(coded.starts)]
    assert all(one.tokens[-1] == made.search.end for one in found)
    known = [at for at, one in enumerate(found) if made.tokenizer.token_to_id("[UNK]") not in one.tokens]
    assert len(known) > 10
    assert [made.texts(found)[at] for at in known] == [references[at] for at in known]


def test_what_a_tokenizer_cannot_give_back_is_told() -> None:
    assert "tokenizer" not in objective().stated()
    few = objective(data__tokenizer="spaced", data__vocabulary="150")
    share = few.splits["train"].returned
    targets = [row[1] for row in few.splits["train"].texts]
    known = set(few.tokenizer.get_vocab())
    assert 0 < share < 1 and share == np.mean([set(text.split()) <= known for text in targets])
    assert few.stated()["tokenizer"].startswith(f"gives back {share:.1%} of 300 training targets")


@pytest.mark.parametrize("chunk", [7, 10_000])
def test_ragged_ids_are_those_of_the_padded_table(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posbench.ragged.CHUNK", chunk)
    made = objective()
    texts = [row[0] for row in made.splits["train"].texts[:60]]
    table = encode(made.tokenizer, [(text,) for text in texts], [], 14, whole=True)
    ragged = encode_ragged(made.tokenizer, texts, 14)
    assert (ragged.ids.dtype, ragged.ids.nbytes) == (np.uint16, 2 * table.lengths.sum())
    assert ragged.lengths.tolist() == table.lengths.tolist() and ragged.full.tolist() == table.full.tolist()
    draw = np.random.default_rng(0)
    for rows in ([0], [59], *(draw.integers(0, 60, 5) for _ in range(20))):
        width = table.lengths[rows].max()
        assert (ragged.padded(np.asarray(rows), made.pad) == table.ids[rows, :width]).all()
    short = table.lengths < 10
    part, width = ragged.part(short), table.lengths[short].max()
    assert 0 < len(part) == short.sum() < 60 and part.full.tolist() == table.full[short].tolist()
    assert (part.padded(np.arange(len(part)), made.pad) == table.ids[short, :width]).all()


def test_every_source_has_its_own_translation_in_its_own_place() -> None:
    """Sources are searched sorted by length, many at once; with one at a time nothing can be exchanged."""
    made = objective(model__initial_std="0.8", model__embedding_std="0.6", decode__max_output="6", decode__beam="3")
    config = made.trial.config.model
    model = Transformer(config, made.trial.encoding, made.trial.options, vocabulary=made.vocabulary, length=40,
                        head=made.head(made.trial.task, made.vocabulary))
    model.initialise(0)
    model.eval()
    scores = made.score(model, "test")
    ends = [0, *scores.arrays["test/output_ends"].tolist()]
    kept = [scores.arrays["test/output"].tobytes()[begin:end].decode() for begin, end in itertools.pairwise(ends)]
    alone = []
    for source, _ in made.splits["test"].texts:
        ids = torch.tensor([encode_ragged(made.tokenizer, [source], 40).ids.tolist()])
        alone += made.texts(beam_search(model, ids, None, made.search))
    assert kept == alone and len(set(kept)) > 10
    assert scores.arrays["test/source_words"].tolist() == [len(row[0].split()) for row in made.splits["test"].texts]


def test_what_is_drawn_is_not_averaged() -> None:
    """The mean of the random features of two draws has rows that are neither's, and not orthogonal."""
    study = from_preset("translation", "mini", {**SMALL, "model.attention": "linear", "model.redraw": 3})
    one = _Run(resolve(study.trial(EncodingChoice.parse("rope"), "en-de", 0)), lambda done, planned: None)
    one._fit()
    drawn = [value for name, value in one.model.state_dict().items() if name.endswith("projection")]
    assert len(drawn) >= 3
    for rows in drawn:
        width = rows.shape[1]
        for begin in range(0, len(rows) - width + 1, width):
            products = rows[begin : begin + width] @ rows[begin : begin + width].T
            assert float((products - products.diag().diag()).abs().max()) < 1e-4
