"""What a reader is shown: everything that was planned, nothing that misleads, and no text that is obeyed."""

import csv
import io
import re
from collections import defaultdict
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from posbench.reports.scoreboard import REPORT
from statsmodels.stats import power

from posbench import results
from posbench.errors import UserError
from posbench.report import Report
from posbench.tables import Table, csv_text, latex, markdown, terminal
from tests.fake_study import broken, row, study, table

HOSTILE = "<script>alert(1)</script> | =cmd() {{7*7}} 50_%&"


class Page(HTMLParser):
    """Tags of a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.shown = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.shown += data


@pytest.fixture
def frame():
    """Three encodings, three tasks, three seeds; one cell of each kind of trouble."""
    scores = np.random.default_rng(0).uniform(0.4, 0.6, size=(3, 3, 3))
    frame = {name: {task: list(scores[i, j]) for j, task in enumerate(["cola", "rte", "wnli"])}
             for i, name in enumerate(["learned", "rope", "nope"])}
    frame["rope"]["rte"][1] = "diverged"
    frame["nope"]["cola"] = ["failed"] * 3
    return table(frame)


@pytest.fixture
def written(frame, tmp_path):
    """Texts of all files but figures, by name."""
    paths = REPORT.write(study(frame, tmp_path))
    return {path.name: path.read_text() for path in paths if path.suffix not in (".png", ".svg")}


def cell(document, title, encoding, head):
    found = next(part for part in document.parts if part.title.startswith(title))
    column = next(place for place, name in enumerate(found.columns) if name.split("\n")[0] == head)
    return next(entry for entry in (*found.rows, *found.footer) if entry[0] == encoding)[column]


def test_scoreboard_is_a_report_and_writes_every_form(written):
    assert isinstance(REPORT, Report)
    assert set(written) == {"scoreboard.html", "scoreboard.md", "scoreboard.tex", "scoreboard.txt", "tidy.csv",
                            "comparisons.csv"}


def test_files_are_the_same_bytes_twice_and_nothing_else_is_left(frame, tmp_path):
    first = {path.name: path.read_bytes() for path in REPORT.write(study(frame, tmp_path / "a"))}
    second = {path.name: path.read_bytes() for path in REPORT.write(study(frame, tmp_path / "b"))}
    assert first == second
    REPORT.write(study(frame, tmp_path / "b"))
    assert {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()} == first


def test_every_planned_cell_is_shown_and_counted(frame, tmp_path):
    whole = results.complete(frame, [("alibi", task, seed) for task in ("cola", "rte", "wnli") for seed in (0, 1, 2)])
    document = REPORT.document(study(whole, tmp_path))
    assert cell(document, "Quality", "rope", "rte").split() == ["1/3", "diverged"]
    assert cell(document, "Quality", "nope", "cola") == "failed"
    assert cell(document, "Quality", "alibi", "wnli") == "missing"
    assert cell(document, "Difference", "nope", "cola") == "failed"
    assert cell(document, "Trials", "alibi", "missing") == "9" and cell(document, "Trials", "nope", "failed") == "3"
    assert cell(document, "Trials", "total", "planned") == "36"
    counted = "Of 36 planned trials: 23 done, 0 degenerate, 1 diverged, 3 failed, 0 refused, 9 missing."
    copied = [part for part in document.parts if isinstance(part, Table) and "\n" in part.columns[1]]
    assert len(copied) == 2 and all(counted in part.notes for part in copied)


def test_a_trial_with_several_rows_counts_once(tmp_path):
    rows = [row(name, seed=seed, metric=metric, primary=metric == "f1")
            for name in ("learned", "rope") for seed in (0, 1) for metric in ("f1", "loss")]
    assert cell(REPORT.document(study(results.frame(rows), tmp_path)), "Trials", "rope", "done") == "2"


def test_mean_interval_and_difference_are_those_of_the_formulas(tmp_path):
    scores = {"learned": {"t": [80.1, 81.3, 79.8]}, "rope": {"t": [81.1, 82.3, 80.8]}}
    document = REPORT.document(study(table(scores), tmp_path))
    assert cell(document, "Quality", "learned", "t") == "80.40 ±1.97"
    assert cell(document, "Difference", "rope", "t") == "+1.00 ±0.00"


def test_ranks_over_few_tasks_are_described_and_not_tested(tmp_path):
    scores = {name: {f"t{task}": [start, 0.6] for task in range(5)} for name, start in (("learned", 0.5), ("t5", 0.7))}
    for tasks, tested in ((4, False), (5, True)):
        rows = table({name: dict(list(own.items())[:tasks]) for name, own in scores.items()})
        document = REPORT.document(study(rows, tmp_path))
        assert ("Friedman" in document.text()) == tested
        assert ("Average ranks" in [part.title for part in document.parts]) == tested


def test_notes_explain_only_what_their_table_shows(tmp_path):
    scores = {name: {f"t{task}": [low, 0.6, 0.7] for task in range(5)} for name, low in (("nope", 0.5), ("t5", 0.7))}
    for baseline, seeds, shown in (("nope", 3, "z"), ("learned", 3, ""), ("nope", 7, "z p")):
        rows = table({name: {task: (3 * list(values))[:seeds] for task, values in own.items()}
                      for name, own in scores.items()})
        parts = [part for part in REPORT.document(study(rows, tmp_path, baseline=baseline)).parts
                 if isinstance(part, Table)]
        notes = " ".join(note for part in parts for note in part.notes)
        cells = " ".join(entry for part in parts for row in part.rows for entry in row)
        assert ("z is negative" in notes) == ("z" in shown)
        assert ("p: sign-flip" in notes) == ("p" in shown) == ("\np " in cells)
        assert ("* p ≤" in notes) == (" *" in cells) and ("this p" not in notes)


def test_warnings_of_the_study_stand_above_the_tables(frame, tmp_path):
    text = REPORT.document(study(frame, tmp_path, warnings=("Many rows are cut.",))).text()
    assert text.index("! Many rows are cut.") < text.index("Quality")


def test_one_seed_has_no_interval(tmp_path):
    document = REPORT.document(study(table({"learned": {"t": [0.5]}, "rope": {"t": [0.6]}}), tmp_path))
    assert cell(document, "Quality", "rope", "t") == ".600" and cell(document, "Difference", "rope", "t") == "+.100"
    assert cell(document, "Difference", "detectable", "t") == "-"


@pytest.mark.parametrize(("metric", "ends", "seen"), [
    ("accuracy", (0.0, 1.0), False), ("mcc", (-1.0, 1.0), True), ("bits per byte", (0.0, float("inf")), True),
])
def test_a_difference_beyond_the_range_of_scores_is_none_that_could_be_found(tmp_path, metric, ends, seen):
    """Two seeds: 1.31 is detectable, which two accuracies cannot differ by, and two correlations can."""
    rows = table({"learned": {"t": [0.5, 0.5]}, "rope": {"t": [0.5, 0.66]}}, metric=metric)
    document = REPORT.document(study(rows, tmp_path, ranges={("t", metric): ends}))
    # The upper tail of a two-sided test; the lower one adds nothing.
    wanted = power.TTestPower().solve_power(nobs=2, alpha=0.025, power=0.8, alternative="larger")
    shown = cell(document, "Difference", "detectable", "t")
    assert shown == (f"{wanted * np.std([0, 0.16], ddof=1):.3f}" if seen else "none")
    notes = next(part.notes for part in document.parts if part.title.startswith("Difference"))
    assert any("Detectable 'none'" in note for note in notes) != seen


def test_over_all_tasks_scores_differ_by_at_most_the_mean_of_the_tasks_ranges(tmp_path):
    rows = table({"learned": {t: [0.5, 0.5] for t in "ab"}, "rope": {t: [0.5, 0.66] for t in "ab"}})
    for upper, seen in ((1.0, False), (3.0, True)):  # 1.31 against a mean of 1, and of 2
        ranges = {("a", "accuracy"): (0.0, 1.0), ("b", "accuracy"): (0.0, upper)}
        shown = cell(REPORT.document(study(rows, tmp_path, ranges=ranges)), "Difference", "detectable", "all tasks")
        assert (shown != "none") == seen


def test_too_few_seeds_are_said_once_and_no_star_is_printed(written):
    text = written["scoreboard.txt"]
    assert text.count("seeds are needed") == 1 and "7 seeds are needed, 4 more" in text and " *" not in text
    assert "needs" in written["comparisons.csv"]


def test_enough_seeds_print_the_adjusted_p(tmp_path):
    scores = {"learned": {"t": [0.1 + 0.001 * seed for seed in range(7)]}, "nope": {"t": [0.1] * 7},
              "rope": {"t": [0.2 + 0.002 * seed for seed in range(7)]}}
    document = REPORT.document(study(table(scores), tmp_path))
    assert cell(document, "Difference", "rope", "t").split("\n")[1] == "p = .031 *"  # 2 comparisons x 2 / 2^7
    assert not any("needed" in text for text in document.warnings)


def test_header_says_what_a_reader_must_know(written):
    for line in ("suite +glue 1", "preset +mini", "data source +hub", "machine +not stated", "versions +not stated",
                 "splits +validation: cola, rte, wnli", r"seeds +0, 1, 2 \(n = 3\)", "family +.*Holm",
                 "intervals +Student-t"):
        assert re.search(f"^{line}", written["scoreboard.txt"], flags=re.MULTILINE), line


def test_generated_data_are_said_in_the_page_and_in_every_table(frame, tmp_path):
    document = REPORT.document(study(frame, tmp_path, header={"data source": "generated (seed 0)"}))
    assert "generated" in document.warnings[0]
    tables = [part for part in document.parts if part.title.startswith(("Quality", "Difference", "Ranks"))]
    assert len(tables) == 3 and all("Generated data." in part.notes for part in tables)
    assert not any("enerated" in text for text in REPORT.document(study(frame, tmp_path)).warnings)


def test_missing_baseline_and_unequal_seeds_are_said(tmp_path):
    frame = table({"nope": {"t": [0.1, 0.2]}, "rope": {"t": [0.2]}})
    document = REPORT.document(study(frame, tmp_path))
    assert any("'learned' is not among" in text for text in document.warnings)
    assert any("1 of 2 cells has no mean" in text for text in document.warnings)
    assert not any(part.title.startswith("Difference") for part in document.parts)


def test_degenerate_cells_are_marked_and_explained(tmp_path):
    rows = [row(name, seed=seed) for name in ("learned", "rope") for seed in (0, 1)]
    rows[0].update(value=0.0, status="degenerate", reason="one class")
    document = REPORT.document(study(results.frame(rows), tmp_path))
    assert cell(document, "Quality", "learned", "cola").startswith("†")
    assert cell(document, "Trials with another status than done", "learned", "reason") == "one class"
    # Words stand to the left under their heading, in the page as in the other forms.
    page = document.html(defaultdict(bytes))
    assert '<td class="left">one class</td>' in page and '<th scope="col" class="left">reason</th>' in page
    assert '<th scope="col">planned</th>' in page


def test_costs_that_were_not_measured_are_no_numbers(frame, tmp_path):
    costs = pd.DataFrame([{"encoding": "rope", "parameters": 1234567, "flops": float("nan"), "step_ratio": 1.25,
                           "step_seconds": 0.0123, "peak_memory": None}])
    document = REPORT.document(study(frame, tmp_path, costs=costs))
    found = next(part for part in document.parts if part.title == "Cost")
    assert ("rope", "1,234,567", "-", "12.3", "1.25", "-") in found.rows and ("nope", *["-"] * 5) in found.rows


def costs_of(name: str, **changes: object) -> pd.DataFrame:
    return pd.DataFrame([{"encoding": name, "parameters": 1, "flops": 1e9, "step_ratio": 1.074, "step_ratio_low": 1.05,
                          "step_ratio_high": 1.089, "step_seconds": 0.1, "peak_memory": 1.0, **changes}])


@pytest.mark.parametrize(("over", "head", "words"), [
    ("nope", "step / nope", "over that of nope in the same study"),
    ("", "step / bare", "over that of the same model without any encoding, measured in the same run"),
])
def test_costs_say_over_what_they_are_and_how_they_spread(frame, tmp_path, over, head, words):
    document = REPORT.document(study(frame, tmp_path, costs=costs_of("rope", step_over=over)))
    assert cell(document, "Cost", "rope", head) == "1.07 [1.05, 1.09]"
    (found,) = [part for part in document.parts if part.title == "Cost"]
    assert any(words in note for note in found.notes) and any("quartiles" in note for note in found.notes)
    assert ("nope" in "".join(found.notes)) == bool(over)
    texts = [document.text(), document.markdown(), document.latex(), document.html(defaultdict(bytes))]
    assert all(re.search(r"1\.07 \\?\[1\.05, 1\.09\\?\]", text) for text in texts)


def test_a_study_without_trials_or_curves(frame, tmp_path):
    with pytest.raises(UserError, match="no trials"):
        REPORT.write(study(results.frame([]), tmp_path, costs=pd.DataFrame(columns=["encoding"])))
    paths = REPORT.write(study(frame, tmp_path, curves=pd.DataFrame()))
    assert not any(path.name.startswith("curves") for path in paths)


def test_hostile_texts_are_shown_and_never_obeyed(tmp_path):
    rows = [row(name, task, seed) for name in ("learned", HOSTILE) for task in ("cola", HOSTILE) for seed in (0, 1)]
    rows.append(broken(HOSTILE, "cola", 2, "failed", f"{HOSTILE}\x1b[31m\n"))
    context = study(results.frame(rows), tmp_path, title=HOSTILE, header={"suite": HOSTILE})
    texts = {path.suffix: path.read_text() for path in REPORT.write(context) if path.stem == "scoreboard"}
    page = Page(texts[".html"])
    assert "script" not in page.tags and page.shown.count(HOSTILE) > 5 and "49" not in page.shown
    assert not re.search(r"<(?!br>)", texts[".md"])
    tables = [line for line in texts[".md"].splitlines() if line.startswith("|") and "&lt;script" in line]
    assert tables and all(r"\| =cmd" in line for line in tables)
    assert not re.search(r"(?<!\\)_", texts[".tex"]) and r"50\_\%\&" in texts[".tex"]
    assert r"\{\{7*7\}\}" in texts[".tex"] and r"\textless{}script" in texts[".tex"]
    assert all("\x1b" not in text for text in texts.values())


def test_markdown_rows_keep_their_number_of_cells():
    text = markdown(Table(title="t", columns=("a|b", "c"), rows=(("x|y\\|", "1\n2"),)))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert [len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in rows] == [3, 3, 3]


def test_latex_specials():
    text = latex(Table(title="t", columns=("a",), rows=((r"\input{x} _%&$#~^",),)))
    assert r"\textbackslash{}input\{x\} \_\%\&\$\#\textasciitilde{}\textasciicircum{} \\" in text


def test_csv_formulas_are_text_and_numbers_stay_numbers():
    frame = pd.DataFrame({"text": ["=cmd()", "+1", "-1", "@x", " =cmd()", "a,b", "rope", None],
                          "number": [-0.1, 1e-9, 0.1 + 0.2, -5, 0, float("nan"), 2, 1]})
    rows = list(csv.reader(io.StringIO(csv_text(frame))))
    assert [entry[0] for entry in rows[1:]] == ["'=cmd()", "'+1", "'-1", "'@x", "' =cmd()", "a,b", "rope", ""]
    assert [float(entry[1]) for entry in rows[1:6]] == [-0.1, 1e-9, 0.1 + 0.2, -5, 0] and rows[6][1] == ""


def test_tidy_csv_is_the_whole_table(frame, written):
    again = pd.read_csv(io.StringIO(written["tidy.csv"]))
    assert list(again.columns) == list(results.COLUMNS) and len(again) == len(frame)
    assert again["value"].tolist() == pytest.approx(frame["value"].tolist(), rel=0, abs=0, nan_ok=True)


@pytest.mark.parametrize("width", [60, 100, 160])
def test_terminal_table_fits_and_loses_nothing(width):
    heads = ("encoding", *(f"task{place}\naccuracy" for place in range(12)))
    rows = tuple((name, *(f".{place}{name[-1]} ±.012" for place in range(10, 22))) for name in ("rope1", "rope2"))
    text = terminal(Table(title="t", columns=heads, rows=rows, notes=("a long note " * 30,)), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert all(value in text for entry in rows for value in entry)


def test_rows_of_the_wrong_length_are_refused():
    with pytest.raises(ValueError, match="2 cells under 1"):
        Table(title="t", columns=("a",), rows=(("1", "2"),))
