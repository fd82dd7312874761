from __future__ import annotations

from pathlib import Path

import pytest

from hpc_resume.config.checkpoint_section import CheckpointConfig
from hpc_resume.config.reference import field_sentences, render

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), (
        "run: python -m hpc_resume.config.reference > docs/configuration.md"
    )


def test_the_sentences_are_those_below_the_fields() -> None:
    assert field_sentences(CheckpointConfig)["certify_after_steps"] == (
        "Healthy steps that must follow a checkpoint before it counts as certified."
    )


@pytest.mark.parametrize(
    "line",
    [
        "| `steps` | a whole number | `1000` | Optimizer steps of the whole run. |",
        '| `precision` | one of fp32, bf16 | `"bf16"` |',
        "| `adam_betas` | a list of 2 values, each a number | `[0.9, 0.95]` |",
        "| `deepspeed` | a path or a mapping or null | `null` |",
        "## `faults`",
        "## `monitor`",
    ],
)
def test_the_page_says_type_default_and_sentence(line: str) -> None:
    assert f"\n{line}" in render()
