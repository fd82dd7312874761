"""Saves onto a disk that is full or read-only for a while, ranks that go in the middle of one, and zombies.

`python -m torture.disks FOLDER WHAT/MODE` in `tests` tries one of `TRIALS` on a small run, and prints what came of it.
What mounts something needs a mount namespace of its own: `unshare --mount` before it.
"""

# ruff: noqa: T201 (it answers on its standard output)

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from torture.audit import read_tree
from torture.forks import CutOffAllocation, Train, start_supervisor
from torture.marks import Marks
from torture.stand_in import stand_in
from torture.trials import Found
from torture.victims import LIMIT_S, PATIENCE, Mode, Victim, make_run, small_config

from hpc_resume.checkpoints import catalog, store
from hpc_resume.cluster.base import EXIT_REQUEUED
from hpc_resume.cluster.processes import tie_to_parent
from hpc_resume.config.schema import RunConfig
from hpc_resume.journal.folder import RunFolder
from hpc_resume.journal.reader import read_journal
from hpc_resume.recovery import events as ev

STEPS = 20
BROKEN, MENDED = 6, 13
"""Before these steps the disk breaks, and works again; saves are due every second step."""
_ELEMENTS = 50_000


def run_with_a_broken_disk(parent: Path, mode: Mode, kind: Literal["full", "read-only"]) -> Found:
    """Train to the end, on a disk that refuses writes for some steps."""
    config = small_config("run", stage=2, mode=mode, steps=STEPS, staging_dir=None)
    run, marks = make_run(parent, config), Marks()
    mount("-t", "tmpfs", "-o", "size=32m,mode=700", "tmpfs", str(run.checkpoints))
    filler = run.checkpoints / "filler"

    def before_step(rank: int, step: int) -> None:
        if rank != 0 or step not in (BROKEN, MENDED):
            return
        if kind == "read-only":
            mount("-o", f"remount,{'ro' if step == BROKEN else 'rw'}", str(run.checkpoints))
        elif step == MENDED:
            filler.unlink()
        else:
            fill(filler, leave=200_000)

    return run_to_the_end(run, config, marks, stand_in(config, marks, _ELEMENTS, before_step))


def mount(*arguments: str) -> None:
    """Mount; what is busy because a file is being written is tried again."""
    deadline = time.monotonic() + LIMIT_S
    while (done := subprocess.run(["mount", *arguments], capture_output=True, check=False)).returncode:
        assert time.monotonic() < deadline, done.stderr
        time.sleep(0.01)


def fill(path: Path, *, leave: int) -> None:
    """Fill a disk up to some bytes."""
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(b"\0" * 65536):
                pass
        except OSError:
            file.truncate(file.tell() - leave)


def run_to_the_end(run: RunFolder, config: RunConfig, marks: Marks, train: Train) -> Found:
    victim = Victim(run, config, train, marks)
    began = time.monotonic()
    code = victim.bury(victim.start(lambda: None))
    if code == EXIT_REQUEUED:
        code = victim.bury(victim.start(lambda: None))
    return look(run, code, time.monotonic() - began)


def look(run: RunFolder, code: int, seconds: float) -> Found:
    """Tell what there is in the end."""
    journal = read_journal(run)
    events = [record.event for record in journal.records]
    committed = catalog.list_committed(run.checkpoints)
    tree = read_tree(run.checkpoints)
    return Found(
        exit_code=code,
        saved=[c.step for c in journal.history.lineage],
        failed=[(e.step, e.message) for e in events if isinstance(e, ev.SaveFailed)],
        steps_trained=sum(b'"loss"' in line for line in run.metrics(1).read_bytes().splitlines()),
        left=sorted(path for path in tree if path.partition("/")[0] not in committed),
        resumed=[a.resumed.step for a in journal.history.attempts if a.resumed],
        attempts=[a.ended.cause if a.ended else "" for a in journal.history.attempts],
        quarantined=[(e.name, e.reason) for e in events if isinstance(e, ev.CheckpointQuarantined)],
        seconds=seconds,
    )


def lose_rank_1(parent: Path, mode: Mode, how: signal.Signals) -> Found:
    """Let rank 1 go, dead or only silent, while it writes its part of the save at step 4; then go on to the end."""
    config = small_config("run", stage=2, mode=mode, steps=8, phase_limit_s=3.0)
    run, marks = make_run(parent, config), Marks()
    once = parent / "once"

    def before_step(rank: int, step: int) -> None:
        if rank == 1 and step == 4 and not once.exists():
            once.touch()
            write = vars(store)["write_state"]

            def written_by_nobody(*arguments: Any) -> Any:
                entry = write(*arguments)
                os.kill(os.getpid(), how)
                return entry

            vars(store)["write_state"] = written_by_nobody

    return run_to_the_end(run, config, marks, stand_in(config, marks, _ELEMENTS, before_step))


