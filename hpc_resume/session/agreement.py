"""How ranks agree: one small reduction per step, read one step late, and words from rank 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reduced:
    """What all ranks know about a step: the same bits on each of them."""

    loss: float
    grad_norm: float | None
    skipped: bool
    stop: bool


class Agreement:
    """The ranks of one attempt, as far as the session needs them."""

    def __init__(self) -> None:
        """Join the default process group; a second one on the CPU carries words."""
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.group = dist.new_group(backend="gloo")

    def start_reduce(self, loss: Any, grad_norm: float | None, skipped: bool, stop: bool) -> PendingReduction:
        """Begin to sum [loss, ranks, stop, skipped, norm known, norm] over all ranks, without waiting for it.

        The loss stays where it is, so that nothing here makes the host wait for a GPU. Skips and norms are global
        already, so rank 0 speaks for all.
        """
        value = loss.detach() if isinstance(loss, torch.Tensor) else torch.tensor(float(loss))
        speaks = self.rank == 0
        rest = [1.0, float(stop), float(skipped and speaks), float(grad_norm is not None and speaks)]
        rest.append(grad_norm if grad_norm is not None and speaks else 0.0)
        vector = torch.empty(6, dtype=torch.float64, device=value.device)
        vector[0] = value
        vector[1:] = torch.tensor(rest, dtype=torch.float64)
        return PendingReduction(vector, dist.all_reduce(vector, async_op=True))

    def from_rank_0(self, value: T) -> T:
        """Return rank 0's value on every rank."""
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        dist.barrier(group=self.group)


class PendingReduction:
    """A reduction under way."""

    def __init__(self, vector: torch.Tensor, work: Any) -> None:
        """Keep the vector alive until it is read."""
        self._vector = vector
        self._work = work

    def read(self) -> Reduced:
        """Wait for the sum and return it in words."""
        self._work.wait()
        loss, ranks, stop, skipped, norm_known, norm = self._vector.tolist()
        return Reduced(
            loss=loss / ranks,
            grad_norm=norm if norm_known else None,
            skipped=skipped > 0,
            stop=stop > 0,
        )
