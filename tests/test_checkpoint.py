"""Training that was interrupted and taken up again is equal, to the last bit, to training that was not."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from posbench import runner
from posbench.config import EncodingChoice
from posbench.errors import Terminated
from posbench.registry import ENCODINGS
from posbench.study import from_preset
from posbench.trial import Trial, resolve

MODEL = {"model.width": "16", "model.heads": "2", "model.layers": "2", "model.feedforward": "32"}
# Ten updates are a pass over the rows, five an interval of the loss curve, four evaluations at 5, 10, 15 and 20.
SEQUENCES = {**MODEL, "train.steps": "20", "train.evaluations": "4", "train.batch_size": "16", "data.train_rows": "160",
             "data.evaluation_rows": "64"}
DECODER = {"model.shape": "decoder", "model.pool": "last"}
# The first update, at an evaluation and behind it, in an interval, at the end of a pass and behind it, the last one.
STOPS = (1, 5, 6, 8, 10, 11, 20)


@pytest.fixture(autouse=True)
def intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "INTERVALS", 4)


def trial(encoding: str = "rope", suite: str = "glue", task: str = "cola", **changes: str) -> Trial:
    settings = (SEQUENCES if suite == "glue" else {}) | {
        name.replace("__", "."): value for name, value in changes.items()}
    return resolve(from_preset(suite, "mini", settings).trial(EncodingChoice.parse(encoding), task, 0))


class Stopped(runner._Run):
    """A run that gets a signal in the middle of an update."""

    def __init__(self, trial: Trial, folder: Path | None, at: int | None = None, number: int = signal.SIGTERM) -> None:
        super().__init__(trial, lambda done, planned: None,
                         None if folder is None else runner.checkpoints_of(trial, folder))
        self.trained: list[int] = []
        genuine = self.objective.loss

        def loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
            self.trained.append(self.state.step + 1)
            if self.state.step + 1 == at:
                signal.raise_signal(number)
            return genuine(model, batch)

        self.objective.loss = loss  # type: ignore[method-assign]


def everything(run: runner._Run) -> dict[str, Any]:
    """The result of a run and the state that it ends with, without what a clock says."""
    record, predictions = run.result()
    tensors, plain = run.state.capture(0.0)
    facts = {name: record.facts[name] for name in ("data_hash", "updates", "position_rms", "rows")}
    speed = [row for row in record.rows if "second" in row["metric"]]
    state = {name: value.detach().numpy().tobytes() for name, value in tensors.items() if name != "step_seconds"}
    return {
        "record": (record.status, record.reason, [row for row in record.rows if row not in speed], record.curves, facts,
                   record.facts.get("apart")),
        "predictions": {name: array.tobytes() for name, array in predictions.items()},
        "state": state,
        "plain": {name: value for name, value in plain.items() if name not in ("spent", "resumed", "events")},
        "next": torch.rand(3).tolist(),
    }


def same(one: dict[str, Any], two: dict[str, Any]) -> None:
    """Compared as texts: a NaN is equal to itself there."""
    for part in one:
        assert repr(one[part]) == repr(two[part]), part


def chained(one: Trial, folder: Path, stops: tuple[int, ...] = STOPS) -> dict[str, Any]:
    """The end of a run that was interrupted at each of these updates, one after the other."""
    done = 0
    for stop in stops:
        run = Stopped(one, folder, stop)
        with pytest.raises(Terminated) as ended:
            run.result()
        assert ended.value.code == 143 and run.state.step == stop
        assert run.trained == list(range(done + 1, stop + 1)), "what was done before is not trained again"
        done = stop
    last = Stopped(one, folder)
    found = everything(last)
    assert last.state.resumed == len(stops) and len(last.state.step_seconds) == last.updates
    return found


def whole(one: Trial) -> dict[str, Any]:
    return everything(Stopped(one, None))


@pytest.mark.parametrize("encoding", sorted(ENCODINGS.found()))
def test_every_encoding_goes_on_to_the_last_bit(encoding: str, tmp_path: Path) -> None:
    one = trial(encoding, **{name.replace(".", "__"): value for name, value in DECODER.items()})
    same(whole(one), chained(one, tmp_path))


@pytest.mark.parametrize("stop", STOPS)
def test_one_interruption_at_any_update(stop: int, tmp_path: Path) -> None:
    one = trial(model__dropout="0.2", model__attention_dropout="0.2", train__select="best")
    same(whole(one), chained(one, tmp_path, (stop,)))


@pytest.mark.parametrize(("encoding", "changes"), [
    ("rope+attention=linear+redraw=3", {}),
    ("rope+attention=linear+redraw=3+rotation=before", {"model__dropout": "0.2"}),
    ("randomized", {"model__dropout": "0.2", "train__select": "best"}),
    ("learned", {"train__average": "3"}),
    ("rope", {"train__schedule": "inverse-sqrt", "train__average": "2"}),
    ("nope", {"task": "stsb"}),
])
def test_settings_that_keep_more_than_weights(encoding: str, changes: dict[str, str], tmp_path: Path) -> None:
    one = trial(encoding, **changes)
    same(whole(one), chained(one, tmp_path))


SMALL = {**{name.replace(".", "__"): value for name, value in MODEL.items()}, "train__steps": "20",
         "train__evaluations": "4"}


@pytest.mark.parametrize(("suite", "task", "changes"), [
    ("lm", "docs", {"data__max_length": "16", "evaluation__tokens": "64", "evaluation__longest": "2",
                    "train__batch_size": "4", "model__dropout": "0.1"}),
    ("longtext", "induction", {"data__train_rows": "64", "data__evaluation_rows": "16", "train__batch_size": "16"}),
    ("translation", "en-de", {"data__train_rows": "160", "data__evaluation_rows": "8", "decode__beam": "1",
                              "train__batch_tokens": "300"}),
])
def test_every_kind_of_task(suite: str, task: str, changes: dict[str, str], tmp_path: Path) -> None:
    one = trial("rope", suite, task, **SMALL, **changes)
    same(whole(one), chained(one, tmp_path))


def test_an_encodings_own_counts_streams_and_caches_go_on(tmp_path: Path) -> None:
    """A plugin that keeps its state in plain attributes, in a generator and outside the state dict."""
    own = tmp_path / "own.py"
    own.write_text(
        "import torch\nfrom posbench.encoding import Encoding, Paper\nclass Own(Encoding):\n"
        "    paper = Paper(title='t', equations='1')\n"
        "    def __init__(self, dimensions, config=None):\n"
        "        super().__init__(dimensions, config)\n"
        "        self.count, self.stream = 0, torch.Generator().manual_seed(3)\n"
        "        self.register_buffer('seen', torch.zeros(0), persistent=False)\n"
        "    def embed(self, x, at):\n"
        "        if self.training:\n"
        "            self.count += 1\n            self.last = 'seen'\n"
        "            self.seen = torch.cat([self.seen, torch.rand(1, generator=self.stream)])\n"
        "        return x + self.count * self.seen.sum() / 1000\nENCODING = Own\n")
    one = trial(str(own))
    found = chained(one, tmp_path / "trial")
    same(whole(one), found)
    assert found["plain"]["attributes"] == {"encodings.0.count": 20, "encodings.0.last": "seen"}
    assert len(found["state"]["caches/encodings.0.seen"]) == 4 * 20
