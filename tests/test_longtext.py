"""Long text: generated tasks against independent solvers, files against their format, and bytes against loss."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from posbench.suites.longtext import SUITE

from posbench.config import DataConfig, EncodingChoice, StudyConfig, build, override
from posbench.data import data_hash
from posbench.errors import UserError
from posbench.objective import objective_of
from posbench.runner import run
from posbench.study import from_preset
from posbench.tokens import SPECIAL, encode, tokenizer_from_file, trained_tokenizer
from posbench.trial import resolve

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "data"
EXACT = ("copy", "reverse", "sort", "addition", "parity", "recall", "induction", "passkey")


def needs(path: str) -> Path:
    if not (SHARED / path).exists():
        pytest.skip(f"{SHARED / path} is not there")
    return SHARED / path


def folder(task: str, path: Path, **changes) -> object:
    return SUITE.load(task, DataConfig(source="folder", path=str(path), **changes))


# Exact tasks.


def solved(task: str, prompt: str) -> str:
    """The answer, found in another way than the one in which the row was made."""
    if task in ("copy", "reverse", "sort"):
        text = list(prompt[:-1])
        if task == "sort":
            for _ in text:
                for place in range(len(text) - 1):
                    if text[place] > text[place + 1]:
                        text[place], text[place + 1] = text[place + 1], text[place]
        return "".join(reversed(text) if task == "reverse" else text)
    if task == "addition":
        carry, answer = 0, ""
        one, two = prompt[:-1].split("+")
        for a, b in zip(one, two, strict=True):
            carry, digit = divmod(int(a) + int(b) + carry, 10)
            answer += str(digit)
        return answer + str(carry)
    if task == "parity":
        odd = False
        for bit in prompt[:-1]:
            odd ^= bit == "1"
        return "1" if odd else "0"
    if task == "recall":
        return prompt[prompt.index(prompt[-1]) + 1]
    if task == "induction":
        return prompt[prompt.index("#") + 1]
    return prompt[prompt.index("#") + 1 :][:5]


@pytest.mark.parametrize("task", EXACT)
def test_answers_are_right_and_rows_as_long_as_they_say(task: str) -> None:
    data = SUITE.load(task, DataConfig(max_length=32))
    for rows in data.splits.values():
        assert [solved(task, prompt) for prompt, _ in rows.texts] == [answer for _, answer in rows.texts]
        assert rows.labels == []
    sizes = {name: [sum(map(len, row)) for row in rows.texts] for name, rows in data.splits.items()}
    assert len(sizes["test"]) == 4 * 200
    for place, length in enumerate((32, 64, 128, 256)):
        own = set(sizes["test"][place * 200 : (place + 1) * 200])
        assert len(own) == 1 and length - 3 < own.pop() <= length  # as many items as fit
    # Every size of training up to the trained length occurs, and so does every symbol that is ever asked for.
    assert max(sizes["train"]) == sizes["validation"][0] == sizes["test"][0] and len(set(sizes["train"])) > 5
    known = {symbol for row in data.splits["train"].texts for text in row for symbol in text}
    assert known >= {symbol for rows in data.splits.values() for row in rows.texts for text in row for symbol in text}


@pytest.mark.parametrize("task", ["copy", "recall", "passkey"])
def test_no_scored_row_is_trained_on(task: str) -> None:
    splits = SUITE.load(task, DataConfig(max_length=32)).splits
    train = set(splits["train"].texts)
    assert not train & set(splits["test"].texts) and not train & set(splits["validation"].texts)


def test_exact_rows_are_the_same_in_every_process() -> None:
    code = ("from posbench.config import DataConfig; from posbench.data import data_hash; "
            "from posbench.suites.longtext import SUITE; "
            "print(data_hash(SUITE.load('recall', DataConfig(max_length=16))), "
            "data_hash(SUITE.load('listops', DataConfig(max_length=32))))")
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={"PYTHONHASHSEED": "7"})
    assert told.stdout.split() == [data_hash(SUITE.load(task, DataConfig(max_length=length)))
                                   for task, length in (("recall", 16), ("listops", 32))]


def test_metrics_of_whole_answers_and_of_tokens() -> None:
    exact, tokens = (metric.function for metric in SUITE.tasks["copy"].metrics)
    gold, predicted = np.array([[1, 2, 3], [4, -1, -1], [5, 6, -1]]), np.array([[1, 2, 0], [4, -1, -1], [5, 6, -1]])
    assert exact(gold=gold, predicted=predicted) == pytest.approx(2 / 3)
    assert tokens(gold=gold, predicted=predicted) == pytest.approx(5 / 6)


def test_exact_tasks_refuse_files_and_lengths_without_room() -> None:
    with pytest.raises(UserError, match="generated by the suite"):
        folder("copy", Path("."))
    with pytest.raises(UserError, match="max_length = 24 is too short for generated rows: choose 25 to 4,096"):
        SUITE.load("passkey", DataConfig(max_length=24))


# ListOps.


def interpreted(text: str) -> int:
    """Recursive descent over the characters; the suite's own reading keeps a stack of tokens."""
    def expression(place: int) -> tuple[int, int]:
        if text[place].isdigit():
            return int(text[place]), place + 1
        end = text.index(" ", place)
        operator, values, place = text[place:end], [], end
        while text[place:].lstrip()[0] != "]":
            place += len(text[place:]) - len(text[place:].lstrip())
            value, place = expression(place)
            values.append(value)
        values.sort()
        middle = (values[(len(values) - 1) // 2] + values[len(values) // 2]) // 2
        found = {"[MIN": values[0], "[MAX": values[-1], "[MED": middle, "[SM": sum(values) % 10}
        return found[operator], text.index("]", place) + 1

    return expression(0)[0]


def test_listops_values_are_those_of_another_interpreter() -> None:
    assert interpreted("[MIN 7 [MAX 1 5 ] 6 ]") == 5
    data = SUITE.load("listops", DataConfig(max_length=48))
    for split, rows in data.splits.items():
        assert [interpreted(text) for (text,) in rows.texts] == rows.labels
        # True lengths, in the model's tokens with [CLS] and [SEP].
        assert all(24 <= len(text.split()) + 2 <= 48 for (text,) in rows.texts), split
    assert not {row for row in data.splits["train"].texts} & {row for row in data.splits["test"].texts}
    assert len(set(data.splits["test"].labels)) == 10


def test_listops_keeps_its_brackets_through_the_tokenizer() -> None:
    rows = SUITE.load("listops", DataConfig(max_length=48)).splits["train"]
    tokenizer = trained_tokenizer("spaced", (text for (text,) in rows.texts), 64)
    assert set(tokenizer.get_vocab()) == {*SPECIAL, *"0123456789]", "[MIN", "[MAX", "[MED", "[SM"}
    encoded = encode(tokenizer, rows.texts, rows.labels, 48, whole=True)
    assert encoded.cut == 0
    names = {index: token for token, index in tokenizer.get_vocab().items()}
    for ids, length, label in zip(encoded.ids[:1000], encoded.lengths, encoded.labels, strict=False):
        assert interpreted(" ".join(names[index] for index in ids[1 : length - 1])) == label


def test_listops_files_of_both_kinds(tmp_path: Path) -> None:
    one, two = tmp_path / "arena", tmp_path / "original"
    one.mkdir()
    two.mkdir()
    lines = ["( ( ( [MIN 7 ) ( ( ( [MAX 1 ) 5 ) ] ) ) ] )\t5", "( ( ( [SM 9 ) 4 ) ] )\t3"]
    for name in ("basic_train.tsv", "basic_val.tsv", "basic_test.tsv"):
        (one / name).write_text("Source\tTarget\r\n" + "".join(f"{line}\r\n" for line in lines), newline="")
    splits = folder("listops", one).splits
    assert splits["test"].texts == [("[MIN 7 [MAX 1 5 ] ]",), ("[SM 9 4 ]",)] and splits["test"].labels == [5, 3]
    (two / "test_d20s.tsv").write_text("5\t( ( [MAX 5 ) ] )\n3\t" + "( ( ( [SM 9 ) 4 ) ] )\n")
    data = folder("listops", two, max_length=32)
    assert data.splits["test"].labels == [5, 3] and "generated by the suite" in data.notes["train"]
    assert list(data.splits) == ["train", "validation", "test"]
    (two / "test_d20s.tsv").write_text("5\t( ( [MAX 5 ) ] )\n4\t( ( ( [SM 9 ) 4 ) ] )\n")
    with pytest.raises(UserError, match=r"test_d20s.tsv, row 2: the value is given as '4' and is 3"):
        folder("listops", two)
    (two / "test_d20s.tsv").write_text("5\t( ( [MAX 5 ) ] )\n4\t( ( ( [SM 9 ) 4 ) )\n")
    with pytest.raises(UserError, match=r"row 2: no expression of ListOps \(a bracket is not closed\)"):
        folder("listops", two)


def test_expressions_that_do_not_fit_are_left_out_and_counted(tmp_path: Path) -> None:
    (tmp_path / "test_d20s.tsv").write_text("5\t[MAX 5 ]\n3\t[SM 9 4 ]\n9\t[MAX 9 1 1 1 1 1 1 ]\n")
    data = folder("listops", tmp_path, max_length=8)
    assert data.splits["test"].texts == [("[MAX 5 ]",), ("[SM 9 4 ]",)]
    assert "1 of 3 rows of more than 8 tokens left out" in data.notes["test"]


def test_every_value_of_the_released_test_file_is_its_expressions() -> None:
    path = needs("longtext/listops/nangia")
    data = folder("listops", path, max_length=1000)
    assert len(data.splits["test"].labels) == 10000
    assert [interpreted(text) for (text,) in data.splits["test"].texts[:200]] == data.splits["test"].labels[:200]


# Documents as bytes.


def test_bytes_are_never_mistaken_for_padding() -> None:
    tokenizer = trained_tokenizer("bytes", (), 512)
    texts = ["".join(map(chr, range(256))), "[SEP] [PAD]\x00", "é 中 🙂 \u2028\n"]
    assert tokenizer.get_vocab_size() == 261
    encoded = encode(tokenizer, [(text,) for text in texts], [0, 0, 0], 1000, whole=True)
    alphabet = sorted(set(tokenizer.get_vocab()) - set(SPECIAL))
    assert len(alphabet) == 256
    for row, text in enumerate(texts):
        size = len(text.encode())
        assert encoded.lengths[row] == size + 2  # every byte is one token
        assert (encoded.ids[row, 1 : size + 1] >= len(SPECIAL)).all()
        assert (encoded.ids[row, size + 2 :] == 0).all()
        assert tokenizer.decode(encoded.ids[row, 1 : size + 1].tolist()) == text


def test_characters_are_the_most_frequent_ones() -> None:
    tokenizer = trained_tokenizer("characters", ["原告原告被", "原\n"], 5 + 2)
    assert set(tokenizer.get_vocab()) == {*SPECIAL, "原", "告"}
    assert tokenizer.encode("告x原", add_special_tokens=False).tokens == ["告", "[UNK]", "原"]


def test_whole_words_are_as_few_as_spell_the_text(tmp_path: Path) -> None:
    vocabulary = tmp_path / "vocab.txt"
    words = ["原", "告", "原告", "诉", "原告诉", "称", "诉称", "##告", "，"]
    vocabulary.write_text("\n".join([*SPECIAL, *words]), encoding="utf-8")
    tokenizer = tokenizer_from_file(vocabulary, words=True)
    assert tokenizer.encode("原告诉称，原", add_special_tokens=False).tokens in (
        ["原告诉", "称", "，", "原"], ["原告", "诉称", "，", "原"])
    plain = tokenizer_from_file(vocabulary)
    assert plain.encode("原告诉称", add_special_tokens=False).tokens == ["原", "告", "诉", "称"]


def test_the_words_of_roformers_vocabulary_are_longer_than_characters() -> None:
    tokenizer = tokenizer_from_file(needs("tokenizers/chinese-roformer-base") / "vocab.txt", words=True)
    tokens = tokenizer.encode("原告向本院提出诉讼请求", add_special_tokens=False).tokens
    assert "".join(tokens) == "原告向本院提出诉讼请求" and len(tokens) < 8


def archive(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as file:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))


def reviews(count: int = 10) -> dict[str, bytes]:
    return {f"aclImdb/{split}/{label}/{number}_{7 if label == 'pos' else 2}.txt": f"{label} {split} {number}".encode()
            for split in ("train", "test") for label in ("pos", "neg") for number in range(count)}


def test_reviews_from_an_archive_and_from_folders_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    members = reviews()
    archive(tmp_path / "one" / "aclImdb_v1.tar.gz", members | {"aclImdb/train/unsup/1_0.txt": b"no label"})
    for name, content in members.items():
        path = tmp_path / "two" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    one, two = folder("text", tmp_path / "one"), folder("text", tmp_path / "two")
    assert {name: sorted(rows.texts) for name, rows in one.splits.items()} == {
        name: sorted(rows.texts) for name, rows in two.splits.items()}
    splits = one.splits
    assert {name: Counter(rows.labels) for name, rows in splits.items()} == {
        "train": {0: 9, 1: 9}, "validation": {0: 1, 1: 1}, "test": {0: 10, 1: 10}}
    assert all(text.startswith("pos" if label else "neg") for (text,), label in
               zip(splits["train"].texts, splits["train"].labels, strict=True))
    assert not set(splits["train"].texts) & set(splits["validation"].texts)
    assert one.scored == ("test",) and one.selection == "validation"
    # A part of sorted rows keeps the shares.
    few = folder("text", tmp_path / "one", train_rows=6).splits["train"]
    assert Counter(few.labels) == {0: 3, 1: 3}


def test_bad_reviews_are_told(tmp_path: Path) -> None:
    members = reviews() | {"aclImdb/train/pos/3_7.txt": b"caf\xe9"}
    archive(tmp_path / "aclImdb_v1.tar.gz", members)
    with pytest.raises(UserError, match=r"aclImdb/train/pos/3_7.txt, row 1: not UTF-8 \(byte 0xe9\)"):
        folder("text", tmp_path)
    archive(tmp_path / "aclImdb_v1.tar.gz", members | {"aclImdb/train/pos/3_7.txt": b" "})
    with pytest.raises(UserError, match=r"3_7.txt: the file is empty"):
        folder("text", tmp_path)
    (tmp_path / "aclImdb_v1.tar.gz").write_bytes(b"broken")
    with pytest.raises(UserError, match="cannot be read"):
        folder("text", tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        folder("text", tmp_path / "nowhere")


def test_the_reviews_that_are_there() -> None:
    data = folder("text", needs("longtext/imdb"))
    assert {name: len(rows.labels) for name, rows in data.splits.items()} == {
        "train": 3600, "validation": 400, "test": 1000}


def test_pairs_of_documents(tmp_path: Path) -> None:
    for name in ("train", "eval", "test"):
        (tmp_path / f"new_aan_pairs.{name}.tsv").write_text("1.0\tA\tB\tone\ttwo\n0.0\tA\tC\tone\tthree\n")
    assert folder("matching", tmp_path).splits["test"].texts == [("one", "two"), ("one", "three")]
    (tmp_path / "new_aan_pairs.test.tsv").write_text("1.0\tA\tB\tone\ttwo\n2.0\tA\tC\tone\tthree\n")
    with pytest.raises(UserError, match=r"new_aan_pairs.test.tsv, row 2: label '2.0'"):
        folder("matching", tmp_path)


@pytest.mark.parametrize("task", ["text", "matching"])
def test_generated_documents_are_balanced_and_fit(task: str) -> None:
    data = SUITE.load(task, DataConfig(max_length=192))
    for rows in data.splits.values():
        assert abs(np.mean(rows.labels) - 0.5) < 0.01
        assert max(sum(len(text) + 1 for text in row) + 1 for row in rows.texts) <= 192
    for texts, label in zip(data.splits["test"].texts, data.splits["test"].labels, strict=True):
        if task == "text":
            own = next(part for part in texts[0].split(". ") if part.startswith("i "))
            good = any(word in own for word in ("superb", "moving", "bright", "clever"))
            assert label == (good != ("not" in own))
        else:
            facts = [set(text.rstrip(". ").split(". ")) for text in texts]
            assert label == bool(facts[0] & facts[1]) or not label


# Triplets.


def triplet_file(path: Path, rows: int = 60) -> None:
    path.write_text("\n".join(json.dumps({"A": f"a{row}", "B": f"b{row}", "C": f"c{row}"}) for row in range(rows)))


def test_the_similar_case_stands_in_both_places_equally_often(tmp_path: Path) -> None:
    triplet_file(tmp_path / "input.txt")
    data = folder("cail-512", tmp_path)
    assert {name: len(rows.labels) for name, rows in data.splits.items()} == {"train": 36, "validation": 12, "test": 12}
    labels = [label for rows in data.splits.values() for label in rows.labels]
    assert Counter(labels) == {0: 30, 1: 30}
    for rows in data.splits.values():
        for (a, b, c), label in zip(rows.texts, rows.labels, strict=True):
            assert a[0] == "a" and (b[0], c[0]) == (("c", "b") if label else ("b", "c"))
    assert data_hash(folder("cail-1024", tmp_path)) == data_hash(data)


def test_labels_of_the_competition_are_read(tmp_path: Path) -> None:
    rows = [{"A": f"a{row}", "B": f"b{row}", "C": f"c{row}", "label": "BC"[row % 2]} for row in range(40)]
    for name in ("train.json", "valid.json", "test.json"):
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
    for texts, label in zip(*vars(folder("cail-512", tmp_path).splits["test"]).values(), strict=True):
        similar = texts[1 + int(label)]
        assert similar[0] == "bc"[int(similar[1:]) % 2]


def test_bad_triplets_are_told(tmp_path: Path) -> None:
    path = tmp_path / "input.txt"
    path.write_text('{"A": "a", "B": "b", "C": "c"}\n{"A": "a", "B": "b"}\n')
    with pytest.raises(UserError, match=r"input.txt, row 2: no field 'C'"):
        folder("cail-512", tmp_path)
    path.write_text('{"A": "a", "B": "b", "C": "c"}\n{"A": "a", "B": "", "C": "c"}\n')
    with pytest.raises(UserError, match=r"input.txt, row 2: field 'B' is no text"):
        folder("cail-512", tmp_path)
    path.write_text('{"A": "a", "B": "b", "C": "c", "label": "A"}\n')
    with pytest.raises(UserError, match=r"row 1: label 'A' is neither B nor C"):
        folder("cail-512", tmp_path)
    path.write_text("")
    with pytest.raises(UserError, match=r"input.txt"):
        folder("cail-512", tmp_path)


def test_shared_documents_and_cut_triplets_are_counted() -> None:
    path = needs("longtext/cail2019-scm")
    assert "72 of 72 triplets share a document with train" in folder("cail-512", path).notes["test"]
    study = from_preset("longtext", "real-mini", {"data.path": str(path), "data.source": "folder"})
    objectives = [objective_of(resolve(study.trial(EncodingChoice.parse(encoding), "cail-512", 0)))
                  for encoding in ("learned", "rope")]
    lengths = [sum(len(first) + len(other) + 3 > 512 for first, other in [(row[0], row[1]), (row[0], row[2])]) > 0
               for row in folder("cail-512", path).splits["test"].texts]
    assert objectives[0].cut["test"] == objectives[1].cut["test"] == sum(lengths)


SMALL = {"train.steps": "3", "train.evaluations": "1", "train.batch_size": "4", "model.width": "16",
         "model.heads": "2", "model.layers": "1", "model.feedforward": "32", "data.max_length": "64"}


def test_a_triplet_is_scored_by_two_passes_of_one_model() -> None:
    study = from_preset("longtext", "mini", SMALL)
    one = resolve(study.trial(EncodingChoice.parse("rope"), "cail-512", 0))
    objective = objective_of(one)
    from posbench.transformer import Transformer

    model = Transformer(one.config.model, one.encoding, one.options, vocabulary=objective.vocabulary, length=64,
                        head=objective.head(one.task, objective.vocabulary)).eval()
    model.initialise(0)
    data = objective.splits["test"]
    with torch.no_grad():
        both = objective._output(model, data, np.arange(5))
        swapped = type(data)(**{**vars(data.other), "other": data})
        turned = objective._output(model, swapped, np.arange(5))
    assert both.shape == (5, 2)
    torch.testing.assert_close(both.flip(1), turned)  # the places of B and C say nothing
    record, arrays = run(one)
    assert record.status in ("done", "degenerate") and record.rows[0]["n"] == len(arrays["test/gold"]) == 600


def test_rows_that_were_cut_are_told_apart_from_whole_ones(tmp_path: Path) -> None:
    members = {name: content * (40 if "/1_" in name else 1) for name, content in reviews(20).items()}
    archive(tmp_path / "aclImdb_v1.tar.gz", members)
    study = from_preset("longtext", "real-mini", {**SMALL, "data.path": str(tmp_path)})
    record, arrays = run(resolve(study.trial(EncodingChoice.parse("rope"), "text", 0)))
    rows = {row["metric"]: row for row in record.rows}
    assert {name: row["n"] for name, row in rows.items()} == {
        "accuracy": 40, "accuracy, whole rows": 38, "accuracy, cut rows": 2}
    right = arrays["test/gold"] == arrays["test/predicted"]
    assert rows["accuracy, whole rows"]["value"] * 38 + rows["accuracy, cut rows"]["value"] * 2 == pytest.approx(
        right.sum())
    assert record.facts["cut_rows"]["test"] == 2


# Presets.


@pytest.mark.parametrize("preset", ["mini", "real-mini", "small", "paper"])
def test_presets_are_settings(preset: str) -> None:
    base = build(StudyConfig, {"suite": "longtext", "preset": preset, "encodings": [{"name": "rope"}],
                               "tasks": list(SUITE.tasks), "seeds": [0], "train": {"steps": 1}}, where="test")
    config = override(base, dict(SUITE.presets[preset]))
    assert len(config.seeds) >= 3
    for task in config.tasks:
        trial = config.trial(config.encodings[0], task, 0)
        assert trial.model.shape == ("decoder" if task in EXACT else "encoder")
    assert (config.data.source == "generated") == (preset in ("mini", "small"))
