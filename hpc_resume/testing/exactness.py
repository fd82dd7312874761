"""Trainings that are interrupted on purpose, and held against one that was not."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from hpc_resume.cluster.base import EXIT_FINISHED, EXIT_REQUEUED, EXIT_STOPPED
from hpc_resume.cluster.base import Interruption as Interrupted
from hpc_resume.cluster.local_allocation import LocalAllocation
from hpc_resume.config.cluster_section import ClusterConfig
from hpc_resume.config.load import dump_config
from hpc_resume.config.schema import FaultConfig, RunConfig
from hpc_resume.errors import TrainerError
from hpc_resume.journal.folder import RunFolder, SubmissionFolder, make_private
from hpc_resume.journal.metrics import read_rows
from hpc_resume.journal.reader import read_journal
from hpc_resume.supervisor import supervise
from hpc_resume.testing.comparison import compare_runs
from hpc_resume.testing.ranks import Order, Ranks, StartMethod

CAUSAL_LM = "hpc_resume.trainers.causal_lm:train_causal_lm"
"""The built-in trainer, as `assert_exact` takes trainers: the module and the function in it."""


@dataclass(frozen=True, slots=True)
class Interruption:
    """One way to disturb a training.

    `stop` asks all ranks to leave at that step, as at the end of a job's time: they save, and new processes go on.
    `kill` kills them all with it, before it could be saved. `reload` loads the newest checkpoint before it, in the
    running processes.
    """

    kind: Literal["stop", "kill", "reload"]
    step: int


def assert_exact(
    config: RunConfig,
    folder: Path,
    interruptions: Sequence[Interruption],
    *,
    trainer: str = CAUSAL_LM,
    start_method: StartMethod | None = None,
) -> None:
    """Train undisturbed and interrupted, in two new folders in `folder`, and fail unless both are the same to the bit.

    Args:
        config: What is trained; a few steps of something tiny are enough. Its checkpoints decide from where an
            interrupted training goes on.
        folder: Where; only you may be able to write there.
        interruptions: What happens to the second training, by rising step.
        trainer: The training loop: a module, a colon, and a function with the arguments of `train_causal_lm`.
        start_method: `spawn` starts a new interpreter for every rank, which takes seconds and is what you want with
            GPUs; `forkserver` forks them from one that has imported torch and DeepSpeed, and takes a moment. None
            chooses by whether torch sees a GPU.
    """
    undisturbed = train(config, folder / "undisturbed", trainer=trainer, start_method=start_method)
    disturbed = train(config, folder / "disturbed", interruptions, trainer=trainer, start_method=start_method)
    differences = compare_runs(undisturbed, disturbed)
    if differences:
        raise AssertionError("the interrupted training is not the undisturbed one:\n" + "\n".join(differences))


def train(
    config: RunConfig,
    folder: Path,
    interruptions: Sequence[Interruption] = (),
    *,
    trainer: str = CAUSAL_LM,
    start_method: StartMethod | None = None,
) -> RunFolder:
    """Train to the end on this machine, with a record of all states, interrupted as asked; return where the run lies.

    Raises:
        TrainerError: the training failed, or could not be interrupted like that.
    """
    config = _prepared(config, folder, interruptions)
    run = _make_folders(config)
    here = _Here(config, trainer, interruptions, start_method or _choose_method())
    code = EXIT_REQUEUED
    with _handlers_kept():
        while code == EXIT_REQUEUED:
            code = supervise(run, config, here)
    if code == EXIT_STOPPED:
        raise KeyboardInterrupt  # a supervisor takes it for the wish to save and to stay stopped
    _require_done(run, code, interruptions)
    return run


class _Here(LocalAllocation):
    """This machine, where ranks are interrupted by appointment."""

    def __init__(
        self, config: RunConfig, trainer: str, interruptions: Sequence[Interruption], method: StartMethod
    ) -> None:
        super().__init__()
        self._config = config
        self._trainer = trainer
        self._appointments = [each for each in interruptions if each.kind != "reload"]
        self._method = method
        self._ranks: Ranks | None = None

    def start(self, folder: RunFolder, attempt: int, claim: int, config: ClusterConfig) -> Ranks:  # type: ignore[override]  # noqa: ARG002
        due = self._appointments.pop(0) if self._appointments else None
        order = Order(
            folder=folder,
            attempt=attempt,
            claim=claim,
            config=self._config,
            trainer=self._trainer,
            method=self._method,
            stop_after=due.step if due and due.kind == "stop" else None,
            kill_after=due.step if due and due.kind == "kill" else None,
        )
        self._ranks = Ranks(order)
        return self._ranks

    def interruption(self, *, suspicious: bool = False) -> Interrupted | None:
        if suspicious and self._ranks is not None and self._ranks.were_killed():
            # Not a crash: of those, two in a row at one place end a run.
            return Interrupted(cause="preempted", message="killed by appointment", final=True)
        return None

    def requeue(self, avoid: tuple[str, ...] = ()) -> None:
        """Do nothing: whoever called the supervisor calls it again."""


def _prepared(config: RunConfig, folder: Path, interruptions: Sequence[Interruption]) -> RunConfig:
    reloads = tuple(FaultConfig(kind="reload", step=each.step) for each in interruptions if each.kind == "reload")
    return replace(
        config,
        name=folder.name,
        runs_dir=str(folder.parent.absolute()),
        # However many nodes it is meant for.
        cluster=replace(config.cluster, kind="local", nodes=1, ranks_per_node=config.world_size),
        training=replace(config.training, record_state=True),
        recovery=replace(config.recovery, idle_budget=config.recovery.idle_budget + len(interruptions)),
        faults=config.faults + reloads,
    )


def _make_folders(config: RunConfig) -> RunFolder:
    submission = SubmissionFolder(Path(config.runs_dir) / config.name)
    run = submission.run(0)
    for path in (submission.path, run.path, run.journal, run.checkpoints):
        make_private(path)
    submission.config.write_text(dump_config(config), encoding="utf-8")
    return run


def _require_done(run: RunFolder, code: int, interruptions: Sequence[Interruption]) -> None:
    """Refuse a training that was not what was asked for: a comparison with it would prove nothing."""
    history = read_journal(run).history
    if code != EXIT_FINISHED:
        why = history.stop.reason if history.stop is not None else f"exit code {code}"
        raise TrainerError(f"the training in {run.path} did not finish: {why}; see {run.log(1, 0).parents[1]}")
    attempts = [attempt.started.attempt for attempt in history.attempts]
    loads = sum(1 for attempt in attempts for row in read_rows(run.trace(attempt, 0)) if row.get("loaded"))
    ends = sum(each.kind != "reload" for each in interruptions)
    if (len(attempts), loads) != (1 + ends, 1 + len(interruptions)):
        raise TrainerError(
            f"the training in {run.path} started {len(attempts)} times and loaded its state {loads} times, but "
            f"{1 + ends} and {1 + len(interruptions)} were asked for; stops are heard one step late, and the last two "
            "steps are too late for them"
        )


def _choose_method() -> StartMethod:
    import torch

    # What was forked after somebody looked for GPUs can't use them.
    return "spawn" if torch.cuda.is_available() else "forkserver"


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Give back the signal handlers that a supervisor takes."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGCONT)
    before = [signal.getsignal(number) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