def let_a_zombie_commit(parent: Path, mode: Mode, when: Literal["unseen", "late", "early"]) -> Found:
    """Stop an attempt in a save, let a newer claim open, and then let the old one go on.

    It stops right before the rename, and goes on between the newer claim's list and its look at the disk (`unseen`), or
    when that is training already (`late`); or it stops before it has made a folder, and makes it then (`early`).
    """
    config = small_config("run", stage=2, mode=mode, steps=8, policy=PATIENCE)
    run, marks = make_run(parent, config), Marks()
    zombie_says = parent / "zombie"

    def stop_before_rename(rank: int, step: int) -> None:
        if rank == 0 and step == 4:
            rename, mkdir = Path.rename, Path.mkdir

            def stopping_rename(self: Path, target: Path) -> Path:
                if target.name != catalog.MANIFEST or when == "early":
                    return rename(self, target)
                os.kill(os.getpid(), signal.SIGSTOP)
                try:
                    return rename(self, target)
                finally:
                    zombie_says.touch()

            def stopping_mkdir(self: Path, **how: Any) -> None:
                if self.parent == run.checkpoints and when == "early":
                    os.kill(os.getpid(), signal.SIGSTOP)
                mkdir(self, **how)
                if self.parent == run.checkpoints and when == "early":
                    zombie_says.touch()

            setattr(Path, "rename", stopping_rename)  # noqa: B010 (to a type checker this is no assignment)
            setattr(Path, "mkdir", stopping_mkdir)  # noqa: B010

    old = Victim(run, config, untied(stand_in(config, marks, _ELEMENTS, stop_before_rename)), marks)
    supervisor = old.start(lambda: None)
    old.wait(lambda: marks.pid(0) > 0 and is_stopped(marks), supervisor)
    os.kill(supervisor, signal.SIGKILL)
    os.waitpid(supervisor, 0)

    def wake() -> None:
        marks.signal(0, signal.SIGCONT)
        old.until(zombie_says.exists, "the zombie does what it was about to do")

    newer_marks = Marks()

    def before_step(rank: int, step: int) -> None:
        if rank == 0 and step == 4 and not zombie_says.exists():
            wake()

    train = stand_in(config, newer_marks, _ELEMENTS, before_step)
    meanwhile = wake if when == "unseen" else lambda: None
    began = time.monotonic()
    newer = Victim(run, config, train, newer_marks)
    newer_supervisor = start_supervisor(run, config, CutOffAllocation(train, newer_marks, lambda: None, meanwhile))
    code = newer.bury(newer_supervisor)
    for rank in range(2):
        marks.signal(rank, signal.SIGCONT)
    old.until(lambda: not any(marks.is_alive(rank) for rank in range(2)), "the zombie leaves")
    return look(run, code, time.monotonic() - began)


def untied(train: Train) -> Train:
    """Let ranks outlive their supervisor, as on a node that is cut off."""
    from hpc_resume.cluster import processes

    def outliving(folder: RunFolder, attempt: int, claim: int, stop_requested: Callable[[], bool]) -> None:
        processes._LIBC.prctl(processes._PR_SET_PDEATHSIG, 0)
        train(folder, attempt, claim, stop_requested)

    return outliving


def is_stopped(marks: Marks) -> bool:
    """Tell whether rank 0 is stopped."""
    text = Path(f"/proc/{marks.pid(0)}/stat").read_text(encoding="utf-8")
    return text.rpartition(")")[2].split()[0] == "T"


TRIALS: dict[str, Callable[[Path, Mode], Found]] = {
    "full": lambda parent, mode: run_with_a_broken_disk(parent, mode, "full"),
    "read-only": lambda parent, mode: run_with_a_broken_disk(parent, mode, "read-only"),
    "dead": lambda parent, mode: lose_rank_1(parent, mode, signal.SIGKILL),
    "silent": lambda parent, mode: lose_rank_1(parent, mode, signal.SIGSTOP),
    "unseen": lambda parent, mode: let_a_zombie_commit(parent, mode, "unseen"),
    "late": lambda parent, mode: let_a_zombie_commit(parent, mode, "late"),
    "early": lambda parent, mode: let_a_zombie_commit(parent, mode, "early"),
}


def main() -> None:
    torch.set_num_threads(1)
    tie_to_parent(os.getppid(), signal.SIGKILL)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    found = {}
    for what in sys.argv[2:]:
        name, _, mode = what.partition("/")
        place = Path(sys.argv[1], f"{name}-{mode}")
        place.mkdir()
        found[what] = asdict(TRIALS[name](place, "sync" if mode == "sync" else "async"))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
