"""What README.md says about looking at a cluster, tried on one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from slurm.cluster import MiniSlurm

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
QUESTIONS = [line for line in README.splitlines() if line.startswith("scontrol ")]
ANSWERS = {
    "config": ("JobRequeue", "KillWait", "MaxArraySize", "SlurmdTimeout"),
    "partition": ("GraceTime=12", "MaxTime=UNLIMITED", "PreemptMode=REQUEUE"),
    "job": ("Requeue=1",),
}


@pytest.mark.parametrize("line", QUESTIONS, ids=[line.split()[2] for line in QUESTIONS])
def test_a_question_to_slurm_is_answered(slurm: MiniSlurm, line: str) -> None:
    job = slurm.run("sbatch", "--parsable", "--requeue", "--wrap", "sleep 1000").strip()
    command = line.replace("partition gpu", "partition main").replace("job 1234", f"job {job}")
    done = subprocess.run(
        ["bash", "-c", command], env=slurm.environment(), capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [word for word in ANSWERS[line.split()[2]] if word not in done.stdout] == []


def test_every_kind_of_question_is_in_the_readme() -> None:
    assert [line.split()[2] for line in QUESTIONS] == list(ANSWERS)
