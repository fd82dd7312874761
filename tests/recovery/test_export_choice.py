"""Which checkpoint may become a model, and what is said of those that may not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hpc_resume.errors import CheckpointError, ConfigError
from hpc_resume.recovery import Policy
from hpc_resume.recovery import events as ev
from hpc_resume.recovery.export_choice import Choice, Standing, choose_for_export

Told = Callable[..., Any]


def choose(story: Any, step: int | None = None, *, force: bool = False, newest_step: int = 32) -> Choice:
    standing = Standing(history=story.history, newest_step=newest_step, certify_after_steps=50, margin_steps=5)
    return choose_for_export(standing, step=step, force=force)


@pytest.mark.parametrize(
    ("happened", "step"),
    [("10+ 20+ 30", 20), ("10+ 20+ 30 finish", 30), ("10+ 20+ 30 loss@33 crash:A", 20), ("10+ 20+ loss@24", 10)],
    ids=["the newest certified one", "the last of a finished run", "one that outlived an incident", "none suspect"],
)
def test_without_a_step_the_newest_healthy_checkpoint_is_taken(told: Told, happened: str, step: int) -> None:
    choice = choose(told(happened, policy=Policy()))
    assert (choice.checkpoint.step, choice.objection) == (step, None)


@pytest.mark.parametrize(
    ("happened", "step", "objection"),
    [
        ("10+ 20+ 30", 30, "not certified yet: only 2 of 50 healthy steps have followed it"),
        ("10+ 20+ loss@24", 20, "suspect: inside the look-back of the loss incident at step 26"),
        ("10+ 20 loss@23 40+ 50+ loss@54", 20, "suspect: inside the look-back of the loss incident at step 25"),
        ("10+ 20 loss@23 40+ 50+ loss@54", 50, "suspect: inside the look-back of the loss incident at step 56"),
        ("10+ 20+ reject", 20, "set aside: rejected: digest differs"),
    ],
    ids=["uncertified", "suspect", "suspect by the first of two", "suspect by the second of two", "rejected"],
)
def test_an_unhealthy_checkpoint_is_refused_with_the_reason_and_exported_only_by_force(
    told: Told, happened: str, step: int, objection: str
) -> None:
    story = told(happened)
    with pytest.raises(ConfigError) as refused:
        choose(story, step)
    healthy = choose(story).checkpoint.step
    assert f" is not exported: {objection}; the newest healthy one is that of step {healthy}; --force" in str(
        refused.value
    )
    choice = choose(story, step, force=True)
    assert (choice.checkpoint.step, choice.objection) == (step, objection)


def test_all_that_a_finished_run_went_through_is_healthy_but_not_what_it_left_behind(told: Told) -> None:
    story = told("10+ 20+ 30 loss@33 30 40 finish")
    assert choose(story, 40).objection is choose(story, 30).objection is None
    assert choose(story, 30).checkpoint.branch == 1
    assert choose(told("10+ 20+ loss@24 30 finish"), 20, force=True).objection is not None


def test_while_an_incident_waits_for_its_decision_what_it_casts_doubt_on_is_suspect_already(told: Told) -> None:
    story = told("10+ 20+")
    assert choose(story).checkpoint.step == 20
    story.record(story.incident(24))
    assert choose(story).checkpoint.step == 10
    assert choose(story, 20, force=True).objection == "suspect: inside the look-back of the loss incident at step 26"


def test_of_several_checkpoints_of_a_step_the_usable_one_is_taken_also_by_force(told: Told) -> None:
    story = told("10+ 20 loss@23 20")
    first, second = (c for c in story.history.known.values() if c.step == 20)
    assert choose(story, 20, force=True).checkpoint == second
    story.record(ev.CheckpointDeleted(name=second.name, reason="not needed"))
    assert choose(story, 20, force=True).checkpoint == first


def test_a_step_without_a_checkpoint_is_refused_with_those_that_there_are(told: Told) -> None:
    story = told("10+ 20+ 30+")
    with pytest.raises(ConfigError, match=r"^there is no checkpoint of step 15; there are those of step 10, 20, 30$"):
        choose(story, 15, force=True)
    story.record(ev.CheckpointDeleted(name=story.on_disk[1], reason="not needed"))
    with pytest.raises(ConfigError, match=r"^the checkpoint of step 20 was deleted; there are those of step 10, 30$"):
        choose(story, 20, force=True)


def test_with_no_healthy_checkpoint_at_all_the_newest_is_named_and_force_takes_it(told: Told) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint so far"):
        choose(told(""), force=True)
    story = told("10 20")
    with pytest.raises(
        CheckpointError, match=r"no healthy checkpoint so far; the newest, .* 12 of 50 .*--step 20 --for"
    ):
        choose(story)
    with pytest.raises(ConfigError, match="no other one is healthy"):
        choose(story, 10)
    assert choose(story, force=True).checkpoint.step == 20


def test_a_count_that_is_full_already_is_not_called_too_small(told: Told) -> None:
    assert choose(told("10"), 10, force=True, newest_step=90).objection == "not certified yet"
