"""Every encoding of the registry against the contract, and the contract against the truth table of the methods."""

from __future__ import annotations

import fcntl
import functools
import inspect
import json
import os
import re
from dataclasses import asdict

import pytest
import torch

from posbench.contract import VISIBLE
from posbench.encoding import Dimensions, Encoding, Properties
from posbench.errors import UserError
from posbench.options import build_options
from posbench.positions import Positions
from posbench.probe import Layer, Subject, relative
from posbench.registry import ENCODINGS
from posbench.testing import CHECKS, Verdict, check_encoding, place, truth_table

NAMES = sorted(ENCODINGS.found())

# What theory says, written out: permutation, reversal, shift, norm, single key, defined beyond the trained length.
TRUTH = {
    "nope": (True, True, True, True, True, "defined"),
    "sinusoidal": (False, False, False, False, False, "defined"),
    "learned": (False, False, False, False, False, "refused"),
    "shaw": (False, False, True, True, False, "defined"),
    "t5": (False, False, True, True, True, "defined"),
    "rope": (False, False, True, True, True, "defined"),
    "alibi": (False, True, True, True, True, "defined"),
    "placebo": (True, True, True, True, True, "defined"),
    "transformer_xl": (False, False, True, True, True, "defined"),
    "tupe": (False, False, False, True, True, "refused"),
    "deberta": (False, False, True, True, True, "defined"),
    "kerple": (False, True, True, True, True, "defined"),
    "sandwich": (False, True, True, True, True, "defined"),
    # Below its threshold fire is blind to direction and to shifts; the claim is about every length, beyond it too.
    "fire": (False, False, False, True, True, "defined"),
    "cope": (False, False, True, True, True, "defined"),
}
# Where linear attention can express an encoding: nothing that needs a number for each pair of tokens; and a decay,
# which counts steps back, in decoders alone.
TURNS = {"rope", "rope_dynamic", "rope_linear", "rope_llama3", "rope_longrope", "rope_ntk", "rope_yarn", "randomized"}
LINEAR = {(name, shape) for name in {"nope", "sinusoidal", "learned", *TURNS}
          for shape in ("encoder", "decoder", "encoder-decoder")} | {("alibi", "decoder"), ("xpos", "decoder")}
# P14, and P19 in an encoder and in a decoder; None where nothing is claimed.
FALLS = {"alibi", "kerple"}
FACTORISES = {name: (True, True) for name in {*TURNS, "nope", "sinusoidal", "learned", "transformer_xl", "tupe",
                                              "sandwich"}}
FACTORISES |= {"alibi": (False, True), "cope": (None, False), "xpos": (None, True)}
VARIANTS = [
    ("shaw", {"values": False}), ("shaw", {"clip": 1}), ("rope", {"layout": "half"}), ("rope", {"fraction": 0.25}),
    ("t5", {"buckets": 8, "max_distance": 20}), ("learned", {"max_length": 8}), ("learned", {"max_length": 300}),
    ("sinusoidal", {"base": 500.0}), ("transformer_xl", {"untied": True}), ("tupe", {"variant": "R"}),
    ("tupe", {"untied_cls": False}), ("tupe", {"max_length": 20}), ("deberta", {"span": 4}),
    ("deberta", {"span": 8, "max_distance": 24}), ("deberta", {"projections": "shared"}),
    ("kerple", {"kernel": "power"}), ("kerple", {"untied": True}), ("sandwich", {"width": 64}),
    ("fire", {"shared": True}), ("fire", {"threshold": 2.0, "hidden": 8}), ("cope", {"positions": 4}),
]


