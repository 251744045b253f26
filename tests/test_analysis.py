"""The analysis against closed forms and naive loops, and the command that draws it."""

from __future__ import annotations

import cmath
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from posbench import figures
from posbench.analysis import analyse, bound, decay, precision, verdict
from posbench.config import EncodingChoice
from posbench.encoding import Encoding
from posbench.errors import StorageError, UserError
from posbench.inspection import analyse as command
from posbench.inspection import folder_name, write
from posbench.options import build_options
from posbench.registry import ENCODINGS
from posbench.stand import Setup, Stand

SMALL = Setup(width=32, heads=2, length=16, draws=2)
# RoFormer section 3.4.3 at d = 128 and base 10000, and at d = 64, computed apart from this code.
ROFORMER = {0: 32.5, 1: 31.538, 10: 17.954, 50: 12.629, 100: 10.227, 200: 7.245, 1000: 4.471}
NARROW = {0: 16.5, 1: 15.948, 10: 8.814, 50: 5.733, 100: 7.465}


def stand(text: str, setup: Setup = SMALL, shape: str = "decoder") -> Stand:
    choice = EncodingChoice.parse(text)
    cls = ENCODINGS.load(choice.name).value
    return Stand(cls, build_options(choice.name, cls, choice.options), setup, shape)


@torch.no_grad()
def curve(text: str, setup: Setup = SMALL, shape: str = "decoder", content: str = "equal", column: str = "value"):
    """(H, K) of the table of changes."""
    frame = decay(stand(text, setup, shape))
    own = frame[(frame["quantity"] == "change") & (frame["content"] == content)]
    return own.pivot(index="head", columns="distance", values=column).to_numpy()


