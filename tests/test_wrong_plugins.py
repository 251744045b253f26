"""Encodings with one deliberate fault each: the contract must find it, and say what it is."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from posbench import attention, maths, testing
from posbench.encoding import Encoding, Paper, Properties
from posbench.probe import SHAPES, global_state
from posbench.registry import ENCODINGS
from posbench.testing import CHECKS, check_encoding


class Sound(Encoding):
    """A relative bias without fault; each wrong plugin changes one thing."""

    paper = Paper(title="A title", arxiv="2108.12409", equations="1")
    properties = Properties(reversal=True, shift=True)

    def offset_bias(self, distance):
        return -distance.abs().float().expand(self.dimensions.heads, -1)


class Rotary(Sound):
    """A rotation without fault."""

    properties = Properties(shift=True)
    offset_bias = Encoding.offset_bias

    def rotate(self, x, at, side):
        return self.turn(x, at.q if side == "query" else at.k) if side in ("query", "key") else x

    def turn(self, x, positions):
        angles = maths.angles(positions, maths.inverse_frequencies(x.shape[-1], 10000.0, x.device))[:, None]
        return maths.rotate(x, angles.cos().to(x.dtype), angles.sin().to(x.dtype), "half")


class Absolute(Sound):
    """An absolute table without fault."""

    properties = Properties(norm=False, single_key=False)
    offset_bias = Encoding.offset_bias

    def embed(self, x, at):
        return x + maths.sinusoids(at.q, x.shape[-1]).to(x.dtype)


class Trained(Sound):
    """A relative bias with a trained slope for each head, without fault."""

    def __init__(self, dimensions, config=None):
        super().__init__(dimensions, config)
        self.slope = nn.Parameter(torch.empty(dimensions.heads, 1))

    @classmethod
    def parameter_count(cls, dimensions, config):
        return dimensions.heads

    def offset_bias(self, distance):
        return -self.slope.float() * distance.abs()


@pytest.mark.parametrize("cls", [Sound, Rotary, Absolute, Trained])
def test_the_models_of_the_wrong_plugins_are_right(cls):
    assert not [(v.check, v.shape, v.reason) for v in check_encoding(cls) if not v.passed]


class MeanOfAll(Absolute):
    def embed(self, x, at):
        return super().embed(x, at) + x.mean(1, keepdim=True)


class NextToken(Sound):
    def scores(self, q, k, at):
        return (q @ k.transpose(-1, -2)).roll(-1, dims=-1)


class TotalLength(Sound):
    def bias(self, at):
        return Encoding.bias(self, at) / at.length


class InPlace(Absolute):
    def embed(self, x, at):
        return x.add_(maths.sinusoids(at.q, x.shape[-1]).to(x.dtype))


class MovesPositions(Sound):
    def bias(self, at):
        bias = Encoding.bias(self, at)
        at.k.add_(1)
        return bias


class Remembers(Sound):
    longest = 1

    def offset_bias(self, distance):
        self.longest = max(self.longest, len(distance))
        return super().offset_bias(distance) / self.longest


class Noisy(Sound):
    def offset_bias(self, distance):
        return super().offset_bias(distance) + torch.randn(self.dimensions.heads, 1)


class NumpyNoise(Sound):
    def offset_bias(self, distance):
        return super().offset_bias(distance) * (1 + np.random.rand())


class DrawsAndForgets(Sound):
    def offset_bias(self, distance):
        random.random()
        return super().offset_bias(distance)


class StorageRotation(Rotary):
    def rotate(self, x, at, side):
        return self.turn(x, torch.arange(x.shape[-2])[None]) if side in ("query", "key") else x


class QueriesTurnedLikeKeys(Rotary):
    def rotate(self, x, at, side):
        return self.turn(x, at.k) if side in ("query", "key") else x


class StorageBias(Sound):
    def bias(self, at):
        distance = torch.arange(at.length)[None] - torch.arange(at.queries)[:, None]
        return (-distance.abs().float()).expand(1, self.dimensions.heads, -1, -1)


class StorageTable(Absolute):
    def embed(self, x, at):
        return x + maths.sinusoids(torch.arange(x.shape[1])[None], x.shape[-1]).to(x.dtype)


class CountsPadding(Sound):
    def bias(self, at):
        return Encoding.bias(self, at) * (1 + at.k.shape[1] % 7)


class HalfAngles(Rotary):
    def turn(self, x, positions):
        frequencies = maths.inverse_frequencies(x.shape[-1], 10000.0)
        angles = (positions[..., None].to(x.dtype) * frequencies.to(x.dtype))[:, None]
        return maths.rotate(x, angles.cos(), angles.sin(), "half")


class AlwaysHalfAngles(Rotary):
    def turn(self, x, positions):
        angles = (positions[..., None].bfloat16() * maths.inverse_frequencies(x.shape[-1], 10000.0).bfloat16())[:, None]
        return maths.rotate(x, angles.cos().to(x.dtype), angles.sin().to(x.dtype), "half")


class CastTable(Rotary):
    def __init__(self, dimensions, config=None):
        super().__init__(dimensions, config)
        self.register_buffer("frequencies", torch.empty(dimensions.head_width // 2))

    def initial(self, name, value, generator):
        value.copy_(maths.inverse_frequencies(self.dimensions.head_width, 10000.0))

    def turn(self, x, positions):
        angles = maths.angles(positions, self.frequencies.double())[:, None]
        return maths.rotate(x, angles.cos().to(x.dtype), angles.sin().to(x.dtype), "half")


class LostTable(Sound):
    def __init__(self, dimensions, config=None):
        super().__init__(dimensions, config)
        self.register_buffer("slope", torch.ones(dimensions.heads, 1), persistent=False)

    def offset_bias(self, distance):
        return -self.slope * distance.abs()


class Stacked(Rotary):
    embed = Absolute.embed


class DrawsAtBirth(Sound):
    def __init__(self, dimensions, config=None):
        super().__init__(dimensions, config)
        self.map = nn.Linear(1, dimensions.heads, bias=False)

    @classmethod
    def parameter_count(cls, dimensions, config):
        return dimensions.heads

    def offset_bias(self, distance):
        return self.map(-distance.abs()[:, None].to(self.map.weight.dtype)).T


class SeedsAtBirth(Sound):
    def __init__(self, dimensions, config=None):
        super().__init__(dimensions, config)
        torch.manual_seed(0)


class BreaksWhenLong(Sound):
    def __init__(self, dimensions, config=None):
        if dimensions.length > 200:
            raise ValueError("so long a table was never tried")
        super().__init__(dimensions, config)


class SeedsInForward(Sound):
    def offset_bias(self, distance):
        torch.manual_seed(0)
        return super().offset_bias(distance)


class InitialFromTheGlobalStream(Trained):
    def initial(self, name, value, generator):
        value.normal_()


class DrawsInTraining(Sound):
    def offset_bias(self, distance):
        bias = super().offset_bias(distance)
        return bias * (1 + torch.rand(1)) if self.training else bias


class ChangesTheDefault(Sound):
    def offset_bias(self, distance):
        torch.set_default_dtype(torch.float64)
        return super().offset_bias(distance)


class Reshaped(Sound):
    def offset_bias(self, distance):
        return super().offset_bias(distance).T


class RotatesToAnotherWidth(Rotary):
    def turn(self, x, positions):
        return super().turn(x, positions)[..., :-2]


class WrongType(Rotary):
    def turn(self, x, positions):
        return super().turn(x, positions).half()


class NotANumber(Sound):
    def offset_bias(self, distance):
        return super().offset_bias(distance) * (distance / distance).nan_to_num(0) + (distance / distance)


class NotANumberFarOut(Sound):
    def offset_bias(self, distance):
        return torch.where(distance.abs() > 100, float("nan"), super().offset_bias(distance))


class Miscounted(Sound):
    @classmethod
    def parameter_count(cls, dimensions, config):
        return 7


class ClaimsToShift(Absolute):
    properties = replace(Absolute.properties, shift=True)


class HidesThatItShifts(Sound):
    properties = Properties(reversal=True)


class ClaimsToBeBlind(Rotary):
    properties = Properties(shift=True, reversal=True)


class ClaimsToIgnoreOrder(Sound):
    properties = replace(Sound.properties, permutation=True)


class ClaimsToLeaveOneKey(Absolute):
    properties = replace(Absolute.properties, single_key=True)


class ClaimsToKeepLengths(Absolute):
    properties = replace(Absolute.properties, norm=True)


class ClaimsToRefuse(Sound):
    properties = replace(Sound.properties, beyond="refused")


class Dead(Sound):
    def __init__(self, dimensions, config=None):
        super().__init__(dimensions, config)
        self.table = nn.Parameter(torch.empty(5))

    @classmethod
    def parameter_count(cls, dimensions, config):
        return 5


class Detached(InitialFromTheGlobalStream):
    def initial(self, name, value, generator):
        value.normal_(generator=generator)

    def offset_bias(self, distance):
        return -(self.slope + 0 * self.slope.detach() ** 2).detach() * distance.abs() + 0 * self.slope


class WrongGradient(Detached):
    def offset_bias(self, distance):
        return -(self.slope + self.slope.detach() ** 2) * distance.abs()


class FastFormDiffers(Sound):
    def score_mod(self, at):
        return lambda score, b, h, q, k: score + (q - k)


class BatchMates(Absolute):
    def embed(self, x, at):
        return super().embed(x, at) - x.mean(0, keepdim=True)


class HalfPositions(Absolute):
    def embed(self, x, at):
        return x + at.q[..., None].to(x.dtype)


class ClaimsToFall(Sound):
    properties = Properties(reversal=True, shift=True, monotone=True)

    def offset_bias(self, distance):
        return (distance.float() / 3).cos().expand(self.dimensions.heads, -1)


class ClaimsToFactorise(Sound):
    properties = Properties(reversal=True, shift=True, factorises=True)


class Cubic(Encoding):
    """Work that grows with the third power of the length."""

    paper = Sound.paper
    properties = Properties(permutation=True, reversal=True, shift=True, cached=False)

    def scores(self, q, k, at):
        products = q @ k.transpose(-1, -2)
        square = products if products.shape[-1] == products.shape[-2] else products @ products.transpose(-1, -2)
        for _ in range(8):
            square = 0.01 * square @ square
        return 0 * (square @ products)


class MisstatesWork(Sound):
    @classmethod
    def flop_count(cls, dimensions, config, length):
        return 12345


class LeaksInTraining(Sound):
    """In evaluation, where all other checks look, it is sound."""

    def embed(self, x, at):
        return torch.cat([x[:, 1:], x[:, :1]], dim=1) if self.training else x


class Uncited(Encoding):
    """No paper."""

    properties = Sound.properties
    offset_bias = Sound.offset_bias


class Misfiled(Sound):
    paper = Paper(title="A title", arxiv="soon", equations="1")


class Crashes(Sound):
    def offset_bias(self, distance):
        raise RuntimeError("out of\nideas")


class BornDead(Sound):
    def __init__(self, dimensions, config=None):
        raise TypeError("no such thing")


class StaleWhenScored(Trained):
    """Keeps its table where no gradient is asked for, and goes on with it when the weights have changed."""

    def offset_bias(self, distance):
        if torch.is_grad_enabled():
            return super().offset_bias(distance)
        if not hasattr(self, "kept") or self.kept.shape[1] != len(distance):
            self.kept = super().offset_bias(distance)
        return self.kept


class ScaledByTheFirstInput(Absolute):
    scale = None

    def embed(self, x, at):
        if self.scale is None:
            self.scale = x.detach().double().std().item()
        return x + self.scale * maths.sinusoids(at.q, x.shape[-1]).to(x.dtype)


class FillsAParameterFromData(Trained):
    ready = False

    def embed(self, x, at):
        if not self.ready:
            with torch.no_grad():
                self.slope.copy_(x.std())
            self.ready = True
        return x


class RunningMean(Absolute):
    def __init__(self, dimensions, config=None):
        super().__init__(dimensions, config)
        self.register_buffer("mean", torch.empty(dimensions.width))

    def initial(self, name, value, generator):
        value.zero_()

    def embed(self, x, at):
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean((0, 1)))
        return super().embed(x, at) + self.mean.to(x.dtype)


class OwnStream(Sound):
    """Its stream is nobody else's, and nothing keeps its state."""

    def __init__(self, dimensions, config=None):
        super().__init__(dimensions, config)
        self.stream = np.random.default_rng(0)

    def offset_bias(self, distance):
        bias = super().offset_bias(distance)
        return bias * (1 + self.stream.random()) if self.training else bias


