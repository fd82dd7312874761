"""Whatever happens to the files of a checkpoint, a run goes on from the newest one that is intact, and says why."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from torture.damages import Case, Found, all_cases, all_strangers

from hpc_resume.checkpoints import catalog
from hpc_resume.checkpoints.catalog import FileEntry, Manifest
from hpc_resume.cluster.base import EXIT_FAILED
from hpc_resume.recovery.events import Checkpoint

KILLED = -9
"""How a case ends that is seen to train on."""


@pytest.fixture(scope="module")
def found(in_memory: Path, torture: Callable[..., str]) -> dict[str, Found | str]:
    """What came of each case, all tried by one process: or what was violated."""
    answer = json.loads(torture("damages", in_memory))
    return {name: values if isinstance(values, str) else Found(**values) for name, values in answer.items()}


@pytest.mark.parametrize("case", all_cases(), ids=str)
def test_the_newest_intact_checkpoint_is_used_and_the_damage_is_named(
    found: dict[str, Found | str], case: Case
) -> None:
    seen = found[str(case)]
    assert isinstance(seen, Found), seen
    assert len(seen.names) == 4
    damaged = seen.names[-case.checkpoints :] if case.resumes != 8 else []
    assert sorted(name for name, _ in seen.rejected) == damaged
    said = [reason for _, reason in seen.rejected] or seen.notes
    assert all(case.says in text for text in said)
    assert all("its manifest" in text for _, text in seen.rejected if case.file == catalog.MANIFEST)
    assert bool(said) == bool(case.says or damaged)
    assert seen.touched == []
    if case.resumes:
        assert (seen.exit_code, seen.resumed) == (KILLED, case.resumes)
        assert seen.aside == [f"quarantined.{name}" for name in damaged]
    else:
        assert (seen.exit_code, seen.resumed) == (EXIT_FAILED, None)
        assert seen.rule == "no checkpoint left"
        assert all(name in seen.reason for name in damaged)


@pytest.mark.parametrize("case", all_strangers(), ids=str)
def test_what_is_of_something_else_is_named_and_neither_loaded_nor_touched(
    found: dict[str, Found | str], case: Case
) -> None:
    if case.kind == "somebody else's" and os.getuid() != 0:
        pytest.skip("only root can give a folder away")
    seen = found[str(case)]
    assert isinstance(seen, Found), seen
    # Not an older one either: it would be a silent step back.
    assert (seen.exit_code, seen.resumed, seen.rule) == (EXIT_FAILED, None, "input")
    assert case.says in seen.reason
    assert "\n" not in seen.reason
    assert (seen.rejected, seen.aside, seen.touched) == ([], [], [])


def test_any_single_bit_of_a_manifest_that_flips_is_noticed_and_taken_for_damage() -> None:
    checkpoint = Checkpoint(name="step-000000008.s000004", step=8, position=16, branch=0, save_number=4)
    text = Manifest(
        schema=catalog.SCHEMA,
        checkpoint=checkpoint,
        claim=1,
        attempt=1,
        world_size=2,
        zero_stage=1,
        precision="bf16",
        model="0123456789abcdef",
        parameters=12,
        num_samples=1000,
        segments=[],
        versions={"torch": "2.13"},
        files={"rank-0000.pt": FileEntry(size=100, digest="ab" * 16)},
    ).to_json()
    unnoticed = []
    for bit in range(8 * len(text)):
        content = bytearray(text.encode())
        content[bit // 8] ^= 1 << bit % 8
        try:
            Manifest.from_json(content.decode())
        except ValueError:
            continue  # not a MismatchError: that would stop the run until a person looks at it
        except Exception as error:
            unnoticed.append((bit, repr(error)))
        else:
            unnoticed.append((bit, "taken for whole"))
    assert unnoticed == []
