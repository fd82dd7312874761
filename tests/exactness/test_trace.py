"""What a rank writes down of its state: all of it, and without touching it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hpc_resume.journal.metrics import read_rows
from hpc_resume.session import random_state
from hpc_resume.session.trace import StateTrace, digest_state


@pytest.fixture
def engine() -> Any:
    """As much of an engine as a trace looks at, after one step."""
    random_state.reseed("a test")
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to(torch.bfloat16)
    masters = [parameter.detach().float().requires_grad_() for parameter in module.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=0.25)
    for master in masters:
        master.grad = torch.ones_like(master)
    optimizer.step()
    return SimpleNamespace(module=module, optimizer=optimizer, basic_optimizer=optimizer)


def moment(engine: Any, name: str) -> Any:
    return list(engine.basic_optimizer.state.values())[1][name]


CHANGES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a weight": ("weights", lambda engine: engine.module[0].weight.data[2, 1].add_(1)),
    "a buffer": ("weights", lambda engine: engine.module[1].running_mean.add_(1)),
    "a master": ("masters", lambda engine: engine.optimizer.param_groups[0]["params"][1].data[0].add_(1e-6)),
    "a first moment": ("optimizer", lambda engine: moment(engine, "exp_avg")[0].add_(1e-6)),
    "a second moment": ("optimizer", lambda engine: moment(engine, "exp_avg_sq")[0].add_(1e-6)),
    "a step count": ("optimizer", lambda engine: moment(engine, "step").add_(1)),
    "the learning rate": ("lr", lambda engine: engine.optimizer.param_groups[0].update(lr=0.125)),
    "Python's generator": ("random.python", lambda _: random.random()),
    "numpy's generator": ("random.numpy", lambda _: np.random.random()),
    "torch's generator": ("random.torch", lambda _: torch.rand(1)),
}


def flat(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, **{f"random.{name}": value for name, value in state["random"].items()}, "random": None}


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_change_of_anything_changes_its_digest_and_no_other(engine: Any, change: str) -> None:
    name, make = CHANGES[change]
    before = flat(digest_state(engine))
    assert flat(digest_state(engine)) == before
    make(engine)
    after = flat(digest_state(engine))
    assert {key for key in before if before[key] != after[key]} == {name}


def test_a_negative_zero_is_another_number(engine: Any) -> None:
    engine.module[0].bias.data.zero_()
    before = digest_state(engine)
    engine.module[0].bias.data.neg_()
    assert digest_state(engine)["weights"] != before["weights"]


def test_parts_that_zero_3_keeps_are_what_counts(engine: Any) -> None:
    parameter = engine.module[0].weight
    parameter.ds_tensor = parameter.detach().flatten()[:5].clone()
    parameter.data = torch.empty(0, dtype=torch.bfloat16)
    engine.optimizer.param_groups[0]["params"], masters = [], engine.optimizer.param_groups[0]["params"]
    before = digest_state(engine)
    parameter.ds_tensor[4] += 1
    masters[0].data[0, 0] += 1
    after = digest_state(engine)
    assert before["weights"] != after["weights"]
    assert before["masters"] != after["masters"]


def test_rows_hold_what_was_trained_and_what_was_loaded(engine: Any, tmp_path: Path) -> None:
    trace = StateTrace(tmp_path / "new" / "trace.jsonl", engine, wanted=True)
    trace.loaded(4)
    trace.step(5, torch.tensor(0.1), [7, 3])
    loaded, trained = read_rows(tmp_path / "new" / "trace.jsonl")
    assert loaded == {"step": 4, "loaded": True, **digest_state(engine)}
    assert trained == {"step": 5, "loss": float(torch.tensor(0.1)), "samples": [7, 3], **digest_state(engine)}


def test_nothing_is_looked_at_that_nobody_wants(tmp_path: Path) -> None:
    trace = StateTrace(tmp_path / "trace.jsonl", None, wanted=False)
    trace.loaded(4)
    trace.step(5, torch.tensor(0.1), [7, 3])
    assert list(tmp_path.iterdir()) == []
