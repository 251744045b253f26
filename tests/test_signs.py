"""Encodings that are no equal comparison bear a sign wherever they are named, and a legend explains what is there."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from posbench.reports.scoreboard import REPORT

from posbench import plots
from posbench.report import Figure, StudyResults
from posbench.signs import Signs
from posbench.tables import Table
from tests.fake_study import study, table

LONGER, TUNED, BOTH = "rope+train.steps=120", "alibi", "t5+layers=4"
LABELS = {LONGER: "‡", TUNED: "§", BOTH: "‡§"}
SIGNS = Signs(budgets={LONGER: "train.steps 120 in place of 60", BOTH: "model.layers 4 in place of 2"},
              own={TUNED: "slope 1 to 2", BOTH: "buckets 8 to 64"})


def results(folder: Path, *labels: str, **changes: Any) -> StudyResults:
    frame = table({name: {task: [0.1 * place, 0.3] for task in "abcde"}
                   for place, name in enumerate(["learned", *labels])})
    extra = Table(title="Of one task", columns=("encoding", "x"), rows=tuple((name, "1") for name in ("rope", *labels)))
    return study(frame, folder, signs=SIGNS, extras=(extra,), **changes)


def named(part: Table) -> set[str]:
    return {row[place] for place, head in enumerate(part.columns) if head == "encoding" for row in part.rows}


@pytest.mark.parametrize("labels", [(), (LONGER,), (TUNED,), (LONGER, TUNED), (BOTH,), tuple(LABELS)])
def test_every_table_marks_what_it_names_and_explains_exactly_its_signs(
    tmp_path: Path, labels: tuple[str, ...]
) -> None:
    document = REPORT.document(results(tmp_path, "rope", *labels))
    tables = [part for part in document.parts if isinstance(part, Table) and part.columns[0] == "encoding"]
    assert len(tables) == 6  # quality, difference, ranks, the task's own, cost, trials
    for part in tables:
        assert {f"{LABELS[label]} {label}" for label in labels} | {"rope"} <= named(part), part.title
        shown = "".join(cell for one in part.rows for cell in one)
        for sign, what in (("‡", SIGNS.budgets), ("§", SIGNS.own)):
            legends = [note for note in part.notes if note.startswith(sign)]
            assert len(legends) == (sign in shown) == sum(sign in note for note in part.notes), part.title
            assert all((f"{label}: {text}" in legend) == (label in labels)
                       for legend in legends for label, text in what.items())


def test_every_form_has_signs_and_legends_and_csv_has_the_reasons(tmp_path: Path) -> None:
    document = REPORT.document(results(tmp_path, LONGER, TUNED))
    texts = {"text": document.text(width=400), "markdown": document.markdown(),
             "html": document.html(defaultdict(bytes))}
    for form, text in texts.items():
        assert len(re.findall(f"‡ {re.escape(LONGER)}", text)) >= 6 and text.count(f"§ {TUNED}") >= 6, form
        assert text.count("train.steps 120 in place of 60") >= 6 and text.count("alibi: slope 1 to 2") >= 6, form
    assert document.latex().count(r"\ddag{} rope+train.steps=120") >= 6 and document.latex().count(r"\S{} alibi") >= 6
    sheet = REPORT.data(results(tmp_path, LONGER, TUNED))["comparisons"]
    reasons = sheet.groupby("encoding", sort=False)[["other_budget", "own_options_searched"]].first()
    assert reasons.loc[LONGER, "other_budget"] == "train.steps 120 in place of 60"
    assert reasons.loc[TUNED, "own_options_searched"] == "slope 1 to 2" and reasons.loc["learned"].isna().all()


def test_a_variant_bears_the_signs_of_what_was_trained_and_so_do_reasons_and_quoted_names(tmp_path: Path) -> None:
    variant = f"{LONGER} -> rope_yarn:factor=8"
    assert SIGNS.named(variant) == f"‡ {variant}" and SIGNS.named("rope -> rope_yarn") == "rope -> rope_yarn"
    frame = table({TUNED: {"a": [0.1, 0.2]}, "rope": {"a": [0.2, "failed"]}, LONGER: {"a": [0.1, "failed"]}})
    parts = REPORT.document(study(frame, tmp_path, signs=SIGNS, baseline=TUNED)).parts
    (difference,) = [part for part in parts if part.title == f"Difference to '§ {TUNED}'"]
    assert isinstance(difference, Table) and [note[0] for note in difference.notes if note[0] in "‡§"] == ["‡", "§"]
    (failed,) = [part for part in parts if part.title == "Trials with another status than done"]
    assert isinstance(failed, Table) and named(failed) == {"rope", f"‡ {LONGER}"}


def test_figures_name_encodings_with_signs_and_explain_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "save", lambda figure, path: drawn.append(figure) or [])
    context = results(tmp_path, LONGER)
    lengths = pd.concat([context.frame.assign(length=length) for length in (32, 64)])
    for frame in (context.frame, lengths):
        for part in REPORT.document(replace(context, frame=frame)).parts:
            if isinstance(part, Figure):
                part.draw(tmp_path / part.name)
    assert len(drawn) == 5  # ranks and curves twice, scores by length once
    for figure in drawn:
        names = [text.get_text() for text in figure.legends[0].get_texts()] if figure.legends else [
            text.get_text() for text in figure.axes[0].texts]
        assert any(f"‡ {LONGER}" in name for name in names) and not any(name.startswith(LONGER) for name in names)
        assert "‡ another budget." in figure.get_suptitle() and "§" not in figure.get_suptitle()
        figure.draw_without_rendering()
        title = figure._suptitle.get_window_extent()
        assert title.y1 <= figure.bbox.height and not any(
            title.overlaps(axis.get_tightbbox()) for axis in figure.axes if axis.axison)
