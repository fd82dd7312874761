"""Digests of everything that a run is made of, after every step: what two runs are compared by.

Whoever asks for it gets one line a step from every rank. Each rank looks only at what it holds itself: nothing here
communicates, draws a random number, or changes what it looks at.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from hpc_resume.session import random_state

Named = Iterable[tuple[str, torch.Tensor]]


class StateTrace:
    """One rank's digests of one attempt."""

    def __init__(self, path: Path, engine: Any, wanted: bool) -> None:
        """Write to `path` what becomes of a DeepSpeed engine's state, if that is wanted; this is its only writer."""
        self._path = path
        self._engine = engine
        self._wanted = wanted

    def loaded(self, step: int) -> None:
        """Write down with what training begins, or goes on, after `step` steps."""
        if self._wanted:
            self._write({"step": step, "loaded": True})

    def step(self, step: int, loss: Any, samples: list[int]) -> None:
        """Write down what an optimizer step left; `loss` and `samples` are this rank's own."""
        if self._wanted:
            self._write({"step": step, "loss": float(loss), "samples": samples})

    def _write(self, row: dict[str, Any]) -> None:
        line = json.dumps(row | digest_state(self._engine), separators=(",", ":"))
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._path.open("ab", buffering=0) as file:
            file.write(f"{line}\n".encode())


def digest_state(engine: Any) -> dict[str, Any]:
    """Return digests of what this rank holds of the training's state, and its learning rate.

    `weights` are the model's parameters, at ZeRO 3 this rank's parts of them, and its buffers; `masters` are the fp32
    values that the optimizer really updates; `optimizer` is what it keeps for each of them; `random` are the
    generators.
    """
    return {
        "lr": [float(group["lr"]) for group in engine.optimizer.param_groups],
        "weights": _digest(_weights(engine)),
        "masters": _digest(_masters(engine)),
        "optimizer": _digest(_optimizer_state(engine)),
        "random": {name: _digest_random(state) for name, state in random_state.capture().items()},
    }


def _weights(engine: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in engine.module.named_parameters():
        # ZeRO 3 keeps this rank's part beside an empty stub.
        yield name, getattr(parameter, "ds_tensor", parameter)
    yield from engine.module.named_buffers()


def _masters(engine: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for index, parameter in enumerate(_updated(engine.basic_optimizer)):
        yield str(index), parameter


def _optimizer_state(engine: Any) -> Iterator[tuple[str, torch.Tensor]]:
    optimizer = engine.basic_optimizer
    for index, parameter in enumerate(_updated(optimizer)):
        for name, value in sorted(optimizer.state.get(parameter, {}).items()):
            yield f"{index}.{name}", torch.as_tensor(value)


def _updated(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return what the innermost optimizer updates.

    That is not in its groups where ZeRO 3 took them out between two steps, and has no state before the first one.
    """
    found = {id(parameter): parameter for parameter in optimizer.state}
    found |= {id(parameter): parameter for group in optimizer.param_groups for parameter in group["params"]}
    return list(found.values())


def _digest(tensors: Named) -> str:
    state = xxhash.xxh3_128()
    for name, tensor in tensors:
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        values = tensor.detach().to("cpu").contiguous().reshape(-1)
        state.update(values.view(torch.uint8).numpy().data)
    return state.hexdigest()


def _digest_random(state: Any) -> str:
    """Return the digest of a generator's state, as one of the three libraries hands it out."""
    if isinstance(state, torch.Tensor):
        return _digest([("", state)])
    plain = [part.tobytes() if isinstance(part, np.ndarray) else part for part in state]
    return xxhash.xxh3_128(repr(plain).encode()).hexdigest()
