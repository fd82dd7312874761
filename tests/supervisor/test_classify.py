from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpc_resume.cluster.base import Interruption
from hpc_resume.cluster.reports import RankReport
from hpc_resume.recovery import Decision, History, fold
from hpc_resume.recovery import events as ev
from hpc_resume.recovery.decisions import Plan
from hpc_resume.supervisor.classify import Watched, classify, is_explained

GONE = Watched(exit_code=1)
GLOO = "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:4242"
NCCL = "NCCL error: remote process exited or there was a network error"


def rank(number: int, error: str = "", message: str = "", *, time: float = 0.0, by_user: bool = False) -> RankReport:
    state = "failed" if error else "started"
    return RankReport(
        rank=number,
        pid=100 + number,
        state=state,
        time=time,
        error=error,
        message=message,
        place="train.py:step" if error else "",
        by_user=by_user,
    )


def started(*events: ev.Event) -> History:
    plan = Plan(checkpoint=None, step=0, position=0, branch=0)
    first = Decision(number=1, action="launch", rule="first start", reason="", plan=plan)
    begin: list[ev.Event] = [
        ev.Decided(decision=first),
        ev.AttemptStarted(attempt=1, claim=1, data_seed=0, host="node1"),
    ]
    return fold([*begin, *events])


FINISHED = ev.RunFinished(attempt=1, step=9, position=72, loss=1.0, weights_digest="", model="")
STOPPED = ev.StopAgreed(attempt=1, step=5, checkpoint="step-000000005.s000001")
UNSAVED = ev.StopAgreed(attempt=1, step=5, checkpoint=None)
BACK = ev.Decided(
    decision=Decision(
        number=2,
        action="requeue",
        rule="loss incident",
        reason="loss is 9",
        plan=Plan(checkpoint=None, step=0, position=0, branch=1, perturb=True),
    )
)

CANCELLED = Interruption(cause="cancelled", message="the job was cancelled in Slurm", final=True)
PREEMPTED = Interruption(cause="preempted", message="Slurm needs its nodes for another job")
REQUEUED = Interruption(cause="preempted", message="Slurm took the job back into its queue", final=True)
TIME_OVER = Interruption(cause="deadline", message="the job's time is over", final=True)
LOST = Interruption(cause="node", message="Slurm lost n2, n3", nodes=("n2", "n3"), final=True)


def gone(interruption: Interruption | None, **more: Any) -> Watched:
    return Watched(**{"exit_code": 143, "interruption": interruption, **more})


TABLE: dict[str, tuple[list[ev.Event], Watched, list[RankReport], dict[str, Any]]] = {
    "finished": ([FINISHED], Watched(exit_code=0), [rank(0)], {"cause": "finished"}),
    "finished, then failed while leaving": ([FINISHED], GONE, [rank(0, "OSError")], {"cause": "finished"}),
    "finished, though cancelled": ([FINISHED], Watched(exit_code=None, asked="cancelled"), [], {"cause": "finished"}),
    "decided": ([BACK], Watched(exit_code=0), [rank(0)], {"cause": "decided", "message": "loss is 9"}),
    "decided, and a rank failed on the way out": ([BACK], GONE, [rank(1, "RuntimeError", GLOO)], {"cause": "decided"}),
    "cancelled": ([], Watched(exit_code=None, asked="cancelled"), [rank(0)], {"cause": "cancelled"}),
    "preempted": ([STOPPED], Watched(exit_code=0), [rank(0)], {"cause": "preempted"}),
    "asked to stop": ([STOPPED], Watched(exit_code=0, asked="terminated"), [rank(0)], {"cause": "terminated"}),
    "out of time": ([STOPPED], Watched(exit_code=0, asked="deadline"), [rank(0)], {"cause": "deadline"}),
    "asked, agreed, but the save failed": (
        [UNSAVED],
        Watched(exit_code=0, asked="deadline"),
        [rank(0)],
        {"cause": "deadline", "message": "asked to leave; could not save at step 5"},
    ),
    "asked, and killed before they agreed": (
        [],
        Watched(exit_code=None, asked="terminated"),
        [rank(0), rank(1)],
        {"cause": "terminated", "message": "asked to leave; nothing could be saved in time"},
    ),
    "asked, and crashed before they agreed": (
        [],
        Watched(exit_code=1, asked="terminated"),
        [rank(0, "ValueError", "no")],
        {"cause": "terminated"},
    ),
    "silent": ([], Watched(exit_code=None, silent_s=200.0), [rank(0)], {"cause": "hang", "fingerprint": "hang"}),
    "one rank's exception": (
        [],
        GONE,
        [rank(0), rank(1, "ValueError", "bad batch")],
        {"cause": "crash", "rank": 1, "message": "rank 1: ValueError: bad batch"},
    ),
    "an exception, and a peer that lost its connection first": (
        [],
        GONE,
        [rank(0, "RuntimeError", GLOO, time=1.0), rank(1, "ValueError", "bad batch", time=2.0)],
        {"cause": "crash", "rank": 1},
    ),
    "two exceptions: the first one": (
        [],
        GONE,
        [rank(3, "ValueError", "first", time=1.0), rank(2, "KeyError", "second", time=2.0)],
        {"cause": "crash", "rank": 3},
    ),
    "a killed rank, and a peer that lost its connection": (
        [],
        GONE,
        [rank(1), rank(0, "RuntimeError", GLOO, time=1.0)],
        {"cause": "crash", "rank": 1, "message": "rank 1 was killed (exit code 1)", "fingerprint": "killed"},
    ),
    "a killed rank, and a peer in NCCL": (
        [],
        GONE,
        [rank(0), rank(1, "DistBackendError", NCCL, time=1.0)],
        {"cause": "crash", "rank": 0, "fingerprint": "killed"},
    ),
    "only lost connections": ([], GONE, [rank(2, "RuntimeError", GLOO)], {"cause": "crash", "rank": 2}),
    "out of GPU memory": ([], GONE, [rank(1, "OutOfMemoryError", "CUDA out of memory")], {"cause": "out_of_memory"}),
    "out of host memory": ([], GONE, [rank(1, "MemoryError")], {"cause": "out_of_memory"}),
    "the user's mistake": (
        [],
        GONE,
        [rank(0, "TrainerError", "no such model", by_user=True)],
        {"cause": "input", "message": "no such model"},
    ),
    "nothing said": (
        [],
        Watched(exit_code=1),
        [],
        {
            "cause": "crash",
            "rank": None,
            "fingerprint": "no word",
            "message": "the workers ended without a word (launcher's exit code 1); see their logs",
        },
    ),
}


