"""Copying state out of a model that trains on: the only part of an asynchronous save that training waits for."""

from __future__ import annotations

import copy
from typing import Any

import torch

_PIN_FROM_BYTES = 1 << 16
"""Smaller pieces are not worth a call to the driver each."""


class HostCopy:
    """Copies state into host memory, the same memory for every save.

    Fresh memory costs more than the copy itself: the kernel clears it page by page. What this keeps is as large as what
    this rank saves, for as long as the process lives.
    """

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._idle: dict[tuple[int, bool], list[torch.Tensor]] = {}
        self._used: dict[tuple[int, bool], list[torch.Tensor]] = {}
        self._copied: dict[int, torch.UntypedStorage] = {}
        self._sources: list[torch.UntypedStorage] = []

    @property
    def held_bytes(self) -> int:
        """Host memory that this keeps, in bytes."""
        return sum(size * len(found) for kept in (self._idle, self._used) for (size, _), found in kept.items())

    def begin(self) -> None:
        """Take the memory of the save before back: whatever was copied for it must be written by now."""
        # What the save before had no use for goes: the state has changed its shape.
        self._idle, self._used = self._used, {}
        self._forget()

    def copy(self, state: Any) -> Any:
        """Return the same state with its tensors in host memory; those that share memory do so in the copy."""
        if isinstance(state, torch.Tensor):
            return self._tensor(state)
        if isinstance(state, dict):
            copied = copy.copy(state)  # keeps the class, and what an OrderedDict has besides
            for key, value in state.items():
                copied[key] = self.copy(value)
            return copied
        if type(state) in (list, tuple):
            return type(state)(map(self.copy, state))
        return copy.deepcopy(state)

    def end(self) -> None:
        """Wait until everything has arrived."""
        if any(storage.device.type == "cuda" for storage in self._sources):
            torch.cuda.synchronize()
        self._forget()

    def _forget(self) -> None:
        self._copied, self._sources = {}, []

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
        if not plain or tensor.device.type not in ("cpu", "cuda") or tensor.is_conj() or tensor.is_neg():
            # Not just bytes in a row; what is this rare may cost more, and share nothing.
            return tensor.detach().resolve_conj().resolve_neg().to("cpu", copy=True)
        source = tensor.detach().untyped_storage()
        key = source._cdata
        if key not in self._copied:
            self._copied[key] = self._storage(source)
            self._sources.append(source)  # as long as it lives, nothing else can have its address
        host = torch.empty(0, dtype=tensor.dtype).set_(
            self._copied[key], tensor.storage_offset(), tensor.size(), tensor.stride()
        )
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(host, requires_grad=tensor.requires_grad)
        return host

    def _storage(self, source: torch.UntypedStorage) -> torch.UntypedStorage:
        size = source.nbytes()
        # Only into pinned memory does a GPU copy while the host goes on to the next tensor.
        pinned = source.device.type == "cuda" and size >= _PIN_FROM_BYTES
        idle = self._idle.get((size, pinned))
        host = idle.pop() if idle else torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        self._used.setdefault((size, pinned), []).append(host)
        host.copy_(torch.empty(0, dtype=torch.uint8, device=source.device).set_(source), non_blocking=pinned)
        return host.untyped_storage()
