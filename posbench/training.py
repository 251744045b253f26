"""Training: everything that changes while a trial trains, as one state that can be put down and taken up again.

Taken up on the same machine and processor it goes on to the last bit as if it had never been put down.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from posbench.checkpoint import Misfit, differences

MOMENTS = ("exp_avg", "exp_avg_sq")
"""What AdamW keeps of each parameter, beside the count of its updates."""
PLAIN = (bool, int, float, str, type(None))


class Training:
    """The state of a training run.

    Attributes:
        model, optimizer, schedule: as they are used; their own state is part of this one.
        step: updates done.
        losses: () of each update since the last point of the loss curve.
        curves: points, each with step, metric and value. step_seconds: of each update.
        best: score and weights of the best evaluation so far. latest: weights at the last evaluations, to be averaged.
        spent: seconds in earlier processes. resumed: how often the run was taken up again. events: what befell its
            checkpoints.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, schedule: LRScheduler, *, average: int) -> None:
        self.model, self.optimizer, self.schedule = model, optimizer, schedule
        self.step = 0
        self.losses: list[Tensor] = []
        self.curves: list[dict[str, Any]] = []
        self.step_seconds: list[float] = []
        self.best: tuple[float, dict[str, Tensor]] | None = None
        self.latest: deque[dict[str, Tensor]] = deque(maxlen=average)
        self.spent, self.resumed = 0.0, 0
        self.events: list[str] = []
        self.first = dict(_attributes(model))

    def weights(self) -> dict[str, Tensor]:
        """A copy of the model's weights as they are now."""
        return {name: value.clone() for name, value in self.model.state_dict().items()}

    def capture(self, spent: float) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All of it as tensors by name and as JSON values.

        Args:
            spent: seconds up to now, those of earlier processes included.
        """
        strict, loose = self._tensors()
        optimizer = self.optimizer.state_dict()
        tensors = strict | loose | self._random()
        for index, entries in optimizer["state"].items():
            tensors |= {f"optimizer/{index}/{name}": value for name, value in entries.items()}
        if self.losses:
            tensors["losses"] = torch.stack(self.losses)
        tensors["step_seconds"] = torch.tensor(self.step_seconds, dtype=torch.float64)
        kept = [*([self.best[1]] if self.best else []), *self.latest]
        for place, weights in enumerate(kept):
            tensors |= {f"kept/{place}/{name}": value for name, value in weights.items()}
        plain = {
            "step": self.step,
            "curves": self.curves,
            "moments": sorted(optimizer["state"]),
            "rates": [group["lr"] for group in optimizer["param_groups"]],
            "schedule": {name: value for name, value in self.schedule.state_dict().items() if name != "lr_lambdas"},
            "losses": len(self.losses),
            "best": None if self.best is None else self.best[0],
            "latest": len(self.latest),
            "attributes": {name: value for name, value in _attributes(self.model)
                           if name not in self.first or self.first[name] != value},
            "spent": spent,
            "resumed": self.resumed,
            "events": self.events,
        }
        return tensors, plain

    def restore(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Takes up what `capture` gave, all of it or nothing.

        Raises:
            Misfit: it is of another model; nothing was changed.
        """
        strict, loose = self._tensors()
        try:
            best = plain["best"]
            kept = [{name: tensors.get(f"kept/{place}/{name}") for name in self.model.state_dict()}
                    for place in range((best is not None) + plain["latest"])]
            self._refuse(tensors, plain, strict, len(kept))
            moments = {index: {name: tensors[f"optimizer/{index}/{name}"] for name in ("step", *MOMENTS)}
                       for index in plain["moments"]}
            optimizer = self.optimizer.state_dict()
            groups = [group | {"lr": rate} for group, rate in zip(optimizer["param_groups"], plain["rates"],
                                                                  strict=True)]
            attributes = [(*self._place(name), _plain(value)) for name, value in plain["attributes"].items()]
            device = next(self.model.parameters()).device
            moved = [{name: value.to(device) for name, value in weights.items() if value is not None}
                     for weights in kept]
            losses = list(tensors["losses"].to(device).unbind()) if plain["losses"] else []
            seconds, curves, events = tensors["step_seconds"].tolist(), list(plain["curves"]), list(plain["events"])
            schedule = {name: value if name == "lr_lambdas" else plain["schedule"][name]
                        for name, value in self.schedule.state_dict().items()}
            step, spent, resumed = int(plain["step"]), float(plain["spent"]), int(plain["resumed"]) + 1
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Misfit(f"it is damaged ({type(error).__name__}: {error})") from None
        with torch.no_grad():
            for name, tensor in strict.items():
                tensor.copy_(tensors[name])
        for name in loose.keys() & tensors.keys():
            owner, attribute = self._place(name.removeprefix("caches/"))
            owner._buffers[attribute] = tensors[name].to(device)
        for owner, attribute, value in attributes:
            setattr(owner, attribute, value)
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self.schedule.load_state_dict(schedule)
        self._set_random(tensors)
        self.step, self.losses, self.step_seconds = step, losses, seconds
        self.curves, self.events, self.spent, self.resumed = curves, events, spent, resumed
        self.best = None if best is None else (float(best), moved[0])
        self.latest.extend(moved[best is not None :])

    def _refuse(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any], strict: dict[str, Tensor],
                kept: int) -> None:
        """Compares names, shapes and types of all tensors with those that this model would have put down."""
        expected = _shapes(strict | self._random())
        weights = self.model.state_dict()
        for place in range(kept):
            expected |= _shapes({f"kept/{place}/{name}": value for name, value in weights.items()})
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        for index in plain["moments"]:
            one = parameters[index] if isinstance(index, int) and 0 <= index < len(parameters) else torch.empty(0)
            expected |= _shapes({f"optimizer/{index}/step": torch.empty(())})
            expected |= _shapes({f"optimizer/{index}/{name}": one for name in MOMENTS})
        expected["step_seconds"] = f"float64 ({plain['step']},)"
        if plain["losses"]:
            expected["losses"] = f"float32 ({plain['losses']},)"
        theirs = {name: told for name, told in _shapes(tensors).items() if not name.startswith("caches/")}
        if told := differences(theirs, expected):
            raise Misfit(told)

    def _tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Parameters and buffers, those once that modules share; and buffers that are no part of the state dict, whose
        shape may change as they are filled."""
        strict: dict[str, Tensor] = {f"weights/{name}": value for name, value in self.model.named_parameters()}
        loose: dict[str, Tensor] = {}
        for name, value in self.model.named_buffers():
            owner, attribute = self._place(name)
            if attribute in owner._non_persistent_buffers_set:
                loose[f"caches/{name}"] = value
            else:
                strict[f"weights/{name}"] = value
        return strict, loose

    def _place(self, name: str) -> tuple[nn.Module, str]:
        path, _, attribute = name.rpartition(".")
        return self.model.get_submodule(path), attribute

    def _random(self) -> dict[str, Tensor]:
        """States of the streams that training draws from: torch's own, and those that modules hold."""
        streams = {"random/cpu": torch.get_rng_state()}
        device = next(self.model.parameters()).device
        if device.type == "cuda":
            streams["random/cuda"] = torch.cuda.get_rng_state(device)
        return streams | {f"random/of {name}": stream.get_state() for name, stream in self._generators()}

    def _set_random(self, tensors: Mapping[str, Tensor]) -> None:
        torch.set_rng_state(tensors["random/cpu"])
        if "random/cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random/cuda"], next(self.model.parameters()).device)
        for name, stream in self._generators():
            stream.set_state(tensors[f"random/of {name}"])

    def _generators(self) -> Iterator[tuple[str, torch.Generator]]:
        return ((name, value) for name, value in _own(self.model) if isinstance(value, torch.Generator))


def _attributes(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Numbers and texts that modules hold beside their tensors, such as a plugin's own count of its calls."""
    return ((name, value) for name, value in _own(model) if isinstance(value, PLAIN))


def _plain(value: Any) -> Any:
    if not isinstance(value, PLAIN):
        raise TypeError(f"an attribute is a {type(value).__name__}")
    return value


def _own(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """What modules hold by the names '<module>.<attribute>', without what every module has."""
    common = vars(nn.Module()).keys()
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name not in common:
                yield f"{path}.{name}", value


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Type and shape of each, as a reader is told of them."""
    return {name: f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}" for name, value in tensors.items()}


def averaged(states: Iterable[Mapping[str, Tensor]], buffers: Collection[str] = ()) -> dict[str, Tensor]:
    """The mean of several states of one model, summed in float64; its buffers are taken from the last."""
    kept = list(states)
    return {name: last if name in buffers else torch.stack([state[name].double() for state in kept]).mean(0).to(
        last.dtype) for name, last in kept[-1].items()}