def naive_bound(d: int, distance: int, base: float, turned: int) -> float:
    """(2/d) sum_j |S_j| with S_j = sum_(i<j) e^(i n theta_i), by two loops; pairs that are not turned come last."""
    total = 0.0
    for j in range(1, d // 2 + 1):
        partial = 0j
        for i in range(j):
            theta = base ** (-2 * i / turned) if 2 * i < turned else 0.0
            partial += cmath.exp(1j * distance * theta)
        total += abs(partial)
    return 2 / d * total


@pytest.mark.parametrize("width, values", [(128, ROFORMER), (64, NARROW)])
def test_bound_is_roformers_figure_two(width, values):
    length = max(values) + 1
    found = bound(stand("rope", Setup(width=width, heads=1, length=length)))
    assert found.shape == (1, length)
    for distance, value in values.items():
        assert float(found[0, distance]) == pytest.approx(value, abs=6e-4)


@pytest.mark.parametrize("text, base, turned", [
    ("rope", 1e4, 16), ("rope:base=500000", 5e5, 16), ("rope:layout=half", 1e4, 16), ("rope:fraction=0.5", 1e4, 8),
])
def test_bound_equals_two_loops_whatever_the_options(text, base, turned):
    found = bound(stand(text, Setup(width=32, heads=2, length=70)))
    for distance in (0, 1, 7, 69):
        wanted = naive_bound(16, distance, base, turned)
        assert found[:, distance].tolist() == pytest.approx([wanted, wanted], abs=1e-9)


def test_there_is_no_bound_where_nothing_turns_in_planes():
    assert bound(stand("alibi")) is None and bound(stand("sinusoidal")) is None

    class Shuffled(Encoding):
        """Turns by one plane, then by another that shares a channel: the maps of two distances do not commute."""

        def rotate(self, x, at, side):
            angle = (at.q if side == "query" else at.k)[0].to(x.dtype)[:, None]
            a, b, c = x[..., :1], x[..., 1:2], x[..., 2:3]
            a, b = a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()
            b, c = b * angle.sin() - c * angle.cos(), b * angle.cos() + c * angle.sin()
            return torch.cat([a, b, c, x[..., 3:]], dim=-1)

    assert bound(Stand(Shuffled, None, SMALL, "decoder")) is None


def test_rope_changes_equal_tokens_by_the_sum_of_cosines_and_leaves_random_ones_their_mean():
    found = curve("rope")
    for distance in (0, 1, 7, 15):
        wanted = 2 / math.sqrt(16) * sum(math.cos(distance * 10000 ** (-2 * i / 16)) - 1 for i in range(8))
        assert found[:, distance] == pytest.approx([wanted, wanted], abs=1e-12)
    assert np.abs(curve("rope", content="random")).max() < 1e-12
    assert curve("rope", content="random", column="spread")[:, 1:].min() > 0.01


@pytest.mark.parametrize("shape", ["encoder", "decoder"])
def test_alibi_falls_linearly_with_its_slopes(shape):
    found = curve("alibi", Setup(width=32, heads=4, length=64, draws=1), shape)
    for head, slope in enumerate((2**-2, 2**-4, 2**-6, 2**-8)):
        assert found[head] == pytest.approx([-slope * distance for distance in range(64)], abs=1e-12)
        told = verdict(found[head], np.zeros(64))
        assert (told.text, told.monotone, told.flat_from) == ("falls linearly", True, None)


@pytest.mark.parametrize("shape", ["encoder", "decoder"])
def test_t5_is_its_table_and_flat_beyond_its_largest_distance(shape):
    setup = Setup(width=32, heads=2, length=400, draws=1)
    found, table = curve("t5", setup, shape), stand("t5", setup, shape).encoding.table.detach().numpy()
    # Buckets of keys behind, from the released code.
    buckets = ({0: 0, 1: 1, 15: 15, 16: 16, 17: 16, 20: 17, 32: 21, 64: 26, 127: 31, 128: 31, 399: 31}
               if shape == "decoder" else {0: 0, 1: 1, 7: 7, 8: 8, 20: 10, 128: 15, 399: 15})
    for distance, bucket in buckets.items():
        assert found[:, distance] == pytest.approx(table[bucket], abs=1e-6)
    assert np.ptp(found[:, 128:], axis=1).max() < 1e-9
    assert verdict(found[0], np.zeros(400)).flat_from <= 128


def test_sinusoidal_is_the_product_of_two_rows_in_the_mean():
    found = curve("sinusoidal", Setup(width=128, heads=1, length=101, draws=1))[0] * math.sqrt(128)
    assert found[[0, 1, 10, 50, 100]] == pytest.approx([64, 62.094, 42.820, 34.955, 30.543], abs=2e-3)
    assert verdict(found, np.zeros(101)).text == "not monotone"


def test_nope_changes_nothing_and_shaw_nothing_in_the_mean():
    assert np.abs(curve("nope")).max() == 0 and np.abs(curve("nope", content="random", column="spread")).max() == 0
    shaw = stand("shaw:clip=4")
    rows = shaw.encoding.key_table.detach().numpy().sum(1) / math.sqrt(16)  # ones times a row, scaled
    spread = curve("shaw:clip=4", column="spread")
    assert np.abs(curve("shaw:clip=4")).max() < 1e-12
    for distance in range(16):
        # Two values +a and -a have the deviation a sqrt(2) when one degree of freedom is left.
        assert spread[:, distance] == pytest.approx([abs(rows[4 - min(distance, 4)]) * math.sqrt(2)] * 2, abs=1e-9)
    told = verdict(np.zeros(16), spread[0])
    assert told.text == "only through content, flat from 4" and not told.monotone


def test_initial_values_are_those_of_the_templates_first_layer():
    from posbench.config import ModelConfig
    from posbench.transformer import Head, Transformer

    cls = ENCODINGS.load("t5").value
    model = Transformer(ModelConfig(width=32, heads=2, layers=1), cls, vocabulary=5, length=16, head=Head(kind="token"))
    model.initialise(7)
    found = stand("t5", Setup(width=32, heads=2, length=16, seed=7), "encoder").encoding
    assert torch.equal(found.table.float(), model.encodings[0].table)


@pytest.mark.parametrize("values, text, monotone, flat", [
    ([3, 2, 1, 0], "falls linearly", True, None), ([3, 1, 0.5, 0.2], "falls", True, None),
    ([3, 1, 1, 1], "falls, flat from 1", True, 1), ([0, 1, 2, 3], "rises", False, None),
    ([3, 1, 2, 0], "not monotone", False, None), ([3, 5, 1, 1], "not monotone, flat from 2", False, 2),
    ([2, 2, 2], "constant", True, 0), ([2], "constant", True, 0), ([1, 1 + 1e-9, 1], "constant", True, 0),
])
def test_verdicts(values, text, monotone, flat):
    told = verdict(np.array(values, dtype=float), np.zeros(len(values)))
    assert (told.text, told.monotone, told.flat_from) == (text, monotone, flat)


def test_weights_of_equal_tokens_are_the_softmax_of_the_bias():
    found = analyse(EncodingChoice.parse("alibi"), SMALL)["attention"]
    assert found["query"].unique().tolist() == [8]
    for shape, keys in (("encoder", range(16)), ("decoder", range(9))):
        own = found[(found["shape"] == shape) & (found["head"] == 0)].set_index("offset")["value"]
        scores = {key - 8: math.exp(-(2**-4) * abs(key - 8)) for key in keys}
        assert own.to_dict() == pytest.approx({offset: one / sum(scores.values()) for offset, one in scores.items()})


@torch.no_grad()
def test_rounded_rope_is_as_good_far_out_as_near():
    frame = precision(stand("rope", Setup(width=128, heads=2, length=16)))
    worst = frame[frame["quantity"] == "largest error"].groupby(["dtype", "position"])["value"].max()
    for dtype, unit in (("bfloat16", 2**-8), ("float16", 2**-11), ("float32", 2**-24)):
        assert 0 < worst[dtype].max() <= 3 * unit
        assert worst[dtype][16384] <= 4 * worst[dtype][0]
    assert not frame["note"].any() and len(worst["float32"]) == 18


@torch.no_grad()
def test_angles_of_rounded_positions_are_found_out():
    class Coarse(Encoding):
        """A rotation whose angles are formed in the model's format."""

        def rotate(self, x, at, side):
            position = (at.q if side == "query" else at.k)[0].to(x.dtype)[:, None]
            theta = (10000 ** (-torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1])).to(x.dtype)
            cos, sin = (position * theta).cos(), (position * theta).sin()
            a, b = x[..., ::2], x[..., 1::2]
            return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)

    frame = precision(Stand(Coarse, None, Setup(width=128, heads=2, length=16), "decoder"))
    own = frame[(frame["quantity"] == "largest error")].groupby(["dtype", "position"])["value"].max()
    assert own["bfloat16"][256] > 3 * 2**-8 and own["bfloat16"][16384] > 0.05
    # float16 ends at 65504.
    told = frame[(frame["dtype"] == "float16") & (frame["position"] == 65536)]
    assert told["value"].isna().all() and told["note"].str.startswith("float16 cannot hold it").all()


