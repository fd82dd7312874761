"""What a rank computes on, and when it refuses to go on without a GPU; on a machine that has none."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from hpc_resume.errors import DeviceError
from hpc_resume.trainers.engine import _choose_device, device_name

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")

NAMES = ("CUDA_VISIBLE_DEVICES", "SLURM_GPUS_ON_NODE", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "DS_ACCELERATOR")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that whatever is set here is put back
        monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize(
    "given",
    [
        {"CUDA_VISIBLE_DEVICES": "0"},
        {"CUDA_VISIBLE_DEVICES": "GPU-5ebe9f43"},
        {"SLURM_GPUS_ON_NODE": "4"},
        {"SLURM_STEP_GPUS": "0"},
        {"SLURM_JOB_GPUS": "2,3"},
        {"CUDA_VISIBLE_DEVICES": "NoDevFiles", "SLURM_JOB_GPUS": "0"},
    ],
    ids=lambda given: " ".join(f"{name}={value}" for name, value in given.items()),
)
def test_gpus_that_were_given_and_are_not_there_are_an_error(
    environment: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    for name, value in given.items():
        environment.setenv(name, value)
    with pytest.raises(DeviceError) as caught:
        _choose_device()
    name, value = list(given.items())[-1]
    assert f"{name}={value} in the environment" in str(caught.value)
    assert f"torch {torch.__version__} sees none" in str(caught.value)
    assert "DS_ACCELERATOR" not in os.environ


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"CUDA_VISIBLE_DEVICES": "", "SLURM_GPUS_ON_NODE": "4"},
        {"CUDA_VISIBLE_DEVICES": "-1", "SLURM_JOB_GPUS": "0"},
        {"CUDA_VISIBLE_DEVICES": "NoDevFiles", "SLURM_GPUS_ON_NODE": "0"},
    ],
    ids=["nothing given", "hidden by nothing", "hidden by -1", "none given"],
)
def test_the_cpu_is_taken_where_no_gpu_is_meant(environment: pytest.MonkeyPatch, given: dict[str, str]) -> None:
    for name, value in given.items():
        environment.setenv(name, value)
    assert _choose_device() == "cpu"


def test_the_name_of_the_cpu_is_cpu() -> None:
    assert device_name(SimpleNamespace(device=torch.device("cpu"))) == "cpu"


def test_a_missing_gpu_is_not_the_users_mistake() -> None:
    assert DeviceError.exit_code == 1
