"""`cancel` and `resubmit` on runs whose jobs are in Slurm's hands, with a stand-in that answers for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.stand_in_slurm import INVALID, STALLED, StandInSlurm, job_line

from hpc_resume.cli.cancel import cancel
from hpc_resume.cli.resubmit import resubmit
from hpc_resume.cli.submission import create_submission, record_operator, send
from hpc_resume.cluster.local_allocation import LocalAllocation
from hpc_resume.config.load import load_config
from hpc_resume.errors import ClusterError
from hpc_resume.journal.folder import SubmissionFolder
from hpc_resume.journal.reader import read_operator
from hpc_resume.journal.writer import JournalWriter
from hpc_resume.recovery import events as ev
from hpc_resume.recovery.decisions import Decision

HERE = "ClusterName             = here\n"
"""What Slurm says of itself."""
FAILED: tuple[ev.Event, ...] = (
    ev.Decided(decision=Decision(number=1, action="stop", rule="input", reason="no data", outcome="failed")),
    ev.ClaimEnded(claim=1, outcome="failed", message="no data"),
)
MakeFolder = Callable[[int], SubmissionFolder]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInSlurm:
    """Programs that answer in Slurm's place; the accounting knows nothing, and every cancellation is taken."""
    stand_in = StandInSlurm(tmp_path / "bin", monkeypatch)
    stand_in.answers("sacct")
    stand_in.answers("scancel")
    stand_in.answers("sbatch", "Submitted batch job 20\n")
    stand_in.answers("srun")  # submitit looks for it
    return stand_in


@pytest.fixture
def make_folder(config: Path) -> MakeFolder:
    """`make_folder(runs)`: a submission for Slurm, of which nothing was sent."""

    def make(runs: int) -> SubmissionFolder:
        return create_submission(load_config(config, ["cluster.kind=slurm", f"sweep={{seed: {list(range(runs))}}}"]))

    return make


def sent(folder: SubmissionFolder, job_id: str, runs: tuple[int, ...] = (0,), slurm_cluster: str = "") -> None:
    writer = record_operator(folder, ev.Submitted(runs=runs, cluster="slurm"))
    writer.record(ev.OperatorOutcome(ok=True, job_id=job_id, message="submitted", slurm_cluster=slurm_cluster))
    writer.close()


def owned(
    folder: SubmissionFolder, claim: int, job_id: str, *more: ev.Event, slurm_cluster: str = "", run: int = 0
) -> None:
    """Let the supervisor in a job claim a run."""
    me = LocalAllocation().request(claim)
    me = replace(me, cluster="slurm", job_id=job_id, host="n3", slurm_cluster=slurm_cluster)
    writer = JournalWriter(folder.run(run).claim(claim), me)
    for event in more:
        writer.record(event)
    writer.close()


def requeued(claim: int) -> tuple[ev.Event, ...]:
    return ev.ClaimOpened(claim=claim, committed=()), ev.ClaimEnded(claim=claim, outcome="requeued", message="")


def asked(folder: SubmissionFolder) -> list[ev.Event]:
    """What a command recorded: its intent and its outcome."""
    return [record.event for record in read_operator(folder)][-2:]


def type_cancel(folder: SubmissionFolder, runs: str | None = None) -> None:
    cancel(folder.path, runs=runs, as_json=False)  # type: ignore[arg-type] # as typer does it


def type_resubmit(folder: SubmissionFolder, *, owner_is_gone: bool = False, dry_run: bool = False) -> None:
    resubmit(
        folder.path,
        runs=None,  # type: ignore[arg-type] # as typer does it
        cancelled=False,
        owner_is_gone=owner_is_gone,
        dry_run=dry_run,
        detach=True,
        as_json=False,
    )


def test_cancelling_one_run_while_the_controller_is_silent_leaves_the_others_alone(
    slurm: StandInSlurm, make_folder: MakeFolder
) -> None:
    folder = make_folder(2)
    sent(folder, "9", (0, 1))
    slurm.refuses("scontrol", STALLED)
    type_cancel(folder, "0")
    assert slurm.asked("scancel") == ["--quiet 9_0"]