@pytest.mark.parametrize("text, limits", [("learned", [16, 32, 64, 128]), ("learned:max_length=40", [16, 32, 64, 128])])
def test_learned_refuses_beyond_its_table_and_says_so(text, limits):
    tables = analyse(EncodingChoice.parse(text), SMALL)
    limit = 40 if "40" in text else 16
    far = tables["beyond"][tables["beyond"]["shape"] == "decoder"]
    assert sorted(far["length"].unique()) == limits
    for length, own in far.groupby("length"):
        refused = length > limit
        assert (own["quantity"].tolist() == ["refused"]) == refused
        assert own["value"].isna().all() == refused
        if refused:
            assert own["note"].item() == f"refused at length {length}: ends at {limit} positions"
    near = tables["precision"][tables["precision"]["dtype"] == "bfloat16"]
    assert set(near.loc[near["value"].isna(), "position"]) == {p for p in near["position"] if p + 6 > limit}
    assert set(near.loc[near["value"].isna(), "note"]) == {f"refused: ends at {limit} positions"}


def test_beyond_the_trained_length_nope_is_uniform_and_alibi_leaves_its_range():
    nope, alibi = (analyse(EncodingChoice.parse(name), SMALL)["beyond"] for name in ("nope", "alibi"))

    def of(frame, quantity):
        own = frame[(frame["shape"] == "decoder") & (frame["quantity"] == quantity) & (frame["content"] == "equal")
                    & (frame["head"] == 0)]
        return own.set_index("multiple")["value"].to_dict()

    assert of(nope, "entropy") == pytest.approx({n: math.log(16 * n) for n in (1, 2, 4, 8)})
    assert of(nope, "mass in window") == pytest.approx({n: 1 / n for n in (1, 2, 4, 8)})
    assert of(nope, "out of range") == {1: 0, 2: 0, 4: 0, 8: 0}
    # Keys at distances 16 and more are below everything that was seen before.
    assert of(alibi, "out of range") == pytest.approx({n: 1 - 1 / n for n in (1, 2, 4, 8)})
    whole = sum(math.exp(-distance / 16) for distance in range(32))
    near = sum(math.exp(-distance / 16) for distance in range(16))
    assert of(alibi, "mass in window")[2] == pytest.approx(near / whole)


