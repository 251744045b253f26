"""What an encoding costs: step time as a ratio measured side by side, peak memory, FLOPs, parameters."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from posbench.config import ModelConfig, TrainConfig
from posbench.encoding import HOOKS, Encoding, overrides
from posbench.errors import Terminated, reason_of
from posbench.numerals import NONE, amount, counted
from posbench.transformer import Head, Transformer

# The profiler's back end reports its own start and stop on standard error otherwise.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
ROUNDS = 41
COLUMNS = ("encoding", "parameters", "flops", "step_ratio", "step_ratio_low", "step_ratio_high", "step_over",
           "step_seconds", "peak_memory", "load", "cores", "reason")
WARMUP = 3
BUSY = 1.5
"""Processes at work for each core of the machine beyond which step times are those of a busy one."""
LARGEST = 10**11
"""FLOPs of a step that is run to learn what it costs before a study."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The batch on which costs are measured.

    Attributes:
        rows, tokens: of one batch; every row is as long as the study allows, which encodings with a table take for
            its size.
        vocabulary: number of token ids.
        head: what the model answers.
    """

    rows: int
    tokens: int
    vocabulary: int
    head: Head


def measure(
    encodings: Mapping[str, tuple[type[Encoding], Any]], model: ModelConfig, train: TrainConfig, shape: Shape,
    *, rounds: int = ROUNDS, models: Mapping[str, ModelConfig] | None = None,
    shapes: Mapping[str, Shape] | None = None,
) -> list[dict[str, Any]]:
    """Costs of a training step (forward, backward, clipping, optimizer) for each encoding.

    Every round takes one step of each encoding and one of the bare template, in turn and from another start each time,
    so that a machine whose speed drifts favours no one; a ratio is that of the medians over rounds.

    Args:
        encodings: class and options by label.
        model, train, shape: the settings of the study.
        rounds: measured steps of each encoding.
        models, shapes: by label, where one has settings of its own.

    Returns:
        One dict an encoding: encoding, parameters, flops (of one step), step_ratio (to the template without an
        encoding), step_ratio_low and step_ratio_high (quartiles of that ratio over rounds), step_over (label of the
        encoding among these that is that template, or an empty text where it was measured beside them), step_seconds,
        peak_memory (bytes live at once in a step, weights and optimizer left out), load (processes at work on the
        machine in the minute before) and its cores, both None where the system does not say, reason. Costs are None
        where the encoding broke down.
    """
    busy = _busy()
    torch.set_num_threads(train.threads)
    device = torch.device("cuda" if train.device != "cpu" and torch.cuda.is_available() else "cpu")
    steps: dict[str, tuple[Transformer, Callable[[], None]]] = {}
    reasons: dict[str, str] = {}
    models, shapes = models or {}, shapes or {}
    for label, (cls, options) in {"": (Encoding, None), **encodings}.items():
        try:
            steps[label] = _step(cls, options, models.get(label, model), train, shapes.get(label, shape),
                                 device)
            _timed(steps[label][1], device)
        except (KeyboardInterrupt, Terminated):
            raise
        except BaseException as error:  # the costs of the others are wanted all the same
            steps.pop(label, None)
            reasons[label] = reason_of(error)
    if "" not in steps:  # what not even the bare template can do has no costs to compare
        return [dict.fromkeys(COLUMNS) | busy | {"encoding": label, "reason": reasons.get(label, reasons[""])}
                for label in encodings]
    seconds: dict[str, list[float]] = {label: [] for label in steps}
    labels = list(steps)
    for number in range(WARMUP + rounds):
        turn = number % len(labels)
        for label in labels[turn:] + labels[:turn]:
            spent = _timed(steps[label][1], device)
            if number >= WARMUP:
                seconds[label].append(spent)
    middle = {label: statistics.median(spent) for label, spent in seconds.items()}
    # An encoding without hooks is the bare template itself, and then its own time is what the others are held against.
    acting = {label: overrides(network.encoding(0), *HOOKS) for label, (network, _) in steps.items()}
    bare = next((label for label in encodings
                 if not acting.get(label, True) and models.get(label, model) == model
                 and shapes.get(label, shape) == shape), "")
    rows = []
    for label in encodings:
        row: dict[str, Any] = dict.fromkeys(COLUMNS) | busy | {"encoding": label, "reason": reasons.get(label, "")}
        if label in steps:
            low, high = _quartiles([a / b for a, b in zip(seconds[label], seconds[bare], strict=True)])
            row |= _costs(*steps[label], device)
            row |= {"step_ratio": middle[label] / middle[bare], "step_ratio_low": low, "step_ratio_high": high,
                    "step_over": bare, "step_seconds": middle[label]}
        rows.append(row)
    return rows


def _busy() -> dict[str, Any]:
    if not hasattr(os, "getloadavg"):
        return {"load": None, "cores": None}
    # The load is the machine's, whatever part of it this process may use.
    return {"load": round(os.getloadavg()[0], 2), "cores": os.cpu_count()}


def warning(rows: Iterable[Mapping[Any, Any]]) -> str:
    """What must be read before step times that were measured on a busy machine; an empty text for all others."""
    for row in rows:
        load, cores = row.get("load"), row.get("cores")
        timed = amount(row.get("step_seconds"), 1, "{}") != NONE
        if timed and load and cores and load > BUSY * cores:
            return (f"Costs were measured on a busy machine: a load of {load:.1f} on "
                    f"{counted(int(cores), 'core')} in the minute before. Step times are those of that machine, and "
                    "ratios less certain than their quartiles say; parameters, FLOPs and memory are not touched.")
    return ""


def ratio(row: Any) -> str:
    """'1.07 [1.05, 1.09]', a row's ratio of step times with its quartiles over rounds, where they are known."""
    if amount(row.step_ratio, 1, "{:.2f}") == NONE:
        return NONE
    ends = [amount(getattr(row, name, None), 1, "{:.2f}") for name in ("step_ratio_low", "step_ratio_high")]
    return f"{row.step_ratio:.2f}" + ("" if NONE in ends else f" [{', '.join(ends)}]")


