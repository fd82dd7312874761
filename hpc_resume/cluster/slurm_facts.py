"""What Slurm says of a job, as values; and what follows from it for the job's supervisor.

Read from `scontrol -o show job`, whose fields are the same from 20.11 to 25.11, unlike the layouts of `--json`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpc_resume.cluster.base import Interruption, InterruptionCause

WAITING = (
    *("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"),
    "EXPEDITING",
)
"""States of a job that will start, or start again."""

GONE = "GONE"
"""Not one of Slurm's: the controller has forgotten the job, so that it is over, and nobody knows how."""

ENDED = (
    GONE,
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT"),
)
"""States of a job that is over. One that this version has never heard of is none: the job may be alive."""

_CAUSES: dict[str, InterruptionCause] = {
    "PREEMPTED": "preempted",
    "REQUEUED": "preempted",
    "TIMEOUT": "deadline",
    "DEADLINE": "deadline",
    "CANCELLED": "cancelled",
    # Slurm says that of a job whose supervisor was killed alone, or crashed.
    "FAILED": "crash",
    "OUT_OF_MEMORY": "out_of_memory",
}

_FIELD = re.compile(r"(\S+?)=(\S*)")
_NONE = ("", "None", "(null)", "N/A", "Unknown")


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFacts:
    """One job, or one element of an array."""

    job_id: str
    """As `scontrol` takes it: `123_4` for an element, `123` else."""
    state: str
    reason: str = ""
    restarts: int = 0
    preempted: bool = False
    """Slurm has told it to leave; it has its grace time, or less."""
    run_s: float = 0.0
    limit_s: float | None = None
    nodes: str = ""
    excluded: str = ""
    required: str = ""
    """Nodes that it was told to run on; it can't start without them."""
    partition: str = ""
    may_requeue: bool = True
    exit_code: str = ""

    @property
    def waits(self) -> bool:
        """Whether it has no processes, and will have some."""
        return self.state in WAITING

    @property
    def lives(self) -> bool:
        """Whether it may still do something."""
        return self.state not in ENDED

    def is_ending(self, restart_count: int) -> bool:
        """Tell whether Slurm is ending, or has ended, all processes of the `restart_count`-th restart of this job."""
        return self.restarts > restart_count or self.state == "COMPLETING" or self.state in ENDED


def parse_jobs(text: str) -> list[JobFacts]:
    """Return the jobs that `scontrol -o show job` printed; an array that nothing has started of is taken apart."""
    found: list[JobFacts] = []
    for line in text.splitlines():
        fields = dict(_FIELD.findall(line))
        if "JobId" not in fields:
            continue
        array = fields.get("ArrayJobId", "0")
        ids = [fields["JobId"]]
        if array != "0" and "ArrayTaskId" in fields:
            ids = [f"{array}_{task}" for task in expand_tasks(fields["ArrayTaskId"])]
        found.extend(_facts(job_id, fields) for job_id in ids)
    return found


def _facts(job_id: str, fields: dict[str, str]) -> JobFacts:
    def text(name: str) -> str:
        value = fields.get(name, "")
        return "" if value in _NONE else value

    return JobFacts(
        job_id=job_id,
        state=fields.get("JobState", ""),
        reason=text("Reason"),
        restarts=int(text("Restarts") or 0),
        preempted=bool(text("PreemptTime")),
        run_s=parse_seconds(text("RunTime")) or 0.0,
        limit_s=parse_seconds(text("TimeLimit")),
        nodes=text("NodeList"),
        excluded=text("ExcNodeList"),
        required=text("ReqNodeList"),
        partition=text("Partition"),
        may_requeue=fields.get("Requeue", "1") != "0",
        exit_code=text("ExitCode"),
    )


def expand_tasks(text: str) -> list[int]:
    """Return the numbers in an array's task list, like `0-3,7%2` or `0-8:4`."""
    numbers: list[int] = []
    for part in text.partition("%")[0].split(","):
        span, _, stride = part.partition(":")
        first, _, last = span.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1, int(stride or 1)))
    return numbers


def parse_seconds(text: str) -> float | None:
    """Return the seconds of Slurm's `[days-]hours:minutes:seconds`; None for `UNLIMITED` and what is no duration."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def interruption_of(facts: JobFacts, restart_count: int, down: tuple[str, ...]) -> Interruption | None:
    """Say what Slurm is doing to a running job that was started for the `restart_count`-th time; None if nothing.

    `down` are those of its nodes that Slurm does not hear from. Slurm counts a restart when it takes a job from its
    nodes, so that within a job a higher count means that it is being requeued. A job that is being ended for good is
    `COMPLETING` with the same count; its reason, or the time that it ran, tells a limit from a cancel.
    """
    ends = facts.is_ending(restart_count)
    if down and ends:
        names = ", ".join(down)
        requeued = " and requeued the job" if facts.restarts > restart_count else ""
        return Interruption(cause="node", message=f"Slurm lost {names}{requeued}", nodes=down, final=True)
    if facts.restarts > restart_count:
        return Interruption(cause="preempted", message="Slurm took the job back into its queue", final=True)
    if facts.preempted:
        return Interruption(cause="preempted", message="Slurm needs its nodes for another job", final=ends)
    if not ends:
        return None
    over = facts.limit_s is not None and facts.run_s >= facts.limit_s
    if over or facts.reason in ("TimeLimit", "DeadLine"):
        return Interruption(cause="deadline", message="the job's time is over", final=True)
    return Interruption(cause="cancelled", message="the job was cancelled in Slurm", final=True)


def interruption_from_state(state: str, down: tuple[str, ...]) -> Interruption | None:
    """Say why a start of a job ended, from the state that the accounting has for it; None if that says nothing.

    Without a state, nodes that are `down` say enough.
    """
    if state == "NODE_FAIL" or (not state and down):
        names = ", ".join(down) or "a node"
        return Interruption(cause="node", message=f"Slurm lost {names}", nodes=down, final=True)
    cause = _CAUSES.get(state)
    if cause is None:
        return None
    message = "the job was cancelled in Slurm" if cause == "cancelled" else f"Slurm says {state}"
    return Interruption(cause=cause, message=message, final=True)