TINY = {"length": 16, "width": 32, "heads": 2}
FILES = {f"{name}.{kind}" for name in figures.FIGURES for kind in ("png", "svg", "csv")} | {"verdicts.csv"}


@pytest.mark.parametrize("name", list(ENCODINGS.found()))
def test_every_encoding_has_its_tables(name):
    tables = analyse(EncodingChoice.parse(name), SMALL)
    assert set(tables) == {*figures.FIGURES, "verdicts"}
    for frame in tables.values():
        assert list(frame.columns[:4]) == ["encoding", "options", "parameters", "shape"]
        assert {"quantity", "head"} <= set(frame.columns) and set(frame["encoding"]) == {name}
    assert {"dtype", "position", "value", "unit", "note"} <= set(tables["precision"].columns)
    known = [frame["value"].notna() | (frame["note"] != "" if "note" in frame else False)
             for frame in tables.values() if "value" in frame]
    assert all(one.all() for one in known)
    states = {frame["parameters"].iloc[0] for frame in tables.values()}
    assert states == ({"initial values, seed 0"} if stand(name).encoding.state_dict() else {"none"})


def test_options_and_seed_reach_the_numbers():
    first, again, other = (analyse(EncodingChoice.parse("t5:buckets=8"), Setup(**TINY, draws=2, seed=seed))
                           for seed in (3, 3, 4))
    for name, frame in first.items():
        pd.testing.assert_frame_equal(frame, again[name])
        assert set(frame["options"]) == {"buckets=8:max_distance=128"}
        assert set(frame["parameters"]) == {"initial values, seed 3"}
    assert not np.allclose(first["decay"]["value"], other["decay"]["value"])


def touched(figure, path: Path) -> list[Path]:
    """Files without a picture, which takes a second to draw."""
    files = [path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg")]
    for file in files:
        file.touch()
    return files


def test_the_same_tables_are_the_same_bytes(tmp_path):
    frame = analyse(EncodingChoice.parse("alibi"), SMALL)["attention"]
    first, second = (write(tmp_path / name, {"attention": frame}, "head") for name in ("first", "second"))
    assert [file.name for file in first] == ["attention.csv", "attention.png", "attention.svg"]
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]


