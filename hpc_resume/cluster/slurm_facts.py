"""What Slurm says of a job, as values; and what follows from it for the job's supervisor.

Read from `scontrol -o show job`, whose fields are the same from 20.11 to 25.11, unlike the layouts of `--json`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpc_resume.cluster.base import Interruption

WAITING = (
    *("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"),
    "EXPEDITING",
)
"""States of a job that will start, or start again."""

RUNNING = ("RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT", "COMPLETING")
"""States of a job that has processes, or may still have some."""

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
    is_batch: bool = True
    exit_code: str = ""

    @property
    def waits(self) -> bool:
        """Whether it has no processes, and will have some."""
        return self.state in WAITING

    @property
    def lives(self) -> bool:
        """Whether it may still do something."""
        return self.state in WAITING or self.state in RUNNING


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
        is_batch=fields.get("BatchFlag", "1") != "0",
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
    `COMPLETING` with the same count, for whatever reason: only the time that it ran tells a limit from a cancel.
    """
    if facts.restarts > restart_count:
        if down:
            return Interruption(
                cause="node", message=f"Slurm lost {', '.join(down)} and requeued the job", nodes=down, final=True
            )
        return Interruption(cause="preempted", message="Slurm took the job back into its queue", final=True)
    ends = not facts.waits and (facts.state == "COMPLETING" or facts.state not in RUNNING)
    if facts.preempted:
        return Interruption(cause="preempted", message="Slurm needs its nodes for another job", final=ends)
    if not ends:
        return None
    if down:
        return Interruption(cause="node", message=f"Slurm lost {', '.join(down)}", nodes=down, final=True)
    if facts.limit_s is not None and facts.run_s >= facts.limit_s:
        return Interruption(cause="deadline", message="the job's time is over", final=True)
    return Interruption(cause="cancelled", message="the job was cancelled in Slurm", final=True)
