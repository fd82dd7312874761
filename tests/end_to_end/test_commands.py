"""A person stops, goes on with, cancels, and sweeps real trainings."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from supervisor.harness import wait_until
from support.training import STEPS, Outcome, make_config, start, status

from hpc_resume.checkpoints import catalog
from hpc_resume.journal.folder import SubmissionFolder
from hpc_resume.recovery import events as ev

pytestmark = pytest.mark.deepspeed


def submit_long(tmp_path: Path, **changes: object) -> tuple[Outcome, subprocess.Popen[str]]:
    """Submit a run that goes on until somebody ends it."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(make_config(tmp_path, training__steps=100_000, **changes)), encoding="utf-8")
    process = start("submit", str(path))
    outcome = Outcome(0, "", SubmissionFolder(tmp_path / "runs" / "test"))
    wait_until(lambda: outcome.run.journal.exists() and bool(outcome.history.lineage), "a checkpoint", 120)
    return outcome, process


def test_ctrl_c_stops_cleanly_and_resubmit_goes_on_from_there(tmp_path: Path) -> None:
    outcome, process = submit_long(tmp_path)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)

    assert process.returncode == 1
    assert "stopping" in output
    (summary,) = status(outcome)
    assert summary["state"] == "stopped"
    stop = outcome.history.attempts[0].stop
    assert stop is not None
    assert stop.checkpoint is not None
    assert outcome.history.lineage[-1].step == stop.step

    again = start("resubmit", str(outcome.folder.path), "--detach", "--json")
    sent, _ = again.communicate(timeout=60)
    assert json.loads(sent)["runs"] == [0]
    wait_until(
        lambda: len(outcome.history.attempts) == 2 and outcome.history.attempts[1].resumed is not None,
        "the second attempt",
        120,
    )
    resumed = outcome.history.attempts[1].resumed
    assert resumed is not None
    assert resumed.step == stop.step
    assert not outcome.history.plan_decision.plan.perturb  # type: ignore[union-attr]

    # A second supervisor of the live run refuses, and the first one is none the worse for it.
    second = start("run", str(outcome.folder.path))
    refusal, _ = second.communicate(timeout=60)
    assert second.returncode == 3
    assert "is alive" in refusal
    # Typed twice, it sends nothing a second time.
    twice = start("resubmit", str(outcome.folder.path), "--json")
    sent, _ = twice.communicate(timeout=60)
    assert json.loads(sent)["runs"] == []

    started = time.monotonic()
    start("cancel", str(outcome.folder.path)).communicate(timeout=60)
    wait_until(lambda: status(outcome)[0]["state"] == "cancelled", "the run is cancelled", 30)
    assert time.monotonic() - started < 30
    ended = outcome.history.claims[1].ended
    assert isinstance(ended, ev.ClaimEnded)
    assert ended.outcome == "cancelled"
    for arguments in (["resubmit", str(outcome.folder.path), "--json"], ["run", str(outcome.folder.path)]):
        start(*arguments).communicate(timeout=60)
    assert len(outcome.history.attempts) == 2
    assert status(outcome)[0]["state"] == "cancelled"


@pytest.mark.slow
def test_a_sweep_runs_its_elements_one_after_another_in_the_slots_it_has(tmp_path: Path) -> None:
    config = make_config(tmp_path, sweep={"training.learning_rate": [1e-3, 3e-3, 1e-2]})
    config["cluster"] |= {"ranks_per_node": 1, "parallelism": 2}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    process = start("submit", str(path), "--json")
    output, _ = process.communicate(timeout=300)

    assert process.returncode == 0, output
    outcome = Outcome(0, output, SubmissionFolder(tmp_path / "runs" / "test"))
    assert [row["state"] for row in status(outcome)] == ["finished"] * 3
    assert all(row["step"] == STEPS for row in status(outcome))
    assert len({row["loss"] for row in status(outcome)}) == 3


@pytest.mark.slow
def test_a_damaged_checkpoint_is_set_aside_and_the_next_older_one_gives_the_same_run(
    train: Callable[..., Outcome], tmp_path: Path
) -> None:
    undisturbed = train()
    # Two crashes at the same place stop the run, which leaves time to damage the newest checkpoint.
    outcome = train(faults=[{"kind": "exception", "step": 23, "times": 2}])
    newest = outcome.run.checkpoints / outcome.history.lineage[-1].name
    shard = next(path for path in sorted(newest.iterdir()) if "optim_states" in path.name)
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 0xFF
    shard.write_bytes(content)
    process = start("resubmit", str(outcome.folder.path))
    output, _ = process.communicate(timeout=120)

    assert process.returncode == 0, output
    history = outcome.history
    assert history.rejected == (newest.name,)
    assert not newest.exists()
    assert newest.with_name(f"quarantined.{newest.name}").exists()
    assert newest.name not in catalog.list_committed(outcome.run.checkpoints)
    assert history.attempts[-1].resumed is not None
    assert history.attempts[-1].resumed.step == 16
    assert history.finished is not None
    assert undisturbed.history.finished is not None
    assert history.finished.weights_digest == undisturbed.history.finished.weights_digest
    assert outcome.losses() == undisturbed.losses()
