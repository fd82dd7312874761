"""Words between ranks: every rank's on every rank, or rank 0's; over a group on the CPU."""

from __future__ import annotations

from typing import Any, TypeVar

import torch.distributed as dist

T = TypeVar("T")


def gather(value: T, group: dist.ProcessGroup | None) -> list[T]:
    """Return every rank's value on every rank, by rank."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value, group=group)
    return values


def from_rank_0(value: T, group: dist.ProcessGroup | None) -> T:
    """Return rank 0's value on every rank."""
    box = [value]
    dist.broadcast_object_list(box, src=0, group=group)
    return box[0]
