"""Kills real DeepSpeed runs at seeded random instants, and compares them with undisturbed ones; prints a line of JSON.

`python -m torture.kill_real_runs FOLDER --kills 4 --seed 7 --runs 1/async/fp32 2/sync/fp32` in `tests`; a run is a ZeRO
stage, a mode of saving and a precision.
"""

# ruff: noqa: T201 (it answers on its standard output)

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from support.training import Outcome, make_config
from torture.forks import Train, ViolationError
from torture.marks import Marks
from torture.victims import Victim, make_run

from hpc_resume.cluster.processes import tie_to_parent
from hpc_resume.config.load import load_config
from hpc_resume.config.schema import RunConfig
from hpc_resume.journal.folder import RunFolder

_PATIENCE = {"perturb_on": ["loss"], "rollback_margin_steps": 1, "crash_budget": 10**6, "node_budget": 10**6}
_MODEL = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "attention_dropout": 0.1,
}
"""Large enough that a save takes a while."""


def import_everything() -> None:
    """Import once what every rank needs; after this the process still has only one thread, and may be forked."""
    import torch
    import transformers.models.llama.modeling_llama  # noqa: F401

    import hpc_resume.trainers.causal_lm  # noqa: F401

    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed  # noqa: F401

    torch.set_num_threads(1)


def config_of(parent: Path, stage: int, mode: str, precision: str) -> RunConfig:
    """Return the config of a real run with two ranks."""
    values = make_config(
        parent,
        model__config=_MODEL,
        training__deepspeed={"zero_optimization": {"stage": stage}},
        training__precision=precision,
        training__gradient_accumulation_steps=1,
        checkpoints__mode=mode,
        checkpoints__interval_steps=2,
        recovery=_PATIENCE,
    )
    path = parent / "config.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return load_config(path)


def real(marks: Marks) -> Train:
    """Return what a rank of a real run does, with a mark when it trains."""

    def train(folder: RunFolder, attempt: int, claim: int, stop_requested: Callable[[], bool]) -> None:
        from hpc_resume.session import Session
        from hpc_resume.worker.train import train as train_really

        resume = Session.resume

        def marked_resume(self: Any) -> None:
            resume(self)
            marks.resumed(int(os.environ["RANK"]))

        Session.resume = marked_resume  # type: ignore[method-assign]
        train_really(folder, attempt, claim, stop_requested)

    return train


def make_victim(parent: Path, stage: int, mode: str, precision: str) -> Victim:
    parent.mkdir()
    config, marks = config_of(parent, stage, mode, precision), Marks()
    return Victim(make_run(parent, config), config, real(marks), marks, span_s=0.4)


def differences(run: RunFolder, reference: RunFolder) -> list[str]:
    """Return in what two finished runs differ."""
    one, other = (Outcome(0, "", each.submission) for each in (run, reference))
    found = []
    if one.losses() != other.losses():
        found.append("losses")
    ends = [outcome.history.finished for outcome in (one, other)]
    if None in ends or ends[0].weights_digest != ends[1].weights_digest:  # type: ignore[union-attr]
        found.append("weights")
    if one.samples() != other.samples():
        found.append("samples")
    if one.history.replay_differences or one.history.rejected or one.history.quarantined:
        found.append("what its journal says of replayed steps and checkpoints")
    return found


def torture_one(parent: Path, kind: str, kills: int, seed: int) -> list[int]:
    """Kill runs of a kind so often, and compare each with one undisturbed in the end; return where each kill hit."""
    stage, mode, precision = kind.split("/")
    name = kind.replace("/", "-")
    began = time.monotonic()
    reference = make_victim(parent / f"undisturbed-{name}", int(stage), mode, precision)
    reference.finish()
    middle = time.monotonic()
    dice = random.Random(f"{seed}/{kind}")
    hits: list[int] = []
    runs = 0
    while len(hits) < kills:  # a run may come to its end before it was killed often enough
        runs += 1
        victim = make_victim(parent / f"killed-{name}-{runs}", int(stage), mode, precision)
        while len(hits) + len(victim.hits) < kills and victim.survive(dice):
            pass
        victim.finish()
        if found := differences(victim.folder, reference.folder):
            raise ViolationError(f"the killed run and the undisturbed one differ in {', '.join(found)}")
        hits += victim.hits
    seconds = (middle - began, time.monotonic() - middle)
    sys.stderr.write(f"{kind}: undisturbed {seconds[0]:.0f} s, {kills} kills in {runs} runs {seconds[1]:.0f} s\n")
    return hits


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", nargs="+", required=True)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    tie_to_parent(os.getppid(), signal.SIGKILL)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import_everything()
    hits: list[int] = []
    for kind in arguments.runs:
        try:
            hits += torture_one(arguments.folder, kind, arguments.kills, arguments.seed)
        except ViolationError as error:
            sys.exit(f"--runs {kind} --kills {arguments.kills} --seed {arguments.seed}: {error}")
    print(json.dumps(hits))


if __name__ == "__main__":
    main()
