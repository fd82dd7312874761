"""What a person can get wrong with Slurm, and what Slurm itself does when it refuses, or does not answer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from slurm.cluster import MiniSlurm
from slurm.runs import LIMIT_S, SlurmRuns, hpc_resume, scripted_config, start_hpc_resume, submit_scripted, write_config

from hpc_resume.cli.submission import find_target

REFUSED = {
    "unknown partition": ({"cluster__partition": "nope"}, "invalid partition specified: nope"),
    "unknown node to stay away from": ({"cluster__sbatch": {"exclude": "n2,n17"}}, "Invalid node name specified"),
    "more GPUs than any node has": ({"cluster__gpus_per_node": 9}, "Requested node configuration is not available"),
    "an option that sbatch does not have": ({"cluster__sbatch": {"colour": "red"}}, "unrecognized option"),
}


def complaint(stderr: str) -> str:
    """The one line that a command leaves when it fails."""
    assert stderr.startswith("error: ")
    assert stderr.count("\n") == 1
    return stderr


@pytest.mark.parametrize(("changes", "why"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_of_sbatch_is_told_in_its_own_words_and_nothing_is_left(
    slurm: MiniSlurm, tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    done = hpc_resume(slurm, "submit", str(write_config(tmp_path, **changes)), check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    line = complaint(done.stderr)
    assert "sbatch refused" in line
    assert why in line
    assert list((tmp_path / "runs").iterdir()) == []
    assert slurm.run("squeue", "--all", "--noheader") == ""


def test_a13_more_runs_than_an_array_can_have_are_refused_before_anything_is_written(
    slurm: MiniSlurm, tmp_path: Path
) -> None:
    config = write_config(tmp_path, sweep={"seed": list(range(1002))})
    done = hpc_resume(slurm, "submit", str(config), check=False)
    assert done.returncode == 2
    line = complaint(done.stderr)
    assert "1002 runs" in line
    assert "MaxArraySize=1001" in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "corpus.txt"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_run_whose_node_does_not_see_its_folder_is_lost_and_can_be_sent_again(
    slurm: MiniSlurm, tmp_path: Path
) -> None:
    slurm.hide_folder_from("n1", tmp_path)
    on_n1 = {"cluster__nodes": 1, "cluster__sbatch": {"nodelist": "n1"}}
    runs = submit_scripted(slurm, tmp_path, **on_n1)
    runs.wait_for_state("lost")
    word = runs.status()["last_word"]
    assert f"job {runs.job()} ended as FAILED" in word
    assert f"do its nodes see {runs.run().path}?" in word
    assert not runs.run().claim(1).exists()

    slurm.settle()
    assert "run 0" in runs.command("resubmit", str(runs.folder.path), "--dry-run").stdout
    runs.command("resubmit", str(runs.folder.path))
    runs.wait_for_state("finished")


def test_a18_a_job_that_slurm_took_without_an_answer_is_found_and_sent_only_once(
    slurm: MiniSlurm, tmp_path: Path
) -> None:
    config = scripted_config(tmp_path, name="patient")
    with slurm.stalled_controller():
        # It is asked for a setting first only where there are several runs; here sbatch is what gets no answer.
        submission = start_hpc_resume(slurm, "submit", str(config))
        assert submission.stderr is not None
        assert "Slurm did not answer" in submission.stderr.readline()
    output, errors = submission.communicate(timeout=LIMIT_S)
    assert submission.returncode == 0, errors
    # sbatch itself may have tried twice; then the second job was taken back.
    left = [job for job in slurm.jobs() if job.get("JobName") == "patient" and job["JobState"] != "CANCELLED"]
    (job,) = left
    assert f"as job {job['JobId']}" in output

    runs = SlurmRuns(slurm, find_target(config)[0], config, tmp_path)
    runs.wait_for_state("finished")
