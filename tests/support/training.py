"""Real trainings with real ranks on this machine, small enough to be many."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hpc_resume.journal.folder import RunFolder, SubmissionFolder
from hpc_resume.journal.metrics import read_rows
from hpc_resume.journal.reader import read_journal
from hpc_resume.recovery import History

STEPS = 40
BATCH = 8
SAMPLES = 100


@dataclass(frozen=True)
class Outcome:
    """A submission that has ended."""

    code: int
    output: str
    folder: SubmissionFolder
    index: int = 0

    @property
    def run(self) -> RunFolder:
        return self.folder.run(self.index)

    @property
    def history(self) -> History:
        return read_journal(self.run).history

    def losses(self) -> dict[int, str]:
        """Loss of each step of the surviving branch, to the last bit."""
        found: dict[int, str] = {}
        for attempt in self.history.attempts:
            if attempt.resumed is None:
                continue  # it never came to train, and gave nothing up
            rows = [row for row in read_rows(self.run.metrics(attempt.started.attempt)) if "step" in row]
            found = {step: loss for step, loss in found.items() if step <= attempt.resumed.step}
            for row in rows:  # an attempt may go back as well
                found = {step: loss for step, loss in found.items() if step < row["step"]}
                found[row["step"]] = repr(row["loss"])
        return found

    def samples(self, ranks: int = 2) -> dict[int, list[int]]:
        """Samples that each step of the surviving branch was really trained on, in the order of the stream."""
        found: dict[int, list[int]] = {}
        for attempt in self.history.attempts:
            if attempt.resumed is None:
                continue
            shares = [
                # Of steps that an attempt has trained twice, the last time.
                {row["step"]: row["samples"] for row in read_rows(self.run.samples(attempt.started.attempt, rank))}
                for rank in range(ranks)
            ]
            first = min(shares[0], default=attempt.resumed.step + 1)
            assert first <= attempt.resumed.step + 1
            found = {step: ids for step, ids in found.items() if step < first}
            for step in set.intersection(*(set(share) for share in shares)):
                # Each rank has micro batches of two samples of its own; the stream alternates between the ranks.
                places = range(0, len(shares[0][step]), 2)
                found[step] = [i for at in places for share in shares for i in share[step][at : at + 2]]
        return dict(sorted(found.items()))


def make_config(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    """Return a config of a tiny model on two ranks; `changes` are dotted keys, with `__` for the dot."""
    text = tmp_path / "corpus.txt"
    # Exactly SAMPLES blocks of 32 bytes, all different, so that one epoch is 12.5 steps.
    words = " ".join(f"the {n} cats sat on {n * n} mats;" for n in range(2 * SAMPLES))
    text.write_text(words[: SAMPLES * 32 - 1], encoding="utf-8")
    config: dict[str, Any] = {
        "name": "test",
        "runs_dir": str(tmp_path / "runs"),
        "seed": 7,
        "cluster": {"kind": "local", "ranks_per_node": 2},
        "model": {
            "config": {
                "model_type": "llama",
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "max_position_embeddings": 64,
                "attention_dropout": 0.1,
            }
        },
        "data": {"paths": [str(text)], "sequence_tokens": 32, "record_samples": True},
        "training": {
            "steps": STEPS,
            "micro_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "learning_rate": 3e-3,
            "precision": "fp32",
            "deepspeed": {"zero_optimization": {"stage": 2}},
        },
        "checkpoints": {"interval_steps": 4, "certify_after_steps": 2},
        "monitor": {"spike_warmup_steps": 8, "spike_window_steps": 8, "spike_patience_steps": 2},
        "recovery": {"rollback_margin_steps": 1},
        "supervisor": {"heartbeat_s": 0.2},
    }
    for key, value in changes.items():
        *sections, last = key.split("__")
        place = config
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return config


def environment() -> dict[str, str]:
    """Return an environment in which nothing is compiled and no job of ours is around."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HPC_RESUME_", "SLURM_"))}
    return {**kept, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start the command line."""
    return subprocess.Popen(
        [sys.executable, "-m", "hpc_resume", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
    )


def train(folder: Path, **changes: Any) -> Outcome:
    """Submit a tiny training with some settings changed, and wait for its end."""
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(make_config(folder, **changes)), encoding="utf-8")
    process = start("submit", str(path))
    output, _ = process.communicate(timeout=300)
    return Outcome(process.returncode, output, SubmissionFolder(folder / "runs" / "test"))


def status(outcome: Outcome) -> list[dict[str, Any]]:
    """Ask for the state of a submission as a program would."""
    output, _ = start("status", str(outcome.folder.path), "--json").communicate(timeout=60)
    found: list[dict[str, Any]] = json.loads(output)
    return found


def launch_ranks(script: Path, folder: Path, ranks: int) -> None:
    """Run a script of a test with so many real ranks, which write what they saw into the folder."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "--max-restarts=0"]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, *launcher, str(script), str(folder)],
        env={**environment(), "PYTHONPATH": f"{root}:{root / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
