"""How ranks are started on a job's nodes, and how each finds out who it is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_resume.cluster.srun import (
    become_rank,
    cores_of_a_rank,
    ended_ranks,
    gres_of,
    option_list,
    srun_command,
    step_name,
)
from hpc_resume.config.cluster_section import ClusterConfig
from hpc_resume.journal.folder import RunFolder

FOLDER = RunFolder(Path("/runs/small/run-0003"))


def command(nodes: tuple[str, ...] = ("n1", "n2"), cpus: str | None = None, **settings: Any) -> list[str]:
    return srun_command(FOLDER, 7, 2, ClusterConfig(nodes=2, ranks_per_node=4, **settings), nodes, cpus)


def test_one_process_a_rank_is_started_on_the_nodes_of_the_job() -> None:
    options, program = command()[1:-6], command()[-6:]
    assert command()[0] == "srun"
    assert set(options) == {
        "--nodes=2",
        "--ntasks=8",
        "--ntasks-per-node=4",
        "--nodelist=n1,n2",
        "--gres=gpu:4",
        "--output=/runs/small/run-0003/logs/attempt-0007/rank-%4t.out",
        "--open-mode=append",
        "--kill-on-bad-exit=1",
        "--job-name=attempt-7",
        "--export=ALL",
    }
    assert program == [sys.executable, "-m", "hpc_resume.worker", str(FOLDER.path), "7", "2"]


@pytest.mark.parametrize(
    ("job", "config", "cores"),
    [("8", None, "8"), ("8", 4, "8"), (None, 4, "4"), (None, None, None)],
    ids=["the job's", "the job's before ours", "ours where the job does not say", "nobody's"],
)
def test_a_rank_gets_the_cores_that_the_job_has_for_it(job: str | None, config: int | None, cores: str | None) -> None:
    environment = {} if job is None else {"SLURM_CPUS_PER_TASK": job}
    assert cores_of_a_rank(ClusterConfig(cpus_per_rank=config), environment) == cores


def test_of_more_nodes_than_needed_the_first_are_taken() -> None:
    assert "--nodelist=n3,n1" in command(("n3", "n1", "n2"))


def test_each_rank_gets_the_cores_that_the_job_has_for_it() -> None:
    assert "--cpus-per-task=12" in command(cpus="12")
    assert not any(option.startswith("--cpus-per-task") for option in command())


def test_options_of_the_users_go_before_ours() -> None:
    found = command(
        srun={"container-image": "torch.sqsh", "open-mode": "truncate", "mpi": "pmix", "no-container": True}
    )
    assert {"--container-image=torch.sqsh", "--open-mode=truncate", "--mpi=pmix", "--no-container"} <= set(found)
    assert "--open-mode=append" not in found


def test_ranks_can_have_a_python_of_their_own() -> None:
    assert command(python="/opt/python")[-6] == "/opt/python"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param({}, "gpu:2", id="one a rank"),
        pytest.param({"gpus_per_node": 1}, "gpu:1", id="as many as asked for"),
        pytest.param({"gpus_per_node": 0}, None, id="none"),
        pytest.param({"sbatch": {"gres": "gpu:a100:2"}}, "gpu:a100:2", id="of a type"),
        pytest.param({"sbatch": {"gres": ["gpu:2", "tmp:9"]}}, "gpu:2,tmp:9", id="and something else"),
        pytest.param({"sbatch": {"gres": False}}, None, id="left out"),
        pytest.param({"sbatch": {"gpus-per-node": 2}}, None, id="with another option"),
        pytest.param({"sbatch": {"gpus_per_node": "a100:2"}, "gpus_per_node": 2}, None, id="with both"),
        pytest.param({"sbatch": {"constraint": "a100"}}, "gpu:2", id="other options do not matter"),
    ],
)
def test_the_gpus_of_each_node(settings: dict[str, Any], expected: str | None) -> None:
    config = ClusterConfig(ranks_per_node=2, **settings)
    assert gres_of(config) == expected
    given = [option for option in srun_command(FOLDER, 1, 1, config, ("n1",), None) if option.startswith("--gres")]
    assert given == ([f"--gres={expected}"] if expected else [])


def test_options_are_written_as_slurm_reads_them() -> None:
    options = {
        "nodes": 2,
        "exclusive": True,
        "overlap": False,
        "time": None,
        "cpu_bind": "cores",
        "mem": 0,
        "x": [1, 2],
    }
    assert option_list(options) == ["--nodes=2", "--exclusive", "--cpu-bind=cores", "--mem=0", "--x=1,2"]


SLURM = {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "8", "SLURM_NTASKS": "16"}


def test_a_rank_of_srun_is_one_in_torchs_words() -> None:
    environment = dict(SLURM)
    become_rank(environment)
    assert environment == {**SLURM, "RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}


@pytest.mark.parametrize(
    "environment", [{"RANK": "0", **SLURM}, {}, {"RANK": "3"}], ids=["torchrun in a job", "alone", "torchrun"]
)
def test_a_rank_that_knows_who_it_is_stays_so(environment: dict[str, str]) -> None:
    before = dict(environment)
    become_rank(environment)
    assert environment == before


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SLURM_JOB_ID": "71", "SLURM_STEP_ID": "4"}, "71.4"),
        ({"SLURM_JOB_ID": "71", "SLURM_STEP_ID": "0"}, "71.0"),
        ({"SLURM_JOB_ID": "71"}, ""),
        ({}, ""),
    ],
    ids=["a step", "the first step", "the batch script", "no job"],
)
def test_the_name_of_a_step_is_as_scancel_takes_it(environment: dict[str, str], expected: str) -> None:
    assert step_name(environment) == expected


def test_the_ranks_that_srun_says_ended_badly_are_read_in_its_order() -> None:
    text = (
        "srun: error: n2: task 3: Killed\n"
        "srun: launch/slurm: _step_signal: Terminating StepId=7.0\n"
        "slurmstepd-n1: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-30T06:29:11 ***\n"
        "srun: error: n1: tasks 0-1,4: Exited with exit code 1\n"
    )
    assert ended_ranks(text) == [3, 0, 1, 4]
    assert ended_ranks("srun: error: Node failure on n2\n") == []
