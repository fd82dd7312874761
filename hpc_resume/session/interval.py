"""When the next checkpoint is due: as the config says, or as saves and failures ask for."""

from __future__ import annotations

from collections import deque

from hpc_resume.config.checkpoint_section import CheckpointConfig
from hpc_resume.recovery import History, interval
from hpc_resume.recovery import events as ev
from hpc_resume.session.agreement import Agreement
from hpc_resume.session.recorder import Recorder

RECENT_STEPS = 128
"""The usual step is the median of so many."""


class SaveInterval:
    """Knows when a save is due, and with `auto` measures what that rests on.

    When a save is due depends on the config, the history and the step alone, so all ranks agree. What is measured
    differs from rank to rank: only rank 0's `choose` counts, and what it returns is recorded on all ranks.
    """

    def __init__(self, config: CheckpointConfig) -> None:
        """Know nothing yet."""
        self._config = config
        self._fixed_steps = None if config.interval_steps == "auto" else config.interval_steps
        self._last_begun = 0
        self._trained_s = 0.0
        self._trained_before: int | None = None
        self._steps: deque[float] = deque(maxlen=RECENT_STEPS)
        self._saves: deque[ev.CheckpointCommitted] = deque(maxlen=interval.RECENT_SAVES)

    def resumed(self, step: int) -> None:
        """Count from here; after each resume of an attempt, also those inside it."""
        self._last_begun = step
        if self._trained_before is None:
            self._trained_before = step

    def due(self, history: History, step: int) -> bool:
        """Tell whether a save is due after so many steps; the same on all ranks."""
        if self._fixed_steps is not None:
            return step % self._fixed_steps == 0
        return step - self._last_begun >= self._in_force(history)

    def begun(self, step: int) -> None:
        """Note that a save was begun, whatever becomes of it: one that failed is tried again an interval later."""
        self._last_begun = step

    def step(self, seconds: float) -> None:
        """Note what one step took, without saves."""
        self._steps.append(seconds)
        self._trained_s += seconds

    def saved(self, event: ev.CheckpointCommitted) -> None:
        """Note what a save cost."""
        self._saves.append(event)

    def announce(self, recorder: Recorder, agreement: Agreement) -> None:
        """Record on all ranks what rank 0 chooses, if that is news; after each resume and each commit."""
        if self._fixed_steps is not None:
            return
        choice = self.choose(recorder.history, recorder.attempt) if agreement.rank == 0 else None
        chosen = agreement.from_rank_0(choice)
        if chosen is not None:
            recorder.record(chosen)

    def choose(self, history: History, attempt: int) -> ev.IntervalChosen | None:
        """Return a new interval where one is called for: once before anything is known, and then after saves."""
        if self._fixed_steps is not None:
            return None
        choice = self._choice(history)
        if history.interval is not None and (choice is None or not interval.replaces(choice, history.interval)):
            return None
        choice = choice or interval.choose_unmeasured(self._config.certify_after_steps)
        return ev.IntervalChosen(attempt=attempt, steps=choice.steps, message=choice.message, numbers=choice.numbers)

    def _choice(self, history: History) -> interval.Choice | None:
        if not self._saves or not self._steps:
            return None
        step_s = max(interval.median(self._steps), 1e-6)
        blocked_s, save_s = interval.usual_save(list(self._saves))
        measured = interval.Measured(
            step_s=step_s,
            blocked_s=blocked_s,
            save_s=save_s,
            # Of earlier attempts only the steps that are still of use are known; what they lost is little beside them.
            trained_s=(self._trained_before or 0) * step_s + self._trained_s,
            failures=interval.failures(history),
        )
        return interval.choose(
            measured,
            failures_per_day=self._config.failures_per_day,
            certify_after_steps=self._config.certify_after_steps,
        )

    def _in_force(self, history: History) -> int:
        if history.interval is not None:
            return history.interval.steps
        return interval.choose_unmeasured(self._config.certify_after_steps).steps
