"""The batch script that is sent: what Slurm is asked for, word by word."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from support.stand_in_slurm import UNREACHABLE, StandInSlurm, job_line

from hpc_resume.cluster.slurm import SlurmCluster, may_requeue
from hpc_resume.cluster.slurm_commands import SilentError
from hpc_resume.config.cluster_section import ClusterConfig
from hpc_resume.config.schema import RunConfig, SupervisorConfig
from hpc_resume.errors import ClusterError, ConfigError
from hpc_resume.journal.folder import SubmissionFolder

FOLDER = SubmissionFolder(Path("/nowhere/small"))


def seeds(count: int) -> dict[str, Any]:
    return {"sweep": {"seed": list(range(count))}}


def script(runs: list[int] | None = None, settings: dict[str, Any] | None = None, **cluster: Any) -> str:
    config = RunConfig(name="small", cluster=ClusterConfig(kind="slurm", **cluster), **(settings or {}))
    return SlurmCluster().script(FOLDER, [0] if runs is None else runs, config)


def options(text: str) -> dict[str, str]:
    """The lines for sbatch, without the quotes that its own reading takes away."""
    lines = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH ")]
    pairs = [shlex.split(line)[0].partition("=") for line in lines]
    assert len({name for name, _, _ in pairs}) == len(pairs), "an option stands there twice"
    return {name: value for name, _, value in pairs}


def test_a_script_as_it_is_sent() -> None:
    text = script(
        [1, 3, 7, 8, 9],
        seeds(10),
        nodes=2,
        ranks_per_node=4,
        cpus_per_rank=8,
        parallelism=2,
        walltime_min=90,
        partition="gpu",
        account="physics",
        setup=("module load cuda", 'export X="a b"'),
    )
    assert options(text) == {
        "job-name": "small",
        "array": "1,3,7-9%2",
        "nodes": "2",
        "ntasks-per-node": "4",
        "cpus-per-task": "8",
        "gres": "gpu:4",
        "time": "90",
        "partition": "gpu",
        "account": "physics",
        "requeue": "",
        "open-mode": "append",
        "signal": "B:USR2@120",
        "output": "/nowhere/small/run-%4a/logs/supervisor.out",
    }
    lines = text.splitlines()
    assert lines[0] == "#!/bin/bash"
    # What the batch shell turns itself into hears the signals, and nothing after it would run.
    assert lines[-1] == f"exec {sys.executable} -u -m submitit.core._submit /nowhere/small/cluster"
    assert lines.index("module load cuda") + 1 == lines.index('export X="a b"') < len(lines) - 1
    assert not any("srun" in line for line in lines)


@pytest.mark.parametrize(("cores", "of_a_node"), [(None, "4"), (16, "64")], ids=["Slurm's cores", "our cores"])
def test_a_range_of_nodes_is_asked_for_without_a_number_of_tasks(cores: int | None, of_a_node: str) -> None:
    # Slurm would keep it from one start to the next, and never let a job go on with fewer nodes than it had.
    found = options(script(nodes="2-4", ranks_per_node=4, cpus_per_rank=cores))
    assert (found["nodes"], found["mincpus"], found["gres"]) == ("2-4", of_a_node, "gpu:4")
    assert not {"ntasks", "ntasks-per-node", "cpus-per-task"} & set(found)


def test_what_else_sets_the_cores_of_a_node_goes_before_ours() -> None:
    assert options(script(nodes="2-4", sbatch={"mincpus": 96}))["mincpus"] == "96"


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([0, 1, 2, 3], "0-3"),
        ([2], "2"),
        ([0, 2], "0,2"),
        ([9, 7, 8, 1, 3], "1,3,7-9"),
        ([0, 1, 3, 4], "0-1,3-4"),
    ],
    ids=str,
)
def test_the_indices_of_the_array_are_the_numbers_of_the_runs(runs: list[int], expected: str) -> None:
    assert options(script(runs, seeds(10)))["array"] == expected
    assert options(script(runs, seeds(10), parallelism=3))["array"] == f"{expected}%3"


def test_a_single_run_is_no_array() -> None:
    found = options(script([0], parallelism=2))
    assert "array" not in found
    assert found["output"] == "/nowhere/small/run-0000/logs/supervisor.out"


def test_one_run_of_a_sweep_that_is_sent_again_is_one(tmp_path: Path) -> None:
    folder = SubmissionFolder(tmp_path)
    for index in range(3):
        folder.run(index).path.mkdir()
    config = RunConfig(name="small", **seeds(3))
    assert options(SlurmCluster().script(folder, [2], config))["array"] == "2"


def test_without_a_limit_of_ours_the_sites_is_left_in_force() -> None:
    assert "time" not in options(script())


@pytest.mark.parametrize("walltime_min", [None, 60], ids=["the site's limit", "our limit"])
def test_before_the_end_only_the_supervisor_is_signalled_and_as_early_as_it_needs(walltime_min: int | None) -> None:
    settings = {"supervisor": SupervisorConfig(deadline_margin_s=600.0)}
    assert options(script(settings=settings, walltime_min=walltime_min))["signal"] == "B:USR2@600"


def test_what_nobody_set_is_left_to_the_site() -> None:
    left = {"partition", "account", "cpus-per-task", "wckey", "comment", "exclude", "constraint", "mem", "error"}
    assert not left & set(options(script()))


def test_options_of_the_users_go_before_ours_and_are_written_as_sbatch_reads_them() -> None:
    given = {
        "gres": "gpu:a100:2",
        "qos": "high",
        "exclude": ["n1", "n[3-5]"],
        "exclusive": True,
        "mail_type": "END",
        "reservation": None,
        "hold": False,
        "comment": "two words",
        "mem": 0,
    }
    found = options(script(sbatch=given))
    assert found["gres"] == "gpu:a100:2"
    assert found["qos"] == "high"
    assert found["exclude"] == "n1,n[3-5]"
    assert found["exclusive"] == ""
    assert found["mail-type"] == "END"
    assert found["comment"] == "two words"
    assert found["mem"] == "0"
    assert not {"reservation", "hold", "mail_type"} & set(found)


@pytest.mark.parametrize(
    "cluster",
    [{"gpus_per_node": 0}, {"sbatch": {"gres": False}}, {"sbatch": {"gpus-per-node": 4}}],
    ids=["none", "left out", "in another way"],
)
def test_gpus_are_asked_for_once_or_not_at_all(cluster: dict[str, Any]) -> None:
    found = options(script(**cluster))
    assert "gres" not in found
    assert found.get("gpus-per-node") == ("4" if "gpus-per-node" in cluster.get("sbatch", {}) else None)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInSlurm:
    """Programs that answer in Slurm's place."""
    return StandInSlurm(tmp_path / "bin", monkeypatch)


