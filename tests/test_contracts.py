"""Every encoding of the registry against the contract, and the contract against the truth table of the methods."""

from __future__ import annotations

import functools
import inspect
import re

import pytest
import torch

from posbench.contract import VISIBLE
from posbench.encoding import Dimensions, Encoding, Properties
from posbench.errors import UserError
from posbench.positions import Positions
from posbench.probe import Layer, relative
from posbench.registry import ENCODINGS
from posbench.testing import CHECKS, Verdict, check_encoding, truth_table

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
VARIANTS = [
    ("shaw", {"values": False}), ("shaw", {"clip": 1}), ("rope", {"layout": "half"}), ("rope", {"fraction": 0.25}),
    ("t5", {"buckets": 8, "max_distance": 20}), ("learned", {"max_length": 8}), ("learned", {"max_length": 300}),
    ("sinusoidal", {"base": 500.0}), ("transformer_xl", {"untied": True}), ("tupe", {"variant": "R"}),
    ("tupe", {"untied_cls": False}), ("tupe", {"max_length": 20}), ("deberta", {"span": 4}),
    ("deberta", {"span": 8, "max_distance": 24}), ("deberta", {"projections": "shared"}),
    ("kerple", {"kernel": "power"}), ("sandwich", {"width": 64}), ("fire", {"shared": True}),
    ("fire", {"threshold": 2.0, "hidden": 8}), ("cope", {"positions": 4}),
]


@functools.cache
def verdicts(name: str, options: tuple = ()) -> tuple[Verdict, ...]:
    return tuple(check_encoding(name, dict(options)))


@pytest.mark.parametrize("shape", ["encoder", "decoder"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("name", NAMES)
def test_contract(name, check, shape):
    cls = ENCODINGS.load(name).value
    made = [verdict for verdict in verdicts(name) if (verdict.check, verdict.shape) == (check.name, shape)]
    owed = shape in check.shapes and check.applies(cls) and not (cls.needs_causal and shape == "encoder")
    assert len(made) == owed
    for verdict in made:
        assert verdict.passed, verdict.reason


@pytest.mark.parametrize("name, options", VARIANTS, ids=str)
def test_contract_holds_with_other_options(name, options):
    assert not [(v.check, v.shape, v.reason) for v in check_encoding(name, options) if not v.passed]


@pytest.mark.parametrize("name", TRUTH)
def test_declarations_are_the_truth_table(name):
    permutation, reversal, shift, norm, single_key, beyond = TRUTH[name]
    assert ENCODINGS.load(name).value.properties == Properties(
        permutation=permutation, reversal=reversal, shift=shift, norm=norm, single_key=single_key, beyond=beyond)


@pytest.mark.parametrize("name", NAMES)
def test_measurements_keep_their_distance_from_the_thresholds(name):
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


def test_every_encoding_of_the_registry_is_checked_and_no_check_is_left_out():
    assert set(TRUTH) <= set(NAMES)
    assert {v.check for name in NAMES for v in verdicts(name)} == {check.name for check in CHECKS}
    assert {"P1", "P2", "P3", "P4", "P5", "P6", "P6b", "P7", "P8", "P9", "P10", "P11", "P13", "P15", "P16", "P17",
            "P20"} <= {check.name for check in CHECKS}


def test_the_callers_random_state_and_switches_stay():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    check_encoding("t5")
    assert torch.equal(before, torch.get_rng_state())


def test_verdicts_do_not_depend_on_the_callers_random_state():
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
        return Verdict(check, "a title", "encoder", declared, measured, 1e-6, passed, "" if passed else "a reason")

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


def test_truth_table_of_all_encodings_fits_a_terminal():
    from rich.console import Console

    console = Console(width=140, record=True, file=open("/dev/null", "w"))
    console.print(truth_table({name: verdicts(name) for name in NAMES}).rich())
    lines = console.export_text().splitlines()
    for name in NAMES:
        line = next(line for line in lines if line.strip().startswith(name + " "))
        assert len(line.split()) == 1 + len(CHECKS)
