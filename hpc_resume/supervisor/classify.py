"""Why did the workers end? From what they left, never from exit codes alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from hpc_resume.cluster.base import RankReport
from hpc_resume.recovery import History
from hpc_resume.recovery import events as ev

Request = Literal["terminated", "deadline", "cancelled"]

# What a rank says when another one is gone: the consequence, not the cause.
_PEER_GONE = re.compile(r"Connection closed by peer|Connection reset by peer|Broken pipe|NCCL|Socket Timeout|Gloo")


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """How the watch over the workers ended."""

    exit_code: int | None
    asked: Request | None = None
    silent_s: float | None = None
    """Seconds without a sign of life, if that is why they were killed."""


def classify(history: History, watched: Watched, reports: list[RankReport], node: str) -> ev.AttemptEnded:
    """Turn what the workers of the newest attempt left into an event."""
    attempt = history.attempts[-1]
    number = attempt.started.attempt

    def ended(cause: ev.Cause, message: str, *, fingerprint: str = "", rank: int | None = None) -> ev.AttemptEnded:
        return ev.AttemptEnded(
            attempt=number, cause=cause, message=message, fingerprint=fingerprint, rank=rank, node=node
        )

    if history.finished is not None:
        return ended("finished", f"finished at step {history.finished.step}")
    if watched.asked == "cancelled":
        return ended("cancelled", "cancelled by a person")
    pending = history.pending
    # A rollback that is still pending was not carried out: then it matters how the workers ended.
    if pending is not None and pending.number > attempt.decision and pending.action in ("requeue", "stop"):
        return ended("decided", pending.reason)
    if attempt.stop is not None:
        saved = "saved" if attempt.stop.checkpoint else "could not save"
        cause: ev.Cause = watched.asked or "preempted"
        return ended(cause, f"asked to leave; {saved} at step {attempt.stop.step}")
    if watched.asked is not None:
        # Whatever else went wrong on the way out: a person's stop must not become a requeue.
        return ended(watched.asked, "asked to leave; nothing could be saved in time")
    if watched.silent_s is not None:
        return ended("hang", f"no sign of life for {watched.silent_s:.0f} s", fingerprint="hang")
    culprit = _first_to_fail(reports)
    if culprit is None:
        message = f"the workers ended without a word (launcher's exit code {watched.exit_code})"
        return ended("crash", message, fingerprint=f"exit {watched.exit_code}")
    if culprit.state == "started":
        message = f"rank {culprit.rank} was killed"
        return ended("crash", message, fingerprint="killed", rank=culprit.rank)
    message = f"rank {culprit.rank}: {culprit.error}: {culprit.message}".strip()
    # Only before the first step: what worked once, and fails weeks later, is rarely the user's mistake.
    if culprit.by_user and not any(a.resumed for a in history.attempts):
        return ended("input", culprit.message, rank=culprit.rank)
    if culprit.error in ("OutOfMemoryError", "MemoryError"):
        return ended("out_of_memory", message, fingerprint=f"{culprit.error} {culprit.place}", rank=culprit.rank)
    return ended("crash", message, fingerprint=f"{culprit.error} {culprit.place}", rank=culprit.rank)


def _first_to_fail(reports: list[RankReport]) -> RankReport | None:
    """Choose among ranks that failed, ranks that vanished, and ranks that died of another's death."""
    failed = [r for r in reports if r.state == "failed"]
    own_fault = [r for r in failed if not _PEER_GONE.search(f"{r.error} {r.message}")]
    vanished = [r for r in reports if r.state == "started"]
    for candidates in (own_fault, vanished, failed):
        if candidates:
            return candidates[0]
    return None
