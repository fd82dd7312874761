"""Damage to committed checkpoints, case by case, and what a run has to make of it.

`python -m torture.damages FOLDER` in `tests` tries them all on small runs, and prints what came of each as JSON.
"""

# ruff: noqa: T201 (it answers on its standard output)

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import threading
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torture.forks import ViolationError
from torture.marks import Marks
from torture.victims import Victim, make_run, small_config

from hpc_resume.checkpoints import catalog
from hpc_resume.cluster.processes import tie_to_parent
from hpc_resume.journal.folder import RunFolder
from hpc_resume.journal.reader import read_journal
from hpc_resume.recovery import events as ev

SAVED_STEPS = (2, 4, 6, 8)
"""What is committed before anything is damaged."""
_WEIGHTS, _MODEL_1 = "mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_model_states.pt"
_MODEL_0 = "zero_pp_rank_0_mp_rank_00_model_states.pt"
_OWN = ("rank-0000.pt", "rank-0001.pt")
_OPTIMIZER = ("zero_pp_rank_0_mp_rank_00_optim_states.pt", "zero_pp_rank_1_mp_rank_00_optim_states.pt")
FILES = {1: (_WEIGHTS, *_OPTIMIZER, *_OWN), 3: (_MODEL_0, _MODEL_1, *_OPTIMIZER, *_OWN)}
"""What ZeRO 1 and 3 write on two ranks."""
SCHEMA = catalog.SCHEMA
STRANGER = 12345


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kind of damage, to one file of the newest checkpoints."""

    kind: str
    file: str
    stage: int = 1
    checkpoints: int = 1
    """So many of the newest are hit."""
    resumes: int = 6
    """The step that training must go on from; 0 if it must stop."""
    says: str = ""
    """What must be said of it."""
    damaged: bool = True
    """Whether it is damage; else the checkpoint is whole, but of something else."""
    recorded: bool = True
    """Whether the newest commit is in the journal."""

    def __str__(self) -> str:
        unrecorded = "" if self.recorded else "unrecorded "
        many = f" x{self.checkpoints}" if self.checkpoints > 1 else ""
        return f"{unrecorded}{self.kind} {self.file} at stage {self.stage}{many}"


@dataclass(frozen=True, kw_only=True)
class Found:
    """What came of a case."""

    exit_code: int
    """How the supervisor ended; that of a SIGKILL if training went on."""
    resumed: int | None
    rejected: list[tuple[str, str]]
    notes: list[str]
    rule: str
    """The rule of the newest decision, and its reason."""
    reason: str
    touched: list[str]
    """Files that were changed, or are gone, apart from what was set aside as a whole."""
    aside: list[str]
    names: list[str]
    """All checkpoints there were, oldest first."""


def all_cases() -> list[Case]:
    """Return the table."""
    flipped = [
        Case(kind="flipped", file=file, stage=stage, says=f"{file} has changed since it was saved")
        for stage, files in FILES.items()
        for file in files
    ]
    sizes = "its manifest says"
    spoiled = [
        Case(kind=kind, file=file, stage=stage, says=f"{file} {says}")
        for stage, file in ((1, _WEIGHTS), (1, _OWN[0]), (3, _OPTIMIZER[1]))
        for kind, says in (
            ("truncated", "has "),
            ("emptied", f"has 0 bytes; {sizes}"),
            ("missing", "is missing"),
            ("another step's", "has "),
        )
    ]
    manifest = [
        Case(kind=kind, file=catalog.MANIFEST, says=says)
        for kind, says in (
            ("flipped", ""),
            ("truncated", ""),
            ("emptied", ""),
            ("missing", "gone from the disk"),
            ("another step's", "its manifest is that of step-000000006"),
        )
    ]
    extra = "mp_rank_01_model_states.pt"
    beside = [
        Case(kind="extra", file=extra, says=f"{extra} is not in its manifest, and DeepSpeed could load it"),
        Case(kind="extra", file="notes.txt", resumes=8, says="holds notes.txt, which is no part of it"),
        *(Case(kind=kind, file="latest", resumes=8) for kind in ("none", "elsewhere", "garbage")),
    ]
    many = [
        Case(kind="flipped", file=_OWN[1], checkpoints=2, resumes=4, says="rank-0001.pt has changed"),
        Case(kind="flipped", file=_OWN[1], checkpoints=4, resumes=0, says="rank-0001.pt has changed"),
        Case(kind="missing", file=catalog.MANIFEST, checkpoints=4, resumes=0, says="gone from the disk"),
    ]
    unrecorded = [
        Case(kind="whole", file="", recorded=False, resumes=8),
        Case(kind="truncated", file=catalog.MANIFEST, recorded=False),
        Case(kind="flipped", file=_WEIGHTS, recorded=False, says=f"{_WEIGHTS} has changed since it was saved"),
    ]
    return [*flipped, *spoiled, *manifest, *beside, *many, *unrecorded]


def all_strangers() -> list[Case]:
    """Return what is no damage, and can't be loaded all the same; with what must be said, both values in it."""
    here = "here it is"
    cases = {
        "another model's": f"its model is one of 5 parameters (feed), {here} one of ",
        "another stage's": f"its ZeRO stage is 3, {here} 1",
        "another precision's": f"its precision is bf16, {here} fp32",
        "an older version's": f"has schema 1 (saved by hpc_resume 0.0.1); this version reads schema {SCHEMA}",
        "somebody else's": f"belongs to user id {STRANGER}, not to you",
    }
    return [Case(kind=kind, file=catalog.MANIFEST, resumes=0, says=says, damaged=False) for kind, says in cases.items()]


