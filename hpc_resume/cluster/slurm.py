"""Slurm as a cluster, through submitit: one job array, with a supervisor as the batch process of each element."""

from __future__ import annotations

import io
import logging
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from hpc_resume.cluster.slurm_commands import (
    SilentError,
    ask,
    in_one_line,
    is_silence,
    setting,
    show_jobs,
    while_silent,
)
from hpc_resume.cluster.slurm_job import SlurmJob
from hpc_resume.cluster.srun import gres_of
from hpc_resume.config.cluster_section import ClusterConfig
from hpc_resume.config.schema import RunConfig
from hpc_resume.config.sweep import expand
from hpc_resume.errors import ClusterError, ConfigError
from hpc_resume.journal.folder import SubmissionFolder

_log = logging.getLogger(__name__)
_MAX_ARRAY = 1001
_SILENCE_S = 120.0
"""How long `submit` waits for a controller that does not answer."""
_LOOK_AGAIN_S = (1.0, 3.0)


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
            ConfigError: `sbatch` refused.
            ClusterError: there is no Slurm, or it has nothing of this job.
            SilentError: Slurm did not answer; the job may exist.
        """
        from submitit import SlurmExecutor
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        for index in runs:
            folder.run(index).supervisor_log().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.cluster.mkdir(mode=0o700, exist_ok=True)
        try:
            # On a refusal submitit prints what the error says once more.
            with _outside_of_any_job(), redirect_stderr(io.StringIO()):
                executor = SlurmExecutor(folder.cluster, python=_python())
                executor.update_parameters(**_parameters(folder, runs, config))
                job = executor.submit(SlurmJob(str(folder.path), runs[0]))
        except (FailedJobError, FailedSubmissionError, RuntimeError) as error:
            text = str(error)
            found = "\n".join(line for line in text.splitlines() if line.startswith("sbatch: ")) or text
            job_id, pickle = _find_sent(folder, _refusal(in_one_line(found)))
        else:
            job_id, pickle = str(job.job_id), job.paths.submitted_pickle
        try:
            _share_pickle(pickle, job_id, runs)
        except OSError as error:
            self.cancel([job_id])
            raise ClusterError(
                f"can't write into {folder.cluster}: {error.strerror}; job {job_id} was cancelled"
            ) from error
        return job_id

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


def _find_sent(folder: SubmissionFolder, refusal: ClusterError | ConfigError) -> tuple[str, Path]:
    """Return the job that `sbatch` failed to send and that exists all the same, and submitit's description for it.

    A controller that is slow to answer has often heard. The job is known by its batch script, which lies in our folder,
    and by the lack of a description under its own number, which every earlier job of the folder has.

    Raises:
        ConfigError: the refusal, if that is what it was.
        ClusterError: Slurm answers again, and there is no such job.
        SilentError: Slurm still gives no answer.
    """
    if not isinstance(refusal, SilentError):
        raise refusal from None
    _log.warning("%s; waiting for it, and looking for the job", refusal)
    # It may have heard a moment after it could be asked again, so it is asked more than once.
    for pause_s in (0.0, *_LOOK_AGAIN_S):
        time.sleep(pause_s)
        try:
            text = while_silent(_SILENCE_S)(ask, "squeue", "-h", "-u", str(os.getuid()), "-o", "%F|%o")
        except SilentError:
            raise SilentError(
                f"{refusal}, and still gives none; the job may exist all the same. Once Slurm answers, see "
                f"`squeue --me`: cancel the job if it is there (it can't start its run), then `resubmit {folder.path}`"
            ) from None
        pairs = [line.split("|", 1) for line in text.splitlines()]
        ours = {job for job, command in pairs if command.startswith(f"{folder.cluster}/.submission_file_")}
        unknown = sorted(job for job in ours if not (folder.cluster / f"{job}_submitted.pkl").exists())
        if unknown:
            # sbatch itself tries again, so that there can be several; one is enough.
            if len(unknown) > 1:
                ask("scancel", "--quiet", *unknown[1:])
            (pickle, *_) = folder.cluster.glob(f"{'[0-9a-f]' * 32}.pkl")
            return unknown[0], pickle
    raise ClusterError(f"{refusal}; it answers again, and the job is not there: nothing was sent")


def _refusal(text: str) -> ClusterError | ConfigError:
    if is_silence(text):
        return SilentError(f"Slurm did not answer: {text}")
    if "configuration source" in text:
        return ClusterError(f"sbatch found no Slurm cluster: {text}; submit from a login node, or set SLURM_CONF")
    return ConfigError(f"sbatch refused: {text}; nothing was sent")


def _python() -> str:
    # `exec`, or the shell of the batch script would be what Slurm signals, and would pass nothing on.
    return f"exec {shlex.quote(sys.executable)}"


def _parameters(folder: SubmissionFolder, runs: list[int], config: RunConfig) -> dict[str, Any]:
    """Return what submitit makes the batch script from; an option of the user's goes before ours."""
    cluster = config.cluster
    tasks, size = _size(cluster)
    array = len(folder.runs() or expand(config)) > 1
    parallel = f"%{cluster.parallelism}" if cluster.parallelism else ""
    place = folder.path / ("run-%4a" if array else f"run-{runs[0]:04d}")
    options: dict[str, Any] = {
        **({"array": _as_list(runs) + parallel} if array else {}),
        "output": str(place / "logs" / "supervisor.out"),
        "requeue": True,
        **size,
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
        "nodes": cluster.max_nodes,
        **tasks,
        "time": cluster.walltime_min,
        "partition": cluster.partition,
        "account": cluster.account,
        "setup": list(cluster.setup) or None,
        "use_srun": False,
        "wckey": None,
        "stderr_to_stdout": True,
        "additional_parameters": options,
    }


def _size(cluster: ClusterConfig) -> tuple[dict[str, int | None], dict[str, str | int]]:
    """Return what submitit is told of the ranks, and what `sbatch` is told of a range of nodes.

    A range goes without --ntasks-per-node: from that follows a number of tasks, which Slurm keeps from one start of a
    job to the next, so that a job that had three nodes would wait for three again (tried with 22.05). It also gives no
    more nodes than there are tasks on the smallest number of nodes. So the cores are asked for by the node.
    """
    if cluster.min_nodes == cluster.max_nodes:
        return {"ntasks_per_node": cluster.ranks_per_node, "cpus_per_task": cluster.cpus_per_rank}, {}
    # submitit itself takes only a number of nodes.
    nodes = f"{cluster.min_nodes}-{cluster.max_nodes}"
    return {}, {"nodes": nodes, "mincpus": cluster.ranks_per_node * (cluster.cpus_per_rank or 1)}


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
    """Give the description to the job, and to each element of an array, under the names that submitit looks for."""
    for name in (job_id, *(f"{job_id}_{run}" for run in runs)):
        path = pickle.parent / f"{name}_submitted.pkl"
        if path != pickle:
            # Complete from the first moment on: a job that waits for it loads what it finds.
            temporary = path.with_suffix(".tmp")
            shutil.copy(pickle, temporary)
            temporary.replace(path)


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