class Entropy(Sound):
    def offset_bias(self, distance):
        bias = super().offset_bias(distance)
        return bias * (1 + random.SystemRandom().random()) if self.training else bias


class NumpyInTraining(Sound):
    def offset_bias(self, distance):
        bias = super().offset_bias(distance)
        return bias * (1 + np.random.rand()) if self.training else bias


class NotANumberWhenPaddedOnTheLeft(Absolute):
    def embed(self, x, at):
        left = at.keys is not None and not bool(at.keys[:, 0].all())
        return super().embed(x, at) * (float("nan") if left else 1.0)


class NotANumberAtOneKey(Sound):
    """Right at position 0, where it is looked at first."""

    def bias(self, at):
        bias = Encoding.bias(self, at)
        return bias * float("nan") if at.length == 1 and at.end == 8 else bias


class NeitherFallsNorRises(Sound):
    properties = Properties(reversal=True, shift=True, monotone=True)

    def offset_bias(self, distance):
        return super().offset_bias(distance) * float("nan")


class TableOfTheFirstType(Rotary):
    """Built when it is first used, in the type of that use."""

    table = None

    def turn(self, x, positions):
        if self.table is None or len(self.table[0]) <= positions.max():
            places = torch.arange(int(positions.max()) + 1)
            angles = maths.angles(places, maths.inverse_frequencies(x.shape[-1], 10000.0))
            self.table = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        cos, sin = (wave[positions][:, None].to(x.dtype) for wave in self.table)
        return maths.rotate(x, cos, sin, "half")


