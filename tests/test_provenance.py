"""The facts above a study's tables are those of the trials that ran."""

from __future__ import annotations

import pytest

from posbench.provenance import header
from posbench.store import Record
from tests.test_curves import first

FACTS = {"versions": {"python": "3.11"}, "processor": "A processor", "accelerator": None, "cores": 2, "threads": 1,
         "code": "x", "position_rms": 0.0}


@pytest.mark.parametrize(("found", "threads", "machine"), [
    ({"device": "cpu"}, "1 a trial", "A processor, 2 cores, cpu"),
    ({"device": "cpu", "processes": 1, "threads": 2}, "2 a trial", "A processor, 2 cores, cpu"),
    ({"device": "cpu:0", "processes": 2}, "1 a process, 2 processes a trial", "A processor, 2 cores, cpu"),
    ({"device": "cuda:0", "processes": 4, "accelerator": "A GPU"}, "1 a process, 4 processes a trial",
     "A GPU, 2 cores, cuda"),
])
def test_processes_of_a_trial_are_told_and_a_device_is_named_by_its_kind(
    found: dict[str, object], threads: str, machine: str
) -> None:
    plan, trial = first("glue", "cola")
    record = Record(fingerprint=trial.fingerprint, label="nope", config={}, status="done", facts={**FACTS, **found})
    told = header(plan, {trial.fingerprint: record}, {})
    assert (told["threads"], told["machine"]) == (threads, machine)


def test_trials_of_one_process_and_of_several_in_one_study_are_both_told() -> None:
    plan = first("glue", "cola")[0]
    records = {str(number): Record(fingerprint=str(number), label="nope", config={}, status="done",
                                   facts={**FACTS, "device": device, "processes": number})
               for number, device in ((1, "cpu"), (2, "cpu:0"))}
    told = header(plan, records, {})
    assert told["threads"] == "1 a trial | 1 a process, 2 processes a trial" and told["machine"].count("core") == 1
