"""Owning a run: claims are numbered files, created exclusively, and the lowest one that lives wins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from hpc_resume.errors import RunBusyError
from hpc_resume.journal.folder import RunFolder
from hpc_resume.journal.reader import Journal, numbers, read_journal
from hpc_resume.journal.writer import JournalWriter
from hpc_resume.recovery import events as ev
from hpc_resume.recovery.history import Claim

Liveness = Literal["alive", "dead", "unknown"]


def request_claim(folder: RunFolder, make_request: Callable[[int], ev.ClaimRequested]) -> tuple[int, JournalWriter]:
    """Take the next claim number, before anything else is read."""
    while True:
        taken = numbers(folder.journal, "claim")
        number = taken[-1] + 1 if taken else 1
        try:
            return number, JournalWriter(folder.claim(number), make_request(number))
        except FileExistsError:
            continue  # somebody was faster; the next number may still be ours to refuse with


def open_claim(
    folder: RunFolder,
    make_request: Callable[[int], ev.ClaimRequested],
    liveness: Callable[[ev.ClaimRequested], Liveness],
    list_committed: Callable[[], list[str]],
) -> tuple[int, JournalWriter, Journal]:
    """Become the owner of a run, or refuse.

    Every older claim without an end must be dead, or a person must have said that it is gone. Of two supervisors that
    start at the same time the one with the lower number wins, since the other sees it alive. The list of committed
    checkpoints that is recorded here voids whatever an older claim commits later.

    Raises:
        RunBusyError: an older claim lives, or may live.
    """
    number, writer = request_claim(folder, make_request)
    journal = read_journal(folder)
    writer.saw(journal.counts)
    gone = _known_to_be_gone(journal)
    lost: list[ev.ClaimLost] = []
    for claim in journal.history.claims:
        if claim.request.claim >= number or claim.ended is not None:
            continue
        state = liveness(claim.request)
        declared = state == "unknown" and claim.request.claim <= gone
        if state != "dead" and not declared:
            reason = _busy(claim, state)
            writer.record(ev.ClaimRefused(claim=number, owner=claim.request.claim, reason=reason))
            writer.close()
            raise RunBusyError(f"{folder.path}: {reason}")
        reason = "a person said that it is gone" if declared else "ended without a word"
        lost.append(ev.ClaimLost(claim=claim.request.claim, reason=reason))
    writer.record(ev.ClaimOpened(claim=number, committed=tuple(list_committed())))
    for event in lost:
        writer.record(event)
    return number, writer, read_journal(folder)


def _busy(claim: Claim, state: Liveness) -> str:
    owner = claim.request
    where = f"process {owner.pid} on {owner.host} (job {owner.job_id or 'none'})"
    if state == "alive":
        return f"supervisor {owner.claim} is alive: {where}; `cancel` it first, or let it finish"
    return (
        f"supervisor {owner.claim} may be alive: {where} can't be asked from here; "
        f"run this on {owner.host}, or, if you know that it is gone: `resubmit --owner-is-gone`"
    )


def _known_to_be_gone(journal: Journal) -> int:
    """Return the newest claim that a person has declared to be over."""
    asked = [r.event for r in journal.records if isinstance(r.event, ev.ResubmitRequested)]
    return max((event.gone.get(str(journal.run), 0) for event in asked), default=0)


def is_replaced(folder: RunFolder, claim: int) -> bool:
    """Tell whether a newer supervisor has opened a claim, so that this one is over.

    A courtesy check: what really keeps a zombie from doing harm is the list in the newer claim.
    """
    newer = [number for number in numbers(folder.journal, "claim") if number > claim]
    return any(b'"kind":"claim_opened"' in folder.claim(number).read_bytes() for number in newer)
