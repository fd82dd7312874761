"""A training without a model: real session, store, journal and ranks; only the engine is a stand-in.

It writes the files that DeepSpeed writes for each ZeRO stage, by the calls that DeepSpeed makes. Its state after a step
can be computed from the number of the step, so that whoever loads it knows every bit that it should have.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torture.forks import Train, ViolationError
from torture.marks import Marks

from hpc_resume.config.schema import RunConfig
from hpc_resume.journal.folder import RunFolder
from hpc_resume.session import Session

SAMPLES = 1000
_A, _C = 1664525, 1013904223
"""One step of a tensor: x * A + C, in 32 bits."""
_SHARED = "mp_rank_00_model_states.pt"
"""Below ZeRO 3 all ranks hold the same weights; rank 0 saves them, and all load them."""


class Files:
    """DeepSpeed's checkpoint engine, as far as a save or a load goes through it."""

    def save(self, state: Any, path: str) -> None:
        torch.save(state, path)

    def load(self, path: Path) -> Any:
        return torch.load(path, map_location="cpu", weights_only=False)


class StandInEngine:
    """What session and store use of a DeepSpeed engine."""

    def __init__(self, config: RunConfig, rank: int, elements: int) -> None:
        values = config.training.deepspeed or {}
        self._stage = int(values["zero_optimization"]["stage"])
        self._bf16 = config.training.precision == "bf16"
        self._rank = rank
        self._elements = elements
        self.checkpoint_engine: Any = Files()
        self.module = torch.nn.Linear(3, 3)
        self.global_steps = 0
        self.tensors = {name: self._after(name, 0) for name in self._files()}

    def zero_optimization_stage(self) -> int:
        return self._stage

    def bfloat16_enabled(self) -> bool:
        return self._bf16

    def step(self) -> None:
        """Change the tensors where they are: whatever still looks at them sees that."""
        self.global_steps += 1
        for tensor in self.tensors.values():
            tensor.mul_(_A).add_(_C)

    def save_checkpoint(self, folder: str, tag: str, client_state: dict[str, Any], *, save_latest: bool) -> None:
        assert not save_latest
        dist.barrier()
        for name, tensor in self.tensors.items():
            if name == _SHARED and self._rank > 0:
                continue
            state = {"state": {"part": tensor}, "global_steps": self.global_steps, **client_state}
            self.checkpoint_engine.save(state, str(Path(folder, tag, name)))
        dist.barrier()

    def load_checkpoint(self, folder: str, tag: str) -> tuple[str, dict[str, Any]]:
        for name, tensor in self.tensors.items():
            state = self.checkpoint_engine.load(Path(folder, tag, name))
            self.global_steps = state["global_steps"]
            tensor.copy_(state["state"]["part"])
        dist.barrier()
        return str(Path(folder, tag)), {}

    def check(self, step: int) -> None:
        """Hold that every bit is what it must be after this step."""
        if self.global_steps != step:
            raise ViolationError(f"rank {self._rank} is at step {self.global_steps}; the session says {step}")
        for name, tensor in self.tensors.items():
            if not torch.equal(tensor, self._after(name, step)):
                raise ViolationError(f"rank {self._rank}: {name} is not what it was after step {step}")

    def loss(self) -> float:
        """Return a number that depends on the state and on the random generator, and excites no monitor."""
        state = sum(int(tensor[-1]) % 1024 for tensor in self.tensors.values()) / 1024
        return 2.0 + 1e-6 * state + 1e-6 * float(torch.rand(()))

    def _files(self) -> list[str]:
        prefix = "bf16_" if self._bf16 else ""
        model = f"zero_pp_rank_{self._rank}_mp_rank_00_model_states.pt" if self._stage == 3 else _SHARED
        own = f"{prefix}zero_pp_rank_{self._rank}_mp_rank_00_optim_states.pt"
        return [model, own] if self._stage > 0 else [model]

    def _after(self, name: str, step: int) -> torch.Tensor:
        first = torch.arange(self._elements, dtype=torch.int32) * (2 * len(name) + 1)
        if name != _SHARED:
            first += self._rank
        # `step` times x * A + C is once x * a + c.
        a, c, base_a, base_c = 1, 0, _A, _C
        while step:
            if step & 1:
                a, c = a * base_a % 2**32, (c * base_a + base_c) % 2**32
            base_a, base_c = base_a * base_a % 2**32, (base_c * base_a + base_c) % 2**32
            step >>= 1
        return first.mul_(_signed(a)).add_(_signed(c))


def stand_in(
    config: RunConfig,
    marks: Marks,
    elements: int = 50_000,
    before_step: Callable[[int, int], None] = lambda _rank, _step: None,
) -> Train:
    """Return what a rank does in a training without a model; `before_step` gets rank and step."""

    def train(folder: RunFolder, attempt: int, claim: int, stop_requested: Callable[[], bool]) -> None:
        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        meeting = dist.FileStore(str(folder.submission.path / f"meeting-{claim}-{attempt}"), ranks)
        limit = timedelta(seconds=config.supervisor.phase_limit_s)
        dist.init_process_group("gloo", store=meeting, rank=rank, world_size=ranks, timeout=limit)
        engine = StandInEngine(config, rank, elements)
        session = Session(
            folder=folder,
            attempt=attempt,
            claim=claim,
            config=config,
            engine=engine,
            num_samples=SAMPLES,
            stop_requested=stop_requested,
        )
        session.resume()
        if session.running:
            engine.check(session.completed_steps)
            marks.resumed(rank)
        while session.running:
            session.batches()
            before_step(rank, session.completed_steps + 1)
            engine.step()
            while session.step(engine.loss()):
                before_step(rank, session.completed_steps + 1)
                engine.step()
        if session.reached_end:
            session.finish("", str(folder.model))
        session.close()

    return train


def _signed(value: int) -> int:
    return value - 2**32 if value >= 2**31 else value
