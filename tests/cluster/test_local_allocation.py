from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from supervisor.harness import ScriptedRun, end_of, marked_processes, wait_until

from hpc_resume.cluster import torchrun
from hpc_resume.cluster.local_allocation import JOB_ID, RESTART_COUNT, LocalAllocation
from hpc_resume.cluster.processes import is_running, machine_id
from hpc_resume.cluster.torchrun import end_processes
from hpc_resume.errors import ClusterError
from hpc_resume.recovery.events import ClaimRequested

HERE = Path(__file__).parent
Make = Callable[..., ScriptedRun]


def test_a_supervisor_says_who_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(JOB_ID, "77_3")
    monkeypatch.setenv(RESTART_COUNT, "5")
    request = LocalAllocation().request(4)
    assert (request.claim, request.job_id, request.restart_count, request.pid) == (4, "77_3", 5, os.getpid())
    assert LocalAllocation().liveness(request) == "alive"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"start_ticks": 1}, "dead", id="another process with its pid"),
        pytest.param({"boot_id": "before"}, "dead", id="before this machine was started"),
        pytest.param({"boot_id": "there", "host": "elsewhere"}, "unknown", id="on another machine"),
        pytest.param({"boot_id": "there", "machine_id": "2"}, "unknown", id="on another machine of the same name"),
        pytest.param(
            {"boot_id": "there", "host": "elsewhere", "machine_id": machine_id()},
            "unknown",
            id="on another machine from the same image",
        ),
        pytest.param({"host": "renamed"}, "alive", id="here under another name"),
        pytest.param({"start_ticks": 1, "pid_namespace": "pid:[1]"}, "unknown", id="in another container"),
        pytest.param({"pid_namespace": "pid:[1]"}, "alive", id="in another container and seen all the same"),
        pytest.param({"start_ticks": 1, "pid_namespace": ""}, "unknown", id="it did not say in which container"),
    ],
)
def test_whether_another_supervisor_is_alive(changes: dict[str, Any], expected: str) -> None:
    request = dataclasses.replace(LocalAllocation().request(1), **changes)
    assert LocalAllocation().liveness(request) == expected


def test_a_supervisor_that_ended_is_dead() -> None:
    code = (
        "import dataclasses, json; from hpc_resume.cluster.local_allocation import LocalAllocation;"
        "print(json.dumps(dataclasses.asdict(LocalAllocation().request(1))))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert LocalAllocation().liveness(ClaimRequested(**json.loads(output))) == "dead"


def test_nobody_ends_a_job_here() -> None:
    assert LocalAllocation().seconds_left() is None


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_of_a_lost_attempt_are_ended(scripted_run: Make, ranks: int) -> None:
    run = scripted_run({"do": "wait", "step": 6}, ranks=ranks)
    supervisor = run.start()
    run.wait_for_word("waiting at 6")
    reports = run.ranks(1)
    supervisor.send_signal(signal.SIGSTOP)
    end_processes(run.folder, 1)
    assert [is_running(r["pid"], r["start_ticks"]) for r in reports] == [False] * ranks
    end_processes(run.folder, 1)
    supervisor.kill()
    end_of(supervisor)
    wait_until(lambda: marked_processes(run.mark) == [], "the launcher is gone too")


def test_ranks_that_can_not_be_ended_are_named_and_not_waited_for_for_ever(
    scripted_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = scripted_run({"do": "wait", "step": 6})
    supervisor = run.start()
    run.wait_for_word("waiting at 6")
    # Nothing that a test may do keeps a process from dying of this signal, so the signal is kept from the process.
    monkeypatch.setattr(torchrun, "send_signal", lambda *_: None)
    with pytest.raises(ClusterError, match=f"can't end process {run.ranks(1)[0]['pid']} of attempt 1 on ") as caught:
        end_processes(run.folder, 1, limit_s=0.05)
    assert "\n" not in str(caught.value)
    run.say("go")
    assert end_of(supervisor)[0] == 0


@pytest.mark.parametrize("ranks", [1, 3])
def test_no_rank_outlives_a_supervisor_that_is_killed(scripted_run: Make, ranks: int) -> None:
    run = scripted_run({"do": "hang", "step": 6}, ranks=ranks)
    supervisor = run.start()
    wait_until(lambda: run.steps(1)[-1:] == [5], "step 5")
    assert len(marked_processes(run.mark)) == 2 + ranks
    supervisor.kill()
    wait_until(lambda: marked_processes(run.mark) in ([], [supervisor.pid]), "all are gone", limit_s=2)
    assert end_of(supervisor)[0] == -9


def test_what_a_rank_forks_is_deaf_to_signals_and_dies_with_it(scripted_run: Make) -> None:
    run = scripted_run({"do": "fork", "step": 5}, {"do": "wait", "step": 6})
    supervisor = run.start()
    run.wait_for_word("waiting at 6")
    wait_until(lambda: list(run.folder.submission.path.glob("child *")) != [], "the child lives")
    (word,) = run.folder.submission.path.glob("child *")
    child = int(word.name.split()[1])
    both = {signal.SIGTERM, signal.SIGUSR2}
    for number in both:
        os.kill(child, number)
    wait_until(lambda: pending_signals(child) == both, "the signals are held back")
    supervisor.kill()
    wait_until(lambda: set(marked_processes(run.mark)) <= {supervisor.pid}, "all are gone", limit_s=2)
    assert end_of(supervisor)[0] == -9


def pending_signals(pid: int) -> set[int]:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    mask = int(status["ShdPnd"], 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


@pytest.mark.parametrize("how", ["supervisor killed", "cancelled"])
def test_a_rank_that_was_just_starting_does_not_outlive_its_launcher(scripted_run: Make, how: str) -> None:
    run = scripted_run({"do": "start_late", "step": 0})
    # Orphans then belong to this process and not to process 1, as under systemd and in a Slurm step.
    reaper = run.start_command([str(HERE / "reaper.py"), *run.command()])
    run.wait_for_word("starting")
    if how == "cancelled":
        run.cancel()
    else:
        os.kill(run.history.claims[0].request.pid, signal.SIGKILL)
    wait_until(lambda: len(marked_processes(run.mark)) == 2, "only the reaper and the rank are left")
    run.say("begin")
    assert end_of(reaper)[0] == 0
    assert not run.folder.rank_report(1, 0).exists(), "it took itself for a rank of a living attempt"
