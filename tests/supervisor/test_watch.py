"""Who wants the workers to leave, in which words that is remembered, and how long they have for it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_resume.cluster.base import Interruption
from hpc_resume.cluster.reports import RankReport
from hpc_resume.config.schema import SupervisorConfig
from hpc_resume.errors import ClusterError
from hpc_resume.supervisor.classify import Watched
from hpc_resume.supervisor.watch import Surroundings, watch

PREEMPTED = Interruption(cause="preempted", message="Slurm needs its nodes for another job")
TIME_OVER = Interruption(cause="deadline", message="the job's time is over")
TAKEN = Interruption(cause="preempted", message="Slurm took the job back into its queue", final=True)
CANCELLED = Interruption(cause="cancelled", message="the job was cancelled in Slurm", final=True)


class Ranks:
    """Workers that run for a while, and leave when they are asked to, if they are willing."""

    def __init__(self, *, polls: int = 50, willing: bool = True) -> None:
        self.polls = polls
        self.willing = willing
        self.heard: list[signal.Signals] = []
        self.killed = False

    def wait(self, timeout_s: float) -> int | None:  # noqa: ARG002
        self.polls -= 1
        assert self.polls > -1000, "nobody ends these workers"
        leaves = self.willing and signal.SIGTERM in self.heard
        return 0 if leaves or (self.willing and self.polls < 0) else None

    def signal(self, number: signal.Signals) -> None:
        self.heard.append(number)

    def kill(self) -> None:
        self.killed = True

    def reports(self) -> list[RankReport]:
        return []

    def ran_out_of_memory(self) -> bool:
        return False


class Place:
    """What is around the workers; a list holds what is found at one look after the other, its last word stays."""

    def __init__(self, tmp_path: Path) -> None:
        self.metrics = tmp_path / "metrics.jsonl"
        self.stops = 0
        self.by_a_person = True
        self.requeue_wished = False
        self.interruption: Interruption | ClusterError | None = None
        self.seconds_left: list[float | None] = [None]
        self.asked = 0
        self.config = SupervisorConfig(deadline_margin_s=120.0, stop_grace_s=1000.0)

    def _ask(self) -> Interruption | None:
        self.asked += 1
        if isinstance(self.interruption, ClusterError):
            raise self.interruption
        return self.interruption

    def _left(self) -> float | None:
        return self.seconds_left.pop(0) if len(self.seconds_left) > 1 else self.seconds_left[0]

    def watch(self, ranks: Ranks) -> Watched:
        around = Surroundings(
            stops=lambda: self.stops,
            by_a_person=lambda: self.by_a_person,
            requeue_wished=lambda: self.requeue_wished,
            interruption=self._ask,
            cancelled=lambda: False,
            replaced=lambda: False,
            seconds_left=self._left,
        )
        return watch(ranks, self.metrics, self.config, around)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_workers_that_nobody_disturbs_are_left_alone(place: Place) -> None:
    ranks = Ranks()
    assert place.watch(ranks) == Watched(exit_code=0)
    assert (ranks.heard, ranks.killed, place.asked) == ([], False, 0)


STOPS: dict[str, tuple[Interruption | ClusterError | None, str]] = {
    "a person's": (None, "terminated"),
    "a preemption": (PREEMPTED, "preempted"),
    "the end of the job's time": (TIME_OVER, "deadline"),
    "nobody can be asked whose": (ClusterError("no answer"), "preempted"),
}


@pytest.mark.parametrize(("found", "asked"), STOPS.values(), ids=STOPS)
def test_a_stop_is_asked_about_once_and_the_workers_are_asked_to_leave(
    place: Place, found: Interruption | ClusterError | None, asked: str
) -> None:
    place.stops, place.interruption = 1, found
    ranks = Ranks()
    watched = place.watch(ranks)
    assert (watched.exit_code, watched.asked, watched.interruption) == (0, asked, None)
    assert (ranks.heard, ranks.killed, place.asked) == ([signal.SIGTERM], False, 1)


@pytest.mark.parametrize("found", [TAKEN, CANCELLED], ids=["requeued", "cancelled"])
def test_workers_that_are_being_killed_already_are_not_waited_for(place: Place, found: Interruption) -> None:
    place.stops, place.interruption = 1, found
    ranks = Ranks()
    assert place.watch(ranks) == Watched(exit_code=None, interruption=found)
    assert (ranks.heard, ranks.killed) == ([], True)


def test_each_further_stop_is_asked_about_and_the_first_reason_stays(place: Place) -> None:
    ranks = Ranks(willing=False)
    place.stops = 1
    wait = ranks.wait

    def then_slurm_takes_the_job(timeout_s: float) -> int | None:
        if ranks.heard:
            place.stops, place.interruption = 2, TAKEN
        return wait(timeout_s)

    ranks.wait = then_slurm_takes_the_job  # type: ignore[method-assign]
    assert place.watch(ranks) == Watched(exit_code=None, interruption=TAKEN)
    assert (place.asked, ranks.killed) == (2, True)


LEFT: dict[str, tuple[float | None, bool, str | None]] = {
    "there is time": (1000.0, False, None),
    "there is no limit": (None, False, None),
    "the time is nearly over": (119.0, False, "deadline"),
    "a wish, and no limit": (None, True, "preempted"),
    "a wish, and much time": (1000.0, True, "preempted"),
    # By its manual Slurm may send it a minute early: then the time that is left is not thrown away.
    "a wish, a minute before the margin": (180.0, True, None),
    "a wish, and the time is nearly over": (100.0, True, "deadline"),
}


@pytest.mark.parametrize(("left", "wished", "asked"), LEFT.values(), ids=LEFT)
def test_the_end_of_the_time_and_a_wish_to_requeue(
    place: Place, left: float | None, wished: bool, asked: str | None
) -> None:
    place.seconds_left, place.requeue_wished = [left], wished
    ranks = Ranks()
    assert place.watch(ranks).asked == asked
    assert (signal.SIGTERM in ranks.heard) is (asked is not None)


def test_before_the_end_of_the_time_workers_may_save_for_as_long_as_there_is_any(place: Place) -> None:
    place.config = SupervisorConfig(deadline_margin_s=120.0, stop_grace_s=0.001)
    place.seconds_left = [*([100.0] * 20), *([21.0] * 20), 19.0]
    ranks = Ranks(willing=False)
    watched = place.watch(ranks)
    assert (watched.asked, ranks.killed) == ("deadline", True)
    # What is left then is for putting the job back into the queue.
    assert place.seconds_left == [19.0]


@pytest.mark.parametrize("stop", ["a person's", "a preemption"])
def test_workers_that_do_not_leave_within_the_grace_are_ended(place: Place, stop: str) -> None:
    place.config = SupervisorConfig(stop_grace_s=0.001)
    place.stops, (place.interruption, asked) = 1, STOPS[stop]
    ranks = Ranks(willing=False)
    watched = place.watch(ranks)
    assert (watched.exit_code, watched.asked, ranks.killed) == (None, asked, True)


def test_a_supervisor_that_was_suspended_does_not_take_its_own_sleep_for_a_hang(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    ranks = Ranks(polls=5)
    wait: Callable[[float], int | None] = ranks.wait

    def sleeps_once(timeout_s: float) -> int | None:
        nonlocal now
        now += 3600.0 if ranks.polls == 3 else timeout_s
        return wait(timeout_s)

    ranks.wait = sleeps_once  # type: ignore[method-assign]
    assert place.watch(ranks) == Watched(exit_code=0)


def test_ranks_that_say_nothing_for_too_long_are_a_hang(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    ranks = Ranks(willing=False)
    wait: Callable[[float], int | None] = ranks.wait

    def time_passes(timeout_s: float) -> int | None:
        nonlocal now
        now += timeout_s
        return wait(timeout_s)

    ranks.wait = time_passes  # type: ignore[method-assign]
    place.config = SupervisorConfig(hang_min_s=60.0, phase_limit_s=60.0)
    watched = place.watch(ranks)
    assert watched.silent_s is not None
    assert 60.0 < watched.silent_s < 63.0
    assert (ranks.heard, ranks.killed) == ([signal.SIGUSR1], True)


def test_a_stop_that_neither_the_cluster_nor_a_person_explains_is_no_stop_for_good(place: Place) -> None:
    place.stops, place.by_a_person = 1, False
    assert place.watch(Ranks()).asked == "preempted"
