"""How ranks agree: one small reduction per step, read one step late, and words from rank 0."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from hpc_resume.checkpoints import collectives

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reduced:
    """What all ranks know about a step: the same bits on each of them."""

    loss: float
    grad_norm: float | None
    skipped: bool
    stop: bool
    written: bool
    """Whether no rank has anything of a checkpoint left to write."""


class Agreement:
    """The ranks of one attempt, as far as the session needs them."""

    def __init__(self, timeout_s: float) -> None:
        """Join the default process group; a second one on the CPU carries words, with a time-out of its own."""
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))

    def start_reduce(self, loss: Any, grad_norm: Any, *, skipped: bool, stop: bool, written: bool) -> PendingReduction:
        """Begin to sum [loss, norm, ranks, stop, skipped, norm known, written] over all ranks, without waiting for it.

        Loss and norm are floats or scalar tensors. Those on a GPU stay there, so that nothing here makes the host wait
        for it. Skips and norms are global already, so rank 0 speaks for all.
        """
        value = loss.detach() if isinstance(loss, torch.Tensor) else torch.tensor(float(loss))
        norm = grad_norm if self.rank == 0 else None
        rest = [1.0, float(stop), float(skipped and self.rank == 0), float(norm is not None), float(written)]
        vector = torch.zeros(7, dtype=torch.float64, device=value.device)
        vector[0] = value
        if norm is not None:
            vector[1] = norm if isinstance(norm, torch.Tensor) and norm.is_cuda else float(norm)
        if not vector.is_cuda:
            vector[2:] = torch.tensor(rest, dtype=torch.float64)
            return PendingReduction(vector, dist.all_reduce(vector, group=self.group, async_op=True))
        # Only copies from and to pinned memory leave the host free.
        vector[2:].copy_(torch.tensor(rest, dtype=torch.float64, pin_memory=True), non_blocking=True)
        return PendingOnGpu(vector, dist.all_reduce(vector, async_op=True))

    def from_rank_0(self, value: T) -> T:
        """Return rank 0's value on every rank."""
        return collectives.from_rank_0(value, self.group)

    def gather(self, value: T) -> list[T]:
        """Return every rank's value on every rank."""
        return collectives.gather(value, self.group)

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        dist.barrier(group=self.group)


class PendingReduction:
    """A reduction under way on the CPU."""

    def __init__(self, vector: torch.Tensor, work: Any) -> None:
        """Keep the vector alive until it is read."""
        self._vector = vector
        self._work = work

    def read(self) -> Reduced:
        """Wait for the sum and return it in words."""
        loss, norm, ranks, stop, skipped, norm_known, written = self._sums()
        return Reduced(
            loss=loss / ranks,
            grad_norm=norm if norm_known else None,
            skipped=skipped > 0,
            stop=stop > 0,
            written=written == ranks,
        )

    def _sums(self) -> list[float]:
        self._work.wait()
        sums: list[float] = self._vector.tolist()
        return sums


class PendingOnGpu(PendingReduction):
    """A reduction under way on a GPU, whose sums come to the host by themselves.

    To read the vector itself would be to wait for everything in the stream, and the next step is in it by then.
    """

    def __init__(self, vector: torch.Tensor, work: Any) -> None:
        """Put the way to the host into the stream, right behind the sum."""
        super().__init__(vector, work)
        work.wait()  # makes the stream wait for the sum, not the host
        self._host = torch.empty(vector.shape, dtype=vector.dtype, pin_memory=True)
        self._host.copy_(vector, non_blocking=True)
        self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._arrived.record()

    def _sums(self) -> list[float]:
        self._arrived.synchronize()
        sums: list[float] = self._host.tolist()
        return sums
