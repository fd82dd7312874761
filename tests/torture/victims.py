"""Runs to be killed, and the killing."""

from __future__ import annotations

import functools
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from torture.audit import Tree, all_committed, check_after_kill, read_tree
from torture.forks import ForkedAllocation, Train, ViolationError, start_supervisor, violations
from torture.marks import BEFORE_RECORD, BEFORE_RENAME, COPYING, NOTHING, WRITING, Marks

from hpc_resume.cluster.base import EXIT_FINISHED, EXIT_REQUEUED
from hpc_resume.config.checkpoint_section import CheckpointConfig
from hpc_resume.config.cluster_section import ClusterConfig
from hpc_resume.config.load import dump_config
from hpc_resume.config.schema import RunConfig, SupervisorConfig, TrainingConfig
from hpc_resume.journal.folder import RunFolder, SubmissionFolder, make_private
from hpc_resume.journal.reader import read_journal
from hpc_resume.recovery.policy import Policy

LIMIT_S = 60.0
"""Nothing here takes this long unless it is broken."""
_POLL_S = 0.0001
PATIENCE = Policy(perturb_on=("loss",), rollback_margin_steps=1, loss_budget=0, crash_budget=10**6, node_budget=10**6)
"""However often it is killed, a run goes on, and replays."""

Mode = Literal["async", "sync"]
Target = Literal["rank 0", "rank 1", "all ranks", "supervisor"]


@dataclass(frozen=True, kw_only=True)
class Kill:
    """Who is killed, and when."""

    target: Target
    at: int | None
    """Where in a save its rank is to stand; None: at any time."""
    delay_s: float
    """So long after that, or after training began."""
    during_start: bool = False
    """Whether the time counts from the supervisor's start."""


def choose_kill(dice: random.Random, config: RunConfig, span_s: float) -> Kill:
    """Draw a kill for a run on so many ranks; `span_s` is how long the rank is left alone at most."""
    if dice.random() < 0.08:
        return Kill(target="supervisor", at=None, delay_s=dice.uniform(0.0, 0.05), during_start=True)
    targets: list[Target] = ["rank 0", "all ranks", "supervisor"]
    if config.world_size > 1:
        targets.append("rank 1")
    target = dice.choice(targets)
    if dice.random() < 0.3:
        return Kill(target=target, at=None, delay_s=dice.uniform(0.0, span_s))
    first = COPYING if config.checkpoints.mode == "async" else WRITING
    places = [place for place in (COPYING, WRITING, BEFORE_RENAME, BEFORE_RECORD) if place >= first]
    return Kill(target=target, at=dice.choice(places), delay_s=dice.choice([0.0, dice.uniform(0.0, 0.003)]))


