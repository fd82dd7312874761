from __future__ import annotations

import pytest

from hpc_resume.config.schema import FaultConfig
from hpc_resume.recovery import events as ev
from hpc_resume.recovery import fold
from hpc_resume.session.faults import FaultInjector


def injected(index: int, times: int) -> list[ev.Event]:
    return [ev.FaultInjected(attempt=1, index=index, fault="spike", step=5)] * times


def test_a_fault_is_due_at_its_step_as_often_as_it_says_over_all_attempts() -> None:
    faults = (FaultConfig(kind="spike", step=5), FaultConfig(kind="exception", step=5, times=2))
    injector = FaultInjector(faults, rank=0, poison=lambda: None)
    assert [i for i, _ in injector.due(fold([]), 5)] == [0, 1]
    assert injector.due(fold([]), 4) == []
    used = fold([*injected(0, 1), *injected(1, 1)])
    assert [i for i, _ in injector.due(used, 5)] == [1]
    assert injector.due(fold([*injected(0, 1), *injected(1, 2)]), 5) == []


def test_a_spike_multiplies_the_learning_rate_for_its_steps_only() -> None:
    fault = FaultConfig(kind="spike", step=5, lr_factor=10.0, duration_steps=2)
    injector = FaultInjector((fault,), rank=0, poison=lambda: None)
    assert injector.lr_factor(5) == 1.0
    injector.set_off(fault, supervisor_pid=0)
    assert [injector.lr_factor(step) for step in (4, 5, 6, 7)] == [1.0, 10.0, 10.0, 1.0]


def test_a_failing_save_fails_once_like_a_full_disk() -> None:
    fault = FaultConfig(kind="save_fails", step=5)
    injector = FaultInjector((fault,), rank=0, poison=lambda: None)
    injector.before_commit()
    injector.set_off(fault, supervisor_pid=0)
    with pytest.raises(OSError, match="No space left on device"):
        injector.before_commit()
    injector.before_commit()


@pytest.mark.parametrize("kind", ["exception", "nan"])
def test_only_the_rank_that_is_named_is_hit(kind: str) -> None:
    hit: list[str] = []
    fault = FaultConfig(kind=kind, step=5, rank=1)  # type: ignore[arg-type]
    FaultInjector((fault,), rank=0, poison=lambda: hit.append("poison")).set_off(fault, supervisor_pid=0)
    assert hit == []
    mine = FaultInjector((fault,), rank=1, poison=lambda: hit.append("poison"))
    if kind == "nan":
        mine.set_off(fault, supervisor_pid=0)
        assert hit == ["poison"]
    else:
        with pytest.raises(RuntimeError, match="injected exception"):
            mine.set_off(fault, supervisor_pid=0)
