"""How runs stand whose jobs are in Slurm's hands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.stand_in_slurm import INVALID, STALLED, UNREACHABLE, StandInSlurm, job_line

from hpc_resume.cli.output import show_status
from hpc_resume.journal.folder import RunFolder, make_private
from hpc_resume.journal.reader import read_journal
from hpc_resume.journal.writer import JournalWriter
from hpc_resume.recovery import History
from hpc_resume.recovery import events as ev
from hpc_resume.recovery.decisions import Decision, Plan
from hpc_resume.reporting.jobs import Jobs
from hpc_resume.reporting.report import make_report
from hpc_resume.reporting.summary import RunSummary, summarize_submission

Requests = Callable[..., ev.ClaimRequested]
HERE = "ClusterName             = here\n"
"""What Slurm says of itself."""
PLAN = Plan(checkpoint=None, step=0, position=0, branch=0)
CRASH = Decision(number=2, action="requeue", rule="crash", reason="rank 1: ValueError: no", plan=PLAN)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInSlurm:
    """Programs that answer in Slurm's place; the accounting knows nothing."""
    stand_in = StandInSlurm(tmp_path / "bin", monkeypatch)
    stand_in.answers("sacct")
    return stand_in


def send(
    folder: RunFolder,
    number: int,
    job_id: str,
    *,
    runs: tuple[int, ...] = (0,),
    ok: bool = True,
    slurm: str = "",
    gone: int | None = None,
) -> None:
    """Send runs as a job of the Slurm of that name; `gone` is the claim of run 0 that a person says is over."""
    intent: ev.Event = ev.Submitted(runs=runs, cluster="slurm")
    if gone is not None:
        intent = ev.ResubmitRequested(runs=runs, after={}, cluster="slurm", gone={"0": gone})
    writer = JournalWriter(folder.submission.operator(number), intent)
    writer.record(ev.OperatorOutcome(ok=ok, job_id=job_id if ok else "", message="submitted", slurm_cluster=slurm))
    writer.close()


@pytest.fixture
def sent(folder: RunFolder) -> RunFolder:
    """The run, which was sent as job 7."""
    send(folder, 2, "7")
    return folder


@pytest.fixture
def claim(request_of: Requests) -> Callable[..., ev.ClaimRequested]:
    """`claim(number, restarts=0, job="7", slurm="")`: the supervisor of some start of a job of the Slurm `slurm`."""

    def make(number: int, *, restarts: int = 0, job: str = "7", slurm: str = "") -> ev.ClaimRequested:
        me = request_of(number, alive=False)
        return replace(me, cluster="slurm", job_id=job, restart_count=restarts, slurm_cluster=slurm)

    return make


def trains(folder: RunFolder, request: ev.ClaimRequested, *more: ev.Event) -> None:
    """Let a supervisor start the first attempt."""
    writer = JournalWriter(folder.claim(request.claim), request)
    first = Decision(number=1, action="launch", rule="first start", reason="", plan=PLAN)
    for event in (
        ev.ClaimOpened(claim=request.claim, committed=()),
        ev.Decided(decision=first),
        ev.AttemptStarted(attempt=1, claim=request.claim, data_seed=0, host="n1"),
        ev.Resumed(attempt=1, checkpoint=None, step=0, position=0, first_samples=()),
        *more,
    ):
        writer.record(event)
    writer.close()


CRASHED = (
    ev.AttemptEnded(attempt=1, cause="crash", message="rank 1: ValueError: no"),
    ev.Decided(decision=CRASH),
    ev.ClaimEnded(claim=1, outcome="requeued", message=""),
)


def summary(folder: RunFolder) -> RunSummary:
    (found,) = summarize_submission(folder.submission)
    return found


def test_a_job_in_the_queue_waits_and_says_for_what(sent: RunFolder, slurm: StandInSlurm) -> None:
    slurm.answers("scontrol", job_line("7", "PENDING", Reason="Resources"))
    found = summary(sent)
    assert (found.state, found.job) == ("waiting", "7")
    assert found.last_word == "job 7 waits in Slurm's queue (Resources)"


def test_an_element_of_an_array_is_found_by_its_run(sent: RunFolder, slurm: StandInSlurm) -> None:
    slurm.answers("scontrol", job_line("7_1", "CANCELLED") + job_line("7_0", "PENDING", Reason="JobArrayTaskLimit"))
    assert (summary(sent).state, summary(sent).job) == ("waiting", "7_0")
    assert Jobs(sent.submission).of(1, History()).facts is None, "run 1 was not sent in it"


