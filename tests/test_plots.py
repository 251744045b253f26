"""Figures say what the tables say, draw nothing over a gap, and have the same bytes twice."""

import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pandas as pd
import pytest

from posbench import plots
from posbench.comparison import compare
from posbench.errors import UserError
from tests.fake_study import table


def points(values, encoding="rope", task="cola"):
    """Curves from one list of values a seed."""
    return pd.DataFrame([{"encoding": encoding, "task": task, "seed": seed, "step": 10 * place, "metric": "accuracy",
                          "value": value} for seed, own in enumerate(values) for place, value in enumerate(own)])


@pytest.fixture
def figures(monkeypatch):
    """The figures that are drawn, in place of their files."""
    drawn = []
    monkeypatch.setattr(plots, "save", lambda figure, path: drawn.append(figure) or [])
    return drawn


@pytest.fixture
def eight():
    """Eight encodings on nine tasks."""
    generator = np.random.default_rng(0)
    return compare(table({f"encoding{i}": {f"task{j}": list(generator.normal(0.1 * i, 0.1, size=2)) for j in range(9)}
                          for i in range(8)}), baseline="encoding0")


def test_line_is_the_mean_and_band_the_t_interval(figures, tmp_path):
    plots.learning_curves(points([[80.1, 80.1], [81.3, 81.3], [79.8, 79.8]]), tmp_path / "x")
    axis = figures[0].axes[0]
    assert axis.get_lines()[0].get_ydata() == pytest.approx([80.4, 80.4])
    band = axis.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((80.4 - 1.9717, 80.4 + 1.9717), abs=1e-3)
    assert axis.get_title() == "cola (n = 3 seeds)"


def test_bands_end_with_the_range_of_the_metric_and_the_axis_with_the_scores(figures, tmp_path):
    frame = points([[0.0, 0.9], [0.2, 1.0]])
    plots.learning_curves(frame, tmp_path / "x", ranges={("cola", "accuracy"): (0.0, 1.0)})
    (axis,) = figures[0].axes
    band = axis.collections[0].get_paths()[0].vertices[:, 1]
    # Of two seeds half an interval is 12.706 x |a - b| / 2: -1.17 to 1.37 about .1, and .31 to 1.59 about .95.
    assert (band.min(), band.max()) == pytest.approx((0.0, 1.0))
    assert axis.get_ylim() == pytest.approx((-0.05, 1.05))
    plots.learning_curves(frame, tmp_path / "x")
    band = figures[1].axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((-1.1706, 1.5853), abs=1e-3)
    assert figures[1].axes[0].get_ylim() == pytest.approx((-0.05, 1.05)) and "panel's edge" in figures[1].get_suptitle()


def test_one_seed_has_a_line_and_no_band(figures, tmp_path):
    plots.learning_curves(points([[0.1, 0.2]]), tmp_path / "x")
    axis = figures[0].axes[0]
    assert axis.get_lines()[0].get_ydata() == pytest.approx([0.1, 0.2])
    assert not any(np.isfinite(path.vertices).all() and np.ptp(path.vertices[:, 1]) > 0.15
                   for band in axis.collections for path in band.get_paths())
    assert axis.get_title() == "cola (n = 1 seed)"


@pytest.mark.parametrize("lost", [[0.1, 0.2, np.nan, 0.4], [0.1, 0.2], [0.1, 0.2, np.inf, np.nan]])
def test_a_line_ends_where_a_seed_does_and_is_marked(figures, tmp_path, lost):
    plots.learning_curves(points([[0.1, 0.2, 0.3, 0.4], lost]), tmp_path / "x")
    line, cross = figures[0].axes[0].get_lines()
    assert list(line.get_xdata()) == [0, 10] and list(cross.get_xdata()) == [10]


@pytest.mark.parametrize("tasks", ["a", "abcd"])
def test_one_panel_a_task_and_every_encoding_in_the_legend(figures, tmp_path, tasks):
    frame = pd.concat([points([[0.1, 0.2]] * 2, f"encoding{i}", task) for i in range(12) for task in tasks])
    plots.learning_curves(frame, tmp_path / "x", note="Generated data.")
    figure = figures[0]
    assert [axis.get_title()[0] for axis in figure.axes if axis.axison] == list(tasks)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [f"encoding{i}" for i in range(12)]
    figure.draw_without_rendering()
    assert not figure.legends[0].get_window_extent().overlaps(figure._suptitle.get_window_extent())
    looks = {(line.get_color(), line.get_linestyle(), str(line._dash_pattern)) for line in figure.axes[0].get_lines()}
    assert len(looks) == 12 and "Generated data." in figure.get_suptitle()


