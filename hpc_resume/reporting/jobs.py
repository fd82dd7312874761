"""The jobs of a submission: which there are, and how they stand."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from hpc_resume.cluster.liveness import JobBook, liveness
from hpc_resume.cluster.local import LocalCluster
from hpc_resume.cluster.slurm_facts import JobFacts
from hpc_resume.errors import ClusterError
from hpc_resume.journal.claims import Liveness
from hpc_resume.journal.folder import SubmissionFolder
from hpc_resume.journal.reader import read_operator
from hpc_resume.recovery import History
from hpc_resume.recovery import events as ev


@dataclass(frozen=True, kw_only=True, slots=True)
class RunJob:
    """The newest job of a run."""

    job_id: str = ""
    """As Slurm's programs take it; empty on this machine."""
    live: bool = False
    """Whether some job of the run may still start it, or go on with it; also where nobody can be asked."""
    facts: JobFacts | None = None
    """What Slurm says of it, if it can be asked and remembers."""


class Jobs:
    """All jobs that the runs of a submission were sent in; each is asked about once."""

    def __init__(self, folder: SubmissionFolder) -> None:
        """Read what was sent."""
        self._folder = folder
        self._book = JobBook()
        self._complained = False
        self._sent: list[tuple[str, str, tuple[int, ...]]] = []
        intents: dict[str, ev.Submitted | ev.ResubmitRequested] = {}
        for record in read_operator(folder):
            if isinstance(record.event, ev.Submitted | ev.ResubmitRequested):
                intents[record.file] = record.event
            elif isinstance(record.event, ev.OperatorOutcome) and record.event.ok and record.file in intents:
                intent = intents[record.file]
                self._sent.append((intent.cluster, record.event.job_id, intent.runs))

    def liveness(self, request: ev.ClaimRequested) -> Liveness:
        """Tell whether a supervisor is still there."""
        return liveness(request, self._book)

    def of(self, run: int, history: History) -> RunJob:
        """Return the newest job of a run."""
        here = [job for cluster, job, runs in self._sent if cluster == "local" and run in runs]
        given_up = self._folder.run(run).given_up.exists()
        live = not given_up and any(LocalCluster().live_runs(job, (run,)) for job in here)
        # A batch script of the user's own is known by the claims that it made.
        claimed = [c.request.job_id for c in history.claims if c.request.cluster == "slurm"]
        sent = [job for cluster, job, runs in self._sent if cluster == "slurm" and run in runs]
        newest = RunJob(live=live)
        for job_id in sorted({*claimed, *sent}, key=_number):
            facts = self._find(job_id, run)
            known = facts if isinstance(facts, JobFacts) else None
            live = live or isinstance(facts, _Silence) or (known is not None and known.lives)
            newest = RunJob(job_id=known.job_id if known else job_id, live=live, facts=known)
        return newest

    def _find(self, job_id: str, run: int) -> JobFacts | _Silence | None:
        try:
            return self._book.find(job_id, f"{job_id}_{run}")
        except ClusterError as error:
            if not self._complained:
                sys.stderr.write(f"can't ask Slurm, so that jobs are taken to be alive: {error}\n")
                self._complained = True
            return _Silence()


class _Silence:
    """Nobody can be asked."""


def _number(job_id: str) -> int:
    digits = job_id.partition("_")[0]
    return int(digits) if digits.isdigit() else 0