def swept(count: int) -> RunConfig:
    return RunConfig(name="small", cluster=ClusterConfig(kind="slurm"), **seeds(count))


@pytest.mark.parametrize(("runs", "fits"), [(4, True), (5, False)])
def test_more_runs_than_an_array_holds_are_refused(slurm: StandInSlurm, runs: int, fits: bool) -> None:
    # An index must be below this number.
    slurm.answers("scontrol", "MaxArraySize            = 4\n")
    if fits:
        SlurmCluster().check(swept(runs))
    else:
        with pytest.raises(ConfigError, match=r"the sweep has 5 runs, but .* go up to 3 here \(MaxArraySize=4\)"):
            SlurmCluster().check(swept(runs))


def test_one_run_needs_no_array_and_nobody_is_asked(slurm: StandInSlurm) -> None:
    SlurmCluster().check(swept(1))
    assert slurm.asked("scontrol") == []


def test_a_silent_slurm_is_said_to_be_silent_before_anything_is_written(slurm: StandInSlurm) -> None:
    slurm.refuses("scontrol", UNREACHABLE)
    with pytest.raises(ClusterError, match=r"can.t ask Slurm how large an array may be: .*Unable to contact"):
        SlurmCluster().check(swept(2))


REFUSED = "sbatch: error: Batch job submission failed: Invalid account\n"
SILENT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"