class MadeOnTheProcessor(Sound):
    """Right where there is one device, and a crash where the model lies on another."""

    def offset_bias(self, distance):
        table = torch.arange(20_000.0)
        return -table[distance.abs()].expand(self.dimensions.heads, -1)


class AnswersFromTheProcessor(Sound):
    def offset_bias(self, distance):
        return torch.zeros(self.dimensions.heads, len(distance))


class Moved(Sound):
    """Without fault: tensors that are taken along, numbers, and indices may lie anywhere before."""

    def offset_bias(self, distance):
        table = (torch.arange(20_000.0) * 2).to(distance.device)
        heads = self.dimensions.heads
        slopes = torch.arange(1.0, heads + 1, device=distance.device)[torch.tensor(list(reversed(range(heads))))]
        return torch.where(distance > 10**6, torch.tensor(0.5), -table[distance.abs()]) * slopes[:, None]


class RightAtTwoHeads(Trained):
    """A number where it should be read off the model; the checks' own models have two heads."""

    @classmethod
    def parameter_count(cls, dimensions, config):
        return 2


class MadeForTwoHeads(Sound):
    def offset_bias(self, distance):
        return -distance.abs().float().expand(2, -1)


class MadeForOneWidth(Absolute):
    def embed(self, x, at):
        return x + maths.sinusoids(at.q, 32).to(x.dtype)


