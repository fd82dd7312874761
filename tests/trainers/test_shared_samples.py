"""One rank makes the samples, the others wait for the file."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hpc_resume.config.cluster_section import ClusterConfig
from hpc_resume.config.schema import DataConfig, RunConfig, TrainingConfig
from hpc_resume.errors import RunBusyError, TrainerError
from hpc_resume.journal.folder import RunFolder, make_private
from hpc_resume.journal.metrics import read_heartbeat, read_rows
from hpc_resume.journal.writer import JournalWriter
from hpc_resume.recovery import events as ev
from hpc_resume.trainers import shared_samples
from hpc_resume.trainers.shared_samples import share_samples, throttled, wait_for_samples

LIMIT_S = 60


def config_of(tmp_path: Path, batch: int = 1) -> RunConfig:
    return RunConfig(
        cluster=ClusterConfig(kind="local", ranks_per_node=2),
        data=DataConfig(paths=(str(tmp_path / "*.txt"),), sequence_tokens=4),
        training=TrainingConfig(micro_batch_size=batch),
    )


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(name * 11)
    run = RunFolder(tmp_path / "run-0000")
    make_private(run.journal)
    claim(run, 1)
    return run


def claim(run: RunFolder, number: int) -> None:
    requested = ev.ClaimRequested(
        claim=number, cluster="local", job_id="", restart_count=0, host="h", pid=1, boot_id="b", start_ticks=1
    )
    writer = JournalWriter(run.claim(number), requested)
    writer.record(ev.ClaimOpened(claim=number, committed=()))
    writer.close()


def report(run: RunFolder, state: str) -> Path:
    path = run.rank_report(1, 0)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"state": state}))
    return path


def test_the_waiting_rank_opens_what_the_other_makes(tmp_path: Path, folder: RunFolder) -> None:
    report(folder, "started")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(share_samples, folder, 1, 1, config_of(tmp_path), 1)
        made = share_samples(folder, 1, 1, config_of(tmp_path), 0)
        assert len(waiting.result(LIMIT_S)) == len(made) == 9


def test_a_failure_of_the_maker_ends_the_waiting_as_its_consequence(folder: RunFolder) -> None:
    with pytest.raises(ConnectionError, match=r"^Connection closed by peer: rank 0 failed"):
        wait_for_samples(folder.data, report(folder, "failed"))


def test_finished_samples_are_taken_whatever_became_of_the_maker(tmp_path: Path, folder: RunFolder) -> None:
    share_samples(folder, 1, 1, config_of(tmp_path), 0)
    wait_for_samples(folder.data, report(folder, "failed"))


def test_the_maker_gives_signs_of_life_that_count_as_a_phase(
    tmp_path: Path, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_samples, "_SIGN_OF_LIFE_S", 0.0)
    share_samples(folder, 1, 1, config_of(tmp_path), 0)
    assert read_rows(folder.metrics(1)) == [
        {"phase": "data"},
        {"phase": "data", "tokens": 11},
        {"phase": "data", "tokens": 23},
        {"phase": "data", "tokens": 35},
        {"phase": "start"},
    ]
    assert read_heartbeat(folder.metrics(1)).phase == "start"


def test_a_maker_whose_claim_was_replaced_leaves(tmp_path: Path, folder: RunFolder) -> None:
    claim(folder, 2)
    with pytest.raises(RunBusyError, match="a newer supervisor owns this run"):
        share_samples(folder, 1, 1, config_of(tmp_path), 0)
    assert list(folder.data.iterdir()) == []


def test_too_little_data_for_a_batch_is_refused(tmp_path: Path, folder: RunFolder) -> None:
    with pytest.raises(TrainerError, match="too little data for one batch: 9 samples of 4 tokens, one batch takes 10"):
        share_samples(folder, 1, 1, config_of(tmp_path, batch=5), 0)


def test_throttled_tells_the_first_at_once_and_then_one_in_a_while() -> None:
    times = iter([100.0, 101.0, 104.9, 105.0, 109.0, 111.0])
    told: list[int] = []
    tell = throttled(told.append, 5.0, lambda: next(times))
    for tokens in range(6):
        tell(tokens)
    assert told == [0, 3, 5]
