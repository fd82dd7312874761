"""Asking Slurm: every call has a limit, and an answer, a refusal and silence are told apart."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
from collections.abc import Iterable

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

from hpc_resume.cluster.slurm_facts import JobFacts, expand_tasks, parse_jobs
from hpc_resume.errors import ClusterError

_log = logging.getLogger(__name__)
LIMIT_S = 30.0
"""How long a call may take; Slurm's own limit for its controller's answer is 10 s, and some calls try again."""

_SILENT = re.compile(
    r"Unable to contact slurm controller|Socket timed out|Unexpected message received|Connection refused|"
    r"Communication connection failure|Zero Bytes were transmitted|Slurm backup controller in standby|"
    r"Slurm database is not available|munge|authentication|credential",
    re.IGNORECASE,
)


class SilentError(ClusterError):
    """Slurm's controller did not answer; whether it did what it was asked to is not known."""


def ask(*command: str, limit_s: float = LIMIT_S) -> str:
    """Run one of Slurm's programs and return what it prints.

    Raises:
        SilentError: the controller did not answer.
        ClusterError: there is no such program, or it refused.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
            # Without this the numbers of an array's elements are cut off after 64 characters.
            env={**os.environ, "SLURM_BITSTR_LEN": "0"},
            # Slurm signals all processes of a job when it ends it; a call that is under way then is worth its end.
            preexec_fn=_ignore_stop,
        )
    except FileNotFoundError as error:
        raise ClusterError(f"there is no `{command[0]}` on PATH here; Slurm's programs are needed") from error
    except subprocess.TimeoutExpired as error:
        raise SilentError(f"`{' '.join(command)}` gave no answer within {limit_s:.0f} s") from error
    if done.returncode == 0:
        return done.stdout
    kind = SilentError if is_silence(done.stderr) else ClusterError
    raise kind(f"`{' '.join(command)}` failed: {in_one_line(done.stderr) or f'exit code {done.returncode}'}")


def while_silent(limit_s: float) -> Retrying:
    """Return what tries again as long as the controller gives no answer, at growing distances, and no longer."""
    return Retrying(
        retry=retry_if_exception_type(SilentError),
        wait=wait_exponential(multiplier=0.5, max=30),
        stop=stop_after_delay(limit_s),
        reraise=True,
    )


def is_silence(text: str) -> bool:
    """Tell whether a program of Slurm complains of the controller that did not answer, and not of its answer."""
    return _SILENT.search(text) is not None


def _ignore_stop() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def in_one_line(text: str) -> str:
    """Return what a program of Slurm complained of, without its own name before each line."""
    lines = (re.sub(r"^\w+: (?:error: |fatal: )?", "", line.strip()) for line in text.splitlines())
    return "; ".join(dict.fromkeys(line for line in lines if line))


def show_jobs(job_id: str) -> list[JobFacts]:
    """Return a job, or all elements of an array, as far as Slurm's controller remembers; else nothing.

    Raises:
        ClusterError: it can't be asked.
    """
    try:
        return parse_jobs(ask("scontrol", "-o", "show", "job", job_id))
    except SilentError:
        raise
    except ClusterError as error:
        if "Invalid job id" in str(error):
            return []
        raise


def final_states(job_id: str) -> dict[str, str]:
    """Return the last state of a job, or of each element of an array, that the accounting knows; nothing without it.

    A second opinion, for jobs that the controller has forgotten.
    """
    try:
        text = ask("sacct", "-n", "-P", "-X", "-j", job_id, "-o", "JobID,State")
    except ClusterError as error:
        _log.debug("no accounting: %s", error)
        return {}
    found = {}
    for name, _, state in (line.partition("|") for line in text.splitlines() if "|" in line):
        # Elements that never started are one line, like `123_[2-5%2]`; a cancelled job's state is `CANCELLED by 1000`.
        array, _, tasks = name.partition("_[")
        names = [f"{array}_{task}" for task in expand_tasks(tasks.rstrip("]"))] if tasks else [name]
        found.update(dict.fromkeys(names, state.split()[0]))
    return found


def earlier_states(job_id: str, limit_s: float = LIMIT_S) -> list[str]:
    """Return how each incarnation of a requeued job ended, as the accounting knows it, the oldest first."""
    try:
        text = ask("sacct", "-n", "-P", "-X", "--duplicates", "-j", job_id, "-o", "State", limit_s=limit_s)
    except ClusterError as error:
        _log.debug("no accounting: %s", error)
        return []
    return [line.split()[0] for line in text.splitlines() if line.strip()]


def down_nodes(nodes: Iterable[str]) -> tuple[str, ...]:
    """Return those nodes that Slurm has given up.

    Raises:
        ClusterError: it can't be asked.
    """
    names = ",".join(nodes)
    if not names:
        return ()
    text = ask("sinfo", "-a", "-N", "-h", "-n", names, "-o", "%N %T")
    pairs = (line.split() for line in text.splitlines())
    return tuple(sorted({name for name, state in pairs if state.startswith(("down", "fail"))}))


def expand_nodes(nodes: str) -> tuple[str, ...]:
    """Return the names that stand in a list like `n[1-3,7]`, in its order.

    Raises:
        ClusterError: `scontrol` is missing; no controller is needed for this.
    """
    return tuple(ask("scontrol", "show", "hostnames", nodes).split()) if nodes else ()


def node_address(node: str) -> str:
    """Return the address under which Slurm itself reaches a node.

    Raises:
        ClusterError: it can't be asked.
    """
    match = re.search(r"NodeAddr=(\S+)", ask("scontrol", "-o", "show", "node", node))
    return match.group(1) if match else node


def setting(name: str) -> str | None:
    """Return a setting of this Slurm; None if it has none of that name.

    Raises:
        ClusterError: it can't be asked.
    """
    match = re.search(rf"^{name}\s*= *(.*)$", ask("scontrol", "show", "config"), re.MULTILINE)
    return match.group(1).strip() if match else None
