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
    loss_scale: float | None
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

    def start_reduce(
        self, loss: Any, grad_norm: Any, *, loss_scale: Any = None, skipped: bool, stop: bool, written: bool
    ) -> PendingReduction:
        """Begin to sum one small vector over all ranks, without waiting for it.

        Loss, norm and loss scale are floats or scalar tensors. With a loss on a GPU the sum is made there, and nothing
        here makes the host wait for it; the kind of the loss must be the same on all ranks. Skips, norms and loss
        scales are global already, so rank 0 speaks for all.
        """
        first = self.rank == 0
        norm, scale = (grad_norm, loss_scale) if first else (None, None)
        # `PendingReduction.read` takes them in this order.
        values = [loss, norm, norm is not None, scale, scale is not None, skipped and first, stop, written, True]
        if isinstance(loss, torch.Tensor) and loss.is_cuda:
            vector = _on_gpu(values, loss.device)
            return PendingOnGpu(vector, dist.all_reduce(vector, async_op=True))
        vector = torch.tensor([_as_float(value) for value in values], dtype=torch.float64)
        return PendingReduction(vector, dist.all_reduce(vector, group=self.group, async_op=True))

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
        loss, norm, norm_known, scale, scale_known, skipped, stop, written, ranks = self._sums()
        return Reduced(
            loss=loss / ranks,
            grad_norm=norm if norm_known else None,
            loss_scale=scale if scale_known else None,
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
        # The stream of the copy, which need not be that of the current device.
        self._arrived.record(torch.cuda.current_stream(vector.device))

    def _sums(self) -> list[float]:
        self._arrived.synchronize()
        sums: list[float] = self._host.tolist()
        return sums


def _on_gpu(values: list[Any], device: torch.device) -> torch.Tensor:
    """Return the values as a vector on a GPU, without the host waiting for anything that is in its stream.

    Copies from pinned memory don't wait, copies from other memory do. torch hands out pinned memory again only after
    the copies from and to it have run, so new buffers are asked for in every step and none is overwritten too early; a
    few are made in the first steps, and those are used from then on.
    """
    there = {
        place: value.detach().reshape(())
        for place, value in enumerate(values)
        if isinstance(value, torch.Tensor) and value.is_cuda
    }
    here = [0.0 if place in there else _as_float(value) for place, value in enumerate(values)]
    vector = torch.tensor(here, dtype=torch.float64, pin_memory=True).to(device, non_blocking=True)
    for place, value in there.items():
        vector[place].copy_(value, non_blocking=True)
    return vector


def _as_float(value: Any) -> float:
    """Return a number that is on the host, or is to be waited for; 0 for None."""
    if value is None:
        return 0.0
    return float(value.detach() if isinstance(value, torch.Tensor) else value)
