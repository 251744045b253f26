"""Tokens and batches: nothing is lost but what is counted, and every row is seen."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from posbench.errors import UserError
from posbench.tokens import (
    SPECIAL,
    encode,
    scoring_batches,
    tokenizer_from_file,
    trained_tokenizer,
    training_batches,
)

TEXTS = ["the cat sat on the mat", "a dog ran to the cat", "the mat ran", "dogs and cats and mats sat"] * 5


def test_a_pair_is_framed_as_bert_frames_it() -> None:
    tokenizer = trained_tokenizer("wordpiece", TEXTS, 200)
    encoded = encode(tokenizer, [("the cat", "a dog ran"), ("the mat", "sat")], [1, 0], 32, whole=True)
    tokens = [tokenizer.id_to_token(int(index)) for index in encoded.ids[0]]
    assert tokens == ["[CLS]", "the", "cat", "[SEP]", "a", "dog", "ran", "[SEP]"]
    assert encoded.types[0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert encoded.lengths.tolist() == [8, 6]
    assert encoded.ids[1, 6:].tolist() == [tokenizer.token_to_id("[PAD]")] * 2
    assert encoded.labels.dtype == np.int64 and encoded.cut == 0


@pytest.mark.parametrize("limit", [5, 8, 16, 128])
@pytest.mark.parametrize(("first", "second"), [(5, 300), (300, 5), (300, 300), (1, 1)])
def test_truncation_takes_from_the_longer_text_and_is_counted(limit: int, first: int, second: int) -> None:
    tokenizer = trained_tokenizer("wordpiece", TEXTS, 200)
    encoded = encode(tokenizer, [(" ".join(["cat"] * first), " ".join(["dog"] * second))], [0], limit, whole=True)
    tokens = [tokenizer.id_to_token(int(index)) for index in encoded.ids[0]]
    assert len(tokens) == min(limit, first + second + 3)
    assert encoded.cut == int(first + second + 3 > limit)
    assert tokens.count("cat") >= 1 and tokens.count("dog") >= 1
    if first > limit and second > limit:
        assert abs(tokens.count("cat") - tokens.count("dog")) <= 1


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_a_vocabulary_depends_on_the_texts_alone(kind: str) -> None:
    """Another process, with another hash seed, finds the same tokens."""
    code = (f"from posbench.tokens import trained_tokenizer\nfrom tests.test_tokens import TEXTS\n"
            f"print(sorted(trained_tokenizer({kind!r}, TEXTS, 300).get_vocab().items()))")
    runs = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                           cwd=Path(__file__).parents[1], env={"PYTHONHASHSEED": seed, "PATH": ""}).stdout
            for seed in ("1", "2")}
    assert runs == {f"{sorted(trained_tokenizer(kind, TEXTS, 300).get_vocab().items())}\n"}


def test_byte_pairs_lose_no_byte() -> None:
    tokenizer = trained_tokenizer("bpe", TEXTS, 300)
    text = "naïve café 中文 \U0001f600 x"
    assert tokenizer.decode(tokenizer.encode(text).ids).strip() == text


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "bytes", "characters", "spaced", "json"])
def test_a_text_that_spells_a_special_token_does_not_hold_it(kind: str, tmp_path: Path) -> None:
    """Otherwise a text ends in its middle, or is masked there as padding is."""
    texts = ["a [SEP] b[PAD] [MASK] [CLS]c [UNK]", "a b"]
    if kind == "json":
        trained_tokenizer("bpe", [*TEXTS, *texts], 300).save(str(tmp_path / "own.json"))
        tokenizer = tokenizer_from_file(tmp_path / "own.json")
    else:
        tokenizer = trained_tokenizer(kind, [*TEXTS, *texts], 300)
    encoded = encode(tokenizer, [(text,) for text in texts], [], 200, whole=True)
    assert encoded.ids.max() < tokenizer.get_vocab_size() == 1 + max(tokenizer.get_vocab().values())
    special = {tokenizer.token_to_id(name) for name in SPECIAL} - {tokenizer.token_to_id("[UNK]")}
    for row, length in enumerate(encoded.lengths):
        assert [index in special for index in encoded.ids[row, :length]] == [True, *[False] * (length - 2), True]
    if kind in ("bpe", "json"):
        assert tokenizer.decode(encoded.ids[0, 1 : encoded.lengths[0] - 1].tolist()).strip() == texts[0]


def test_a_vocabulary_is_never_larger_than_was_asked_for() -> None:
    for kind in ("wordpiece", "bpe", "characters", "spaced"):
        assert trained_tokenizer(kind, TEXTS, 261).get_vocab_size() <= 261
    with pytest.raises(UserError, match=r"data.vocabulary=260 is too small for byte pairs.*: give 261 or more"):
        trained_tokenizer("bpe", TEXTS, 260)


def test_a_vocabulary_file_is_read_and_a_wrong_one_named(tmp_path: Path) -> None:
    good = tmp_path / "vocab.txt"
    good.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\ncat\n##s\n")
    assert tokenizer_from_file(good).encode("the cats").tokens == ["the", "cat", "##s"]
    (tmp_path / "bad.txt").write_text("the\ncat\n")
    with pytest.raises(UserError, match=r"bad.txt' lacks \[PAD\], \[CLS\], \[SEP\]"):
        tokenizer_from_file(tmp_path / "bad.txt")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        tokenizer_from_file(tmp_path / "bad.json")
    with pytest.raises(UserError, match="does not exist"):
        tokenizer_from_file(tmp_path / "none.txt")


@pytest.mark.parametrize("rows", [1, 64, 300, 1000])
def test_a_pass_sees_every_row_once_and_each_pass_in_another_order(rows: int) -> None:
    lengths = np.random.default_rng(0).integers(3, 60, rows)
    batches = training_batches(lengths, 8, seed=3)
    count = -(-rows // 8)
    passes = [np.concatenate(list(itertools.islice(batches, count))) for _ in range(2)]
    assert all(sorted(order.tolist()) == list(range(rows)) for order in passes)
    if rows > 1:
        assert passes[0].tolist() != passes[1].tolist()
    again = np.concatenate(list(itertools.islice(training_batches(lengths, 8, seed=3), count)))
    other = np.concatenate(list(itertools.islice(training_batches(lengths, 8, seed=4), count)))
    assert again.tolist() == passes[0].tolist()
    assert rows == 1 or other.tolist() != passes[0].tolist()


def test_batches_of_similar_length_save_padding() -> None:
    lengths = np.random.default_rng(0).integers(3, 60, 4096)
    batches = list(itertools.islice(training_batches(lengths, 32, seed=0), 128))
    padded = sum(int(lengths[batch].max()) * len(batch) for batch in batches)
    assert padded < 1.3 * lengths.sum()
    # A plain random order pads nearly every batch to the longest row there is.
    assert 60 * 0.95 * 4096 > 1.7 * lengths.sum()


@pytest.mark.parametrize(("rows", "size"), [(10, 4), (8, 4), (1, 256)])
def test_scoring_sees_every_row_once(rows: int, size: int) -> None:
    lengths = np.random.default_rng(0).integers(3, 60, rows)
    seen = np.concatenate(list(scoring_batches(lengths, size)))
    assert sorted(seen.tolist()) == list(range(rows))