def test_a_job_that_runs_and_whose_supervisor_has_not_spoken_yet_is_no_lost_one(
    sent: RunFolder, slurm: StandInSlurm
) -> None:
    slurm.answers("scontrol", job_line("7", "RUNNING"))
    assert summary(sent).state == "waiting"


def test_a_supervisor_whose_job_runs_trains(
    sent: RunFolder, slurm: StandInSlurm, claim: Callable[..., ev.ClaimRequested]
) -> None:
    trains(sent, claim(1))
    slurm.answers("scontrol", job_line("7", "RUNNING", Restarts=0))
    assert summary(sent).state == "running"


def test_a_job_that_went_back_to_the_queue_is_requeued_and_says_why(
    sent: RunFolder, slurm: StandInSlurm, claim: Callable[..., ev.ClaimRequested]
) -> None:
    trains(sent, claim(1), *CRASHED)
    slurm.answers("scontrol", job_line("7", "PENDING", Restarts=1, Reason="BeginTime"))
    found = summary(sent)
    assert found.state == "requeued"
    assert found.last_word == "crash: rank 1: ValueError: no; job 7 waits in Slurm's queue (BeginTime)"


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING", "REQUEUE_HOLD", "SUSPENDED"])
def test_a_job_that_slurm_restarted_is_never_taken_for_over(
    sent: RunFolder, slurm: StandInSlurm, claim: Callable[..., ev.ClaimRequested], state: str
) -> None:
    # As after a node failure: the supervisor could write nothing more.
    trains(sent, claim(1))
    slurm.answers("scontrol", job_line("7", state, Restarts=1))
    assert summary(sent).state == "requeued"


def test_what_the_accounting_says_of_an_earlier_start_does_not_count(
    sent: RunFolder, slurm: StandInSlurm, claim: Callable[..., ev.ClaimRequested]
) -> None:
    trains(sent, claim(1))
    slurm.answers("sacct", "7|NODE_FAIL\n")
    slurm.answers("scontrol", job_line("7", "PENDING", Restarts=1))
    assert summary(sent).state == "requeued"
    assert slurm.asked("sacct") == []


@pytest.mark.parametrize("forgotten", [False, True], ids=["just now", "long ago"])
def test_a_job_that_was_cancelled_in_the_queue_is_cancelled(
    sent: RunFolder, slurm: StandInSlurm, forgotten: bool
) -> None:
    if forgotten:
        slurm.refuses("scontrol", INVALID)
        slurm.answers("sacct", "7|CANCELLED by 1000\n")
    else:
        slurm.answers("scontrol", job_line("7", "CANCELLED"))
    found = summary(sent)
    assert (found.state, found.last_word) == ("cancelled", "job 7 was cancelled in Slurm")


def test_elements_cancelled_before_any_of_them_started_are_cancelled(sent: RunFolder, slurm: StandInSlurm) -> None:
    slurm.refuses("scontrol", INVALID)
    slurm.answers("sacct", "7_[0-5%2]|CANCELLED by 1000\n")
    assert (summary(sent).state, summary(sent).job) == ("cancelled", "7_0")


def test_a_job_that_failed_before_its_supervisor_could_start_hints_at_the_folder(
    sent: RunFolder, slurm: StandInSlurm
) -> None:
    slurm.answers("scontrol", job_line("7", "FAILED", ExitCode="0:53"))
    found = summary(sent)
    assert found.state == "lost"
    assert found.last_word.startswith(
        f"job 7 ended as FAILED, exit code 0:53 before its supervisor could start; do its nodes see {sent.path}?"
    )
    assert "\n" not in found.last_word


def test_a_supervisor_that_died_says_how_its_job_ended_and_what_it_said_last(
    sent: RunFolder, slurm: StandInSlurm, claim: Callable[..., ev.ClaimRequested]
) -> None:
    trains(sent, claim(1))
    slurm.answers("scontrol", job_line("7", "OUT_OF_MEMORY", ExitCode="0:125"))
    sent.supervisor_log().parent.mkdir(parents=True, exist_ok=True)
    sent.supervisor_log().write_text("one\nslurmstepd: error: Detected 1 oom_kill event\n\n")
    found = summary(sent)
    assert found.state == "lost"
    assert found.last_word == (
        f"job 7 ended as OUT_OF_MEMORY, exit code 0:125; the last line of {sent.supervisor_log()}: "
        "slurmstepd: error: Detected 1 oom_kill event"
    )