def test_rank_plot_states_its_tests_and_no_text_covers_another(figures, tmp_path, eight):
    plots.rank_plot(eight, tmp_path / "x")
    figure = figures[0]
    assert "Friedman" in figure.get_suptitle() and f"{eight.ranking.critical_difference:.2f}" in figure.get_suptitle()
    figure.draw_without_rendering()
    texts = [text for text in figure.axes[0].texts if text.get_text()]
    assert sum("encoding" in text.get_text() for text in texts) == 8
    boxes = [text.get_window_extent() for text in texts]
    assert not [1 for i, box in enumerate(boxes) for other in boxes[:i] if box.overlaps(other)]
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width for box in boxes)


@pytest.mark.parametrize(("ranks", "distance", "bars"), [
    ([1.0, 2.0, 3.0], 1.0, [(0, 1), (1, 2)]), ([1.0, 2.0, 3.0], 0.5, []), ([1.0, 1.5, 2.0, 4.0], 1.0, [(0, 2)]),
])
def test_bars_join_the_largest_groups_within_the_distance(ranks, distance, bars):
    assert plots._cliques(np.array(ranks), distance) == bars


def test_files_are_png_and_svg_and_the_same_bytes_twice(tmp_path, eight):
    frame = points([[0.1, 0.2], [0.2, 0.3]])
    for draw in (lambda path: plots.learning_curves(frame, path), lambda path: plots.rank_plot(eight, path)):
        first, second = draw(tmp_path / "new" / "first"), draw(tmp_path / "second")
        assert [path.name for path in first] == ["first.png", "first.svg"]
        assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
        assert first[0].read_bytes().startswith(b"\x89PNG")
        assert ElementTree.parse(first[1]).getroot().tag.endswith("svg")
        assert b"<dc:date>" not in first[1].read_bytes()


def test_a_name_is_text_and_never_mathematics(tmp_path):
    frame = points([[0.1, 0.2]], encoding=r"$\frac{$", task=r"$_{$")
    assert len(plots.learning_curves(frame, tmp_path / "x")) == 2


def test_what_cannot_be_drawn_is_refused(tmp_path):
    with pytest.raises(UserError, match="no points"):
        plots.learning_curves(pd.DataFrame(columns=list(plots.CURVE_COLUMNS)), tmp_path / "x")
    with pytest.raises(UserError, match="seed"):
        plots.learning_curves(points([[0.1]]).drop(columns="seed"), tmp_path / "x")
    with pytest.raises(UserError, match="no ranks"):
        plots.rank_plot(compare(table({"learned": {"t": [0.1]}})), tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_drawing_touches_no_figure_and_no_setting_of_the_caller():
    script = ("import matplotlib, pandas as pd\nbefore = dict(matplotlib.rcParams)\n"
              "from posbench import plots\nfrom pathlib import Path\nimport sys, tempfile\n"
              "frame = pd.DataFrame([dict(encoding='a', task='t', seed=0, step=s, "
              " metric='m', value=1) for s in (0, 1)])\n"
              "plots.learning_curves(frame, Path(tempfile.mkdtemp()) / 'x')\n"
              "assert dict(matplotlib.rcParams) == before\n"
              "pyplot = sys.modules.get('matplotlib.pyplot')\nassert pyplot is None or not pyplot.get_fignums()\n")
    subprocess.run([sys.executable, "-c", script], check=True)


def scored(values: dict[str, list[list[float]]], task: str, metric: str) -> pd.DataFrame:
    """Rows by length from, for each encoding, one list of values a seed."""
    return pd.DataFrame([{"encoding": encoding, "task": task, "seed": seed, "length": 32 * 2**place, "metric": metric,
                          "value": value} for encoding, seeds in values.items() for seed, own in enumerate(seeds)
                         for place, value in enumerate(own)])


def test_wide_bands_of_few_seeds_do_not_press_the_lines_together(figures, tmp_path):
    frame = scored({"rope": [[0.9, 0.0], [0.1, 0.0]], "nope": [[0.5, 0.1], [0.5, 0.1]]}, "reverse", "exact match")
    plots.by_length(frame, tmp_path / "x", trained={"reverse": 32})
    (axis,) = figures[0].axes
    assert axis.get_ylim() == pytest.approx((-0.045, 0.945))  # of the scores 0 to 0.9, and a twentieth
    assert {line.get_label(): line.get_ydata().tolist() for line in axis.get_lines() if len(line.get_xdata()) == 2
            and line.get_label() in ("rope", "nope")} == {"rope": [0.5, 0.0], "nope": [0.5, 0.1]}


def test_a_second_score_that_is_the_first_has_no_panel_of_its_own(figures, tmp_path):
    one, other = {"rope": [[1.0, 0.5]]}, {"rope": [[1.0, 0.6]]}
    frame = pd.concat([scored(one, "induction", "exact match"), scored(one, "induction", "token accuracy"),
                       scored(one, "copy", "exact match"), scored(other, "copy", "token accuracy")])
    plots.by_length(frame, tmp_path / "x", trained={"induction": 32, "copy": 32})
    shown = [(axis.get_title().split()[0], axis.get_ylabel()) for axis in figures[0].axes if axis.get_title()]
    assert shown == [("induction", "exact match"), ("copy", "exact match"), ("copy", "token accuracy")]
