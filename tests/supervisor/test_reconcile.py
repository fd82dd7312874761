"""What the next claim finds on the disk: saved but not recorded, recorded but gone, and what must not be used."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable

import pytest
from supervisor.harness import ScriptedRun, end_of

from hpc_resume.checkpoints import catalog
from hpc_resume.journal.codec import encode
from hpc_resume.recovery import events as ev

Make = Callable[..., ScriptedRun]


def resumed_steps(run: ScriptedRun) -> list[int]:
    return [attempt.resumed.step for attempt in run.history.attempts if attempt.resumed]


@pytest.mark.parametrize("kind", ["save_unrecorded", "save_unrecorded_node"], ids=["rank killed", "node lost"])
def test_a_checkpoint_that_was_committed_but_not_recorded_is_adopted_and_used(scripted_run: Make, kind: str) -> None:
    run = scripted_run({"do": kind, "step": 6})
    run.supervise_to_the_end()
    adopted = run.events(ev.CheckpointAdopted)
    assert [e.checkpoint.step for e in adopted] == [6]
    assert resumed_steps(run) == [0, 6]
    assert run.history.finished is not None
    run.check()


def test_a_checkpoint_whose_manifest_was_never_renamed_is_no_checkpoint(scripted_run: Make) -> None:
    run = scripted_run({"do": "save_uncommitted", "step": 6})
    assert run.supervise_to_the_end() == [75, 0]
    assert run.events(ev.CheckpointAdopted) == []
    assert resumed_steps(run) == [0, 4]
    assert 6 in run.saved()
    run.check()


def test_an_unrecorded_checkpoint_of_an_abandoned_branch_is_quarantined(scripted_run: Make) -> None:
    run = scripted_run({"do": "save_unrecorded_node", "step": 6}, policy={"perturb_on": ("loss", "node")})
    assert run.supervise() == -9
    name = catalog.list_committed(run.folder.checkpoints)[-1]
    manifest = run.folder.checkpoints / name / catalog.MANIFEST
    manifest.rename(manifest.with_suffix(".hidden"))
    # The next attempt gets a new order, and with it a new branch, without knowing of that checkpoint.
    assert run.supervise(kill=["after", 8]) == -9
    manifest.with_suffix(".hidden").rename(manifest)
    assert run.supervise() == 0
    assert name not in [c.name for c in run.history.lineage]
    assert (run.folder.checkpoints / f"quarantined.{name}").is_dir()
    run.check()


def stopped_at_7(run: ScriptedRun) -> ScriptedRun:
    supervisor = run.start()
    run.wait_for_word("waiting at 7")
    supervisor.send_signal(signal.SIGTERM)
    assert end_of(supervisor)[0] == 143
    run.resubmit()
    return run


@pytest.mark.parametrize("gone", [1, 2], ids=["newest", "two newest"])
def test_a_recorded_checkpoint_that_vanished_is_rejected_and_the_next_older_one_used(
    scripted_run: Make, gone: int
) -> None:
    run = stopped_at_7(scripted_run({"do": "wait", "step": 7}))
    for name in catalog.list_committed(run.folder.checkpoints)[-gone:]:
        shutil.rmtree(run.folder.checkpoints / name)
    assert run.supervise() == 0
    assert len(run.events(ev.CheckpointRejected)) == gone
    assert resumed_steps(run) == [0, [6, 4][gone - 1]]
    run.check()


@pytest.mark.parametrize("damage", ["all gone", "no manifests"])
def test_a_run_whose_checkpoints_are_all_lost_fails_and_never_starts_from_scratch(
    scripted_run: Make, damage: str
) -> None:
    run = stopped_at_7(scripted_run({"do": "wait", "step": 7}))
    for name in catalog.list_committed(run.folder.checkpoints):
        path = run.folder.checkpoints / name
        shutil.rmtree(path) if damage == "all gone" else (path / catalog.MANIFEST).unlink()
    assert run.supervise() == 1
    assert run.history.decisions[-1].rule == "no checkpoint left"
    assert len(run.history.attempts) == 1


def test_the_same_after_a_lost_node(scripted_run: Make) -> None:
    run = scripted_run({"do": "node_lost", "step": 7})
    assert run.supervise() == -9
    for name in catalog.list_committed(run.folder.checkpoints):
        shutil.rmtree(run.folder.checkpoints / name)
    assert run.supervise() == 1
    assert run.history.decisions[-1].rule == "no checkpoint left"
    assert len(run.history.attempts) == 1


def test_a_file_system_that_is_away_decides_nothing_and_the_run_goes_on_when_it_is_back(scripted_run: Make) -> None:
    run = scripted_run({"do": "node_lost", "step": 7})
    assert run.supervise() == -9
    decided = len(run.history.decisions)
    away = run.folder.checkpoints.rename(run.folder.checkpoints.with_name("away"))
    assert run.supervise() == 1
    assert len(run.history.decisions) == decided
    away.rename(run.folder.checkpoints)
    assert run.supervise() == 0
    assert resumed_steps(run) == [0, 6]
    run.check()


def test_a_plan_whose_checkpoint_vanished_while_the_run_waited_is_made_anew(scripted_run: Make) -> None:
    run = scripted_run({"do": "crash", "step": 7})
    assert run.supervise() == 75
    shutil.rmtree(run.folder.checkpoints / catalog.list_committed(run.folder.checkpoints)[-1])
    assert run.supervise() == 0
    assert [d.rule for d in run.history.decisions] == ["first start", "crash", "checkpoint rejected", "finished"]
    assert [e.reason for e in run.events(ev.CheckpointRejected)] == ["it is gone from the disk"]
    assert resumed_steps(run) == [0, 4]
    run.check()


def test_a_damaged_checkpoint_is_found_by_the_ranks_and_set_aside(scripted_run: Make) -> None:
    run = scripted_run({"do": "crash", "step": 7})
    assert run.supervise() == 75
    name = catalog.list_committed(run.folder.checkpoints)[-1]
    (run.folder.checkpoints / name / "rank-0000.pt").write_text("rotten")
    assert run.supervise() == 0
    assert resumed_steps(run) == [0, 4]
    assert (run.folder.checkpoints / f"quarantined.{name}").is_dir()
    run.check()


def test_a_manifest_that_can_not_be_read_is_no_reason_to_stop(scripted_run: Make) -> None:
    run = scripted_run({"do": "save_unrecorded_node", "step": 6})
    assert run.supervise() == -9
    name = catalog.list_committed(run.folder.checkpoints)[-1]
    (run.folder.checkpoints / name / catalog.MANIFEST).write_text("{")
    assert run.supervise() == 0
    assert resumed_steps(run) == [0, 4]
    assert [e.name for e in run.events(ev.CheckpointRejected)] == [name]
    run.check()


PLACES = {
    "in place": lambda *_: None,
    "set aside": catalog.set_aside,
    "renamed": catalog.put_in_trash,
    "gone": lambda folder, name: (catalog.put_in_trash(folder, name), catalog.empty_trash(folder)),
}


@pytest.mark.parametrize("step", [2, 7], ids=["an old one", "the newest"])
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_deletion_that_was_recorded_is_finished_and_taken_for_no_loss(
    scripted_run: Make, place: Callable[..., object], step: int
) -> None:
    run = stopped_at_7(scripted_run({"do": "wait", "step": 7}))
    name = next(c.name for c in run.history.lineage if c.step == step)
    place(run.folder.checkpoints, name)
    run.operator(ev.CheckpointDeleted(name=name, reason="no rewind leads there"))
    assert run.supervise() == 0
    assert resumed_steps(run) == [0, 7 if step == 2 else 6]
    assert [path.name for path in run.folder.checkpoints.iterdir() if name in path.name] == []
    assert run.history.rejected == ()
    assert run.events(ev.CheckpointAdopted) == run.events(ev.CheckpointQuarantined) == []
    assert name in run.history.deleted
    assert name not in [c.name for c in run.history.lineage]
    run.check()


def test_a_deletion_that_a_zombie_records_and_does_too_late_costs_a_checkpoint_that_nobody_needs(
    scripted_run: Make,
) -> None:
    run = scripted_run({"do": "node_lost", "step": 7})
    assert run.supervise() == -9
    oldest = run.history.lineage[0].name
    # A newer claim was opened, but had not launched anything, when rank 0 of the first one went on.
    written = len(run.folder.claim(1).read_text().splitlines())
    assert run.supervise(kill=["after", written + 2]) == -9
    assert [claim.opened for claim in run.history.claims] == [True, True]
    zombie = run.folder.attempt(1)
    late = encode(ev.CheckpointDeleted(name=oldest, reason="no rewind leads there"))
    seq = len(zombie.read_text().splitlines()) + 1
    with zombie.open("a") as file:
        file.write(json.dumps({"seq": seq, "time": 0.0, "seen": {}, "event": late}) + "\n")
    catalog.put_in_trash(run.folder.checkpoints, oldest)
    assert run.history.deleted == frozenset()
    assert run.supervise() == 0
    assert resumed_steps(run) == [0, 6]
    assert [(e.name, e.reason) for e in run.events(ev.CheckpointRejected)] == [(oldest, "it is gone from the disk")]
    run.check()
