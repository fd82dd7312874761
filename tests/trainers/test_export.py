"""What may be called a result."""

from __future__ import annotations

import pytest
import torch

from hpc_resume.errors import DivergedError, ExportError
from hpc_resume.trainers.export import require_finite


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_bad_number_is_enough_to_refuse_the_weights(value: float, dtype: torch.dtype) -> None:
    weights = {"a": torch.zeros(3, dtype=dtype), "b": torch.zeros(2, 2, dtype=dtype)}
    require_finite(weights)
    weights["b"][1, 0] = value
    with pytest.raises(DivergedError, match=r"^1 of the 2 weights are not finite after the last step: b$"):
        require_finite(weights)


def test_of_many_bad_weights_three_are_named() -> None:
    weights = {f"w{number}": torch.full((2,), float("nan")) for number in range(5)}
    with pytest.raises(DivergedError, match=r"5 of the 5 .*: w0, w1, w2 and 2 more$"):
        require_finite(weights)


@pytest.mark.parametrize("error", [DivergedError, ExportError])
def test_what_goes_wrong_with_a_result_is_not_the_users_mistake(error: type[DivergedError]) -> None:
    assert error.exit_code == 1