def test_the_command_writes_a_folder_for_each_and_one_for_the_comparison(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POSBENCH_HOME", raising=False)
    monkeypatch.setattr(figures, "save", touched)
    command(["alibi", "learned:max_length=16"], **TINY)
    folder = tmp_path / "out" / "analyse"
    places = ["alibi", "learned-max_length=16"]
    assert {place.name for place in folder.iterdir() if place.is_dir()} == set(places)
    for place in (folder, *(folder / name for name in places)):
        assert {file.name for file in place.iterdir() if file.is_file()} == FILES
    whole = pd.read_csv(folder / "decay.csv")
    assert list(dict.fromkeys(whole["encoding"])) == ["alibi", "learned:max_length=16"]
    told = capsys.readouterr().out
    assert "falls linearly" in told and "refused" in told and "learned:max_length=16: out/analyse/learned-max" in told


@pytest.mark.slow
def test_every_encoding_is_drawn_and_compared(tmp_path: Path) -> None:
    command(None, **TINY, out=tmp_path)
    for place in (tmp_path, *(tmp_path / name for name in ENCODINGS.found())):
        assert {file.name for file in place.iterdir() if file.is_file()} == FILES


@pytest.mark.parametrize("names, options, message", [
    (["rop"], {}, "unknown encoding 'rop', did you mean 'rope'"), (["alibi", "rope:bas=3"], {}, "unknown option 'bas'"),
    (["rope", "rope"], {}, "two encodings are called 'rope'"), (["nope"], {"width": 33}, "width 33 is no multiple"),
    (["nope"], {"length": 65536, "width": 65536, "heads": 1}, "choose a smaller"),
    (["rope"], {"width": 6}, "channels turn in pairs"), (["./no.py"], {}, "'no.py' does not exist"),
])
def test_mistakes_are_told_and_leave_nothing_behind(tmp_path, monkeypatch, names, options, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=re.escape(message)) as told:
        command(names, **{**TINY, **options}, out=tmp_path / "out")
    assert "\n" not in str(told.value) and told.value.exit_code == 2
    assert not list(tmp_path.iterdir())


def test_a_mistake_on_the_command_line_is_one_line_and_exit_code_2(tmp_path):
    done = subprocess.run([sys.executable, "-m", "posbench", "analyse", "alib"], cwd=tmp_path, capture_output=True,
                          text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "did you mean 'alibi'" in done.stderr


def test_a_plugin_that_breaks_down_is_told_in_one_line(tmp_path):
    file = tmp_path / "wrong.py"
    file.write_text("from posbench.encoding import Encoding\n\n\nclass Wrong(Encoding):\n"
                    "    def offset_bias(self, distance):\n        return [][0]\n\n\nENCODING = Wrong\n")
    with pytest.raises(UserError, match="encoding 'wrong' cannot be analysed: IndexError"):
        analyse(EncodingChoice.parse(str(file)), SMALL)


def test_a_folder_that_cannot_be_written_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("")
    tables = {"verdicts": pd.DataFrame({"a": [1]})}
    with pytest.raises(StorageError, match="cannot be written") as told:
        write(tmp_path / "file" / "below", tables, "head")
    assert told.value.exit_code == 3


@pytest.mark.parametrize("label, name", [
    ("rope", "rope"), ("rope:base=500000.0", "rope-base=500000.0"), ("../../etc", "etc"), (".hidden", "hidden"),
    ("a b/c\nd", "a-b-c-d"),
])
def test_names_of_folders_are_from_a_list_of_allowed_characters(label, name):
    assert folder_name(label) == name


def test_long_and_empty_names_of_folders_stay_apart():
    names = {folder_name("x" * 70 + end) for end in "ab"} | {folder_name("..."), folder_name("/")}
    assert len(names) == 4 and all(0 < len(name) <= 64 for name in names)


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are drawn, in place of their files."""
    made = []
    monkeypatch.setattr(figures, "save", lambda figure, path: made.append(figure) or [])
    return made


def overlaps(boxes) -> int:
    return sum(one.overlaps(other) for place, one in enumerate(boxes) for other in boxes[:place])


@pytest.mark.parametrize("heads", [16, pytest.param(1, marks=pytest.mark.slow)])
def test_no_text_of_a_figure_covers_another(drawn, tmp_path, heads):
    setup = Setup(width=64, heads=heads, length=16, draws=1)
    tables = [analyse(EncodingChoice.parse(name), setup) for name in ("rope", "learned", "t5:buckets=8")]
    for name, draw in figures.FIGURES.items():
        draw(pd.concat([one[name] for one in tables], ignore_index=True), tmp_path / "x", "encoding")
        draw(tables[1][name], tmp_path / "x", "head")
        assert "Untrained, at initial values, seed 0" in " ".join(drawn[-1].get_suptitle().split())
    assert len(drawn) == 8
    for figure in drawn:
        figure.draw_without_rendering()
        words = [figure._suptitle.get_window_extent()]
        words += [legend.get_window_extent() for legend in figure.legends]
        words += [axis.title.get_window_extent() for axis in figure.axes if axis.get_title()]
        assert overlaps(words) == 0
        for axis in figure.axes:
            texts = [label.get_text() for label in (*axis.get_xticklabels(), *axis.get_yticklabels())]
            assert not any("$" in text for text in texts)
            ticks = [label.get_window_extent() for label in axis.get_xticklabels() if label.get_text()]
            assert overlaps(ticks) == 0
        assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width + 1 for box in words)


def test_setups_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="no multiple"):
        Setup(width=10, heads=3)
    with pytest.raises(UserError, match="choose a smaller"):
        Setup(width=4096, length=65536)