def test_a_job_that_nobody_knows_any_more_is_lost(
    sent: RunFolder, slurm: StandInSlurm, claim: Callable[..., ev.ClaimRequested]
) -> None:
    trains(sent, claim(1))
    slurm.refuses("scontrol", INVALID)
    found = summary(sent)
    assert (found.state, found.job) == ("lost", "7")
    assert found.last_word.startswith("Slurm knows job 7 no more; ")


NOBODY = {"unreachable": UNREACHABLE, "stalled": STALLED, "no Slurm here": None}


@pytest.mark.parametrize("answer", NOBODY.values(), ids=NOBODY)
def test_where_nobody_can_be_asked_jobs_are_taken_to_be_alive_and_that_is_said_once(
    sent: RunFolder, slurm: StandInSlurm, capsys: pytest.CaptureFixture[str], answer: str | None
) -> None:
    send(sent, 3, "8")
    if answer is not None:
        slurm.refuses("scontrol", answer)
    jobs = Jobs(sent.submission)
    assert [jobs.of(0, History()).live for _ in range(2)] == [True, True]
    assert jobs.of(0, History()).facts is None
    errors = capsys.readouterr().err
    assert errors.startswith("can't ask Slurm, so that jobs are taken to be alive: ")
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize(("ended", "state"), [(False, "running"), (True, "requeued")])
def test_a_run_whose_job_can_not_be_asked_for_is_not_lost(
    sent: RunFolder, slurm: StandInSlurm, claim: Callable[..., ev.ClaimRequested], ended: bool, state: str
) -> None:
    trains(sent, claim(1), *(CRASHED if ended else ()))
    slurm.refuses("scontrol", UNREACHABLE)
    assert summary(sent).state == state


def test_the_newest_job_of_a_run_is_the_one_that_counts(sent: RunFolder, slurm: StandInSlurm) -> None:
    send(sent, 3, "12", runs=(0, 1))
    send(sent, 4, "", ok=False)
    # One program answers for both jobs, as if each were asked for alone.
    slurm.answers("scontrol", job_line("7", "CANCELLED") + job_line("12_0", "PENDING", Reason="Priority"))
    found = Jobs(sent.submission).of(0, History())
    assert (found.job_id, found.live, found.facts and found.facts.state) == ("12_0", True, "PENDING")


def test_an_older_job_that_still_lives_keeps_the_run_alive(sent: RunFolder, slurm: StandInSlurm) -> None:
    send(sent, 3, "12")
    slurm.answers("scontrol", job_line("7", "RUNNING") + job_line("12", "CANCELLED"))
    found = Jobs(sent.submission).of(0, History())
    assert (found.job_id, found.live, found.living) == ("7", True, ("7",))


def test_of_several_jobs_that_live_the_newest_is_shown_and_all_are_known(
    sent: RunFolder, slurm: StandInSlurm, claim: Callable[..., ev.ClaimRequested]
) -> None:
    send(sent, 3, "12")
    trains(sent, claim(1, job="9"), *CRASHED)
    slurm.answers("scontrol", job_line("7", "FAILED") + job_line("9", "PENDING") + job_line("12", "RUNNING"))
    found = Jobs(sent.submission).of(0, read_journal(sent).history)
    assert (found.job_id, found.living) == ("12", ("9", "12"))


def test_a_job_that_was_refused_does_not_hide_the_one_that_waits(
    folder: RunFolder, slurm: StandInSlurm, claim: Callable[..., ev.ClaimRequested]
) -> None:
    trains(folder, claim(1, job="10"), *CRASHED)
    refused = JournalWriter(folder.claim(2), claim(2, job="11"))
    refused.record(ev.ClaimRefused(claim=2, owner=1, reason="supervisor 1 is alive"))
    refused.close()
    slurm.answers("scontrol", job_line("10", "PENDING", Restarts=1, Reason="BeginTime") + job_line("11", "FAILED"))
    found = summary(folder)
    assert (found.state, found.job) == ("requeued", "10")
    assert found.last_word == "crash: rank 1: ValueError: no; job 10 waits in Slurm's queue (BeginTime)"
    assert Jobs(folder.submission).of(0, read_journal(folder).history).living == ("10",)


def test_a_job_that_is_known_to_live_goes_before_one_that_may_live(
    sent: RunFolder, slurm: StandInSlurm, claim: Callable[..., ev.ClaimRequested]
) -> None:
    trains(sent, claim(1, job="12", slurm="there"), *CRASHED)
    slurm.answers("scontrol", HERE + job_line("7", "RUNNING"))
    found = Jobs(sent.submission).of(0, read_journal(sent).history)
    assert (found.job_id, found.living, found.elsewhere) == ("7", ("7",), (("12", "there"),))


