from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_resume.cluster.processes import boot_id, is_running, machine_id, pid_namespace, send_signal, start_ticks

WAITS = [sys.executable, "-c", "import sys; sys.stdin.read()"]


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(WAITS, stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_the_boot_id_stays_the_same_until_the_machine_starts_again() -> None:
    assert boot_id() == boot_id()
    assert re.fullmatch(r"[0-9a-f-]{36}", boot_id())


def test_the_pid_namespace_is_the_one_of_every_process_that_is_seen(child: subprocess.Popen[bytes]) -> None:
    assert pid_namespace() == os.readlink(f"/proc/{child.pid}/ns/pid")  # noqa: PTH115


def test_the_machine_id_stays_the_same_and_is_one_word_or_none() -> None:
    assert machine_id() == machine_id()
    assert len(machine_id().split()) <= 1


@pytest.mark.parametrize(("parent", "output"), [("os.getppid()", "goes on"), ("1", "")], ids=["there", "gone"])
def test_a_process_whose_parent_died_before_it_could_be_tied_to_it_leaves(parent: str, output: str) -> None:
    code = (
        "import os, signal; from hpc_resume.cluster.processes import tie_to_parent;"
        f"tie_to_parent({parent}, signal.SIGKILL); print('goes on')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == (output, 0 if output else 1)


def test_a_process_knows_its_own_start() -> None:
    assert is_running(os.getpid(), start_ticks(os.getpid()))


def test_a_later_process_has_no_earlier_start(child: subprocess.Popen[bytes]) -> None:
    assert start_ticks(child.pid) >= start_ticks(os.getpid()) > 0
    uptime_ticks = float(Path("/proc/uptime").read_text().split()[0]) * os.sysconf("SC_CLK_TCK")
    assert start_ticks(child.pid) <= uptime_ticks


def test_another_process_with_the_same_pid_is_not_taken_for_the_old_one(child: subprocess.Popen[bytes]) -> None:
    earlier = start_ticks(child.pid) - 1
    assert not is_running(child.pid, earlier)
    send_signal(child.pid, earlier, signal.SIGKILL)
    assert child.poll() is None
    assert is_running(child.pid, start_ticks(child.pid))


def test_what_is_left_of_a_dead_process_does_not_count_as_running() -> None:
    child = subprocess.Popen(WAITS, stdin=subprocess.PIPE)
    started = start_ticks(child.pid)
    child.kill()
    # Waits for the death and leaves the zombie.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{child.pid}").exists()
    assert start_ticks(child.pid) == 0
    assert not is_running(child.pid, started)
    send_signal(child.pid, started, signal.SIGTERM)
    child.communicate()
    assert not is_running(child.pid, started)


def test_a_pid_that_was_never_read_is_never_running(child: subprocess.Popen[bytes]) -> None:
    assert not is_running(child.pid, 0)
    assert not is_running(2**22 + 1, 0)
    assert start_ticks(2**22 + 1) == 0


def test_a_signal_reaches_the_process_that_is_meant(child: subprocess.Popen[bytes]) -> None:
    send_signal(child.pid, start_ticks(child.pid), signal.SIGTERM)
    assert child.wait(10) == -signal.SIGTERM


@pytest.mark.parametrize("name", [") S 1 1", "a b", "R) (Z"], ids=["parenthesis", "space", "both"])
def test_a_command_with_an_odd_name_is_read_correctly(name: str, tmp_path: Path) -> None:
    odd = tmp_path / name
    odd.symlink_to("/bin/sleep")
    process = subprocess.Popen([str(odd), "60"])
    try:
        # The name is in place once `sleep` has replaced the copy of this process.
        deadline = time.monotonic() + 10
        while Path(f"/proc/{process.pid}/comm").read_text().strip() != name:
            assert time.monotonic() < deadline
        uptime_ticks = float(Path("/proc/uptime").read_text().split()[0]) * os.sysconf("SC_CLK_TCK")
        # /proc/uptime has two digits, so a tick may be rounded away.
        assert start_ticks(os.getpid()) <= start_ticks(process.pid) <= round(uptime_ticks) + 1
    finally:
        process.kill()
        process.wait()
