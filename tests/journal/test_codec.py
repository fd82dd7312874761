"""Events to JSON and back, in both directions of time."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_resume.errors import JournalError
from hpc_resume.journal.codec import KINDS, decode, encode, kind_of
from hpc_resume.recovery import RULES, Decision, Plan
from hpc_resume.recovery import events as ev

plans = st.builds(Plan, lr_factor=st.floats(0, 2))
_common: dict[str, Any] = {"rule": st.sampled_from(list(RULES)), "reason": st.text(max_size=20)}
decisions = st.one_of(
    st.builds(
        Decision,
        action=st.sampled_from(["launch", "rollback", "requeue"]),
        plan=plans,
        outcome=st.none(),
        **_common,
    ),
    st.builds(Decision, action=st.just("continue"), plan=st.none(), outcome=st.none(), **_common),
    st.builds(
        Decision,
        action=st.just("stop"),
        plan=st.none(),
        outcome=st.sampled_from(["finished", "failed", "cancelled", "stopped"]),
        **_common,
    ),
)
st.register_type_strategy(float, st.floats(allow_nan=False))
st.register_type_strategy(Decision, decisions)


def _through_json(event: ev.Event) -> ev.Event:
    return decode(json.loads(json.dumps(encode(event))))


def test_every_event_has_a_kind() -> None:
    assert set(KINDS.values()) | {ev.Unknown} == set(get_args(ev.Event))
    assert len(KINDS) == len(get_args(ev.Event)) - 1


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_an_event_survives_json(kind: str, data: st.DataObject) -> None:
    event = data.draw(st.from_type(KINDS[kind]))
    back = _through_json(event)
    assert back == event
    assert type(back) is KINDS[kind]
    hash_if_event_has_only_tuples = [f for f in dataclasses.fields(back) if isinstance(getattr(back, f.name), list)]
    assert hash_if_event_has_only_tuples == []


@pytest.mark.parametrize(
    ("event_class", "kind"),
    [
        (ev.ClaimOpened, "claim_opened"),
        (ev.CheckpointCommitted, "checkpoint_committed"),
        (ev.RunFinished, "run_finished"),
        (ev.Decided, "decided"),
    ],
)
def test_kinds_are_spelled_as_they_are_on_disk(event_class: type, kind: str) -> None:
    assert kind_of(event_class) == kind


def test_a_decision_is_as_deep_as_it_was() -> None:
    plan = Plan(
        checkpoint="step-000000010.s000001",
        step=10,
        position=80,
        branch=2,
        perturb=True,
        window=(40, 80),
        lr_factor=0.5,
        avoid_nodes=("node3",),
    )
    decided = ev.Decided(
        decision=Decision(
            number=4, action="requeue", rule="loss incident", reason="spike", plan=plan, budget="loss", used=2
        )
    )
    assert _through_json(decided) == decided


@pytest.mark.parametrize("loss", [math.inf, -math.inf, math.nan], ids=repr)
def test_a_loss_that_is_no_number_is_kept(loss: float) -> None:
    event = _through_json(ev.ReplayDiffers(attempt=1, step=3, before=loss, now=1.0))
    assert isinstance(event, ev.ReplayDiffers)
    assert repr(event.before) == repr(loss)


def test_an_unknown_kind_is_kept_whole() -> None:
    data = {"kind": "node_suspected", "node": "n7", "why": ["ecc", 3], "deep": {"a": None}}
    event = decode(data)
    assert event == ev.Unknown(kind="node_suspected", data={k: v for k, v in data.items() if k != "kind"})
    assert encode(event) == data


def test_an_event_without_a_kind_is_unknown() -> None:
    assert decode({"x": 1}) == ev.Unknown(kind="", data={"x": 1})


def test_a_field_of_a_newer_version_is_ignored() -> None:
    data = {**encode(ev.StepSkipped(attempt=2, step=9)), "scale": 65536}
    assert decode(data) == ev.StepSkipped(attempt=2, step=9)


def test_a_newer_field_deep_inside_is_ignored() -> None:
    checkpoint = ev.Checkpoint(name="c", step=1, position=8, branch=0, save_number=1)
    data = encode(ev.CheckpointAdopted(checkpoint=checkpoint))
    data["checkpoint"]["colour"] = "green"
    assert decode(data) == ev.CheckpointAdopted(checkpoint=checkpoint)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=3, deadline=None)
def test_a_field_that_an_older_version_lacks_takes_its_default(kind: str, data: st.DataObject) -> None:
    event = data.draw(st.from_type(KINDS[kind]))
    encoded = encode(event)
    optional = [
        f
        for f in dataclasses.fields(event)
        if f.default is not dataclasses.MISSING or f.default_factory is not dataclasses.MISSING
    ]
    for f in optional:
        del encoded[f.name]
    back = decode(json.loads(json.dumps(encoded)))
    for f in dataclasses.fields(event):
        default = f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
        assert getattr(back, f.name) == (default if f in optional else getattr(event, f.name))


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_lacks_what_it_cannot_do_without_is_an_error(kind: str) -> None:
    with pytest.raises(JournalError, match=f"a {kind} record in the journal can't be read: .*missing") as caught:
        decode({"kind": kind})
    assert "\n" not in str(caught.value)


def test_a_decision_that_contradicts_itself_is_an_error() -> None:
    data = encode(ev.Decided(decision=Decision(number=1, action="continue", rule="save failed", reason="")))
    data["decision"]["action"] = "stop"
    with pytest.raises(JournalError, match="must carry an outcome"):
        decode(data)