@dataclass
class Victim:
    """One run, the processes of which are killed again and again."""

    folder: RunFolder
    config: RunConfig
    train: Train
    marks: Marks
    span_s: float = 0.25
    hits: list[int] = field(default_factory=list)
    """Where in a save each kill hit."""
    damage_rate: float = 0.0
    """How often the newest intact checkpoint is damaged before a start."""
    head_start: int = 0
    """The run is not killed before this step is safe."""
    damaged: set[str] = field(default_factory=set)
    before: Tree = field(init=False)

    def __post_init__(self) -> None:
        self.before = read_tree(self.folder.checkpoints)

    def survive(self, dice: random.Random) -> bool:
        """Start the run, kill it once, and note what is left on the disk for the next start to be judged by.

        Returns whether there was something to kill; else the run has finished before.

        Raises:
            ViolationError: the start found, or did, something that must not be.
        """
        kill = choose_kill(dice, self.config, self.span_s)
        if dice.random() < self.damage_rate:
            kill = self.damage(dice, kill)
        supervisor = self.start()
        if not kill.during_start:
            self.wait_until_training(supervisor)
            self.wait(lambda: self.marks.safe_step >= self.head_start, supervisor)
        began = time.monotonic()
        rank = 1 if kill.target == "rank 1" else 0
        while kill.at is not None and self.marks.where(rank) != kill.at:
            if time.monotonic() > began + 4 * self.span_s:
                break  # what lasts so short a time can be missed each time
            time.sleep(_POLL_S)
        began = time.monotonic()
        while time.monotonic() < began + kill.delay_s:
            time.sleep(_POLL_S)
        ranks = range(0 if kill.during_start else self.config.world_size)
        by_itself = not all(self.marks.is_alive(rank) for rank in ranks)
        hit = self.strike(kill, supervisor)
        code = self.bury(supervisor)
        if by_itself and code != EXIT_FINISHED:
            raise ViolationError(f"a rank ended before it was killed:\n{self.logs()}")
        if code == EXIT_FINISHED:
            return False
        self.hits.append(hit)
        return True

    def judge(self) -> None:
        """Start the run once more, only to see whether it goes on as it must.

        Raises:
            ViolationError: it does not.
        """
        supervisor = self.start()
        self.wait_until_training(supervisor)
        os.kill(supervisor, signal.SIGKILL)
        self.bury(supervisor)

    def damage(self, dice: random.Random, kill: Kill) -> Kill:
        """Flip a bit in the newest intact checkpoint, unless it is the only one; often kill while that is found out."""
        intact = [name for _, name in all_committed(self.before, self.damaged)]
        if len(intact) < 2:
            return kill
        name = intact[-1]
        files = sorted(path for path in self.before if path.startswith(f"{name}/"))
        path = self.folder.checkpoints / dice.choice(files)
        content = bytearray(path.read_bytes())
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
        path.write_bytes(content)
        self.damaged.add(name)
        self.before = read_tree(self.folder.checkpoints)
        self.marks.committed(int(intact[-2][5:14]))
        during_start = dice.random() < 0.7
        return replace(kill, during_start=True, delay_s=dice.uniform(0.0, 0.3)) if during_start else kill

    def wait_until_training(self, supervisor: int) -> None:
        """Wait until all ranks train, and hold that they went on from the newest intact checkpoint."""
        self.wait(lambda: self.marks.are_training(self.config.world_size), supervisor)
        intact = all_committed(self.before, self.damaged)
        resumed = read_journal(self.folder).history.attempts[-1].resumed
        if resumed is None or resumed.step != (intact[-1][0] if intact else 0):
            raise ViolationError(f"{resumed}, but intact are {intact[-2:]}")

    def finish(self) -> None:
        """Let the run come to its end undisturbed."""
        for _ in range(2):
            if (code := self.bury(self.start())) == EXIT_FINISHED:
                return
            if code != EXIT_REQUEUED:
                break  # the first one may have been the one to find out how the last attempt ended
        raise ViolationError(f"the supervisor ended with {code}:\n{self.logs()}")

    def start(self, look: Callable[[], None] | None = None) -> int:
        """Start a supervisor, which looks at the run before it starts its ranks; return its pid."""
        self.marks.clear()
        look = look or functools.partial(check_after_kill, self.folder, self.before, self.marks, self.damaged)
        return start_supervisor(self.folder, self.config, ForkedAllocation(self.train, self.marks, look))

    def wait(self, condition: Callable[[], bool], supervisor: int) -> None:
        """Poll until it holds; the supervisor must live until then."""
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            ended = os.waitid(os.P_PID, supervisor, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None or time.monotonic() > deadline:
                os.kill(supervisor, signal.SIGKILL)
                os.waitpid(supervisor, 0)
                why = f"the supervisor ended with {ended.si_status}" if ended else f"nothing after {LIMIT_S:.0f} s"
                raise ViolationError(violations(self.folder) or f"{why}:\n{self.logs()}")
            time.sleep(0.0005)

    def strike(self, kill: Kill, supervisor: int) -> int:
        """Kill; return where in a save that hit."""
        ranks = range(self.config.world_size)
        killed = {"rank 0": [0], "rank 1": [1]}.get(kill.target, ranks)
        not_there_yet = kill.during_start and not all(self.marks.is_alive(rank) for rank in killed)
        if kill.target == "supervisor" or not_there_yet:
            os.kill(supervisor, signal.SIGKILL)
        else:
            for rank in killed:
                self.marks.signal(rank, signal.SIGKILL)
        hit = max(self.marks.where(rank) for rank in killed)
        # Seen again when they are surely gone: between signal and death a rank may come one place further.
        self.until(lambda: not any(self.marks.is_alive(rank) for rank in killed), "what was killed is gone")
        return max(hit, *(self.marks.where(rank) for rank in killed)) if hit != NOTHING else hit

    def bury(self, supervisor: int) -> int:
        """Wait until all of it is gone, and note what it has left; return the supervisor's exit code."""
        gone = functools.partial(os.waitid, os.P_PID, supervisor, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        self.until(lambda: gone() is not None, "the supervisor leaves")
        _, status = os.waitpid(supervisor, 0)
        ranks = range(self.config.world_size)
        self.until(lambda: not any(self.marks.is_alive(rank) for rank in ranks), "the ranks are gone")
        if violations(self.folder):
            raise ViolationError(violations(self.folder))
        self.before = read_tree(self.folder.checkpoints)
        return os.waitstatus_to_exitcode(status)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            if time.monotonic() > deadline:
                raise ViolationError(f"after {LIMIT_S:.0f} s still not: {what}\n{self.logs()}")
            time.sleep(0.0005)

    def logs(self) -> str:
        """Return the ends of what supervisor and ranks said."""
        paths = sorted(self.folder.path.glob("logs/**/*.out"), key=lambda path: path.stat().st_mtime_ns)
        return "\n".join(f"{path.name}: {path.read_text(encoding='utf-8')[-1500:]}" for path in paths[-4:])


def make_run(parent: Path, config: RunConfig) -> RunFolder:
    """Make the folders of a submission with one run."""
    submission = SubmissionFolder(parent / config.name)
    run = submission.run(0)
    make_private(submission.path)
    for folder in (run.path, run.journal, run.checkpoints):
        make_private(folder)
    submission.config.write_text(dump_config(config), encoding="utf-8")
    return run


def small_config(
    name: str,
    *,
    stage: int,
    ranks: int = 2,
    precision: Literal["fp32", "bf16"] = "fp32",
    mode: Mode = "async",
    interval: int = 2,
    staging_dir: str | None = None,
    steps: int = 10**6,
    phase_limit_s: float = 30.0,
    policy: Policy = PATIENCE,
) -> RunConfig:
    """Return the config of a training without a model."""
    return RunConfig(
        name=name,
        cluster=ClusterConfig(kind="local", ranks_per_node=ranks),
        training=TrainingConfig(
            steps=steps, precision=precision, deepspeed={"zero_optimization": {"stage": stage}}, learning_rate=0.1
        ),
        checkpoints=CheckpointConfig(
            interval_steps=interval, certify_after_steps=2, mode=mode, staging_dir=staging_dir
        ),
        recovery=policy,
        supervisor=SupervisorConfig(phase_limit_s=phase_limit_s, heartbeat_s=0.5),
    )
