"""Queues that submitit really starts; only their supervisors are stubs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from supervisor.harness import wait_until

from hpc_resume.cluster.local import LocalCluster
from hpc_resume.config.cluster_section import ClusterConfig
from hpc_resume.config.schema import RunConfig
from hpc_resume.errors import ConfigError
from hpc_resume.journal.folder import SubmissionFolder

# Python imports this at its start: a supervisor writes down what it was given, stays until the file that it waits
# for is there, and leaves for good.
STUB = """
import json, os, pathlib, sys, time
if sys.orig_argv[1:4] == ["-m", "hpc_resume", "run"]:
    home, index = pathlib.Path(sys.orig_argv[4]), sys.orig_argv[6]
    (home / "half").joinpath(index).write_text(json.dumps(dict(os.environ)))
    (home / "half").joinpath(index).rename(home / f"given-{index}")
    awaited, deadline = home / os.environ.get(f"AWAITED_BY_{index}", "."), time.monotonic() + 30
    while not awaited.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    (home / f"given-up-seen-{index}").write_text(str((home / "cluster" / f"given-up-{index}").exists()))
    os._exit(2)
"""
SUBMIT = """
import json, pathlib, sys
from hpc_resume.cluster.local import LocalCluster
from hpc_resume.config.cluster_section import ClusterConfig
from hpc_resume.config.schema import RunConfig
from hpc_resume.journal.folder import SubmissionFolder
folder, runs, cluster = sys.argv[1:]
config = RunConfig(cluster=ClusterConfig(kind="local", **json.loads(cluster)))
print(LocalCluster().submit(SubmissionFolder(pathlib.Path(folder)), json.loads(runs), config))
pathlib.Path(folder, "submitted").touch()
"""
SHARED = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")


def submit(folder: SubmissionFolder, runs: int, cluster: dict[str, int], **variables: str) -> list[dict[str, str]]:
    """Submit from a process with these variables; return the environment that each run's supervisor was given."""
    home = folder.path
    (home / "half").mkdir(parents=True)
    (home / "sitecustomize.py").write_text(STUB)
    kept = {name: value for name, value in os.environ.items() if name not in SHARED}
    job_id = subprocess.run(
        [sys.executable, "-c", SUBMIT, str(home), json.dumps(list(range(runs))), json.dumps(cluster)],
        env={**kept, "PYTHONPATH": str(home), **variables},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    ).stdout.strip()
    wait_until(lambda: not LocalCluster().live_runs(job_id, (0,)), "the queue has ended")
    return [json.loads((home / f"given-{index}").read_text()) for index in range(runs)]


def test_runs_at_the_same_time_share_no_gpu_and_the_next_run_gets_those_that_are_free(tmp_path: Path) -> None:
    # The first run leaves while the second is there, which stays until the third is.
    order = {"AWAITED_BY_0": "given-1", "AWAITED_BY_1": "given-2"}
    given = submit(
        SubmissionFolder(tmp_path / "three"),
        3,
        {"ranks_per_node": 2, "parallelism": 2},
        CUDA_VISIBLE_DEVICES="GPU-a,GPU-b,GPU-c,GPU-d",
        **order,
    )
    assert [g["CUDA_VISIBLE_DEVICES"] for g in given] == ["GPU-a,GPU-b", "GPU-c,GPU-d", "GPU-a,GPU-b"]


@pytest.mark.parametrize(
    ("variables", "threads"),
    [
        pytest.param({}, str(max(1, (os.cpu_count() or 1) // 2)), id="not set by the user"),
        pytest.param({"OMP_NUM_THREADS": "77"}, "77", id="set by the user"),
    ],
)
def test_runs_at_the_same_time_share_the_cores(tmp_path: Path, variables: dict[str, str], threads: str) -> None:
    given = submit(SubmissionFolder(tmp_path / "two"), 2, {"parallelism": 9}, CUDA_VISIBLE_DEVICES="", **variables)
    assert [(g["OMP_NUM_THREADS"], g["CUDA_VISIBLE_DEVICES"]) for g in given] == [(threads, "")] * 2


def test_a_run_that_is_sent_again_does_not_count_as_given_up(tmp_path: Path) -> None:
    folder = SubmissionFolder(tmp_path / "one")
    folder.cluster.mkdir(parents=True)
    folder.run(0).given_up.touch()
    folder.run(1).given_up.touch()
    submit(folder, 1, {}, CUDA_VISIBLE_DEVICES="", AWAITED_BY_0="submitted")
    assert (folder.path / "given-up-seen-0").read_text() == "False"
    assert folder.run(1).given_up.exists()
    # A supervisor that left for good, with bad input as here, is not in the queue any more either.
    assert folder.run(0).given_up.exists()


def test_nothing_is_started_where_there_are_too_few_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    config = RunConfig(cluster=ClusterConfig(kind="local", ranks_per_node=2, parallelism=8))
    with pytest.raises(ConfigError, match=r"3 GPU\(s\) .* 2 run\(s\) at a time with 2 rank\(s\) each need 4; lower "):
        LocalCluster().submit(SubmissionFolder(tmp_path), [0, 1], config)
    assert list(tmp_path.iterdir()) == []
