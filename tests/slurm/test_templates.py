"""The batch scripts of slurm_templates/, sent with `sbatch` as a user would, survive what those of `submit` survive."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from slurm.cluster import MiniSlurm
from slurm.runs import LIMIT_S, SlurmRuns, incarnations, python_without_gpus, scripted_config, write_config

from hpc_resume.cluster.srun import gres_of
from hpc_resume.config.load import load_config
from hpc_resume.journal.folder import SubmissionFolder
from hpc_resume.recovery import events as ev

ROOT = Path(__file__).parents[2]
TEMPLATES = {path.stem: path for path in sorted((ROOT / "slurm_templates").glob("*.sbatch"))}
FOR_A_CONFIG = {
    "one_node": "a100_1node",
    "several_nodes": "a100_4nodes",
    "array": "a100_1node",
    "preemptible": "a100_1node",
}
STEPS = 40
SPIKE = {"kind": "spike", "step": 22, "lr_factor": 1e5, "duration_steps": 3}
LOST = "n2"
ONE_RANK = ("--ntasks-per-node=1", "--cpus-per-task=1", "--gres=gpu:1")
SIZES = {
    # The node that dies is one without the supervisor ...
    **dict.fromkeys(("several_nodes", "array"), ("--nodes=2", f"--nodelist=n1,{LOST}")),
    # ... or all that the run has.
    **dict.fromkeys(("one_node", "preemptible"), ("--nodes=1", f"--nodelist={LOST}")),
}


def option(template: Path, name: str) -> str | None:
    """Return an option of a template's header; empty if it is a flag, None if it is not there."""
    found = re.search(rf"^#SBATCH --{name}(?:=(\S+))?(?: |$)", template.read_text(encoding="utf-8"), re.MULTILINE)
    return (found.group(1) or "") if found else None


def fill_in(template: Path, folder: Path, config: Path) -> Path:
    """Copy a template and change what stands in angle brackets, nothing else."""
    texts = {
        "name": template.stem,
        "partition": "main",
        "account": "research",
        "qos": "normal",
        "modules": "none",
        "venv": sys.prefix,
        "cfg.yaml": str(config),
    }
    copy = folder / template.name
    text = template.read_text(encoding="utf-8")
    copy.write_text(re.sub(r"<([^>]+)>", lambda found: texts[found.group(1)], text), encoding="utf-8")
    return copy


