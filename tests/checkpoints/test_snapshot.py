"""A copy of state is what the state was, whatever happens to it afterwards."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch

from hpc_resume.checkpoints.snapshot import HostCopy


class Scaler:
    """An object of the framework's, with something that changes in it."""

    def __init__(self) -> None:
        self.scales = [1.0]


def make_state() -> dict[str, Any]:
    flat = torch.arange(100.0)
    return {
        "views": [flat[:10], flat[10:].view(9, 10).t()],
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "empty": torch.zeros(0),
        "scalar": torch.tensor(5),
        "half": torch.ones(4, dtype=torch.bfloat16),
        "shapes": OrderedDict(a=torch.Size([2, 3])),
        "scaler": Scaler(),
        "pair": (1, torch.tensor([True, False])),
    }


def copied(host: HostCopy, state: Any) -> Any:
    host.begin()
    result = host.copy(state)
    host.end()
    return result


def test_the_copy_does_not_change_when_the_state_does() -> None:
    state = make_state()
    found = copied(HostCopy(), state)
    state["views"][0].fill_(-1)
    state["parameter"].data.fill_(-1)
    state["scaler"].scales.append(2.0)
    assert torch.equal(found["views"][0], torch.arange(10.0))
    assert torch.equal(found["views"][1], torch.arange(10.0, 100.0).view(9, 10).t())
    assert found["views"][1].stride() == state["views"][1].stride()
    assert torch.equal(found["parameter"], torch.ones(3))
    assert isinstance(found["parameter"], torch.nn.Parameter)
    assert found["half"].dtype is torch.bfloat16
    assert found["scalar"].item() == 5
    assert found["empty"].shape == (0,)
    assert found["shapes"] == OrderedDict(a=torch.Size([2, 3]))
    assert type(found["shapes"]) is OrderedDict
    assert found["scaler"].scales == [1.0]
    assert found["pair"][1].tolist() == [True, False]


def test_tensors_that_share_memory_share_it_in_the_copy_and_are_written_once(tmp_path: Path) -> None:
    weight = torch.ones(1000)
    found = copied(HostCopy(), {"embedding": weight, "head": weight, "part": weight[5:]})
    found["embedding"][7] = 3
    assert found["head"][7] == 3
    assert found["part"][2] == 3
    torch.save(found, tmp_path / "state.pt")
    assert (tmp_path / "state.pt").stat().st_size < 2 * 4000


def test_the_next_copy_takes_the_memory_of_the_last_one_and_no_more() -> None:
    host = HostCopy()
    first = copied(host, [torch.zeros(1000), torch.ones(500)])
    places = {tensor.data_ptr() for tensor in first}
    assert host.held_bytes == 6000
    second = copied(host, [torch.full((1000,), 2.0), torch.full((500,), 3.0)])
    assert {tensor.data_ptr() for tensor in second} == places
    assert second[0].tolist() == [2.0] * 1000
    assert host.held_bytes == 6000


def test_memory_of_a_shape_that_is_gone_is_given_back() -> None:
    host = HostCopy()
    copied(host, [torch.zeros(1000)])
    copied(host, [torch.zeros(10)])
    copied(host, [torch.zeros(10)])
    assert host.held_bytes == 40


def test_a_storage_that_died_lends_its_address_to_nobody() -> None:
    host = HostCopy()
    host.begin()
    found = [host.copy(torch.full((1000,), float(n))) for n in range(20)]
    host.end()
    assert [tensor[0].item() for tensor in found] == [float(n) for n in range(20)]
