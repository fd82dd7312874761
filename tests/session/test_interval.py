"""When a save is due, and when another interval is announced."""

from __future__ import annotations

from typing import Any

import pytest

from hpc_resume.config.checkpoint_section import CheckpointConfig
from hpc_resume.journal.codec import decode, encode
from hpc_resume.recovery import History
from hpc_resume.recovery import events as ev
from hpc_resume.recovery.history import apply
from hpc_resume.session.interval import SaveInterval


def commit(step: int, seconds: float = 2.0, blocked_s: float = 0.5) -> ev.CheckpointCommitted:
    checkpoint = ev.Checkpoint(name=f"s{step}", step=step, position=step, branch=0, save_number=step)
    return ev.CheckpointCommitted(attempt=1, checkpoint=checkpoint, seconds=seconds, blocked_s=blocked_s)


class Training:
    """A rank that trains and saves when that is due, and counts its steps instead of waiting for them."""

    def __init__(self, config: CheckpointConfig, history: History | None = None, step: int = 0) -> None:
        self.interval = SaveInterval(config)
        self.history = history or History()
        self.completed = step
        self.saves: list[int] = []
        self.chosen: list[ev.IntervalChosen] = []
        self.interval.resumed(step)
        self.choose()

    def choose(self) -> None:
        chosen = self.interval.choose(self.history, attempt=1)
        if chosen is not None:
            self.chosen.append(chosen)
            self.history = apply(self.history, chosen)

    def train(self, steps: int, step_s: float = 1.0, fails: bool = False, **costs: Any) -> None:
        for _ in range(steps):
            self.completed += 1
            self.interval.step(step_s)
            if self.interval.due(self.history, self.completed):
                self.interval.begun(self.completed)
                self.saves.append(self.completed)
                if not fails:
                    self.interval.saved(commit(self.completed, **costs))
                    self.choose()


AUTO = CheckpointConfig(interval_steps="auto", certify_after_steps=50)


def test_a_fixed_interval_counts_from_the_first_step_of_the_run_and_announces_nothing() -> None:
    training = Training(CheckpointConfig(interval_steps=10), step=7)
    training.train(30)
    assert training.saves == [10, 20, 30]
    assert training.chosen == []


def test_the_first_save_is_due_after_the_longest_interval_and_then_it_is_measured() -> None:
    training = Training(AUTO)
    training.train(50 + 50, blocked_s=0.01, seconds=0.4)
    first, second = training.chosen
    assert (first.steps, second.steps) == (50, 42)  # sqrt(2 x 0.01 s x 1 day) = 42 s
    assert training.saves == [50, 92]


def test_what_is_announced_stands_in_the_journal_as_it_was() -> None:
    training = Training(AUTO)
    training.train(50, blocked_s=0.01, seconds=0.4)
    for chosen in training.chosen:
        assert decode(encode(chosen)) == chosen


def test_an_interval_is_announced_once_while_costs_stay_much_the_same() -> None:
    training = Training(AUTO)
    for turn in range(20):
        training.train(50, blocked_s=0.01 + 0.002 * (turn % 2), seconds=0.4)
    assert len(training.chosen) == 2


def test_dearer_saves_come_less_often() -> None:
    training = Training(AUTO)
    training.train(200, blocked_s=0.01, seconds=0.4)
    training.train(1000, blocked_s=8.0, seconds=9.0)
    assert training.chosen[-1].steps == 152  # 5% of the time
    assert training.saves[-1] - training.saves[-2] == 152


def test_a_later_attempt_goes_on_with_the_interval_in_force_and_says_nothing_before_it_knows_better() -> None:
    before = Training(AUTO)
    before.train(100, blocked_s=0.01, seconds=0.4)
    after = Training(AUTO, before.history, step=92)
    after.train(41, blocked_s=0.01, seconds=0.4)
    assert after.saves == []
    after.train(1, blocked_s=0.01, seconds=0.4)
    assert after.saves == [134]
    assert after.chosen == []


def test_a_save_that_failed_is_tried_again_an_interval_later_not_at_the_next_step() -> None:
    training = Training(AUTO)
    training.train(160, fails=True)
    assert training.saves == [50, 100, 150]


def test_after_a_rollback_the_interval_is_counted_from_where_training_goes_on() -> None:
    training = Training(AUTO)
    training.train(120, blocked_s=0.05, seconds=0.4)
    assert training.saves == [50, 100]
    training.interval.resumed(50)
    training.completed = 50
    training.train(50, blocked_s=0.05, seconds=0.4)
    assert training.saves == [50, 100, 100]


def test_steps_that_are_trained_again_count_as_time_in_which_nothing_failed() -> None:
    training = Training(AUTO, step=1000)
    training.train(49, step_s=2.0)
    training.interval.resumed(1020)
    training.completed = 1020
    training.train(50, step_s=2.0)
    assert training.chosen[-1].numbers["trained_s"] == 2000 + 2 * 99


def test_one_slow_step_does_not_make_all_look_slow() -> None:
    slow, even = Training(AUTO), Training(AUTO)
    slow.train(1, step_s=500.0)
    slow.train(49, blocked_s=0.01, seconds=0.4)
    even.train(50, blocked_s=0.01, seconds=0.4)
    assert slow.chosen[-1].numbers["step_s"] == even.chosen[-1].numbers["step_s"] == 1.0


class Words:
    """What rank 0 says reaches the ranks that ask after it."""

    def __init__(self, rank: int, said: list[Any]) -> None:
        self.rank = rank
        self.said = said

    def from_rank_0(self, value: Any) -> Any:
        if self.rank == 0:
            self.said.append(value)
        return self.said[-1]


class Journal:
    """A recorder without files."""

    def __init__(self) -> None:
        self.attempt = 1
        self.history = History()

    def record(self, event: ev.Event) -> None:
        self.history = apply(self.history, event)


def test_ranks_that_measure_differently_save_at_the_same_steps() -> None:
    said: list[Any] = []
    saves: dict[int, list[int]] = {0: [], 1: []}
    ranks: list[tuple[SaveInterval, Any, Any]] = [(SaveInterval(AUTO), Journal(), Words(n, said)) for n in (0, 1)]
    for interval, journal, words in ranks:
        interval.resumed(0)
        interval.announce(journal, words)
    for step in range(1, 400):
        for rank, (interval, journal, words) in enumerate(ranks):
            interval.step(1.0 + 0.7 * rank)
            if interval.due(journal.history, step):
                saves[rank].append(step)
                interval.begun(step)
                interval.saved(commit(step, blocked_s=0.01 * (rank + 1)))
                interval.announce(journal, words)
    assert saves[0] == saves[1]
    assert [chosen.steps for chosen in said if chosen] == [50, 42]
    assert ranks[0][1].history == ranks[1][1].history


def test_a_fixed_interval_asks_no_other_rank() -> None:
    journal: Any = Journal()
    words: Any = Words(0, [])
    SaveInterval(CheckpointConfig(interval_steps=10)).announce(journal, words)
    assert words.said == []


@pytest.mark.parametrize("cost", [{"seconds": 0.0, "blocked_s": 0.0}, {"seconds": 1e9, "blocked_s": 1e9}])
def test_costs_beyond_reason_still_give_an_interval(cost: dict[str, float]) -> None:
    training = Training(AUTO)
    training.train(60, step_s=0.0, **cost)
    assert len(training.chosen) == 2
    assert training.chosen[-1].steps >= 1
