"""Kills small runs at seeded random instants; prints one line of JSON.

`python -m torture.kill_small_runs FOLDER --runs 0 10 --kills 12 --seed 7` in `tests`; one run alone: `--runs 3 4`.
A run that fails is left as it is.
"""

# ruff: noqa: T201 (it answers on its standard output)

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
from pathlib import Path

from torture.forks import ViolationError
from torture.marks import Marks
from torture.victims import Mode, Victim, make_run, small_config

from hpc_resume.cluster.processes import tie_to_parent

_SOMEBODY_ELSES = {"latest": "global_step7", "notes.txt": "mine", "step-backup/model.pt": "mine too"}
"""What people and other tools leave among the checkpoints."""


def make_victim(parent: Path, seed: int, number: int, damage_rate: float) -> tuple[Victim, random.Random]:
    """Return the run with this number, and what draws its kills."""
    import torch
    from torture.stand_in import stand_in

    torch.set_num_threads(1)
    dice = random.Random(f"{seed}/{number}")
    modes: list[Mode] = ["async", "async", "sync"]
    mode = dice.choice(modes)
    staging = str(parent / f"staging-{number}") if mode == "async" and dice.random() < 0.25 else None
    config = small_config(
        f"run-{number:04d}",
        stage=number % 4,
        ranks=dice.choice([1, 2, 2]),
        precision=dice.choice(["fp32", "bf16"]),
        mode=mode,
        interval=dice.choice([1, 2, 3]),
        staging_dir=staging,
    )
    marks = Marks()
    folder = make_run(parent, config)
    for name, text in _SOMEBODY_ELSES.items():
        path = folder.checkpoints / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    train = stand_in(config, marks, elements=dice.choice([10_000, 50_000, 200_000]))
    # After so many steps the oldest checkpoints are deleted, one with nearly every save.
    head_start = dice.choice([0, 0, 120])
    return Victim(folder, config, train, marks, damage_rate=damage_rate, head_start=head_start), dice


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, nargs=2, default=(0, 10))
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--damage", type=float, default=0.0, help="how often a checkpoint is damaged before a start")
    arguments = parser.parse_args()
    tie_to_parent(os.getppid(), signal.SIGKILL)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    hits: list[int] = []
    for number in range(*arguments.runs):
        victim, dice = make_victim(arguments.folder, arguments.seed, number, arguments.damage)
        try:
            for _ in range(arguments.kills):
                victim.survive(dice)
            victim.judge()
        except ViolationError as error:
            same = " ".join(f"--{name} {getattr(arguments, name)}" for name in ("kills", "seed", "damage"))
            sys.exit(
                f"--runs {number} {number + 1} {same}: {victim.config.name}, after {len(victim.hits)} kills: {error}"
            )
        hits += victim.hits
        shutil.rmtree(victim.folder.submission.path)
    print(json.dumps(hits))


if __name__ == "__main__":
    main()