def sbatch(cluster: MiniSlurm, script: Path, *options: str) -> str:
    """Send a script from its folder; return the job's number."""
    environment = {**cluster.environment(), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        ["sbatch", "--parsable", *options, str(script)],
        env=environment,
        cwd=script.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def send(cluster: MiniSlurm, name: str, folder: Path) -> tuple[SlurmRuns, int, str]:
    """Send a real training by a template; return it with the number of its run and the job's id."""
    nodes = int(SIZES[name][0].partition("=")[2])
    # Training waits at this step, in its second attempt, for whatever the test does to it.
    hang = {"kind": "rank_hang", "step": 36, "rank": nodes - 1}
    changes: dict[str, Any] = {
        "faults": [SPIKE, hang],
        "cluster__nodes": nodes,
        "cluster__gpus_per_node": 1,
        "cluster__python": python_without_gpus(folder),
    }
    index, options = 0, ()
    if name == "array":
        index, options = 1, ("--array=1",)
        changes["sweep"] = {"training.learning_rate": [1e-3, 3e-3]}
    config = write_config(folder, **changes)
    script = fill_in(TEMPLATES[name], folder, config)
    job = sbatch(cluster, script, *SIZES[name], *ONE_RANK, *options)
    runs = SlurmRuns(cluster, SubmissionFolder(folder / "runs" / "test"), config, folder)
    return runs, index, f"{job}_{index}" if name == "array" else job


def assert_lost_and_found(runs: SlurmRuns, index: int, job: str) -> None:
    """The run had a spike, lost a node, and got to its last step, in one job that Slurm started three times."""
    assert runs.wait_for_state("finished", index=index, limit_s=2 * LIMIT_S) == "finished"
    history = runs.history(index)
    assert history.finished is not None
    assert history.finished.step == STEPS
    assert runs.causes(index) == ["decided", "node", "finished"]
    spike, loss = (next(d for d in history.decisions if d.rule == rule) for rule in ("loss incident", "node lost"))
    assert spike.plan is not None
    assert 0 < spike.plan.step < 22
    assert loss.plan is not None
    assert loss.plan.step >= 32  # it saves every 4 steps, and was at step 35
    assert runs.events(ev.AttemptEnded, index)[1].node == LOST
    claims = [(claim.request.job_id, claim.request.restart_count) for claim in history.claims]
    assert claims == [(job, 0), (job, 1), (job, 2)]
    ends = ["REQUEUED", "NODE_FAIL", "COMPLETED"]
    runs.wait(lambda: incarnations(runs.cluster, job) == ends, f"the accounting says that job {job} ended like this")
    assert runs.job(index) == job
    (output,) = runs.home.glob("*.out")
    said = output.read_text(encoding="utf-8")
    assert len(re.findall(r" supervisor starting srun ", said)) == 3
    assert "loss incident" in said


@pytest.mark.deepspeed
def test_every_template_survives_a_spike_and_a_lost_node(slurm: MiniSlurm, tmp_path: Path) -> None:
    sent = [send(slurm, name, tmp_path / name) for name in TEMPLATES]
    for runs, index, _ in sent:
        runs.wait(runs.folder.path.exists, "its first supervisor has made the folder")
        runs.wait_for_event(ev.FaultInjected, 2, index)
    slurm.kill_node(LOST)
    # Whoever is left of the jobs asks Slurm about the node, and must not find it well again already.
    slurm.wait_for(lambda: slurm.node_states()["n1"] == {"IDLE"}, "Slurm has given the node up, and ended its jobs")
    slurm.revive_node(LOST)

    for runs, index, job in sent:
        assert_lost_and_found(runs, index, job)


def start_scripted(cluster: MiniSlurm, folder: Path, *options: str, action: dict[str, Any]) -> SlurmRuns:
    """Send ranks that follow a script by the template for one node."""
    config = scripted_config(folder, action, cluster__nodes=1)
    script = fill_in(TEMPLATES["one_node"], folder, config)
    sbatch(cluster, script, *ONE_RANK, *options)
    runs = SlurmRuns(cluster, SubmissionFolder(folder / "runs" / "test"), config, folder)
    runs.wait(runs.folder.path.exists, "its first supervisor has made the folder")
    return runs


@pytest.mark.parametrize("state", ["stopped", "cancelled"])
def test_a_run_that_a_person_ended_stays_so_until_it_is_resubmitted(
    slurm: MiniSlurm, tmp_path: Path, state: str
) -> None:
    runs = start_scripted(slurm, tmp_path, action={"do": "wait", "step": 5})
    runs.wait_for_step(4)
    if state == "stopped":
        slurm.run("scancel", "--batch", "--signal=INT", runs.job())
    else:
        runs.command("cancel", str(runs.folder.path))
    runs.wait_for_state(state)

    again = sbatch(slurm, tmp_path / "one_node.sbatch", *ONE_RANK)
    slurm.wait_for(lambda: incarnations(slurm, again) == ["FAILED"], "the job has ended")
    (job,) = [job for job in slurm.jobs() if job["JobId"] == again]
    assert job["ExitCode"] == "143:0"
    assert len(runs.history().attempts) == 1
    assert runs.status()["state"] == state

    runs.command("resubmit", "--cancelled", str(runs.config))
    runs.wait_for_state("finished")
    assert len(runs.history().attempts) == 2
    assert runs.job() not in (again, runs.history().claims[0].request.job_id)


def test_a_script_that_is_sent_again_goes_on_with_a_run_that_nobody_owns(slurm: MiniSlurm, tmp_path: Path) -> None:
    runs = start_scripted(slurm, tmp_path, action={"do": "node_lost", "step": 5})
    runs.wait_for_state("lost")
    assert runs.status()["last_word"].endswith("see the output of its batch script")

    job = sbatch(slurm, tmp_path / "one_node.sbatch", *ONE_RANK)
    runs.wait_for_event(ev.RunFinished)
    runs.wait_for_state("finished")
    assert runs.job() == job
    resumed = [attempt.resumed for attempt in runs.history().attempts]
    assert [each.step for each in resumed if each is not None] == [0, 4]


def test_a_job_that_was_told_to_run_on_a_node_is_not_kept_from_it_for_ever(slurm: MiniSlurm, tmp_path: Path) -> None:
    crash = {"do": "crash", "step": 2, "times": 9}
    runs = start_scripted(slurm, tmp_path, "--nodelist=n3", action=crash)
    assert runs.wait_for_state("failed") == "failed"
    assert runs.status()["rule"] == "same crash twice"


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_a_template_that_was_not_filled_in_is_refused(slurm: MiniSlurm, template: Path) -> None:
    environment = slurm.environment()
    done = subprocess.run(["sbatch", str(template)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "invalid partition specified: <partition>" in done.stderr


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_asks_for_what_the_example_config_needs(name: str) -> None:
    config = load_config(ROOT / "configs" / f"{FOR_A_CONFIG[name]}.yaml")
    cluster = config.cluster
    found = {
        what: option(TEMPLATES[name], what)
        for what in ("nodes", "ntasks-per-node", "cpus-per-task", "gres", "mem", "signal")
    }
    assert found == {
        "nodes": str(cluster.nodes),
        "ntasks-per-node": str(cluster.ranks_per_node),
        "cpus-per-task": str(cluster.cpus_per_rank),
        "gres": gres_of(cluster),
        "mem": str(cluster.sbatch["mem"]),
        "signal": f"B:USR2@{config.supervisor.deadline_margin_s:.0f}",
    }


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_a_template_can_be_requeued_and_hears_what_slurm_sends(template: Path) -> None:
    assert option(template, "requeue") == ""
    assert option(template, "open-mode") == "append"
    last = template.read_text(encoding="utf-8").splitlines()[-1]
    assert last.startswith("exec python -m hpc_resume run <cfg.yaml>")
