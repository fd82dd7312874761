"""This machine as a cluster, through submitit's local executor."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from hpc_resume.cluster.local_queue import QUEUE_LOG, LocalQueue
from hpc_resume.cluster.local_shares import GPUS, THREADS, share_gpus, threads_per_rank, visible_gpus
from hpc_resume.cluster.processes import is_running, send_signal, start_ticks
from hpc_resume.config.schema import RunConfig
from hpc_resume.errors import ClusterError
from hpc_resume.journal.folder import SubmissionFolder

_FOREVER_MIN = 60 * 24 * 365 * 10


class LocalCluster:
    """This machine. A job id here is `pid:start` of the process that submitit watches the queue with."""

    kind = "local"

    def check(self, config: RunConfig) -> None:
        """Do nothing: whatever the queue can't take it says when it starts."""

    def submit(self, folder: SubmissionFolder, runs: list[int], config: RunConfig) -> str:
        """Start a queue with these runs, in a session of its own, which outlives this terminal.

        Raises:
            ClusterError: the queue could not be started.
            ConfigError: there are fewer GPUs than ranks at the same time.
        """
        queue = _make_queue(folder, runs, config)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            _submit_in_child(folder, queue, write)
        os.close(write)
        with os.fdopen(read, encoding="utf-8") as pipe:
            answer = pipe.read()
        os.waitpid(child, 0)
        if not answer.startswith("job "):
            raise ClusterError(f"can't start the local queue of {folder.path}: {answer or 'it died without a word'}")
        return answer.removeprefix("job ")

    def live_runs(self, job_id: str, runs: tuple[int, ...]) -> set[int]:
        """Return all runs of a queue that is still running on this machine."""
        pid, _, ticks = job_id.partition(":")
        return set(runs) if is_running(int(pid), int(ticks)) else set()

    def stop(self, job_id: str) -> None:
        """Ask a queue, and through it all of its runs, for a clean stop."""
        pid, _, ticks = job_id.partition(":")
        send_signal(int(pid), int(ticks), signal.SIGTERM)

    def cancel(self, job_ids: list[str]) -> None:
        """Do nothing: the supervisors see the record within a second, and a run that waits sees it when it starts."""


def _make_queue(folder: SubmissionFolder, runs: list[int], config: RunConfig) -> LocalQueue:
    ranks = config.cluster.ranks_per_node
    places = max(1, min(config.cluster.parallelism or 1, len(runs)))
    queue = LocalQueue(str(folder.path), runs, places, gpus=share_gpus(visible_gpus(os.environ), ranks, places))
    # submitit hides the GPUs from a job that asks for none; the queue gives them back to its runs.
    queue.environment[GPUS] = os.environ.get(GPUS)
    queue.environment[THREADS] = os.environ.get(THREADS, str(threads_per_rank(ranks, places)))
    return queue


def _submit_in_child(folder: SubmissionFolder, queue: LocalQueue, write: int) -> None:
    # In a new session, so that neither Ctrl-C nor a closed terminal reaches the runs; and without our output, or
    # whoever reads it through a pipe would wait for the end of the queue.
    os.setsid()
    try:
        folder.cluster.mkdir(mode=0o700, exist_ok=True)
        with (folder.cluster / QUEUE_LOG).open("ab") as output, Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        from submitit import LocalExecutor

        executor = LocalExecutor(folder.cluster)
        executor.update_parameters(timeout_min=_FOREVER_MIN, tasks_per_node=1)
        job = executor.submit(queue)
        # An earlier queue may have given these runs up, and still be there with others; they are in this one now.
        for index in queue.runs:
            with contextlib.suppress(OSError):
                folder.run(index).given_up.unlink()
        answer = f"job {job.job_id}:{start_ticks(int(job.job_id))}"
    except BaseException as error:
        answer = f"{type(error).__name__}: {error}"
    os.write(write, answer.encode())
    os._exit(0)