def test_cancelling_a_run_ends_every_job_of_it_that_lives(slurm: StandInSlurm, make_folder: MakeFolder) -> None:
    folder = make_folder(1)
    owned(folder, 1, "10", *requeued(1))
    owned(folder, 2, "11", ev.ClaimRefused(claim=2, owner=1, reason="supervisor 1 is alive"))
    sent(folder, "12")
    jobs = job_line("10", "PENDING", Restarts=1) + job_line("11", "FAILED") + job_line("12", "PENDING")
    slurm.answers("scontrol", jobs)
    type_cancel(folder)
    assert slurm.asked("scancel") == ["--quiet 10 12"]


def test_cancelling_a_run_that_failed_also_ends_the_job_that_waits_to_start_it(
    slurm: StandInSlurm, make_folder: MakeFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_folder(1)
    owned(folder, 1, "10", ev.ClaimOpened(claim=1, committed=()), *FAILED)
    sent(folder, "12")
    slurm.answers("scontrol", job_line("10", "FAILED") + job_line("12", "PENDING"))
    type_cancel(folder)
    assert slurm.asked("scancel") == ["--quiet 12"]


def test_a_run_that_failed_is_cancelled_without_slurm(slurm: StandInSlurm, make_folder: MakeFolder) -> None:
    folder = make_folder(1)
    owned(folder, 1, "10", ev.ClaimOpened(claim=1, committed=()), *FAILED)
    slurm.refuses("scontrol", STALLED)
    slurm.refuses("scancel", STALLED)
    type_cancel(folder)
    assert slurm.asked("scancel") == []
    assert asked(folder)[-1] == ev.OperatorOutcome(ok=True, job_id="", message="recorded")


def test_a_job_that_could_not_be_cancelled_is_named(slurm: StandInSlurm, make_folder: MakeFolder) -> None:
    folder = make_folder(2)
    sent(folder, "9", (0, 1))
    slurm.refuses("scontrol", STALLED)
    slurm.refuses("scancel", STALLED)
    with pytest.raises(ClusterError, match="type it again, or use `scancel 9_1`"):
        type_cancel(folder, "1")


@pytest.mark.parametrize("claimed", [False, True], ids=["it waits", "it runs"])
def test_a_job_in_another_slurm_is_cancelled_on_record_and_its_number_is_left_alone_here(
    slurm: StandInSlurm, make_folder: MakeFolder, capsys: pytest.CaptureFixture[str], claimed: bool
) -> None:
    folder = make_folder(2)
    sent(folder, "9", (0, 1), "there")
    if claimed:
        owned(folder, 1, "9_0", ev.ClaimOpened(claim=1, committed=()), slurm_cluster="there")
    slurm.answers("scontrol", HERE + job_line("9_0", "RUNNING") + job_line("9_1", "RUNNING"))
    type_cancel(folder)
    assert slurm.asked("scancel") == []
    assert slurm.asked("scontrol") == ["show config"]
    out, errors = capsys.readouterr()
    assert out == "cancelled runs 0, 1\n"
    assert len(errors.splitlines()) == 1
    assert errors.startswith("job 9_0, 9_1 belongs to the Slurm cluster there, which can't be asked from here: ")
    assert errors.endswith("use `scancel 9_0 9_1` on there\n")
    assert asked(folder) == [
        ev.CancelRequested(runs=(0, 1), operator=2),
        ev.OperatorOutcome(ok=True, job_id="", message="recorded"),
    ]


@pytest.mark.parametrize("silent", [False, True], ids=["it answers", "it is silent"])
def test_resubmit_asks_about_an_array_once(slurm: StandInSlurm, make_folder: MakeFolder, silent: bool) -> None:
    folder = make_folder(2)
    sent(folder, "9", (0, 1))
    for run in range(2):
        owned(folder, 1, f"9_{run}", ev.ClaimOpened(claim=1, committed=()), run=run)
    slurm.refuses("scontrol", STALLED if silent else INVALID)
    type_resubmit(folder, dry_run=True)
    assert slurm.asked("scontrol") == ["-o show job 9"]


@pytest.mark.parametrize(
    ("history", "who"),
    [
        ((), "its job 9 in the Slurm cluster there "),
        ((ev.ClaimOpened(claim=1, committed=()),), "its supervisor (process "),
        (requeued(1), "its job 9 in the Slurm cluster there "),
    ],
    ids=["it waits", "it runs", "it was requeued"],
)
def test_a_run_in_another_slurm_is_left_alone_until_a_person_says_that_it_is_gone(
    slurm: StandInSlurm,
    make_folder: MakeFolder,
    capsys: pytest.CaptureFixture[str],
    history: tuple[ev.Event, ...],
    who: str,
) -> None:
    folder = make_folder(1)
    sent(folder, "9", slurm_cluster="there")
    if history:
        owned(folder, 1, "9", *history, slurm_cluster="there")
    slurm.answers("scontrol", HERE)
    type_resubmit(folder)
    out, errors = capsys.readouterr()
    assert out.startswith("nothing to send again: run 0 has a supervisor that can't be asked from here")
    assert errors.startswith(f"run 0 is left alone: {who}")
    assert errors.endswith("can't be asked from here; if you know that it is gone, add --owner-is-gone\n")
    assert slurm.asked("sbatch") == []
    type_resubmit(folder, owner_is_gone=True)
    intent, outcome = asked(folder)
    assert isinstance(intent, ev.ResubmitRequested)
    assert intent.gone == {"0": 1 if history else 0}
    assert outcome == ev.OperatorOutcome(ok=True, job_id="20", message="submitted", slurm_cluster="here")


def test_a_run_that_a_person_has_brought_over_is_lost_when_its_job_here_is(
    slurm: StandInSlurm, make_folder: MakeFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_folder(1)
    sent(folder, "9", slurm_cluster="there")
    slurm.answers("scontrol", HERE)
    type_resubmit(folder, owner_is_gone=True)
    capsys.readouterr()
    type_resubmit(folder, dry_run=True)
    assert capsys.readouterr().out == "would send run 0 again\n"


def test_the_name_is_asked_for_once_by_a_command(slurm: StandInSlurm, make_folder: MakeFolder) -> None:
    folder = make_folder(1)
    sent(folder, "9", slurm_cluster="here")
    owned(folder, 1, "9", ev.ClaimOpened(claim=1, committed=()), slurm_cluster="here")
    slurm.answers("scontrol", HERE + job_line("9", "FAILED"))
    type_resubmit(folder)
    assert asked(folder)[-1] == ev.OperatorOutcome(ok=True, job_id="20", message="submitted", slurm_cluster="here")
    assert [question for question in slurm.asked("scontrol") if "config" in question] == ["show config"]


SENT_TO = {
    "this one": ({}, HERE, "here"),
    "one that says no name": ({}, "", ""),
    "one that is chosen": ({"clusters": "there"}, HERE, "there"),
    "one of several": ({"clusters": ["here", "there"]}, HERE, ""),
}


@pytest.mark.parametrize(("sbatch", "answer", "name"), SENT_TO.values(), ids=SENT_TO)
def test_the_slurm_that_a_job_was_sent_to_is_recorded(
    slurm: StandInSlurm, make_folder: MakeFolder, sbatch: dict[str, object], answer: str, name: str
) -> None:
    folder = make_folder(1)
    config = load_config(folder.config)
    config = replace(config, cluster=replace(config.cluster, sbatch=sbatch))
    slurm.answers("scontrol", answer)
    assert send(folder, config, "slurm", ev.Submitted(runs=(0,), cluster="slurm"), new=False) == "20"
    assert asked(folder)[-1] == ev.OperatorOutcome(ok=True, job_id="20", message="submitted", slurm_cluster=name)


def test_a_slurm_that_does_not_say_its_name_in_time_gets_the_job_all_the_same(
    slurm: StandInSlurm, make_folder: MakeFolder
) -> None:
    folder = make_folder(1)
    slurm.refuses("scontrol", STALLED)
    config = load_config(folder.config)
    assert send(folder, config, "slurm", ev.Submitted(runs=(0,), cluster="slurm"), new=False) == "20"
    assert asked(folder)[-1] == ev.OperatorOutcome(ok=True, job_id="20", message="submitted")


def test_on_this_machine_slurm_is_asked_for_nothing(slurm: StandInSlurm, make_folder: MakeFolder) -> None:
    folder = make_folder(1)
    slurm.answers("scontrol", HERE)
    writer = record_operator(folder, ev.Submitted(runs=(0,), cluster="local"))
    writer.record(ev.OperatorOutcome(ok=True, job_id="1:1", message="submitted"))
    writer.close()
    type_resubmit(folder, dry_run=True)
    type_cancel(folder)
    assert slurm.asked("scontrol") == []