def submit_one(folder: Path) -> str:
    """Send one run from a folder of its own."""
    (folder / "small").mkdir()
    return SlurmCluster().submit(SubmissionFolder(folder / "small"), [0], swept(1))


def test_a_refusal_is_one_line_in_the_words_of_sbatch(
    slurm: StandInSlurm, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    slurm.refuses("sbatch", REFUSED)
    slurm.answers("srun")
    with pytest.raises(ConfigError, match=r"sbatch refused: .*Invalid account; nothing was sent") as caught:
        submit_one(tmp_path)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


def test_a_job_that_is_not_there_once_slurm_answers_again_was_not_sent(
    slurm: StandInSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpc_resume.cluster.slurm._LOOK_AGAIN_S", (0.01,))
    slurm.refuses("sbatch", SILENT)
    slurm.answers("srun")
    slurm.answers("squeue", "70|/elsewhere/.submission_file_1.sh\n71|(null)\n")
    with pytest.raises(ClusterError, match="the job is not there: nothing was sent") as caught:
        submit_one(tmp_path)
    assert not isinstance(caught.value, SilentError)
    assert len(slurm.asked("squeue")) == 2


def test_where_slurm_stays_silent_the_job_may_exist(
    slurm: StandInSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpc_resume.cluster.slurm._SILENCE_S", 0.01)
    slurm.refuses("sbatch", SILENT)
    slurm.answers("srun")
    slurm.refuses("squeue", UNREACHABLE)
    with pytest.raises(SilentError, match=r"Socket timed out .* the job may exist all the same"):
        submit_one(tmp_path)


def test_each_element_finds_its_description_and_the_script_is_the_one_that_was_shown(
    slurm: StandInSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.answers("sbatch", "Submitted batch job 71\n")
    slurm.answers("srun")
    # As from inside of another job.
    monkeypatch.setenv("SLURM_JOB_ID", "4")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "4")
    folder = SubmissionFolder(tmp_path / "small")
    folder.path.mkdir()
    shown = SlurmCluster().script(folder, [0, 2], swept(3))
    assert SlurmCluster().submit(folder, [0, 2], swept(3)) == "71"
    assert {path.name for path in folder.cluster.glob("*.pkl")} >= {"71_0_submitted.pkl", "71_2_submitted.pkl"}
    sent = (folder.cluster / "71_submission.sh").read_text()
    assert options(sent) == options(shown)
    assert sent.splitlines()[-1] == shown.splitlines()[-1]
    # Slurm opens this file before the supervisor can make its folder.
    assert all(folder.run(index).supervisor_log().parent.is_dir() for index in (0, 2))


def test_a_site_that_does_not_requeue_is_noticed(slurm: StandInSlurm) -> None:
    slurm.answers("scontrol", job_line("7_0", "PENDING", Requeue=1) + job_line("7_1", "PENDING", Requeue=0))
    assert not may_requeue("7")
    slurm.answers("scontrol", job_line("7", "PENDING", Requeue=1))
    assert may_requeue("7")
    slurm.refuses("scontrol", UNREACHABLE)
    assert may_requeue("7"), "nobody said otherwise"


def test_nothing_to_cancel_asks_nobody(slurm: StandInSlurm) -> None:
    SlurmCluster().cancel([])
    slurm.answers("scancel")
    SlurmCluster().cancel(["7_0", "9"])
    assert [line.split()[-2:] for line in slurm.asked("scancel")] == [["7_0", "9"]]
