from __future__ import annotations

from collections.abc import Callable

import pytest
from supervisor.harness import ScriptedRun, end_of, wait_until

from hpc_resume.recovery import events as ev

Make = Callable[..., ScriptedRun]


def cli(run: ScriptedRun) -> list[str]:
    return ["-m", "hpc_resume", "run", str(run.folder.submission.path), "--index", "0"]


def test_a_second_supervisor_refuses_in_one_line_and_the_first_is_undisturbed(scripted_run: Make) -> None:
    run = scripted_run({"do": "wait", "step": 6})
    first = run.start_command(cli(run))
    run.wait_for_word("waiting at 6")
    code, output, errors = end_of(run.start_command(cli(run)))
    assert code == 3
    assert output == ""
    assert errors.count("\n") == 1
    assert errors.startswith("error: ")
    assert "supervisor 1 is alive" in errors
    run.say("go")
    assert end_of(first)[0] == 0
    assert [(e.claim, e.owner) for e in run.events(ev.ClaimRefused)] == [(2, 1)]
    assert len(run.history.attempts) == 1
    run.check()


def test_of_many_supervisors_that_start_at_once_one_owns_the_run(scripted_run: Make) -> None:
    run = scripted_run({"do": "wait", "step": 6})
    crowd = [run.start() for _ in range(6)]
    run.wait_for_word("waiting at 6")
    run.wait_for_event(ev.ClaimRefused, count=5)
    run.say("go")
    assert sorted(end_of(process)[0] for process in crowd) == [0, 3, 3, 3, 3, 3]
    assert len(run.history.attempts) == 1
    run.check()


def test_without_a_queue_the_command_line_starts_again_by_itself_after_a_requeue(scripted_run: Make) -> None:
    run = scripted_run({"do": "crash", "step": 5}, {"do": "loss", "step": 9, "onset": 8})
    assert end_of(run.start_command(cli(run)))[0] == 0
    assert [c.request.restart_count for c in run.history.claims] == [0, 1, 2]
    assert run.history.finished is not None
    run.check()


def test_a_stop_reaches_the_supervisor_through_the_command_that_started_it(scripted_run: Make) -> None:
    run = scripted_run({"do": "wait", "step": 6})
    command = run.start_command(cli(run))
    run.wait_for_word("waiting at 6")
    command.terminate()
    assert end_of(command)[0] == 143
    assert [e.outcome for e in run.events(ev.ClaimEnded)] == ["stopped"]
    run.check()


def test_a_supervisor_stops_cleanly_when_the_command_that_started_it_is_killed(scripted_run: Make) -> None:
    run = scripted_run({"do": "wait", "step": 6})
    command = run.start_command(cli(run))
    run.wait_for_word("waiting at 6")
    command.kill()
    wait_until(lambda: len(run.events(ev.ClaimEnded)) == 1, "the supervisor has left")
    assert end_of(command)[0] == -9
    assert [e.outcome for e in run.events(ev.ClaimEnded)] == ["stopped"]
    assert run.saved()[-1] == 6


def test_a_run_whose_owner_can_not_be_asked_goes_on_once_a_person_says_that_it_is_gone(scripted_run: Make) -> None:
    run = scripted_run({"do": "node_lost", "step": 5})
    assert run.supervise() == -9
    path = run.folder.claim(1)
    path.write_text(path.read_text().replace(run.history.claims[0].request.pid_namespace, "pid:[1]"))
    code, _, errors = end_of(run.start_command(cli(run)))
    assert code == 3
    assert "`resubmit --owner-is-gone`" in errors
    run.operator(ev.ResubmitRequested(runs=(0,), after={"0": 1}, cluster="local", gone={"0": 1}))
    assert run.supervise() == 0
    assert [e.reason for e in run.events(ev.ClaimLost)] == ["a person said that it is gone"]
    run.check()


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_run_whose_folder_others_can_write_to_is_refused_before_anything_is_written(
    scripted_run: Make, mode: int
) -> None:
    run = scripted_run()
    run.folder.path.chmod(mode)
    code, _, errors = end_of(run.start())
    assert code == 2
    assert "chmod go-w" in errors
    assert list(run.folder.journal.iterdir()) == []
