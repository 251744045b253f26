"""From texts to padded token ids, and from rows to batches of similar length."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from posbench.errors import UserError
from posbench.seeds import numpy_generator

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, CLS, SEP = "[PAD]", "[CLS]", "[SEP]"
TRAINED = ("wordpiece", "bpe", "bytes", "characters", "spaced")
"""Tokenizers that are made from the training rows alone; every other name is a file's."""
WORDS = "words:"
"""Before a vocabulary's path: whole words of it are tokens, as few as spell a text, also where no spaces part them."""
# Batches are cut from windows of this many batches, sorted by length inside: little padding, and still random. A wider
# window would put the same rows of a small set together in every pass.
WINDOW = 4
# Characters that a trained WordPiece vocabulary knows; rarer ones become [UNK].
ALPHABET = 1000
# What a vocabulary of byte pairs begins with, before any pair: the special tokens and the bytes.
BYTE_PAIRS_LEAST = len(SPECIAL) + 256


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """One split as arrays. N rows, L tokens of the longest row.

    Attributes:
        ids: (N, L) int32, padded on the right.
        types: (N, L) int8, which text of a pair a token belongs to.
        lengths: (N,) int64 real tokens of each row, special tokens included.
        labels: (N,) int64 classes or float32 numbers.
        cut: rows that lost tokens to the length limit.
        full: (N,) int64 tokens that each row would have without the limit.
    """

    ids: np.ndarray
    types: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray
    cut: int
    full: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths)


