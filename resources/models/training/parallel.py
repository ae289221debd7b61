"""Several processes, one GPU each: each writes and learns from its own rows, weights stay alike.

Start one process a GPU with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set (`torchrun` does);
with none of them set everything here is a no-op.
"""

from __future__ import annotations

import os
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

T = TypeVar("T")


def begin() -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        cuda = torch.cuda.is_available()
        if cuda:
            # One visible device a process, or torchrun's choice among several.
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("nccl" if cuda else "gloo")


def end() -> None:
    if world() > 1:
        dist.destroy_process_group()


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def shared(value: T) -> T:
    """The first process's value."""
    if world() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, 0)
    return box[0]


def shared_number(value: float, device: torch.device) -> float:
    """The first process's number, without pickling."""
    if world() == 1:
        return value
    box = torch.tensor([value], dtype=torch.float64, device=device)
    dist.broadcast(box, 0)
    return float(box)


@torch.no_grad()
def copy_weights(module: nn.Module) -> None:
    """Give every process the first one's weights."""
    if world() > 1:
        for parameter in module.parameters():
            dist.broadcast(parameter.data, 0)


@torch.no_grad()
def average_gradients(parameters: list[nn.Parameter]) -> None:
    """Replace every gradient by its mean over the processes, in one message."""
    if world() == 1:
        return
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat: Tensor = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat)
    flat /= world()
    parts = torch.split(flat, [g.numel() for g in gradients])
    torch._foreach_copy_(gradients, [a.view_as(g) for a, g in zip(parts, gradients, strict=True)])
