"""Journals that were once written, frozen: whatever becomes of this package, runs that are on disk go on.

In `golden/`: a loss spike, a failed save, a node that vanishes and whose writer comes back, a damaged checkpoint, a
supervisor too many, a stop that was asked for, a resubmission, the end; the second node's clock is an hour behind.

In `golden_slurm/`, of the second schema: a taken port, a bad node, a lost one, a preemption, a cancellation in Slurm.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpc_resume.data_order import Segment
from hpc_resume.journal.codec import KINDS, decode, encode
from hpc_resume.journal.folder import RunFolder
from hpc_resume.journal.order import data_seed, segments_in_force
from hpc_resume.journal.reader import Journal, read_journal
from hpc_resume.recovery import events as ev

HERE = Path(__file__).parent
FOLDER = RunFolder(HERE / "golden" / "run-0000")
SLURM = RunFolder(HERE / "golden_slurm" / "run-0000")
FILES = sorted(
    path for run in (FOLDER, SLURM) for where in (run.journal, run.submission.path) for path in where.glob("*.jsonl")
)


@pytest.fixture
def journal() -> Journal:
    return read_journal(FOLDER)


YOUNGER = {ev.StopRequested, ev.JobCancelled, ev.CheckpointDeleted, ev.CheckpointConverted, ev.IntervalChosen}
"""Kinds that came after the first journal was written."""


def test_every_kind_of_event_is_in_it(journal: Journal) -> None:
    assert {type(record.event) for record in (*journal.records, *journal.late)} == set(KINDS.values()) - YOUNGER


def contained(part: object, whole: object) -> bool:
    """Tell whether everything in `part` is in `whole`, which may have fields that are younger."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and contained(value, whole[key]) for key, value in part.items())
    return part == whole


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.stem} of {path.relative_to(HERE).parts[0]}")
def test_no_word_of_it_is_lost(path: Path) -> None:
    whole = [line for line in path.read_text(encoding="utf-8").split("\n") if line.endswith("}")]
    assert whole
    for line in whole:
        data = json.loads(line)["event"]
        again = json.loads(json.dumps(encode(decode(data))))
        assert contained(data, again)


def test_all_of_it_is_read_but_the_torn_line(journal: Journal) -> None:
    assert journal.torn == 1
    assert sum(journal.counts.values()) == len(journal.records) + len(journal.late) == 67
    assert [(r.file, r.seq) for r in journal.late] == [("attempt-0002", 7)]


def test_it_tells_the_story(journal: Journal) -> None:
    history = journal.history
    told = [(d.number, d.action, d.rule, d.plan and (d.plan.step, d.plan.branch)) for d in history.decisions]
    assert told == [
        (1, "launch", "first start", (0, 0)),
        (2, "requeue", "loss incident", (100, 1)),
        (3, "continue", "save failed", None),
        (4, "requeue", "node lost", (250, 2)),
        (5, "rollback", "checkpoint rejected", (200, 2)),
        (6, "stop", "asked to stop", None),
        (7, "launch", "resubmitted", (262, 2)),
        (8, "stop", "finished", None),
    ]
    assert [a.ended.cause for a in history.attempts if a.ended] == ["decided", "node", "terminated", "finished"]
    assert [a.decision for a in history.attempts] == [1, 2, 4, 7]
    assert [type(c.ended) for c in history.claims] == [
        ev.ClaimEnded,
        ev.ClaimLost,
        ev.ClaimRefused,
        ev.ClaimEnded,
        ev.ClaimEnded,
    ]
    assert [bool(c.opened) for c in history.claims] == [True, True, False, True, True]


def test_it_says_which_checkpoints_are_of_use(journal: Journal) -> None:
    history = journal.history
    assert [c.step for c in history.lineage] == [50, 100, 200, 262, 300]
    assert history.certified == {"step-000000050.s000001", "step-000000100.s000002", "step-000000200.s000005"}
    assert set(history.set_aside) == history.quarantined == {"step-000000150.s000003", "step-000000250.s000006"}
    assert history.set_aside["step-000000150.s000003"] == "suspect"
    assert history.rejected == ("step-000000250.s000006",)
    assert "step-000000300.s000007" not in history.known, "that was the zombie's"


def test_it_says_how_the_run_stands(journal: Journal) -> None:
    history = journal.history
    assert history.finished == ev.RunFinished(
        attempt=4,
        step=300,
        position=19200,
        loss=2.713,
        weights_digest="5f0f8a7a9a0d7c44e1c6f2f0b1a93d10",
        model="model",
    )
    assert history.stop is not None
    assert history.stop.outcome == "finished"
    assert (history.pending, history.undecided, history.cancelled) == (None, None, False)
    assert (history.high_water_step, history.branch, history.binding_after) == (262, 2, 6)
    assert (history.used, history.saves_failed, history.skipped_steps) == ({}, 0, 1)
    assert [i.onset_step for i in history.incidents] == [152]
    assert len(history.near_misses) == len(history.replay_differences) == len(history.faults) == 1
    assert len(history.save_failures) == len(history.disagreements) == 1


def test_it_says_which_order_is_in_force(journal: Journal) -> None:
    segments = segments_in_force(journal.history)
    assert segments == (Segment(start=6400, number=2), Segment(start=16000, number=4))
    assert data_seed(42, ()) == 42
    assert data_seed(42, segments) == 626063116


def test_the_other_run_of_the_submission_is_the_one_that_was_cancelled() -> None:
    assert read_journal(FOLDER.submission.run(1)).history.cancelled


def test_what_is_younger_than_the_first_journal_has_its_default_there(journal: Journal) -> None:
    ends = [attempt.ended for attempt in journal.history.attempts if attempt.ended is not None]
    assert [(ended.node, ended.avoidable) for ended in ends if ended.cause == "node"] == [("gpu021", False)]
    assert not any(ended.avoidable for ended in ends)
    assert all(decision.plan.avoid_nodes == () for decision in journal.history.decisions if decision.plan)


def test_the_journal_from_slurm_tells_its_story() -> None:
    journal = read_journal(SLURM)
    history = journal.history
    assert (journal.torn, journal.late, len(journal.records)) == (0, (), 50)
    told = [(d.rule, d.action, d.plan and (d.plan.step, d.plan.branch, d.plan.avoid_nodes)) for d in history.decisions]
    assert told == [
        ("first start", "launch", (0, 0, ())),
        ("port taken", "launch", (0, 0, ())),
        ("crash", "requeue", (100, 0, ())),
        ("same crash, other node", "requeue", (100, 0, ("n2",))),
        ("node lost", "requeue", (100, 1, ())),
        ("preempted", "requeue", (140, 1, ())),
        ("cancelled", "stop", None),
    ]
    assert [(a.ended.cause, a.ended.node, a.ended.avoidable) for a in history.attempts if a.ended] == [
        ("port", "n1", False),
        ("crash", "n2", True),
        ("crash", "n2", True),
        ("node", "n1", False),
        ("preempted", "n3", False),
        ("cancelled", "n3", False),
    ]
    assert [a.started.nodes for a in history.attempts][2:4] == [("n1", "n2"), ("n1", "n3")]
    assert {(c.request.cluster, c.request.job_id) for c in history.claims} == {("slurm", "4711_0")}
    assert [c.request.restart_count for c in history.claims] == [0, 1, 2, 3, 4]
    assert (history.cancelled_by, history.pending, history.undecided) == (0, None, None)
    assert ev.JobCancelled in {type(record.event) for record in journal.records}
