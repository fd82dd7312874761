"""The jobs of a submission: which there are, and how they stand."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hpc_resume.cluster.liveness import JobBook, are_apart, liveness
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
    """How the jobs of a run stand, and the one that counts: the newest that lives, or may live, else the newest."""

    job_id: str = ""
    """As Slurm's programs take it; empty on this machine."""
    live: bool = False
    """Whether some job of the run may still start it, or go on with it; also where nobody can be asked."""
    facts: JobFacts | None = None
    """What Slurm says of it, if it can be asked and remembers."""
    living: tuple[str, ...] = ()
    """All jobs of the run that live by the word of this Slurm, or may live while it is silent."""
    elsewhere: tuple[tuple[str, str], ...] = ()
    """Those that may live in another Slurm, each with that one's name: here their numbers may be other jobs'."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """A job of a run in Slurm, by a claim of its supervisor or by what was sent."""

    name: str
    other_name: str = ""
    slurm_cluster: str = ""
    over: bool = False
    """Whether it is, by the journal; Slurm itself knows better, if it can be asked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sent:
    cluster: str
    job_id: str
    runs: tuple[int, ...]
    slurm_cluster: str


class Jobs:
    """All jobs that the runs of a submission were sent in; each is asked about once."""

    def __init__(self, folder: SubmissionFolder) -> None:
        """Read what was sent."""
        self.book = JobBook()
        self._folder = folder
        self._is_array = len(folder.runs()) > 1
        self._complained = False
        self._sent: list[_Sent] = []
        self._given_up: dict[int, tuple[int, int]] = {}
        intents: dict[str, ev.Submitted | ev.ResubmitRequested] = {}
        for record in read_operator(folder):
            event = record.event
            if isinstance(event, ev.Submitted | ev.ResubmitRequested):
                intents[record.file] = event
            if isinstance(event, ev.ResubmitRequested):
                # By a person's word all that had been sent by then is gone, and every claim up to that one.
                self._given_up |= {int(run): (len(self._sent), claim) for run, claim in event.gone.items()}
            elif isinstance(event, ev.OperatorOutcome) and event.ok and record.file in intents:
                intent = intents[record.file]
                self._sent.append(
                    _Sent(
                        cluster=intent.cluster, job_id=event.job_id, runs=intent.runs, slurm_cluster=event.slurm_cluster
                    )
                )

    def liveness(self, request: ev.ClaimRequested) -> Liveness:
        """Tell whether a supervisor is still there."""
        return liveness(request, self.book)

    def of(self, run: int, history: History) -> RunJob:
        """Return how the jobs of a run stand."""
        here = [sent.job_id for sent in self._sent if sent.cluster == "local" and run in sent.runs]
        given_up = self._folder.run(run).given_up.exists()
        live = not given_up and any(LocalCluster().live_runs(job, (run,)) for job in here)
        found = [job for job in map(self._ask, self._in_slurm(run, history)) if job is not None]
        # What is known to live goes before what may live, and the newer before the older.
        known = [job for job in found if job.facts is not None and job.live]
        newest = next(reversed(known or [job for job in found if job.live] or found), RunJob())
        return replace(
            newest,
            live=live or any(job.live for job in found),
            living=tuple(dict.fromkeys(name for job in found for name in job.living)),
            elsewhere=tuple(pair for job in found for pair in job.elsewhere),
        )

    def _in_slurm(self, run: int, history: History) -> list[_Job]:
        """Return the jobs of a run, the oldest first: by their numbers, as claims have no place among what was sent."""
        jobs = {(job.name, job.slurm_cluster): job for job in self._claimed(run, history)}
        for job in self._sent_to_slurm(run):
            known = [one for one in jobs.values() if _number(one.name) == _number(job.name)]
            # A supervisor knows its job's name, and its Slurm's, best.
            if not any(not are_apart(one.slurm_cluster, job.slurm_cluster) for one in known):
                jobs[job.name, job.slurm_cluster] = job
        return sorted(jobs.values(), key=lambda job: _number(job.name))

    def _claimed(self, run: int, history: History) -> Iterator[_Job]:
        """Yield the job of each supervisor in Slurm, the oldest first; one of the user's own is known by that alone."""
        _, gone = self._given_up.get(run, (0, 0))
        for claim in history.claims:
            request, ended = claim.request, claim.ended
            left = ended is not None and not (isinstance(ended, ev.ClaimEnded) and ended.outcome == "requeued")
            if request.cluster == "slurm":
                over = left or request.claim <= gone
                yield _Job(name=request.job_id, slurm_cluster=request.slurm_cluster, over=over)

    def _sent_to_slurm(self, run: int) -> Iterator[_Job]:
        gone, _ = self._given_up.get(run, (0, 0))
        for place, sent in enumerate(self._sent):
            if sent.cluster == "slurm" and run in sent.runs:
                # Runs of a submission that has several are sent as elements of arrays; the number alone means them all.
                names = [f"{sent.job_id}_{run}", sent.job_id]
                name, other = names if self._is_array else reversed(names)
                yield _Job(name=name, other_name=other, slurm_cluster=sent.slurm_cluster, over=place < gone)

    def _ask(self, job: _Job) -> RunJob | None:
        """Ask how a job stands; None of one that can't be asked about here, and of which the journal says enough."""
        try:
            if self.book.is_elsewhere(job.slurm_cluster):
                pair = (job.name, job.slurm_cluster)
                return None if job.over else RunJob(job_id=job.name, live=True, elsewhere=(pair,))
            facts = self.book.find(job.name, *filter(None, [job.other_name]))
        except ClusterError as error:
            if not self._complained:
                sys.stderr.write(f"can't ask Slurm, so that jobs are taken to be alive: {error}\n")
                self._complained = True
            return RunJob(job_id=job.name, live=True, living=(job.name,))
        if facts is None:
            return RunJob(job_id=job.name)
        return RunJob(job_id=facts.job_id, live=facts.lives, facts=facts, living=(facts.job_id,) if facts.lives else ())


def _number(job_id: str) -> int:
    digits = job_id.partition("_")[0]
    return int(digits) if digits.isdigit() else 0
