"""Why did the workers end? From what they left, never from exit codes alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from hpc_resume.cluster.base import Interruption
from hpc_resume.cluster.reports import RankReport
from hpc_resume.errors import MismatchError
from hpc_resume.recovery import Decision, History
from hpc_resume.recovery import events as ev
from hpc_resume.recovery.decide import KILLED_FOR_MEMORY

Request = Literal["terminated", "deadline", "preempted", "cancelled"]

# What a rank says when another one is gone: the consequence, not the cause.
_PORT_TAKEN = re.compile(r"EADDRINUSE|[Aa]ddress already in use")
_PEER_GONE = re.compile(r"Connection closed by peer|Connection reset by peer|Broken pipe|NCCL|Socket Timeout|Gloo")


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """How the watch over the workers ended."""

    exit_code: int | None
    asked: Request | None = None
    silent_s: float | None = None
    """Seconds without a sign of life, if that is why they were killed."""
    interruption: Interruption | None = None
    """What the cluster did to the job."""
    out_of_memory: bool = False
    """Whether the cluster killed a rank for the memory that it took."""


def is_explained(history: History, watched: Watched) -> bool:
    """Tell whether it is known why the workers of the newest attempt are gone, without looking at the cluster."""
    attempt = history.attempts[-1]
    known = history.finished is not None or watched.asked is not None or attempt.stop is not None
    return known or _decision_of(history) is not None


def classify(history: History, watched: Watched, reports: list[RankReport], node: str) -> ev.AttemptEnded:
    """Turn what the workers of the newest attempt left into an event; `node` is where the supervisor is."""
    number = history.attempts[-1].started.attempt
    known = _from_outside(history, watched, node)
    if known is not None:
        cause, message, where = known
        return ev.AttemptEnded(attempt=number, cause=cause, message=message, node=where)
    if watched.silent_s is not None:
        message = f"no sign of life for {watched.silent_s:.0f} s"
        return ev.AttemptEnded(attempt=number, cause="hang", message=message, fingerprint="hang", node=node)
    culprit = _first_to_fail(reports)
    if culprit is None:
        message = f"the workers ended without a word (launcher's exit code {watched.exit_code}); see their logs"
        # Not the code: of several ranks that fail alike, chance decides whose it is.
        return ev.AttemptEnded(attempt=number, cause="crash", message=message, fingerprint="no word", node=node)
    ever_resumed = any(attempt.resumed for attempt in history.attempts)
    cause, message, fingerprint = _from_inside(culprit, watched, ever_resumed=ever_resumed)
    return ev.AttemptEnded(
        attempt=number,
        cause=cause,
        message=message,
        fingerprint=fingerprint,
        rank=culprit.rank,
        node=culprit.host or node,
    )


def _from_outside(history: History, watched: Watched, node: str) -> tuple[ev.Cause, str, str] | None:
    """Return cause, message and node where the workers did not end on their own account; else None."""
    stop, done = history.attempts[-1].stop, watched.interruption
    if history.finished is not None:
        return "finished", f"finished at step {history.finished.step}", node
    if watched.asked == "cancelled":
        return "cancelled", "cancelled by a person", node
    if done is not None and done.cause == "cancelled":
        return "cancelled", done.message, node
    if (decision := _decision_of(history)) is not None:
        return "decided", decision.reason, node
    cause = watched.asked or (done.cause if done is not None else None)
    why = done.message if done is not None else "asked to leave"
    lost = (", ".join(done.nodes) if done is not None else "") or node
    if stop is not None:
        saved = "saved" if stop.checkpoint else "could not save"
        return cause or "preempted", f"{why}; {saved} at step {stop.step}", lost if cause == "node" else node
    if done is not None and done.cause == "node":
        return "node", done.message, lost
    # Whatever else went wrong on the way out: a person's stop must not become a requeue.
    return None if cause is None else (cause, f"{why}; nothing could be saved in time", node)


def _from_inside(culprit: RankReport, watched: Watched, *, ever_resumed: bool) -> tuple[ev.Cause, str, str]:
    """Return cause, message and fingerprint of what the first rank to fail left."""
    if culprit.state == "started":
        if watched.out_of_memory:
            return "out_of_memory", "the cluster killed a rank for the memory that it took", KILLED_FOR_MEMORY
        where = f" on {culprit.host}" if culprit.host else ""
        return "crash", f"rank {culprit.rank}{where} was killed (exit code {watched.exit_code})", "killed"
    # Only before the first step: what worked once, and fails weeks later, is rarely the user's mistake. But a
    # checkpoint of something else stays one.
    if culprit.by_user and (not ever_resumed or culprit.error == MismatchError.__name__):
        return "input", culprit.message, ""
    message = f"rank {culprit.rank}: {culprit.error}: {culprit.message}".strip()
    if _PORT_TAKEN.search(culprit.message):
        return "port", message, ""
    cause: ev.Cause = "out_of_memory" if culprit.error in ("OutOfMemoryError", "MemoryError") else "crash"
    return cause, message, f"{culprit.error} {culprit.place}"


def _decision_of(history: History) -> Decision | None:
    """Return the decision by which rank 0 of the newest attempt ended the processes, if it did."""
    pending = history.pending
    # A rollback that is still pending was not carried out: then it matters how the workers ended.
    if pending is None or pending.number <= history.attempts[-1].decision:
        return None
    return pending if pending.action in ("requeue", "stop") else None


def _first_to_fail(reports: list[RankReport]) -> RankReport | None:
    """Choose among ranks that failed, ranks that vanished, and ranks that died of another's death."""
    failed = [r for r in reports if r.state == "failed"]
    own_fault = [r for r in failed if not _PEER_GONE.search(f"{r.error} {r.message}")]
    vanished = [r for r in reports if r.state == "started"]
    for candidates in (own_fault, vanished, failed):
        if candidates:
            return candidates[0]
    return None
