"""Training loops as somebody with a model of their own writes them: one that is right, and some that are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hpc_resume.config.deepspeed_json import resolve_deepspeed
from hpc_resume.config.schema import RunConfig
from hpc_resume.journal.folder import RunFolder
from hpc_resume.session import Session
from hpc_resume.trainers.engine import build_engine, close_engine, set_learning_rate, step_health

SAMPLES = 40


class Curriculum:
    """Something of the user's that changes with every step: here, how much noise the inputs get."""

    def __init__(self) -> None:
        self.noise = 0.5

    def advance(self) -> None:
        self.noise *= 0.9

    def state_dict(self) -> dict[str, Any]:
        return {"noise": self.noise}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.noise = state_dict["noise"]


def train(folder: RunFolder, attempt: int, claim: int, config: RunConfig, stop_requested: Callable[[], bool]) -> None:
    """Keep all that matters in the checkpoint."""
    curriculum = Curriculum()
    _train(folder, attempt, claim, config, stop_requested, curriculum, {"curriculum": curriculum})


def forget(folder: RunFolder, attempt: int, claim: int, config: RunConfig, stop_requested: Callable[[], bool]) -> None:
    """Begin the curriculum anew in every process."""
    _train(folder, attempt, claim, config, stop_requested, Curriculum(), {})


def reseed(folder: RunFolder, attempt: int, claim: int, config: RunConfig, stop_requested: Callable[[], bool]) -> None:
    """Seed torch where everybody does, at the start of the process, but after the state was loaded."""
    curriculum = Curriculum()
    _train(folder, attempt, claim, config, stop_requested, curriculum, {"curriculum": curriculum}, seed_late=True)


def nudge(folder: RunFolder, attempt: int, claim: int, config: RunConfig, stop_requested: Callable[[], bool]) -> None:
    """Load one moment of one rank to the next larger number; no later loss shows that."""
    import deepspeed

    load = deepspeed.DeepSpeedEngine.load_checkpoint

    def load_nearly(engine: Any, *args: Any, **kwargs: Any) -> Any:
        loaded = load(engine, *args, **kwargs)
        if engine.global_rank == 1:
            moment = next(iter(engine.basic_optimizer.state.values()))["exp_avg_sq"].view(-1)
            moment[0] = torch.nextafter(moment[0], torch.tensor(1.0))
        return loaded

    deepspeed.DeepSpeedEngine.load_checkpoint = load_nearly
    train(folder, attempt, claim, config, stop_requested)


def fail(*_: Any) -> None:
    """Never get as far as a step."""
    raise RuntimeError("this loop has a mistake")


def _train(
    folder: RunFolder,
    attempt: int,
    claim: int,
    config: RunConfig,
    stop_requested: Callable[[], bool],
    curriculum: Curriculum,
    stateful: dict[str, Curriculum],
    *,
    seed_late: bool = False,
) -> None:
    engine = build_engine(config, resolve_deepspeed(config.training.deepspeed, config), lambda: _model(config.seed))
    session = Session(
        folder=folder,
        attempt=attempt,
        claim=claim,
        config=config,
        engine=engine,
        num_samples=SAMPLES,
        stop_requested=stop_requested,
        stateful=stateful,
    )
    session.resume()
    if seed_late:
        torch.manual_seed(config.seed)
    while session.running:
        for ids in session.batches():
            set_learning_rate(engine, config.training.learning_rate)
            inputs = torch.tensor([[float(i % 7), float(i % 5)] for i in ids])
            loss = engine(inputs + curriculum.noise).square().mean()
            engine.backward(loss)
            engine.step()
            curriculum.advance()
            norm, skipped = step_health(engine)
            if not session.step(loss, grad_norm=norm, skipped=skipped, samples=ids):
                break
    if session.reached_end:
        session.finish(weights_digest="", model="")
    session.close()
    close_engine()


def _model(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
    ).train()