def trained_tokenizer(kind: str, texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """A tokenizer from the training rows alone.

    Args:
        kind: 'wordpiece' (lower case, as BERT's), 'bpe' (bytes, as GPT-2's), 'bytes' (of UTF-8), 'characters' (the most
            frequent ones), or 'spaced' (whatever stands between spaces).
        texts: of the training rows. vocabulary: largest number of tokens.

    Raises:
        UserError: no such kind, or a vocabulary that cannot hold the bytes that pairs are made of.
    """
    if kind == "wordpiece":
        return _trained_wordpiece(list(texts), vocabulary)
    if kind == "bytes":
        return _bytes()
    if kind in ("characters", "spaced"):
        tokenizer = _counted(texts, vocabulary, pre_tokenizers.WhitespaceSplit() if kind == "spaced" else
                             pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated"))
        if kind == "spaced":
            # A word of a text that is spelled like a special token is unknown, and not that token.
            names = "|".join(re.escape(name.strip("[]")) for name in SPECIAL)
            tokenizer.normalizer = normalizers.Replace(Regex(rf"(?<!\S)\[(?:{names})\](?!\S)"), "[UNK]")
        else:
            tokenizer.decoder = decoders.Fuse()
        return tokenizer
    if kind != "bpe":
        raise UserError(f"tokenizer '{kind}': give {', '.join(TRAINED)} or the path of a vocabulary file")
    if vocabulary < BYTE_PAIRS_LEAST:
        raise UserError(f"data.vocabulary={vocabulary} is too small for byte pairs, which begin with {len(SPECIAL)} "
                        f"special tokens and 256 bytes: give {BYTE_PAIRS_LEAST} or more")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _trained_wordpiece(texts: Sequence[str], vocabulary: int) -> Tokenizer:
    """The library numbers the inner characters ('##a') in another order in each process, and breaks ties by number.

    Naming them first, sorted, makes the vocabulary depend on the texts alone. The model is then built anew from it, as
    named tokens would be cut out of any text in which they stand.
    """
    tokenizer = _bert_like(models.WordPiece(unk_token="[UNK]"))
    counts = Counter(itertools.chain.from_iterable(tokenizer.normalizer.normalize_str(text) for text in texts))
    alphabet = sorted(sorted(char for char in counts if not char.isspace()), key=lambda char: -counts[char])
    alphabet = sorted(alphabet[:ALPHABET])
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary,
        special_tokens=[*SPECIAL, *(f"##{char}" for char in alphabet)],
        initial_alphabet=alphabet,
        limit_alphabet=ALPHABET,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _bert_like(models.WordPiece(tokenizer.get_vocab(), unk_token="[UNK]"))


def _bytes() -> Tokenizer:
    """256 tokens for the bytes, behind the special ones: no byte is mistaken for padding."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate([*SPECIAL, *alphabet])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _counted(texts: Iterable[str], vocabulary: int, parts: pre_tokenizers.PreTokenizer) -> Tokenizer:
    """The most frequent parts as tokens, ties in the order of their characters; all others are unknown."""
    counts = Counter(part for text in texts for part, _ in parts.pre_tokenize_str(text))
    kept = sorted(counts.keys() - set(SPECIAL), key=lambda part: (-counts[part], part))[: vocabulary - len(SPECIAL)]
    vocab = {token: index for index, token in enumerate([*SPECIAL, *kept])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = parts
    return tokenizer


def _fewest(tokens: Sequence[str]) -> Tokenizer:
    """Of all ways to spell a text with these words, one with the fewest; inner pieces ('##a') are left out."""
    words = [token for token in tokens if not token.startswith("##") or token in SPECIAL]
    tokenizer = Tokenizer(models.Unigram([(token, -1.0) for token in words], words.index("[UNK]"), False))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True, handle_chinese_chars=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def tokenizer_from_file(path: Path, *, words: bool = False) -> Tokenizer:
    """A vocabulary that the user brings: a WordPiece list (vocab.txt, one token a line) or a tokenizer.json.

    Args:
        words: the list's entries are whole words, as in WoBERT's for Chinese, and a text is spelled with few of them.
    """
    if not path.is_file():
        raise UserError(
            f"tokenizer file '{path}' does not exist: give 'wordpiece', 'bpe' or the path of a vocabulary file"
        )
    if path.suffix == ".json":
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception for a malformed file
            raise UserError(f"tokenizer file '{path}' cannot be read: {error}") from None
    else:
        tokens = path.read_text(encoding="utf-8").replace("\r\n", "\n").removesuffix("\n").split("\n")
        if words and "[UNK]" not in tokens:
            raise UserError(f"tokenizer file '{path}' lacks [UNK]: add it to the vocabulary")
        tokenizer = _fewest(tokens) if words else _bert_like(
            models.WordPiece({token: index for index, token in enumerate(tokens)}, unk_token="[UNK]")
        )
    missing = [token for token in (PAD, CLS, SEP) if tokenizer.token_to_id(token) is None]
    if missing:
        raise UserError(f"tokenizer file '{path}' lacks {', '.join(missing)}: add them to the vocabulary")
    return tokenizer


def _bert_like(model: models.Model) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def encode(
    tokenizer: Tokenizer, texts: Sequence[tuple[str, ...]], labels: Sequence[float], max_length: int, *, whole: bool
) -> Encoded:
    """[CLS] a [SEP] or [CLS] a [SEP] b [SEP] for each row, padded on the right.

    Where a row is longer than max_length its longer text loses its end, token by token, until the row fits; so both
    texts of a pair keep something. A text that spells out a special token, such as '[SEP]', holds these characters.

    Args:
        whole: labels are class indices and not numbers.
    """
    cls, sep, pad = (tokenizer.token_to_id(token) for token in (CLS, SEP, PAD))
    tokenizer.encode_special_tokens = True  # as text, where the frame is set by the template below
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}", pair=f"{CLS} $A {SEP} $B:1 {SEP}:1", special_tokens=[(CLS, cls), (SEP, sep)]
    )
    pairs = [row if len(row) == 2 else row[0] for row in texts]
    full = np.array([len(encoding.ids) for encoding in tokenizer.encode_batch(pairs)])
    tokenizer.enable_truncation(max_length, strategy="longest_first")
    encodings = tokenizer.encode_batch(pairs)
    lengths = np.array([len(encoding.ids) for encoding in encodings], dtype=np.int64)
    ids = np.full((len(lengths), lengths.max()), pad, dtype=np.int32)
    types = np.zeros_like(ids, dtype=np.int8)
    for row, encoding in enumerate(encodings):
        ids[row, : lengths[row]] = encoding.ids
        types[row, : lengths[row]] = encoding.type_ids
    return Encoded(
        ids=ids,
        types=types,
        lengths=lengths,
        cut=int((full > lengths).sum()),
        full=full,
        labels=np.asarray(labels, dtype=np.int64 if whole else np.float32),
    )


def training_batches(lengths: np.ndarray, batch_size: int, seed: int) -> Iterator[np.ndarray]:
    """Row indices of one batch after the other, without end, each pass over the rows in another order.

    Rows of similar length stand together. The order depends on the seed and the pass alone, so that all encodings
    see the same rows in the same order.
    """
    return _passes(lengths, WINDOW * batch_size, seed, lambda window: [
        window[at : at + batch_size] for at in range(0, len(window), batch_size)])


def training_batches_of_tokens(lengths: np.ndarray, tokens: int, seed: int) -> Iterator[np.ndarray]:
    """The same with batches of as many rows as fit into so many tokens, padding included; one row at least."""

    def cut(window: np.ndarray) -> list[np.ndarray]:
        batches, first = [], 0
        for place, row in enumerate(window):
            # Sorted by length, so that the newest row is as long as the batch is wide.
            if place > first and (place - first + 1) * lengths[row] > tokens:
                batches.append(window[first:place])
                first = place
        return [*batches, window[first:]]

    return _passes(lengths, WINDOW * max(1, int(tokens / lengths.mean())), seed, cut)


def _passes(lengths: np.ndarray, size: int, seed: int,
            cut: Callable[[np.ndarray], list[np.ndarray]]) -> Iterator[np.ndarray]:
    passes = 0
    while True:
        random = numpy_generator(seed, "order", passes)
        order = random.permutation(len(lengths))
        batches = []
        for start in range(0, len(order), size):
            window = order[start : start + size]
            batches += cut(window[np.argsort(lengths[window], kind="stable")])
        for index in random.permutation(len(batches)):
            yield batches[index]
        passes += 1


def scoring_batches(lengths: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Row indices of every row exactly once, rows of similar length together."""
    order = np.argsort(lengths, kind="stable")
    yield from (order[at : at + batch_size] for at in range(0, len(order), batch_size))