IN_SLURM: dict[str, tuple[list[ev.Event], Watched, list[RankReport], dict[str, Any]]] = {
    "cancelled": ([], gone(CANCELLED), [rank(0)], {"cause": "cancelled", "message": CANCELLED.message}),
    "cancelled, though it had finished": ([FINISHED], gone(CANCELLED), [], {"cause": "finished"}),
    "cancelled, and rank 0 had decided": ([BACK], gone(CANCELLED), [rank(0)], {"cause": "cancelled"}),
    "cancelled, and all had agreed to leave": ([STOPPED], gone(CANCELLED), [rank(0)], {"cause": "cancelled"}),
    "cancelled, and a rank failed": ([], gone(CANCELLED), [rank(0, "ValueError")], {"cause": "cancelled"}),
    "cancelled by the command, too": (
        [],
        gone(CANCELLED, asked="cancelled"),
        [],
        {"cause": "cancelled", "message": "cancelled by a person"},
    ),
    "preempted, and saved": (
        [STOPPED],
        gone(PREEMPTED, asked="preempted", exit_code=0),
        [rank(0)],
        {"cause": "preempted", "message": f"{PREEMPTED.message}; saved at step 5"},
    ),
    "preempted, and not saved in time": (
        [],
        gone(REQUEUED),
        [rank(0)],
        {"cause": "preempted", "message": f"{REQUEUED.message}; nothing could be saved in time"},
    ),
    "preempted, and rank 0 had decided": ([BACK], gone(REQUEUED), [rank(0)], {"cause": "decided"}),
    "preempted, and a rank failed on the way out": (
        [],
        gone(PREEMPTED),
        [rank(1, "RuntimeError", GLOO)],
        {"cause": "preempted"},
    ),
    "out of time": ([], gone(TIME_OVER), [rank(0)], {"cause": "deadline"}),
    "out of time, and saved": (
        [STOPPED],
        gone(None, asked="deadline", exit_code=0),
        [],
        {"cause": "deadline", "message": "asked to leave; saved at step 5"},
    ),
    "a person's stop stays one, whatever comes after it": (
        [],
        gone(REQUEUED, asked="terminated"),
        [rank(0)],
        {"cause": "terminated"},
    ),
    "nodes lost": (
        [],
        gone(LOST),
        [rank(0, "RuntimeError", GLOO)],
        {"cause": "node", "message": "Slurm lost n2, n3", "node": "n2, n3"},
    ),
    "a node lost, and rank 0 had decided": ([BACK], gone(LOST), [], {"cause": "decided", "node": "node1"}),
    "a node lost after all had left": (
        [STOPPED],
        gone(LOST),
        [rank(0)],
        {"cause": "node", "message": "Slurm lost n2, n3; saved at step 5", "node": "n2, n3"},
    ),
    "silent, for a node is lost": ([], gone(LOST, silent_s=200.0, exit_code=None), [rank(0)], {"cause": "node"}),
    "killed for its memory": (
        [],
        gone(None, exit_code=137, out_of_memory=True),
        [rank(1), rank(0, "RuntimeError", GLOO)],
        {"cause": "out_of_memory", "rank": 1, "fingerprint": "killed for its memory"},
    ),
    "killed for its memory, while the cluster took the job": (
        [],
        gone(REQUEUED, out_of_memory=True),
        [rank(1)],
        {"cause": "preempted"},
    ),
    "an exception, where memory was short as well": (
        [],
        gone(None, exit_code=1, out_of_memory=True),
        [rank(0), rank(1, "ValueError", "bad batch")],
        {"cause": "crash", "rank": 1},
    ),
    "a taken port": (
        [],
        GONE,
        [rank(0, "DistNetworkError", "The server socket has failed to listen: EADDRINUSE"), rank(1)],
        {"cause": "port", "rank": 0, "fingerprint": ""},
    ),
    "a taken port in other words": (
        [],
        GONE,
        [rank(0, "RuntimeError", "[Errno 98] Address already in use")],
        {"cause": "port"},
    ),
    "a user's mistake about a port": (
        [],
        GONE,
        [rank(0, "ConfigError", "address already in use", by_user=True)],
        {"cause": "input"},
    ),
}