class ScopeUnheardOf(Sound):
    scope = "layers"


class ClaimsInWords(Sound):
    properties = Properties(reversal="yes", shift="yes")


class ClaimsSomethingElse(Sound):
    properties = Properties(reversal=True, shift=True, beyond="clipped")


class EndsBetweenPositions(Absolute):
    properties = replace(Absolute.properties, beyond="refused")
    max_length = 32.0


class Deterministic(Sound):
    def offset_bias(self, distance):
        torch.use_deterministic_algorithms(True)
        return super().offset_bias(distance)


class Coarse(Sound):
    def offset_bias(self, distance):
        torch.set_float32_matmul_precision("medium")
        return super().offset_bias(distance)


class Surroundings(Sound):
    def offset_bias(self, distance):
        os.environ["POSBENCH_HOME"] = "elsewhere"
        return super().offset_bias(distance)


FAULTS = {  # class: a check that must fail, and a word of its reason
    MeanOfAll: ("P6", "every encoding"), NextToken: ("P6", "every encoding"), TotalLength: ("P6b", "properties.cached"),
    InPlace: ("P10", "embed changes its input"), MovesPositions: ("P10", "bias changes its input"),
    Remembers: ("P13", "a long input changes"), Noisy: ("P10", "random stream"), NumpyNoise: ("P10", "random stream"),
    DrawsAndForgets: ("P10", "random stream"), StorageRotation: ("P9", "properties.cached"),
    QueriesTurnedLikeKeys: ("P9", "rotate returned"),
    StorageBias: ("P9", "properties.cached"), StorageTable: ("P4", "says that it does not hold"),
    HalfAngles: ("P11", "every encoding"), AlwaysHalfAngles: ("P4", "properties.shift"), CastTable: ("P13", "bfloat16"),
    LostTable: ("P13", "persistent buffer"), Stacked: ("P4", "properties.shift"), DrawsAtBirth: ("P24", "constructor"),
    SeedsAtBirth: ("P24", "constructor"),
    BreaksWhenLong: ("P19", "so long a table"), SeedsInForward: ("P10", "random stream"),
    InitialFromTheGlobalStream: ("P24", "`initial` draws"),
    DrawsInTraining: ("P24", "training draws"), ChangesTheDefault: ("P10", "global switch"),
    Reshaped: ("P6", "returned"), RotatesToAnotherWidth: ("P5", "rotate returned"), WrongType: ("P5", "float16"),
    NotANumber: ("P15", "not finite"), NotANumberFarOut: ("P15", "not finite"),
    Miscounted: ("P17", "says 14, the model has 0"),
    ClaimsToShift: ("P4", "properties.shift"), HidesThatItShifts: ("P3", "says that it does not hold"),
    ClaimsToBeBlind: ("P2", "properties.reversal"), ClaimsToKeepLengths: ("P5", "properties.norm"),
    ClaimsToIgnoreOrder: ("P1", "properties.permutation"), ClaimsToLeaveOneKey: ("P20", "properties.single_key"),
    CountsPadding: ("P7", "every encoding"), ClaimsToRefuse: ("P15", "properties.beyond"),
    Dead: ("P16", "no gradient reaches encodings.0.table"),
    Detached: ("P16", "no gradient reaches encodings.0.slope"), WrongGradient: ("P16", "Jacobian"),
    FastFormDiffers: ("P21", "every encoding"), BatchMates: ("P8", "a row alone differs"),
    HalfPositions: ("P12", "every encoding"), ClaimsToFall: ("P14", "properties.monotone"),
    ClaimsToFactorise: ("P19", "properties.factorises"), Cubic: ("P18", "to the power"),
    MisstatesWork: ("P18", "every encoding"), LeaksInTraining: ("P23", "every encoding"),
    Uncited: ("P0", "cites nothing"), Misfiled: ("P0", "is no id"),
    StaleWhenScored: ("P13", "earlier weights"), ScaledByTheFirstInput: ("P13", "content of an earlier input"),
    FillsAParameterFromData: ("P10", "evaluation changes encodings.0.slope"),
    RunningMean: ("P10", "evaluation changes encodings.0.mean"), OwnStream: ("P13", "cannot be resumed"),
    Entropy: ("P13", "cannot be resumed"), NumpyInTraining: ("P24", "training draws"),
    NotANumberWhenPaddedOnTheLeft: ("P7", "measured nan"), NotANumberAtOneKey: ("P20", "measured nan"),
    NeitherFallsNorRises: ("P14", "measured 1"), TableOfTheFirstType: ("P13", "bfloat16"),
    MadeOnTheProcessor: ("P22", "made without a device"), AnswersFromTheProcessor: ("P22", "made without a device"),
    RightAtTwoHeads: ("P17", "says 2, the model has 3, width 48, heads 3"), MadeForTwoHeads: ("P17", "returned"),
    MadeForOneWidth: ("P17", "size of tensor"), ScopeUnheardOf: ("P0", "scope = 'layers'"),
    ClaimsInWords: ("P0", "properties.reversal = 'yes'"), ClaimsSomethingElse: ("P0", "properties.beyond = 'clipped'"),
    EndsBetweenPositions: ("P0", "max_length is 32.0"),
    Deterministic: ("P10", "global switch"), Coarse: ("P10", "global switch"), Surroundings: ("P10", "global switch"),
    Crashes: ("P6", "RuntimeError: out of ideas"), BornDead: ("P17", "TypeError: no such thing"),
}


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize("cls", FAULTS, ids=lambda cls: cls.__name__)
def test_fault_is_found_and_told(cls, monkeypatch):
    if cls is Miscounted:  # where it is told for two stacks of layers
        monkeypatch.setattr(testing, "SHAPES", SHAPES)
    check, word = FAULTS[cls]
    failed = [(verdict.check, verdict.reason) for verdict in check_encoding(cls) if not verdict.passed]
    assert any(found == check and word in reason for found, reason in failed), failed
    assert all("\n" not in reason and reason for _, reason in failed)


