"""Slurm as a cluster, through submitit: one job array, with a supervisor as the batch process of each element."""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from hpc_resume.cluster.slurm_commands import SilentError, ask, in_one_line, setting, show_jobs
from hpc_resume.cluster.slurm_job import SlurmJob
from hpc_resume.cluster.srun import gres_of
from hpc_resume.config.schema import RunConfig
from hpc_resume.config.sweep import expand
from hpc_resume.errors import ClusterError, ConfigError
from hpc_resume.journal.folder import SubmissionFolder

_MAX_ARRAY = 1001


class SlurmCluster:
    """Slurm. A job id here is the number that `sbatch` prints: of the array, or of the one job."""

    kind = "slurm"

    def check(self, config: RunConfig) -> None:
        """Find out whether these runs can be sent, before anything is written.

        Raises:
            ConfigError: there are more runs than an array may have elements.
        """
        runs = len(expand(config))
        if runs == 1:
            return
        try:
            limit = int(setting("MaxArraySize") or _MAX_ARRAY)
        except ClusterError as error:
            raise ClusterError(f"can't ask Slurm how large an array may be: {error}") from error
        if runs > limit:
            raise ConfigError(
                f"the sweep has {runs} runs, but the indices of a job array go up to {limit - 1} here "
                f"(MaxArraySize={limit}); split the sweep into several files, each under a name of its own"
            )

    def script(self, folder: SubmissionFolder, runs: list[int], config: RunConfig) -> str:
        """Return the batch script that `submit` would send."""
        from submitit.slurm.slurm import _make_sbatch_string

        command = f"{_python()} -u -m submitit.core._submit {shlex.quote(str(folder.cluster))}"
        text: str = _make_sbatch_string(command=command, folder=folder.cluster, **_parameters(folder, runs, config))
        return text

    def submit(self, folder: SubmissionFolder, runs: list[int], config: RunConfig) -> str:
        """Send runs as one array whose indices are the numbers of the runs.

        Raises:
            ClusterError: `sbatch` refused.
            SilentError: Slurm did not answer; the job may exist.
        """
        from submitit import SlurmExecutor
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        for index in runs:
            folder.run(index).supervisor_log().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.cluster.mkdir(mode=0o700, exist_ok=True)
        # On a refusal submitit prints what the error says once more.
        with _outside_of_any_job(), redirect_stderr(io.StringIO()):
            try:
                executor = SlurmExecutor(folder.cluster, python=_python())
                executor.update_parameters(**_parameters(folder, runs, config))
                job = executor.submit(SlurmJob(str(folder.path), runs[0]))
            except (FailedJobError, FailedSubmissionError, RuntimeError) as error:
                text = str(error)
                found = "\n".join(line for line in text.splitlines() if line.startswith("sbatch: ")) or text
                raise _refusal(in_one_line(found)) from None
        try:
            _share_pickle(job.paths.submitted_pickle, job.job_id, runs)
        except OSError as error:
            self.cancel([job.job_id])
            raise ClusterError(
                f"can't write into {folder.cluster}: {error.strerror}; job {job.job_id} was cancelled"
            ) from error
        return str(job.job_id)

    def cancel(self, job_ids: list[str]) -> None:
        """End jobs for good.

        Raises:
            ClusterError: Slurm did not answer.
        """
        if job_ids:
            ask("scancel", "--quiet", *job_ids)


def may_requeue(job_id: str) -> bool:
    """Tell whether Slurm will put a job back into its queue; taken for granted where it can't be asked."""
    try:
        return all(facts.may_requeue for facts in show_jobs(job_id))
    except ClusterError:
        return True


def _refusal(text: str) -> ClusterError:
    if re.search(r"timed out|unable to contact|unexpected message|connection|no response", text, re.IGNORECASE):
        return SilentError(
            f"Slurm did not answer ({text}); the job may exist all the same: see `squeue --me`, and before you submit "
            "again, `cancel` this submission if it is there"
        )
    return ClusterError(f"sbatch refused: {text}; nothing was sent")


def _python() -> str:
    # `exec`, or the shell of the batch script would be what Slurm signals, and would pass nothing on.
    return f"exec {shlex.quote(sys.executable)}"


def _parameters(folder: SubmissionFolder, runs: list[int], config: RunConfig) -> dict[str, Any]:
    """Return what submitit makes the batch script from; an option of the user's goes before ours."""
    cluster = config.cluster
    array = len(folder.runs() or expand(config)) > 1
    parallel = f"%{cluster.parallelism}" if cluster.parallelism else ""
    place = folder.path / ("run-%4a" if array else f"run-{runs[0]:04d}")
    options: dict[str, Any] = {
        **({"array": _as_list(runs) + parallel} if array else {}),
        "output": str(place / "logs" / "supervisor.out"),
        "requeue": True,
        **({"gres": gres} if (gres := gres_of(cluster)) else {}),
        # A second clock for the end of the time; the supervisor's own is the first. Also where the site sets the limit:
        # else submitit would have the ranks signalled, which may not listen yet.
        "signal": f"B:USR2@{int(config.supervisor.deadline_margin_s)}",
    }
    for name, value in cluster.sbatch.items():
        if value is not False and value is not None:
            options[name.replace("_", "-")] = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
    return {
        "job_name": config.name,
        "nodes": cluster.nodes,
        "ntasks_per_node": cluster.ranks_per_node,
        "cpus_per_task": cluster.cpus_per_rank,
        "time": cluster.walltime_min,
        "partition": cluster.partition,
        "account": cluster.account,
        "setup": list(cluster.setup) or None,
        "use_srun": False,
        "wckey": None,
        "stderr_to_stdout": True,
        "additional_parameters": options,
    }


def _as_list(runs: list[int]) -> str:
    """Return runs as `sbatch --array` takes them, like `0-3,7`."""
    parts: list[list[int]] = []
    for run in sorted(runs):
        if parts and parts[-1][1] == run - 1:
            parts[-1][1] = run
        else:
            parts.append([run, run])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _share_pickle(pickle: Path, job_id: str, runs: list[int]) -> None:
    """Give each element of an array the description under the name by which submitit looks for it."""
    for run in runs:
        (pickle.parent / pickle.name.replace(f"{job_id}_", f"{job_id}_{run}_", 1)).hardlink_to(pickle)


@contextmanager
def _outside_of_any_job() -> Iterator[None]:
    """Hide the job that this process may itself be in: its variables would be taken for those of the new job."""
    hidden = {n: v for n, v in os.environ.items() if n.startswith(("SLURM_", "SUBMITIT_")) and n != "SLURM_CONF"}
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)