@pytest.mark.parametrize(("events", "watched", "reports", "expected"), IN_SLURM.values(), ids=IN_SLURM.keys())
def test_the_cause_of_an_end_in_a_slurm_job(
    events: list[ev.Event], watched: Watched, reports: list[RankReport], expected: dict[str, Any]
) -> None:
    ended = classify(started(*events), watched, reports, "node1")
    assert {name: getattr(ended, name) for name in expected} == expected
    assert (ended.attempt, ended.found_later, ended.avoidable) == (1, False, False)


def test_a_crash_names_the_node_of_the_rank_that_failed_first() -> None:
    reports = [replace(rank(1, "ValueError", "no"), host="n3"), replace(rank(0), host="n1")]
    assert classify(started(), GONE, reports, "node1").node == "n3"
    killed = classify(started(), GONE, [replace(rank(2), host="n4")], "node1")
    assert (killed.node, killed.message) == ("n4", "rank 2 on n4 was killed (exit code 1)")


def test_ends_without_a_word_are_alike_whatever_their_exit_codes_are() -> None:
    codes = [classify(started(), Watched(exit_code=code), [], "node1").fingerprint for code in (1, 137, 143)]
    assert set(codes) == {"no word"}


@pytest.mark.parametrize(
    ("events", "watched", "expected"),
    [
        ([], GONE, False),
        ([], Watched(exit_code=0), False),
        ([], Watched(exit_code=None, silent_s=200.0), False),
        ([], Watched(exit_code=1, asked="preempted"), True),
        ([STOPPED], GONE, True),
        ([FINISHED], GONE, True),
        ([BACK], GONE, True),
    ],
    ids=["gone", "gone without an error", "silent", "asked to leave", "agreed to leave", "finished", "decided"],
)
def test_the_nodes_are_looked_at_where_nobody_knows_why(
    events: list[ev.Event], watched: Watched, expected: bool
) -> None:
    assert is_explained(started(*events), watched) is expected


@pytest.mark.parametrize(("events", "watched", "reports", "expected"), TABLE.values(), ids=TABLE.keys())
def test_the_cause_of_an_end(
    events: list[ev.Event], watched: Watched, reports: list[RankReport], expected: dict[str, Any]
) -> None:
    ended = classify(started(*events), watched, reports, "node1")
    assert {name: getattr(ended, name) for name in expected} == expected
    assert (ended.attempt, ended.node, ended.found_later) == (1, "node1", False)


def test_the_same_failure_has_the_same_fingerprint_whatever_its_numbers_are() -> None:
    ends = [classify(started(), GONE, [rank(0, "ValueError", f"loss is {n}")], "node1") for n in (1, 2)]
    assert ends[0].fingerprint == ends[1].fingerprint
    other = classify(started(), GONE, [rank(0, "KeyError", "loss is 1")], "node1")
    assert other.fingerprint != ends[0].fingerprint


def test_a_decision_that_started_this_attempt_is_not_why_it_ended() -> None:
    history = fold([ev.AttemptStarted(attempt=1, claim=1, data_seed=0, host="node1")])
    ended = classify(history, GONE, [rank(0, "ValueError", "no")], "node1")
    assert ended.cause == "crash"