def disown(folder: Path, case: Case, name: str) -> None:
    """Make the newest checkpoint one of something else."""
    path = folder / name / catalog.MANIFEST
    if case.kind == "somebody else's":
        os.chown(folder / name, STRANGER, -1)
        return
    manifest = catalog.read_manifest(folder, name)
    changes = {
        "another model's": {"model": "feed", "parameters": 5},
        "another stage's": {"zero_stage": 3},
        "another precision's": {"precision": "bf16"},
    }
    text = replace(manifest, **changes.get(case.kind, {})).to_json()  # type: ignore[arg-type]
    if case.kind == "an older version's":
        old = {**json.loads(text), "schema": 1, "versions": {"hpc_resume": "0.0.1"}}
        del old["digest"]
        text = json.dumps(old)
    path.write_text(text, encoding="utf-8")


def damage(folder: Path, case: Case, names: list[str], dice: random.Random) -> None:
    """Do it to the newest checkpoints in a folder."""
    if case.file == "latest":
        (folder / "latest").write_text({"elsewhere": names[0], "garbage": "\0\1no such tag"}.get(case.kind, ""))
        if case.kind == "none":
            (folder / "latest").unlink()
        return
    for name in names[-case.checkpoints :]:
        path = folder / name / case.file
        match case.kind:
            case "flipped":
                content = bytearray(path.read_bytes())
                content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
                path.write_bytes(content)
            case "truncated":
                os.truncate(path, dice.randrange(1, path.stat().st_size))
            case "emptied":
                os.truncate(path, 0)
            case "missing":
                path.unlink()
            case "another step's":
                shutil.copy(folder / names[names.index(name) - 1] / case.file, path)
            case "extra":
                path.write_bytes(b"what is this?")


def forget_newest_commit(run: RunFolder) -> None:
    """Cut the journal off where the newest commit was recorded, as if rank 0 had been killed right before."""
    path = run.attempt(1)
    lines = path.read_bytes().splitlines(keepends=True)
    last = max(index for index, line in enumerate(lines) if b'"kind":"checkpoint_committed"' in line)
    path.write_bytes(b"".join(lines[:last]))


def make_original(parent: Path, stage: int) -> RunFolder:
    """Train up to the last of SAVED_STEPS, and end as a node that is lost."""
    from torture.stand_in import stand_in

    config = small_config("original", stage=stage, mode="sync")
    marks = Marks()
    train = stand_in(
        config, marks, 10_000, lambda _rank, step: wait_for_ever() if step == SAVED_STEPS[-1] + 1 else None
    )
    run = make_run(parent, config)
    victim = Victim(run, config, train, marks)
    supervisor = victim.start(lambda: None)
    victim.wait(lambda: len(read_journal(run).history.lineage) == len(SAVED_STEPS), supervisor)
    os.kill(supervisor, signal.SIGKILL)
    victim.bury(supervisor)
    return run


def try_case(original: RunFolder, parent: Path, case: Case, dice: random.Random) -> Found:
    """Damage a copy, and start it."""
    from torture.stand_in import stand_in

    shutil.copytree(original.submission.path, parent)
    run = RunFolder(parent / original.path.name)
    names = catalog.list_committed(run.checkpoints)
    if case.damaged:
        damage(run.checkpoints, case, names, dice)
    else:
        disown(run.checkpoints, case, names[-1])
    if not case.recorded:
        forget_newest_commit(run)
    config, marks = small_config("original", stage=case.stage), Marks()
    victim = Victim(run, config, stand_in(config, marks, 10_000, lambda *_: wait_for_ever()), marks)
    supervisor = victim.start(lambda: None)
    if case.resumes:
        victim.wait(lambda: marks.are_training(2), supervisor)
        os.kill(supervisor, signal.SIGKILL)
    before = victim.before
    code = victim.bury(supervisor)
    journal = read_journal(run)
    events = [record.event for record in journal.records]
    now = {path.removeprefix("quarantined."): entry for path, entry in victim.before.items()}
    resumed = journal.history.attempts[-1].resumed
    return Found(
        exit_code=code,
        resumed=resumed.step if resumed is not None and journal.history.attempts[-1].started.attempt > 1 else None,
        rejected=[(e.name, e.reason) for e in events if isinstance(e, ev.CheckpointRejected)],
        notes=list(journal.history.disagreements),
        rule=journal.history.decisions[-1].rule,
        reason=journal.history.decisions[-1].reason,
        touched=[path for path, entry in before.items() if now.get(path, "gone") != entry],
        aside=sorted(path.name for path in run.checkpoints.glob("quarantined.*")),
        names=names,
    )


def wait_for_ever() -> None:
    threading.Event().wait()


def main() -> None:
    import torch

    torch.set_num_threads(1)
    tie_to_parent(os.getppid(), signal.SIGKILL)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    parent = Path(sys.argv[1])
    originals = {}
    for stage in FILES:
        (parent / str(stage)).mkdir()
        originals[stage] = make_original(parent / str(stage), stage)
    found: dict[str, Any] = {}
    strangers = all_strangers() if os.getuid() == 0 else all_strangers()[:-1]  # only root can give a folder away
    for number, case in enumerate([*all_cases(), *strangers]):
        place = parent / f"case-{number}"
        try:
            found[str(case)] = asdict(try_case(originals[case.stage], place, case, random.Random(number)))
        except ViolationError as error:
            found[str(case)] = str(error)
        shutil.rmtree(place)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
