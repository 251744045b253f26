"""Residence: whether tensors are made where the tensors are that they meet, found out without a second device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from posbench.probe import ContractError


class Residence(TorchFunctionMode):
    """Follows tensors that a hook makes without a device, which lie on the CPU wherever the model is.

    Numbers (tensors without dimensions) may meet any device. `to`, `cuda` and the like take a tensor along.
    """

    def __init__(self) -> None:
        super().__init__()
        # Kept alive, so that no other tensor gets the same id.
        self._home: dict[int, Tensor] = {}

    def stays(self, value: Any) -> bool:
        """Whether this is a tensor that would not move with the model."""
        return isinstance(value, Tensor) and id(value) in self._home

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        given = [value for value in _flat([*args, *kwargs.values()]) if isinstance(value, Tensor)]
        placed = kwargs.get("device") is not None or any(isinstance(value, torch.device) for value in args)
        taken = name == "to" and (len(given) > 1 or any(isinstance(value, str) for value in args))
        if placed or taken or name in ("cuda", "type_as", "copy_"):
            # Here, where there is one device, `to` gives the same tensor back.
            self._home.pop(id(result), None)
            return result
        index = name == "__getitem__" and not self.stays(args[0])  # indices may lie on the CPU
        sized = [value for value in given if value.dim()]
        at_home = [value for value in sized if self.stays(value)]
        if at_home and len(at_home) < len(sized) and not index:
            raise ContractError(f"{name} meets a tensor that was made without a device, and lies on the CPU wherever "
                                "the model is: make it with device=x.device, or a buffer")
        if (at_home and not index) or not given:  # what an index picks out lies where it was picked from
            for value in _flat([result]):
                if isinstance(value, Tensor) and value.dim():
                    self._home[id(value)] = value
        return result


def _flat(values: Any) -> list[Any]:
    """What lies inside of lists, tuples and dictionaries."""
    found: list[Any] = []
    for value in values:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else None
        found += [value] if inner is None else _flat(inner)
    return found
