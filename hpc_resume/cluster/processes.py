"""Processes of this machine, named so that a reused pid is not mistaken for an old one."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1


def node_name() -> str:
    """Return how the cluster calls this machine: Slurm's name for the node, else the host's own."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def boot_id() -> str:
    """Return an id that changes with every start of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def pid_namespace() -> str:
    """Return the name of the world in which the pids that this process sees are counted."""
    return str(Path("/proc/self/ns/pid").readlink())


def machine_id() -> str:
    """Return an id that stays with the machine; empty where there is none, as in many containers."""
    try:
        return Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def tie_to_parent(parent: int | None, number: signal.Signals) -> None:
    """Have the kernel send this process a signal when the one that started it dies.

    Leaves at once if that has happened already; `parent` is the pid that it should have, None where nobody knows.
    Safe between fork and exec, and stays in force over an exec.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, number)
    # It may have died before we could ask; an orphan belongs to process 1, or to whoever adopts orphans here.
    found = os.getppid()
    if found != parent if parent is not None else found == 1:
        os._exit(1)


def start_ticks(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; 0 if there is none, or only its remains."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    # The command's name, in parentheses, may hold anything; fields 3 (state) and 22 (start) follow the last one.
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] in "ZX" else int(fields[19])


def is_running(pid: int, started: int) -> bool:
    """Tell whether the very process that started then is running."""
    return started > 0 and start_ticks(pid) == started


def send_signal(pid: int, started: int, number: signal.Signals) -> None:
    """Signal a process if it is still the one that was meant."""
    if is_running(pid, started):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
