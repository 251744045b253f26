"""Several processes in one trial: each trains on a part of every batch, and the update is that of the whole batch.

    torchrun --nproc-per-node 2 -m posbench study glue --preset small

The first process is the coordinator as ever: it alone plans, keeps and prints. The others wait for the trials that it
names, train and score along, and keep nothing. A process that dies takes the others along (torchrun sees to it); the
same command goes on.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from posbench.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from accelerate import Accelerator

    from posbench.config import TrialConfig
    from posbench.objective import Objective
    from posbench.training import Training

# The others wait for the coordinator while it plans, proves and reports.
LONGEST_WAIT = datetime.timedelta(days=1)


def world() -> int:
    """Processes of this trial, as torchrun says in WORLD_SIZE, beside the rank of each."""
    return int(os.environ.get("WORLD_SIZE") or 1) if "RANK" in os.environ else 1


def rank() -> int:
    """Which of them this one is; 0 is the coordinator."""
    return int(os.environ["RANK"]) if world() > 1 else 0


def on_gpu(device: str) -> bool:
    """Whether a trial with this setting of train.device trains on a GPU here."""
    import torch

    return device != "cpu" and torch.cuda.is_available()


def accelerator(device: str) -> Accelerator:
    """Accelerate's view of this process.

    Args:
        device: of the trial, 'cpu', 'cuda' or 'auto'.

    Raises:
        UserError: several processes on a machine with GPUs are asked to train on its processor.
    """
    import torch
    from accelerate import Accelerator, DistributedDataParallelKwargs

    if world() > 1 and torch.cuda.is_available() and not on_gpu(device):
        raise UserError("train.device is cpu, and several processes of one trial use the GPUs that there are: hide "
                        "them with CUDA_VISIBLE_DEVICES='', or start one process")
    # An encoding may have parameters that a step does not use.
    unused = DistributedDataParallelKwargs(find_unused_parameters=True)
    return Accelerator(cpu=not on_gpu(device), mixed_precision="bf16" if on_gpu(device) else "no",
                       kwargs_handlers=[unused])


def part(batch: np.ndarray, objective: Objective) -> tuple[np.ndarray, float]:
    """What this process trains on of a batch, and what its mean loss counts in the mean of all processes.

    Args:
        batch: (B, ...) rows.
        objective: says how much each part of a batch weighs.

    Returns:
        Every n-th row, and n times its share of the whole weight: the mean of the weighted losses of n processes is
        the loss of the batch, however unequal the parts. A process without a row takes one that counts nothing.
    """
    if world() == 1:
        return batch, 1.0
    rows = batch[rank() :: world()]
    if not len(rows):
        return batch[:1], 0.0
    return rows, world() * objective.weight(rows) / objective.weight(batch)


def any_of_us(asked: bool) -> bool:
    """Whether any process was asked; all of them hear the same."""
    if world() == 1:
        return asked
    import torch
    from accelerate import PartialState

    told = torch.tensor(int(asked), device=PartialState().device)
    torch.distributed.all_reduce(told, op=torch.distributed.ReduceOp.MAX)
    return bool(told)


def same_start(state: Training, seed: int) -> None:
    """Every process starts where the coordinator does, who alone has checkpoints; each with dropout of its own."""
    if world() == 1:
        return
    import torch
    from accelerate.utils import broadcast_object_list

    from posbench.seeds import number

    told = broadcast_object_list([state.capture(state.spent) if rank() == 0 and state.step else None])[0]
    if rank() and told:
        state.restore(*told)
    if rank():
        torch.manual_seed(number(seed, "dropout", rank(), state.step))


@contextlib.contextmanager
def led() -> Iterator[None]:
    """Around everything that a coordinator does; the others are let go at its end."""
    if world() == 1:
        yield
        return
    _join()
    try:
        yield
    finally:
        announce(None)


def announce(trial: TrialConfig | None) -> None:
    """Tells the others which trial comes next; None lets them go."""
    if world() == 1:
        return
    from accelerate.utils import broadcast_object_list

    from posbench.settings import to_plain

    broadcast_object_list([None if trial is None else to_plain(trial)])


def follow() -> None:
    """The life of every process but the first: the trials that the coordinator names, until it names none."""
    _join()
    from accelerate.utils import broadcast_object_list

    from posbench.config import TrialConfig, build
    from posbench.runner import run
    from posbench.trial import resolve

    while (plain := broadcast_object_list([None])[0]) is not None:
        # What is refused is refused in every process; anything else ends them all.
        with contextlib.suppress(UserError):
            run(resolve(build(TrialConfig, plain, where="trial")))


def _join() -> None:
    # Torch warns of every encoding all of whose parameters are used; read when it is loaded.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    import torch
    from accelerate import PartialState

    PartialState(cpu=not torch.cuda.is_available(), timeout=LONGEST_WAIT)
