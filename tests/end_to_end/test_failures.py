"""Crashes, hangs and failing saves cost time, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.training import Outcome, start

from hpc_resume.cluster.processes import node_name

pytestmark = [pytest.mark.deepspeed, pytest.mark.slow]


def test_a_run_that_is_killed_hangs_raises_and_cannot_save_equals_the_undisturbed_one(
    train: Callable[..., Outcome],
) -> None:
    undisturbed = train()
    disturbed = train(
        supervisor__hang_min_s=4.0,
        supervisor__phase_limit_s=120.0,
        faults=[
            {"kind": "save_fails", "step": 7},
            {"kind": "rank_kill", "step": 14, "rank": 1},
            {"kind": "reload", "step": 18},
            {"kind": "exception", "step": 22, "rank": 0},
            {"kind": "rank_hang", "step": 30, "rank": 1},
        ],
    )

    assert (undisturbed.code, disturbed.code) == (0, 0), disturbed.output
    history = disturbed.history
    assert [a.ended.cause for a in history.attempts if a.ended] == ["crash", "crash", "hang", "finished"]
    assert [a.resumed.step for a in history.attempts if a.resumed] == [0, 16, 20, 28]
    assert f"rank 1 on {node_name()} was killed" in " ".join(disturbed.output.split())
    assert "injected exception before step 22" in disturbed.output
    assert len(history.save_failures) == 1
    assert "No space left on device" in history.save_failures[0].message
    stacks = disturbed.run.log(3, 1).read_text(encoding="utf-8")
    assert "Current thread" in stacks
    assert "set_off" in stacks

    assert disturbed.losses() == undisturbed.losses()
    assert disturbed.samples() == undisturbed.samples()
    assert undisturbed.history.finished is not None
    assert history.finished is not None
    assert history.finished.weights_digest == undisturbed.history.finished.weights_digest


def test_the_same_failure_twice_without_a_checkpoint_between_stops_the_run(train: Callable[..., Outcome]) -> None:
    outcome = train(faults=[{"kind": "exception", "step": 3, "times": 9}])

    assert outcome.code == 1
    assert len(outcome.history.attempts) == 2
    assert outcome.history.stop is not None
    assert outcome.history.stop.rule == "same crash twice"
    assert "injected exception before step 3" in outcome.history.stop.reason


def test_data_that_changed_since_the_run_began_is_refused(train: Callable[..., Outcome]) -> None:
    # A cache that is gone is made again from the files; if those changed, the order can't be kept.
    outcome = train(faults=[{"kind": "exception", "step": 30, "times": 9}])
    assert outcome.code == 1
    corpus = outcome.folder.path.parent.parent / "corpus.txt"
    corpus.write_text(corpus.read_text(encoding="utf-8")[:2000], encoding="utf-8")
    for path in outcome.run.data.iterdir():
        path.unlink()
    process = start("resubmit", str(outcome.folder.path))
    output, _ = process.communicate(timeout=120)

    assert process.returncode == 1
    assert "the data set has 62 samples, but this run began with 100" in " ".join(output.split())
    assert outcome.history.stop is not None
    assert outcome.history.stop.rule == "same crash twice"