@pytest.mark.parametrize(("runs", "names"), [(1, ["9"]), (2, ["9_0", "9_1"])], ids=["a single run", "an array"])
def test_while_slurm_is_silent_the_name_of_a_job_is_that_of_one_run_alone(
    folder: RunFolder, slurm: StandInSlurm, runs: int, names: list[str]
) -> None:
    for index in range(runs):
        make_private(folder.submission.run(index).journal)
    send(folder, 2, "9", runs=tuple(range(runs)))
    slurm.refuses("scontrol", STALLED)
    found = [Jobs(folder.submission).of(index, History()) for index in range(runs)]
    assert [(job.job_id, job.living) for job in found] == [(name, (name,)) for name in names]


def test_a_job_that_slurm_has_forgotten_is_called_by_the_name_of_one_run(
    folder: RunFolder, slurm: StandInSlurm
) -> None:
    make_private(folder.submission.run(1).journal)
    send(folder, 2, "9", runs=(0, 1))
    slurm.refuses("scontrol", INVALID)
    found = Jobs(folder.submission).of(1, History())
    assert (found.job_id, found.live, found.living) == ("9_1", False, ())


def test_the_name_that_a_supervisor_gives_its_job_goes_before_the_number_that_was_sent(
    folder: RunFolder, slurm: StandInSlurm, claim: Callable[..., ev.ClaimRequested]
) -> None:
    # As with an array in the user's own options.
    send(folder, 2, "9")
    trains(folder, claim(1, job="9_0"))
    slurm.refuses("scontrol", UNREACHABLE)
    found = Jobs(folder.submission).of(0, read_journal(folder).history)
    assert (found.job_id, found.living) == ("9_0", ("9_0",))


def test_a_job_in_another_slurm_lives_and_its_number_is_not_asked_for_here(
    folder: RunFolder, slurm: StandInSlurm, claim: Callable[..., ev.ClaimRequested]
) -> None:
    send(folder, 2, "7", slurm="there")
    slurm.answers("scontrol", HERE + job_line("7", "RUNNING"))
    found = Jobs(folder.submission).of(0, History())
    assert (found.live, found.living, found.elsewhere) == (True, (), (("7", "there"),))
    assert summary(folder).state == "waiting"
    trains(folder, claim(1, slurm="there"))
    assert (summary(folder).state, summary(folder).job) == ("running", "7")
    assert not any("show job" in question for question in slurm.asked("scontrol"))
    assert slurm.asked("sacct") == []


@pytest.mark.parametrize(
    "ended",
    [
        (ev.ClaimEnded(claim=1, outcome="failed", message=""),),
        (ev.ClaimLost(claim=1, reason="ended without a word"),),
        (ev.ClaimRefused(claim=1, owner=0, reason=""),),
    ],
    ids=["it said so", "a newer supervisor said so", "it was refused"],
)
def test_a_job_in_another_slurm_is_over_when_the_journal_says_so(
    folder: RunFolder, slurm: StandInSlurm, claim: Callable[..., ev.ClaimRequested], ended: tuple[ev.Event, ...]
) -> None:
    send(folder, 2, "700", slurm="there")
    send(folder, 3, "8", slurm="here")
    trains(folder, claim(1, job="700", slurm="there"), *ended)
    slurm.answers("scontrol", HERE + job_line("8", "OUT_OF_MEMORY"))
    found = Jobs(folder.submission).of(0, read_journal(folder).history)
    assert (found.job_id, found.live, found.elsewhere) == ("8", False, ())


@pytest.mark.parametrize("claimed", [False, True], ids=["it never started", "it was requeued"])
def test_a_job_in_another_slurm_is_over_when_a_person_says_so(
    folder: RunFolder, slurm: StandInSlurm, claim: Callable[..., ev.ClaimRequested], claimed: bool
) -> None:
    send(folder, 2, "7", slurm="there")
    if claimed:
        trains(folder, claim(1, slurm="there"), *CRASHED)
    slurm.answers("scontrol", HERE + job_line("8", "FAILED"))
    history = read_journal(folder).history
    assert Jobs(folder.submission).of(0, history).elsewhere == (("7", "there"),)
    send(folder, 3, "8", slurm="here", gone=int(claimed))
    found = Jobs(folder.submission).of(0, history)
    assert (found.job_id, found.live, found.elsewhere) == ("8", False, ())


