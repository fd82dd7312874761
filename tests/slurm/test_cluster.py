"""The cluster that the other tests here stand on: does it do what Slurm does, and does it leave nothing behind?"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from slurm import cluster as cluster_module
from slurm import reaper
from slurm.cluster import MARK, MiniSlurm, processes_of

TWO_NODES = ("--nodes=2", "--requeue", "--open-mode=append", "--output=%x.txt")
SAY_AND_STAY = "echo restarts=$SLURM_RESTART_COUNT; sleep 1000"


def submit(slurm: MiniSlurm, *options: str, script: str = "sleep 1000") -> str:
    return slurm.run("sbatch", "--parsable", *options, "--wrap", script).strip()


def job(slurm: MiniSlurm, number: str) -> dict[str, str]:
    return next(job for job in slurm.jobs() if job["JobId"] == number)


def wait_until_running(slurm: MiniSlurm, number: str) -> None:
    slurm.wait_for(lambda: job(slurm, number)["JobState"] == "RUNNING", f"job {number} is running")


def has_restarted(output: Path) -> bool:
    return "restarts=1" in output.read_text()


def past_states(slurm: MiniSlurm, number: str) -> list[str]:
    rows = slurm.run("sacct", "--duplicates", "-X", "--noheader", "--parsable2", "--format=State", "-j", number)
    return rows.split()


def test_four_nodes_are_idle_and_have_four_gpus_each(slurm: MiniSlurm) -> None:
    assert slurm.node_states() == {name: {"IDLE"} for name in ("n1", "n2", "n3", "n4")}
    seen = slurm.run("srun", "-N4", "--gres=gpu:a100:4", "sh", "-c", "echo $SLURMD_NODENAME $SLURM_GPUS_ON_NODE")
    assert sorted(seen.splitlines()) == ["n1 4", "n2 4", "n3 4", "n4 4"]


def test_a_job_on_two_nodes_runs_and_is_accounted_for(slurm: MiniSlurm) -> None:
    number = submit(
        slurm, "--nodes=2", "--output=two.txt", script="srun sh -c 'echo $SLURM_PROCID on $SLURMD_NODENAME'"
    )
    slurm.wait_for(lambda: past_states(slurm, number) == ["COMPLETED"], "sacct says that the job is complete")
    assert sorted((slurm.folder / "two.txt").read_text().splitlines()) == ["0 on n1", "1 on n2"]


def test_jobs_come_back_after_a_dead_node_and_after_a_preemption(slurm: MiniSlurm) -> None:
    unlucky = submit(slurm, *TWO_NODES, "--job-name=unlucky", "--nodelist=n1,n2", script=SAY_AND_STAY)
    humble = submit(slurm, *TWO_NODES, "--job-name=humble", "--nodelist=n3,n4", "--exclusive", script=SAY_AND_STAY)
    outputs = {number: slurm.folder / f"{name}.txt" for number, name in ((unlucky, "unlucky"), (humble, "humble"))}
    slurm.wait_for(lambda: all(path.exists() and path.read_text() for path in outputs.values()), "both have begun")
    slurm.kill_node("n2")
    urgent = submit(slurm, "--partition=urgent", "--nodelist=n3,n4", "--exclusive", script="sleep 2")

    slurm.wait_for(lambda: past_states(slurm, unlucky)[0] == "NODE_FAIL", "sacct knows of the failure")
    slurm.wait_for(lambda: past_states(slurm, humble)[0] == "PREEMPTED", "sacct knows of the preemption")
    slurm.wait_for(lambda: past_states(slurm, urgent) == ["COMPLETED"], "the urgent job is complete")
    slurm.revive_node("n2")
    for number, path in outputs.items():
        slurm.wait_for(partial(has_restarted, path), f"job {number} runs again")
        assert job(slurm, number)["Restarts"] == "1"


def test_a_job_outlives_the_daemon_of_its_node(slurm: MiniSlurm) -> None:
    number = submit(slurm, script="exec sleep 1234")
    wait_until_running(slurm, number)
    node = job(slurm, number)["NodeList"]
    slurm.wait_for(lambda: commands(slurm.mark, "sleep 1234"), "the job's process runs")
    slurm.kill_slurmd(node)
    assert commands(slurm.mark, "sleep 1234")
    slurm.revive_node(node)
    assert job(slurm, number)["JobState"] == "RUNNING"


def test_a_killed_node_takes_its_job_along_and_can_be_settled(slurm: MiniSlurm) -> None:
    number = submit(slurm, script="exec sleep 1235")
    slurm.wait_for(lambda: commands(slurm.mark, "sleep 1235"), "the job's process runs")
    slurm.kill_node(job(slurm, number)["NodeList"])
    assert not commands(slurm.mark, "sleep 1235")
    slurm.settle()
    assert set(slurm.run("srun", "-N4", "sh", "-c", "echo $SLURMD_NODENAME").split()) == {"n1", "n2", "n3", "n4"}


def test_a_stalled_controller_answers_when_it_wakes_up(slurm: MiniSlurm) -> None:
    with slurm.stalled_controller():
        sbatch = subprocess.Popen(
            ["sbatch", "--job-name=patient", "--wrap", "true"],
            env=slurm.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        _, errors = sbatch.communicate(timeout=30)
    assert sbatch.returncode == 1
    assert b"Socket timed out" in errors
    slurm.wait_for(lambda: any(job["JobName"] == "patient" for job in slurm.jobs()), "the job was taken all the same")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_folder_can_be_hidden_from_one_node(slurm: MiniSlurm, tmp_path: Path) -> None:
    (tmp_path / "shared").touch()
    slurm.hide_folder_from("n4", tmp_path)
    look = ("ls", str(tmp_path))
    assert slurm.run("srun", "-w", "n4", *look) == ""
    assert slurm.run("srun", "-w", "n3", *look) == "shared\n"
    slurm.settle()
    assert slurm.run("srun", "-w", "n4", *look) == "shared\n"


def test_stopping_leaves_nothing(start_slurm: Callable[..., MiniSlurm]) -> None:
    slurm = start_slurm(accounting=False)
    wait_until_running(slurm, submit(slurm, "--nodes=2", script="trap '' TERM; srun sleep 1000"))
    slurm.kill_slurmd("n1")
    slurm.stop()
    assert processes_of(slurm.mark) == set()
    assert not slurm.folder.exists()


def test_a_process_that_escaped_from_slurm_is_reported_and_ended(start_slurm: Callable[..., MiniSlurm]) -> None:
    slurm = start_slurm(accounting=False)
    escaped = subprocess.Popen(["sleep", "1236"], env=slurm.environment())
    with pytest.raises(AssertionError, match="sleep 1236"):
        slurm.stop()
    assert escaped.wait() == -signal.SIGKILL


def test_settings_and_files_reach_slurm(start_slurm: Callable[..., MiniSlurm]) -> None:
    refuse = 'function slurm_job_submit() slurm.log_user("not today") return slurm.ERROR end\n'
    refuse += "function slurm_job_modify() return slurm.SUCCESS end\n"
    slurm = start_slurm(
        accounting=False,
        settings={"JobSubmitPlugins": "lua", "JobRequeue": "0"},
        files={"job_submit.lua": refuse},
    )
    assert "JobRequeue              = 0" in slurm.run("scontrol", "show", "config")
    environment = slurm.environment()
    done = subprocess.run(["sbatch", "--wrap", "true"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "not today" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_nothing_outlives_whoever_started_it(slurm_installed: None, number: signal.Signals) -> None:
    folder = Path(tempfile.mkdtemp(prefix="mini-slurm-"))
    command = [sys.executable, cluster_module.__file__, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        exports = dict(starter.stdout.readline().strip().removeprefix("export ").split("=") for _ in range(2))
        environment = {**os.environ, **exports}
        subprocess.run(["sbatch", "--output=/dev/null", "--wrap", "sleep 1237"], env=environment, check=True)
        wait_until(lambda: commands(exports[MARK], "sleep 1237"))
        starter.send_signal(number)
    assert starter.returncode == (-signal.SIGKILL if number is signal.SIGKILL else 0)
    wait_until(lambda: not processes_of(exports[MARK]) and not folder.exists())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_nothing_outlives_an_interrupted_run_of_these_tests_with_several_workers(
    slurm_installed: None, number: signal.Signals
) -> None:
    # Not in tmp_path: the clusters lie in here; a socket's path must be short, and munged wants it open to everybody.
    folder = Path(tempfile.mkdtemp(prefix="interrupted-"))
    folder.chmod(0o755)
    mark = f"INTERRUPTED={folder.name}"
    tests = ("jobs_come_back_after_a_dead_node", "a_job_outlives_the_daemon")
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", "-n2", "-p", "no:cacheprovider", "-k", " or ".join(tests), __file__],
        env={**os.environ, "INTERRUPTED": folder.name, "TMPDIR": str(folder)},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as controller:
        try:
            # One worker's job runs, the other worker is at anything.
            wait_until(lambda: any("sleep 1000" in cluster_module.command_line(pid) for pid in reaper.marked(mark)))
        finally:
            controller.send_signal(number)
    wait_until(lambda: not reaper.marked(mark) and not list(folder.glob("mini-slurm-*")))
    shutil.rmtree(folder)


def commands(mark: str, text: str) -> list[str]:
    """The command lines with this text among the processes of a cluster."""
    found = [cluster_module.command_line(pid) for pid in processes_of(mark)]
    return [line for line in found if text in line]


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
