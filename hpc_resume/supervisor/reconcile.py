"""Making the disk, the journal and the processes agree, before anything new is started."""

from __future__ import annotations

from collections.abc import Callable

from hpc_resume.checkpoints import catalog
from hpc_resume.cluster.base import Allocation, Interruption
from hpc_resume.errors import MismatchError
from hpc_resume.journal.folder import RunFolder
from hpc_resume.recovery import History
from hpc_resume.recovery import events as ev
from hpc_resume.recovery.history import VOID

Record = Callable[[ev.Event], History]


def adopt_checkpoints(folder: RunFolder, history: History, record: Record) -> History:
    """Take over what was committed but not recorded, and notice what was recorded but is gone.

    What was to be deleted is out of the way afterwards, also where whoever recorded that was killed before it was done.
    """
    catalog.finish_deletions(folder.checkpoints, history.deleted)
    on_disk = catalog.list_committed(folder.checkpoints)
    for name in on_disk:
        if name in history.known or name in history.set_aside:
            continue
        try:
            manifest = catalog.read_manifest(folder.checkpoints, name)
        except ValueError as error:
            history = record(ev.CheckpointRejected(name=name, reason=str(error)))
            continue
        except MismatchError as error:
            # Another version's, perhaps a newer one that was tried: not damage, and not ours to use.
            message = f"{error}; it is left alone"
            if message not in history.disagreements:
                history = record(ev.Disagreement(message=message))
            continue
        if history.is_void(name, manifest.claim):
            # A zombie's: it committed when somebody else owned the run already.
            catalog.set_aside(folder.checkpoints, name)
            history = record(ev.CheckpointQuarantined(name=name, reason=VOID))
            continue
        history = record(ev.CheckpointAdopted(checkpoint=manifest.checkpoint))
    for checkpoint in history.lineage:
        # Asked for by name: one listing that lacks it proves nothing on a file system that is shared.
        if checkpoint.name not in on_disk and not catalog.is_committed(folder.checkpoints, checkpoint.name):
            what = "its manifest" if (folder.checkpoints / checkpoint.name).exists() else "it"
            history = record(ev.CheckpointRejected(name=checkpoint.name, reason=f"{what} is gone from the disk"))
    return history


def end_lost_attempt(folder: RunFolder, history: History, allocation: Allocation, record: Record) -> History:
    """Write the missing end of an attempt whose supervisor vanished, and end what is left of its processes."""
    if not history.attempts or history.attempts[-1].ended is not None:
        return history
    attempt = history.attempts[-1]
    number = attempt.started.attempt
    allocation.end_leftovers(folder, number)
    claim = next(c.request for c in history.claims if c.request.claim == attempt.started.claim)
    done = allocation.why_lost(claim, attempt.started.nodes)
    cause, message = _lost_cause(history, done)
    node = ", ".join(done.nodes) if done is not None and done.nodes else attempt.started.host
    return record(ev.AttemptEnded(attempt=number, cause=cause, message=message, node=node, found_later=True))


def quarantine(folder: RunFolder, history: History, record: Record) -> History:
    """Rename every checkpoint that must not be used again; safe to do twice."""
    for name, reason in history.set_aside.items():
        if name not in history.quarantined | history.deleted and catalog.set_aside(folder.checkpoints, name):
            history = record(ev.CheckpointQuarantined(name=name, reason=reason))
    return history


def _lost_cause(history: History, done: Interruption | None) -> tuple[ev.Cause, str]:
    attempt = history.attempts[-1]
    if history.finished is not None:
        return "finished", f"finished at step {history.finished.step}"
    pending = history.pending
    if pending is not None and pending.number > attempt.decision and pending.action in ("requeue", "stop"):
        return "decided", pending.reason
    if attempt.stop is not None:
        return "preempted", f"left at step {attempt.stop.step}"
    if done is not None:
        return done.cause, done.message
    return "node", f"supervisor and workers on {attempt.started.host} vanished without a word"
