"""Saves that can't succeed, ranks that go in the middle of one, zombies that finish one: nothing wrong is in force."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from torture.trials import Found

MODES = ("sync", "async")


@pytest.fixture(scope="module")
def on_broken_disks(in_memory: Path, torture: Callable[..., str]) -> dict[str, Found]:
    """What came of trainings on disks that were mounted for them, where nobody else sees them."""
    own_mounts = next((how for how in _namespaces() if _may_mount(how, in_memory)), None)
    if own_mounts is None:
        pytest.skip("this system lets us make no mount namespace (unshare --mount)")
    place = in_memory / "mounted"
    place.mkdir()
    trials = [f"{kind}/{mode}" for kind in ("full", "read-only") for mode in MODES]
    return _read(torture("disks", place, *trials, before=own_mounts))


@pytest.fixture(scope="module")
def found(in_memory: Path, torture: Callable[..., str]) -> dict[str, Found]:
    place = in_memory / "plain"
    place.mkdir()
    kinds = ("dead", "silent", "unseen", "late", "early")
    return _read(torture("disks", place, *(f"{kind}/{mode}" for kind in kinds for mode in MODES)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("kind", "message"),
    [("full", "[Errno 28] No space left on device"), ("read-only", "[Errno 30] Read-only file system")],
)
def test_training_goes_on_while_a_disk_takes_nothing_and_saves_again_when_it_does(
    on_broken_disks: dict[str, Found], kind: str, message: str, mode: str
) -> None:
    seen = on_broken_disks[f"{kind}/{mode}"]
    assert (seen.exit_code, seen.attempts, seen.steps_trained) == (0, ["finished"], 20)
    steps = [step for step, _ in seen.failed]
    # A save beside training may still meet the disk that broke after it was begun.
    assert steps in ([6, 8, 10, 12], [4, 6, 8, 10, 12])
    assert seen.saved == [step for step in range(2, 21, 2) if step not in steps]
    assert all(message in text for _, text in seen.failed)
    # Of what was half written nothing stays but empty folders, which keep the save numbers from being used again; but
    # what was begun on a disk that is now read-only can't be removed before the next claim.
    left = [path for path in seen.left if not (kind == "read-only" and path.startswith("step-000000004."))]
    assert all(path.startswith(".torn.") and "/" not in path for path in left)
    assert not any(path.endswith("/manifest.json") for path in seen.left)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("kind", "limit_s"), [("dead", 20.0), ("silent", 30.0)])
def test_a_rank_that_goes_before_the_barrier_keeps_the_others_no_longer_than_their_limit_and_nothing_is_committed(
    found: dict[str, Found], kind: str, limit_s: float, mode: str
) -> None:
    seen = found[f"{kind}/{mode}"]
    assert (seen.exit_code, seen.attempts) == (0, ["crash", "finished"])
    assert seen.resumed == [0, 2]
    assert seen.saved == [2, 4, 6, 8]
    assert seen.left == [".torn.step-000000004.s000002"]
    assert seen.seconds < limit_s


@pytest.mark.parametrize("mode", MODES)
def test_what_a_zombie_commits_when_a_newer_claim_has_made_its_list_is_void_and_set_aside(
    found: dict[str, Found], mode: str
) -> None:
    seen = found[f"unseen/{mode}"]
    assert (seen.exit_code, seen.attempts) == (0, ["node", "finished"])
    ((name, reason),) = seen.quarantined
    assert reason == "void: committed after its claim was over"
    assert seen.resumed[1] < int(name[5:14])
    assert seen.saved == [2, 4, 6, 8]
    assert {path.partition("/")[0] for path in seen.left} == {f"quarantined.{name}"}


@pytest.mark.parametrize("mode", MODES)
def test_a_zombie_finds_nothing_to_commit_once_a_newer_claim_has_put_the_disk_in_order(
    found: dict[str, Found], mode: str
) -> None:
    seen = found[f"late/{mode}"]
    assert (seen.exit_code, seen.attempts) == (0, ["node", "finished"])
    assert seen.saved == [2, 4, 6, 8]
    assert seen.quarantined == []
    assert all(path.startswith(".torn.") and "/" not in path for path in seen.left)


@pytest.mark.parametrize("mode", MODES)
def test_a_zombie_that_takes_the_name_of_the_next_save_costs_that_save_and_no_more(
    found: dict[str, Found], mode: str
) -> None:
    seen = found[f"early/{mode}"]
    assert (seen.exit_code, seen.attempts) == (0, ["node", "finished"])
    ((step, message),) = seen.failed
    assert "FileExistsError" in message
    assert seen.saved == [saved for saved in (2, 4, 6, 8) if saved != step]
    assert seen.quarantined == []


def _namespaces() -> list[tuple[str, ...]]:
    return [("unshare", "--mount"), ("unshare", "--mount", "--map-root-user")]


def _may_mount(how: tuple[str, ...], folder: Path) -> bool:
    try:
        command = [*how, "mount", "-t", "tmpfs", "tmpfs", str(folder)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def _read(answer: str) -> dict[str, Found]:
    return {name: Found(**values) for name, values in json.loads(answer).items()}
