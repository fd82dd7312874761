"""What must hold of the checkpoints of a run, whoever was killed when."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from torture.forks import ViolationError
from torture.marks import Marks

from hpc_resume.checkpoints import catalog
from hpc_resume.checkpoints.catalog import FileEntry
from hpc_resume.journal.folder import RunFolder
from hpc_resume.journal.reader import read_journal
from hpc_resume.recovery import History

_CHECKPOINT = re.compile(r"step-\d{9}\.s\d{6}")
Tree = dict[str, FileEntry | None]
"""All that is in a folder, by its path: size and digest of files, None for folders."""


def read_tree(folder: Path) -> Tree:
    """Read every file that is there."""
    found = sorted(folder.rglob("*"))
    return {str(p.relative_to(folder)): None if p.is_dir() else catalog.digest_file(p) for p in found}


def all_committed(tree: Tree, apart_from: Collection[str] = frozenset()) -> list[tuple[int, str]]:
    """Return step and name of all checkpoints that have their manifest and are not set aside, oldest first."""
    tops = {path.partition("/")[0] for path in tree if path.endswith(f"/{catalog.MANIFEST}")}
    return sorted((int(name[5:14]), name) for name in tops.difference(apart_from) if _CHECKPOINT.fullmatch(name))


def check_after_kill(folder: RunFolder, before: Tree, marks: Marks, damaged: Collection[str] = frozenset()) -> None:
    """Hold, when the next claim is about to start its ranks, that it did what it must and nothing else.

    What was damaged on purpose may have been found out already.

    Raises:
        ViolationError: it did not.
    """
    history = read_journal(folder).history
    usable = all_committed(before, history.deleted.union(history.rejected))
    newest = usable[-1] if usable else None
    plan = history.plan_decision.plan
    found = (plan.step, plan.checkpoint) if plan is not None and plan.checkpoint else None
    problems = list(_differences(before, read_tree(folder.checkpoints), history, damaged))
    if found != newest:
        problems.append(f"it goes on from {found}, but the newest committed checkpoint is {newest}")
    on_disk = {path.partition("/")[0].removeprefix("quarantined.") for path in before}
    if lost := history.known.keys() - history.deleted - on_disk:
        problems.append(f"{sorted(lost)} vanished")
    if marks.safe_step > (found[0] if found else 0):
        problems.append(f"it goes on from {found}, but step {marks.safe_step} was committed")
    if newest and newest[1] not in history.known:
        problems.append(f"{newest} is not in the journal")
    if history.replay_differences:
        problems.append(f"a replayed step differs: {history.replay_differences[0]}")
    ended = history.attempts[-1].ended if history.attempts else None
    if ended is not None and ended.cause != "node" and "was killed" not in ended.message:
        problems.append(f"it takes the last attempt to have ended by {ended.cause}: {ended.message}")
    if not history.quarantined.union(history.rejected) <= set(damaged):
        problems.append(f"rejected {history.rejected}, quarantined {sorted(history.quarantined)}")
    if problems:
        raise ViolationError("; ".join(problems))


def _differences(before: Tree, now: Tree, history: History, damaged: Collection[str]) -> list[str]:
    """Compare: what was never committed is gone, what was to be deleted may be, and everything else is as it was."""
    committed = {path.rpartition("/")[0] for path in before if path.endswith(f"/{catalog.MANIFEST}")}
    tops = {path.partition("/")[0] for path in before}
    torn = {top for top in tops if _CHECKPOINT.fullmatch(top) and top not in committed}
    leftovers = {top for top in tops if top.startswith((".torn.", ".trash."))}
    free = torn | leftovers | history.deleted | {f"quarantined.{name}" for name in history.deleted}
    problems = []
    for path, entry in before.items():
        top = path.partition("/")[0]
        found = now.get(path, "gone")
        if top in damaged and found == "gone":
            found = now.get(f"quarantined.{path}", "gone")
        if top not in free and found != entry:
            problems.append(f"{path} was {entry}, is {found}")
    for path, entry in now.items():
        top = path.partition("/")[0]
        if top in torn:
            problems.append(f"{path} was never committed, and is still there")
        elif top.startswith(".torn."):
            if path != top or entry is not None:
                problems.append(f"{path} is left of a save that was never committed")
        elif path.removeprefix("quarantined.") not in before and path not in before and not top.startswith(".trash."):
            problems.append(f"{path} is new")
    return problems