@pytest.mark.usefixtures("models")
def test_a_faulty_plugin_leaves_the_process_as_it_was():
    torch.manual_seed(9)  # no state that a plugin of an earlier test may have left
    before = global_state()
    for cls in (ChangesTheDefault, SeedsAtBirth, Noisy, NumpyNoise, DrawsAndForgets, Deterministic, Coarse,
                Surroundings):
        check_encoding(cls)
    assert global_state() == before


def test_what_is_taken_along_may_be_made_anywhere():
    assert not [(v.check, v.shape, v.reason) for v in check_encoding(Moved) if not v.passed]


def test_a_fast_kernel_that_differs_is_found(monkeypatch):
    fast = attention.softmax_attention
    monkeypatch.setattr(attention, "softmax_attention", lambda *given: fast(*given) * 1.001)
    assert {v.check for v in check_encoding(Sound) if not v.passed} == {"P22"}


def test_every_check_finds_a_fault():
    assert {check for check, _ in FAULTS.values()} == {check.name for check in CHECKS}


def test_verdicts_on_noise_repeat():
    """Not even a plugin that draws gets another verdict from another state of the caller's."""
    torch.manual_seed(1)
    first = check_encoding(Noisy)
    torch.manual_seed(2)
    assert str(check_encoding(Noisy)) == str(first)  # as text, where NaN equals NaN


def test_no_plugin_of_the_registry_is_among_the_faulty():
    assert not {cls.__name__.lower() for cls in FAULTS} & set(ENCODINGS.found())
