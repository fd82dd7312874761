"""The real launcher, with real ranks that are ended while they still load torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from supervisor.harness import ScriptedRun, end_of, marked_processes, wait_until

pytestmark = pytest.mark.deepspeed


def test_killing_the_supervisor_takes_torchrun_and_every_rank_with_it(
    scripted_run: Callable[..., ScriptedRun],
) -> None:
    run = scripted_run(ranks=2)
    run.launcher = ""
    supervisor = run.start()
    wait_until(lambda: len(run.ranks(1)) == 2, "both ranks have said who they are", limit_s=60)
    arguments = [" ".join(_arguments(pid)) for pid in marked_processes(run.mark)]
    assert sum("torch.distributed.run" in text for text in arguments) == 1
    assert sum("hpc_resume.worker" in text and "torch.distributed.run" not in text for text in arguments) == 2
    supervisor.kill()
    wait_until(lambda: set(marked_processes(run.mark)) <= {supervisor.pid}, "all are gone", limit_s=2)
    assert end_of(supervisor)[0] == -9


def _arguments(pid: int) -> list[str]:
    return (Path("/proc") / str(pid) / "cmdline").read_text().split("\0")