@pytest.mark.parametrize("name", ["ClusterName = here\n", "ClusterName = HERE\n", ""])
def test_a_job_of_this_slurm_is_asked_for_and_the_name_only_once(
    folder: RunFolder, slurm: StandInSlurm, claim: Callable[..., ev.ClaimRequested], name: str
) -> None:
    send(folder, 2, "7", slurm="here")
    send(folder, 3, "8", slurm="here")
    trains(folder, claim(1, slurm="here"))
    slurm.answers("scontrol", name + job_line("7", "RUNNING"))
    found = summary(folder)
    assert (found.state, found.job) == ("running", "7")
    assert sorted(slurm.asked("scontrol")) == ["-o show job 7", "-o show job 8", "show config"]


def test_a_job_whose_slurm_was_not_recorded_is_taken_for_one_of_this(
    sent: RunFolder, slurm: StandInSlurm, claim: Callable[..., ev.ClaimRequested]
) -> None:
    trains(sent, claim(1))
    slurm.answers("scontrol", HERE + job_line("7", "RUNNING"))
    assert summary(sent).state == "running"
    assert slurm.asked("scontrol") == ["-o show job 7"]


def test_a_slurm_that_does_not_say_who_it_is_is_not_asked_for_anything_else(
    folder: RunFolder, slurm: StandInSlurm, claim: Callable[..., ev.ClaimRequested]
) -> None:
    send(folder, 2, "7", slurm="here")
    trains(folder, claim(1, slurm="here"))
    slurm.refuses("scontrol", STALLED)
    found = summary(folder)
    assert (found.state, found.job) == ("running", "7")
    assert slurm.asked("scontrol") == ["show config"]


def test_a_job_that_the_user_sent_with_a_script_of_his_own_is_known_by_its_claim(
    folder: RunFolder, slurm: StandInSlurm, claim: Callable[..., ev.ClaimRequested]
) -> None:
    trains(folder, claim(1, job="99_4"), *CRASHED)
    slurm.answers("scontrol", job_line("99_4", "PENDING", Restarts=1, Reason="BeginTime"))
    assert (summary(folder).state, summary(folder).job) == ("requeued", "99_4")


def test_a_run_on_this_machine_asks_nobody(folder: RunFolder, slurm: StandInSlurm) -> None:
    found = Jobs(folder.submission).of(0, read_journal(folder).history)
    assert (found.job_id, found.live, found.facts) == ("", False, None)
    assert slurm.asked("scontrol") == []


def test_a_run_that_was_cancelled_in_slurm_stays_so_and_says_it(
    sent: RunFolder, slurm: StandInSlurm, claim: Callable[..., ev.ClaimRequested]
) -> None:
    trains(sent, claim(1), ev.JobCancelled(claim=1, message="the job was cancelled in Slurm"))
    slurm.answers("scontrol", job_line("7", "COMPLETING"))
    assert summary(sent).state == "cancelling"
    slurm.refuses("scontrol", INVALID)
    assert (summary(sent).state, summary(sent).last_word) == ("cancelled", "the job was cancelled in Slurm")


def test_the_report_tells_what_people_did_to_this_run_in_the_order_of_time(
    slurm: StandInSlurm, sent: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.answers("scontrol", job_line("7", "CANCELLED"))
    JournalWriter(sent.submission.operator(3), ev.CancelRequested(runs=(0,), operator=3)).close()
    JournalWriter(sent.submission.operator(4), ev.CancelRequested(runs=(1,), operator=4)).close()
    report = make_report(sent, Jobs(sent.submission))
    told = [entry.text for entry in report.timeline]
    assert told[-2:] == ["submitted as Slurm job 7", "cancelled by a person"]
    assert [entry.when for entry in report.timeline] == sorted(entry.when for entry in report.timeline)
    (summary,) = summarize_submission(sent.submission)
    # It was `cancel` that had Slurm do it.
    assert (summary.state, summary.last_word) == ("cancelled", "cancelled by a person")
    show_status([summary], as_json=False)
    assert capsys.readouterr().out.splitlines()[0].split()[:3] == ["run", "job", "state"]


def test_a_job_that_no_node_fits_is_said_to_wait_in_vain(slurm: StandInSlurm, sent: RunFolder) -> None:
    slurm.answers("scontrol", job_line("7", "PENDING", Reason="PartitionNodeLimit"))
    (summary,) = summarize_submission(sent.submission)
    assert "(PartitionNodeLimit), and can't start like that" in summary.last_word