@pytest.fixture(scope="session")
def verdicts(tmp_path_factory):
    """The verdicts of an encoding, which take seconds: made once, also where several processes run these tests."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "verdicts"
    folder.mkdir(exist_ok=True)

    @functools.cache
    def of(name):
        file = folder / f"{name}.json"
        with open(folder / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not file.exists():
                file.write_text(json.dumps([asdict(verdict) for verdict in check_encoding(name)]))
        return tuple(Verdict(**verdict) for verdict in json.loads(file.read_text()))

    return of


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: f"{check.name} {check.title}")
@pytest.mark.parametrize("name", NAMES)
def test_contract(name, check, verdicts):
    made = [verdict for verdict in verdicts(name) if (verdict.check, verdict.title) == (check.name, check.title)]
    assert not [(place(verdict), verdict.reason) for verdict in made if not verdict.passed]
    instance = Subject(ENCODINGS.load(name).value, build_options(name, ENCODINGS.load(name).value), "decoder").bare()
    owed = {(shape, kind) for shape in check.shapes for kind in check.kinds
            if check.applies(instance) and not (instance.needs_causal and shape != "decoder")
            and (kind == "softmax" or (name, shape) in LINEAR)}
    assert {(verdict.shape, verdict.attention) for verdict in made} == owed and len(made) == len(owed)


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize("name, options", VARIANTS, ids=str)
def test_contract_holds_with_other_options(name, options):
    assert not [(v.check, v.shape, v.reason) for v in check_encoding(name, options) if not v.passed]


@pytest.mark.parametrize("name", TRUTH)
def test_declarations_are_the_truth_table(name):
    permutation, reversal, shift, norm, single_key, beyond = TRUTH[name]
    properties = ENCODINGS.load(name).value.properties
    assert properties == Properties(
        permutation=permutation, reversal=reversal, shift=shift, norm=norm, single_key=single_key, beyond=beyond,
        monotone=properties.monotone, factorises=properties.factorises)


@pytest.mark.parametrize("name", NAMES)
def test_claims_of_decay_and_rank_are_those_of_theory(name, verdicts):
    made = {(v.check, v.shape): v for v in verdicts(name) if v.attention == "softmax"}
    assert made["P14", "decoder"].declared == (name in FALLS)
    for shape, claim in zip(("encoder", "decoder"), FACTORISES.get(name, (False, False)), strict=True):
        if ("P19", shape) in made:
            assert made["P19", shape].declared is claim
            assert claim is None or made["P19", shape].measured == 0 or made["P19", shape].measured > 0.5


@pytest.mark.parametrize("name", NAMES)
def test_measurements_keep_their_distance_from_the_thresholds(name, verdicts):
    """Nothing lies near a tolerance: what holds is rounding, what fails is visible."""
    for v in verdicts(name):
        if v.check in ("P1", "P2", "P3", "P4", "P5", "P20"):
            assert v.measured <= v.tolerance / 10 if v.declared else v.measured >= 5 * VISIBLE, v


@pytest.mark.parametrize("name", NAMES)
def test_every_encoding_is_cited_documented_and_short(name):
    plugin = ENCODINGS.load(name)
    cls, module = plugin.value, inspect.getmodule(plugin.value)
    assert re.fullmatch(r"\d{4}\.\d{4,5}", cls.paper.arxiv) and cls.paper.title and cls.paper.equations
    assert module.__doc__.startswith(f"{name}: ") and "\nParameters: " in module.__doc__
    assert len(inspect.getsource(module).splitlines()) <= 110
    assert set(cls.space) <= {field for field in cls.Config.__dataclass_fields__}


def test_every_encoding_of_the_registry_is_checked_and_no_check_is_left_out(verdicts):
    assert set(TRUTH) <= set(NAMES)
    assert {v.check for name in NAMES for v in verdicts(name)} == {check.name for check in CHECKS}
    assert {f"P{number}" for number in range(1, 24)} <= {check.name for check in CHECKS}


def test_the_callers_random_state_and_switches_stay():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    check_encoding("t5")
    assert torch.equal(before, torch.get_rng_state())


def test_verdicts_do_not_depend_on_the_callers_random_state(verdicts):
    torch.manual_seed(4)
    assert check_encoding("shaw") == list(verdicts("shaw"))


def test_the_layer_of_the_checks_is_plain_attention():
    """softmax(QK'/sqrt(d))V written out, so that the checks do not rest on the code they check."""
    layer = Layer(Encoding(Dimensions(width=8, heads=2)))
    x = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = []
    for i in range(5):
        heads = []
        for h in range(2):
            part = slice(4 * h, 4 * h + 4)
            q, k, v = (x[0] @ w[:, part] for w in layer.weights)
            heads.append(torch.softmax(k @ q[i] / 2, 0) @ v)
        rows.append(torch.cat(heads))
    assert relative(torch.stack(rows)[None], layer(x, Positions.first(5))) < 1e-12


def test_unknown_and_foreign_things_are_refused():
    with pytest.raises(UserError, match="unknown encoding 'rop', did you mean 'rope'"):
        check_encoding("rop")
    with pytest.raises(UserError, match=r"is no subclass of posbench\.encoding\.Encoding"):
        check_encoding(dict)
    with pytest.raises(UserError, match=r"fraction 0\.3 of a head of 16 channels"):
        check_encoding("rope", {"fraction": 0.3})
    with pytest.raises(UserError, match="ends at 4 positions: the checks need at least 8"):
        check_encoding("learned", {"max_length": 4})


def test_truth_table_shows_declarations_and_marks_disagreement():
    def verdict(check: str, declared: bool, measured: float, passed: bool) -> Verdict:
        reason = "" if passed else "a reason"
        return Verdict(check, "a title", "encoder", "softmax", declared, measured, 1e-6, passed, reason)

    nan = float("nan")
    table = truth_table({
        "one": [verdict("P1", True, 0, True), verdict("P2", False, 1, True), verdict("P4", True, 0.3, False)],
        "two": [verdict("P1", False, 0, False), verdict("P4", True, nan, False)],
    })
    assert table.columns == ("P1", "P2", "P4")
    assert table.rows == (("one", "✓", "✗", "✓→✗"), ("two", "✗→✓", "-", "✓→?"))
    assert table.faults[0] == "one, encoder, P4 a title: a reason" and len(table.faults) == 3
    markdown = table.markdown()
    assert "| one | ✓ | ✗ | **✓→✗** |" in markdown and "P4 logits unchanged by a shift" in markdown


def test_truth_table_of_all_encodings_fits_a_terminal(verdicts):
    from rich.console import Console

    console = Console(width=140, record=True, file=open("/dev/null", "w"))
    console.print(truth_table({name: verdicts(name) for name in NAMES}).rich())
    lines = console.export_text().splitlines()
    for name in NAMES:
        line = next(line for line in lines if line.strip().startswith(name + " "))
        assert len(line.split()) == 1 + len({check.name for check in CHECKS})