def _quartiles(values: list[float]) -> tuple[float, float]:
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _costs(network: Transformer, step: Callable[[], None], device: torch.device) -> dict[str, Any]:
    return {
        "parameters": sum(p.numel() for p in network.parameters() if p.requires_grad),
        "flops": _flops(step),
        "peak_memory": _peak_memory(step, device),
    }


def expected(cls: type[Encoding], options: Any, model: ModelConfig, shape: Shape) -> dict[str, int | None]:
    """Costs of a training step from shapes alone: nothing is computed, and no memory is taken.

    An encoding or attention that looks at values must be run for that; it is, on one row and on two, where that is
    quick, and costs grow by as much with every further row.

    Returns:
        parameters, flops (of one step, as `measure` counts them), and memory: bytes of weights, gradients, Adam's two
        moments, and every tensor that the backward pass needs, all in 32 bits and with the attention matrix kept.
        flops and memory are None where only a run could tell.
    """
    with torch.device("meta"):
        network = Transformer(model, cls, options, vocabulary=shape.vocabulary, length=shape.tokens, head=shape.head)
    parameters = sum(p.numel() for p in network.parameters() if p.requires_grad)
    found: tuple[int, int] | None = None
    for mode in (lambda: torch.device("meta"), lambda: FakeTensorMode(allow_non_fake_inputs=True)):
        try:
            with mode():
                found = _counted(cls, options, model, shape, shape.rows)
            break
        except Exception:  # each stands for 'the values are looked at', in the words of a dozen parts of torch
            continue
    if found is None and 6 * parameters * shape.tokens < LARGEST:
        one, two = (_counted(cls, options, model, shape, rows) for rows in (1, 2))
        flops, saved = (a + (b - a) * (shape.rows - 1) for a, b in zip(one, two, strict=True))
        found = flops, saved
    flops_, saved_ = found or (None, None)
    return {"parameters": parameters, "flops": flops_, "memory": None if saved_ is None else 16 * parameters + saved_}


def _counted(cls: type[Encoding], options: Any, model: ModelConfig, shape: Shape, rows: int) -> tuple[int, int]:
    """FLOPs of a step, and bytes that its backward pass needs beside the weights."""
    network = Transformer(model, cls, options, vocabulary=shape.vocabulary, length=shape.tokens, head=shape.head)
    ids = torch.zeros(rows, shape.tokens, dtype=torch.int64)
    own = {parameter.untyped_storage()._cdata for parameter in network.parameters()}
    kept: dict[int, Any] = {}

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        # Keeping it keeps its number from being given to another.
        kept[storage._cdata] = storage
        return tensor

    def step() -> None:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = network(ids, source_ids=ids if model.shape == "encoder-decoder" else None).square().mean()
        loss.backward()

    return _flops(step), sum(storage.nbytes() for key, storage in kept.items() if key not in own)


def _step(
    cls: type[Encoding], options: Any, model: ModelConfig, train: TrainConfig, shape: Shape, device: torch.device
) -> tuple[Transformer, Callable[[], None]]:
    network = Transformer(model, cls, options, vocabulary=shape.vocabulary, length=shape.tokens, head=shape.head)
    network.initialise(0)
    network.to(device)
    optimizer = torch.optim.AdamW(network.parameter_groups(train.weight_decay), lr=1e-5, fused=True)
    ids = torch.arange(shape.rows * shape.tokens, device=device).remainder(shape.vocabulary).view(shape.rows, -1)
    source = ids if model.shape == "encoder-decoder" else None

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = network(ids, source_ids=source).float().square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), train.clip)
        optimizer.step()
        optimizer.zero_grad()

    return network, step


def _timed(step: Callable[[], None], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _flops(step: Callable[[], None]) -> int:
    # Fused kernels for the processor have no entry in the library's table: the plain form counts every product.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def _peak_memory(step: Callable[[], None], device: torch.device) -> int:
    """Most bytes that a step holds at once beyond what it found: activations, gradients and temporary tensors."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak
