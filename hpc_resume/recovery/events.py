"""What can happen to a run: frozen values, as they stand in the journal.

A supervisor records the claim, attempt and decision events; rank 0 of an attempt records what the training
sees; a command that changes something records the operator events. Steps are optimizer steps; positions are
samples consumed over all ranks since the start of the run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from hpc_resume.recovery.checkpoint_events import (
    Checkpoint,
    CheckpointAdopted,
    CheckpointCertified,
    CheckpointCommitted,
    CheckpointConverted,
    CheckpointDeleted,
    CheckpointQuarantined,
    CheckpointRejected,
    IntervalChosen,
    SaveFailed,
)
from hpc_resume.recovery.decisions import Decision

__all__ = [  # those that are defined elsewhere; everybody takes them from here
    "Checkpoint",
    "CheckpointAdopted",
    "CheckpointCertified",
    "CheckpointCommitted",
    "CheckpointConverted",
    "CheckpointDeleted",
    "CheckpointQuarantined",
    "CheckpointRejected",
    "IntervalChosen",
    "SaveFailed",
]

Cause = Literal[
    "finished",  # the last step was reached and the result was written
    "decided",  # rank 0 recorded a decision that ends the processes
    "terminated",  # somebody asked for a clean stop
    "preempted",  # the ranks were told to leave, the run was not
    "deadline",  # the job's time was about to end
    "crash",  # a rank failed or was killed
    "hang",  # no sign of life for too long
    "node",  # the processes vanished together with their supervisor
    "out_of_memory",
    "port",  # another program had taken the port where the ranks were to meet
    "input",  # the user's settings or data cannot be used; trying again is pointless
    "cancelled",
]
ClaimOutcome = Literal["requeued", "finished", "failed", "cancelled", "stopped"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimRequested:
    """A supervisor started and asks to own the run; the first record of its file."""

    claim: int
    cluster: str
    job_id: str
    restart_count: int
    host: str
    pid: int
    boot_id: str
    start_ticks: int
    pid_namespace: str = ""
    """Where `pid` means something: two containers on one machine count their processes apart."""
    machine_id: str = ""
    """Stays the same when the machine starts again, unlike `boot_id`; empty where it can't be read."""
    slurm_cluster: str = ""
    """The name of the Slurm whose job this is: job numbers mean nothing in another; empty if it is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimOpened:
    """The run is this supervisor's. Commits of older claims that are not in `committed` are void for ever."""

    claim: int
    committed: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimRefused:
    """Somebody who lives, or may live, owns the run."""

    claim: int
    owner: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimLost:
    """An older claim ended without a word; recorded by the next one."""

    claim: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimEnded:
    """The supervisor leaves, and says how."""

    claim: int
    outcome: ClaimOutcome
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptStarted:
    """The supervisor is about to start the workers of an attempt."""

    attempt: int
    claim: int
    data_seed: int
    host: str
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptEnded:
    """The workers of an attempt are gone."""

    attempt: int
    cause: Cause
    message: str
    fingerprint: str = ""
    rank: int | None = None
    node: str = ""
    """Where the rank was that failed first, or the node that was lost."""
    avoidable: bool = False
    """Whether the run could go on without that node."""
    found_later: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class StopRequested:
    """Somebody asked the supervisor for a clean stop while no workers were running."""

    claim: int


@dataclass(frozen=True, kw_only=True, slots=True)
class JobCancelled:
    """A person cancelled the supervisor's job with the cluster's own means; that ends the run for good."""

    claim: int
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkersReady:
    """All ranks met; training is about to load its state."""

    attempt: int
    world_size: int
    num_samples: int
    device: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    claim: int = 0
    """The claim that these ranks belong to; 0 in journals that are older than this field."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resumed:
    """Training goes on from here; `checkpoint` is None where it starts with new weights."""

    attempt: int
    checkpoint: str | None
    step: int
    position: int
    first_samples: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LossIncident:
    """The monitor fired. The samples in the air were those of [onset_position, position)."""

    attempt: int
    detector: str
    onset_step: int
    onset_position: int
    step: int
    position: int
    message: str
    numbers: dict[str, float] = field(default_factory=dict)
    severity: float | None = None
    """How many times its own limit the anomaly reached; None in journals that are older than this field."""
    may_recover: bool | None = None
    """Whether the loss could still have come back by itself; None in journals that are older than this field."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NearMiss:
    """An anomaly that passed by itself: recorded, not acted on."""

    attempt: int
    detector: str
    onset_step: int
    step: int
    message: str
    numbers: dict[str, float] = field(default_factory=dict)
    severity: float | None = None
    """How many times its own limit the anomaly reached; None in journals that are older than this field."""
    may_recover: bool | None = None
    """Whether the loss could come back by itself; None in journals that are older than this field."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSkipped:
    """The framework refused a non-finite gradient; the weights are unharmed."""

    attempt: int
    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StopAgreed:
    """All ranks heard that they must leave, and agreed on the step; `checkpoint` is what they saved there."""

    attempt: int
    step: int
    checkpoint: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayDiffers:
    """A replayed step did not give the loss that it gave before."""

    attempt: int
    step: int
    before: float
    now: float


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultInjected:
    """A fault from the config's `faults` was set off."""

    attempt: int
    index: int
    fault: str
    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFinished:
    """The last step was reached and the result lies in `model`."""

    attempt: int
    step: int
    position: int
    loss: float
    weights_digest: str
    model: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Decided:
    """A decision was taken; whoever reads it carries it out."""

    decision: Decision


@dataclass(frozen=True, kw_only=True, slots=True)
class Disagreement:
    """Two sources say different things; the journal was believed."""

    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Submitted:
    """Runs are about to be handed to the cluster."""

    runs: tuple[int, ...]
    cluster: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CancelRequested:
    """A person ended these runs for good; `operator` is the number of the command."""

    runs: tuple[int, ...]
    operator: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ResubmitRequested:
    """A person sends runs again.

    `after` holds each run's newest decision, which no longer binds; `lifts` is the newest command whose
    cancellation this one lifts, for those who ask for that. `gone` holds, for each run whose owner can't be asked,
    the newest claim that this person knows to be over.
    """

    runs: tuple[int, ...]
    after: dict[str, int]
    cluster: str
    lifts: int | None = None
    gone: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorOutcome:
    """What came of the operator's intent before it in the same file."""

    ok: bool
    job_id: str
    message: str
    slurm_cluster: str = ""
    """The name of the Slurm that took the job; empty if it is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unknown:
    """An event of a kind that this version does not know; kept as it is."""

    kind: str
    data: dict[str, Any]


Event = (
    ClaimRequested
    | ClaimOpened
    | ClaimRefused
    | ClaimLost
    | ClaimEnded
    | AttemptStarted
    | AttemptEnded
    | StopRequested
    | JobCancelled
    | WorkersReady
    | Resumed
    | LossIncident
    | NearMiss
    | StepSkipped
    | CheckpointCommitted
    | CheckpointAdopted
    | CheckpointCertified
    | CheckpointRejected
    | CheckpointQuarantined
    | CheckpointDeleted
    | CheckpointConverted
    | IntervalChosen
    | SaveFailed
    | StopAgreed
    | ReplayDiffers
    | FaultInjected
    | RunFinished
    | Decided
    | Disagreement
    | Submitted
    | CancelRequested
    | ResubmitRequested
    | OperatorOutcome
    | Unknown
)
