"""A supervisor's view of its own Slurm job, with a stand-in for Slurm that answers each question by its words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.stand_in_slurm import INVALID, StandInSlurm, job_line

from hpc_resume.cluster.choose import cluster_kind, kind_here, make_allocation
from hpc_resume.cluster.local_allocation import LocalAllocation
from hpc_resume.cluster.slurm_allocation import NotRequeuedError, SlurmAllocation, job_name
from hpc_resume.config.cluster_section import ClusterConfig
from hpc_resume.config.schema import RunConfig
from hpc_resume.errors import ConfigError

Answer = Callable[..., None]
TWO = ClusterConfig(kind="slurm", nodes=2)
ME = {"SLURM_JOB_ID": "93", "SLURM_ARRAY_JOB_ID": "90", "SLURM_ARRAY_TASK_ID": "3", "SLURM_JOB_NODELIST": "n[1-2]"}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInSlurm:
    """Programs that answer in Slurm's place, in the second start of element 3 of array 90."""
    stand_in = StandInSlurm(tmp_path / "bin", monkeypatch)
    stand_in.answers("sacct")
    for name, value in {**ME, "SLURM_RESTART_COUNT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_STEP_ID", raising=False)
    return stand_in


@pytest.fixture
def answer(slurm: StandInSlurm) -> Answer:
    """`answer(job, refuse=pattern)`: what `scontrol` says of the job; node lists stand for themselves."""

    def make(job: str = "", *, refuse: str = "nothing", because: str = "slurm_update error: refused") -> None:
        (slurm.folder / "job").write_text(job, encoding="utf-8")
        script = f"""#!/bin/sh
echo "$*" >>"$0.asked"
case "$*" in
    {refuse}*) echo "{because}" >&2; exit 1;;
    "show hostnames n[1-2]") printf 'n1\\nn2\\n';;
    "show hostnames "*) IFS=,; printf '%s\\n' $3;;
    "-o show job "*) /bin/cat "${{0%/*}}/job";;
    "requeue incomplete 90_3") /bin/sed -i 's/RUNNING/PENDING/; s/Restarts=1/Restarts=2/' "${{0%/*}}/job";;
esac
"""
        (slurm.folder / "scontrol").write_text(script, encoding="utf-8")
        (slurm.folder / "scontrol").chmod(0o755)

    make(job_line("90_3", "RUNNING", Restarts=1))
    return make


@pytest.fixture
def me(answer: Answer) -> SlurmAllocation:
    return SlurmAllocation(TWO)


def changes(slurm: StandInSlurm) -> list[str]:
    """What `scontrol` was asked to do, questions apart."""
    return [line for line in slurm.asked("scontrol") if " show " not in f" {line}"]


def test_an_element_is_called_by_its_array_and_a_single_job_by_its_number() -> None:
    assert job_name(ME) == "90_3"
    # The last element of an array has the number of the whole array.
    assert job_name({**ME, "SLURM_JOB_ID": "90"}) == "90_3"
    assert job_name({"SLURM_JOB_ID": "93"}) == "93"


def test_a_supervisor_says_which_start_of_which_job_it_is(me: SlurmAllocation) -> None:
    request = me.request(4)
    assert (request.cluster, request.job_id, request.restart_count, me.nodes) == ("slurm", "90_3", 1, ("n1", "n2"))


def test_the_first_start_has_no_count(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_RESTART_COUNT")
    assert SlurmAllocation(TWO).request(1).restart_count == 0


def test_a_job_with_too_few_nodes_and_a_step_are_refused(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"job 90_3 has 2 node\(s\), but cluster.nodes is 3"):
        SlurmAllocation(ClusterConfig(kind="slurm", nodes=3))
    with pytest.raises(ConfigError, match=r"has 2 node\(s\), but cluster.nodes is 3-5"):
        SlurmAllocation(ClusterConfig(kind="slurm", nodes="3-5"))
    assert len(SlurmAllocation(ClusterConfig(kind="slurm", nodes="2-5")).nodes) == 2
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    with pytest.raises(ConfigError, match="the supervisor was started by srun; call it directly"):
        SlurmAllocation(TWO)


def test_which_place_a_config_means_here(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(make_allocation(ClusterConfig(kind="auto")), SlurmAllocation)
    assert isinstance(make_allocation(ClusterConfig(kind="local")), LocalAllocation)
    assert (kind_here(ClusterConfig(kind="auto")), kind_here(ClusterConfig(kind="local"))) == ("slurm", "local")
    monkeypatch.delenv("SLURM_JOB_ID")
    assert isinstance(make_allocation(ClusterConfig(kind="auto")), LocalAllocation)
    assert kind_here(ClusterConfig(kind="slurm")) == "local"
    with pytest.raises(ConfigError, match="this is no Slurm job"):
        make_allocation(ClusterConfig(kind="slurm"))
    assert isinstance(make_allocation(ClusterConfig(nodes="1-4")), LocalAllocation)
    with pytest.raises(ConfigError, match=r"cluster\.nodes is 2-4, but without Slurm there is this machine only"):
        make_allocation(ClusterConfig(nodes="2-4"))


def test_several_nodes_are_not_sent_to_the_only_machine_there_is(slurm: StandInSlurm) -> None:
    assert cluster_kind(RunConfig(cluster=ClusterConfig(nodes="1-4"))) == "local"
    for nodes in (2, "2-4"):
        with pytest.raises(ConfigError, match=f"cluster.nodes is {nodes}, but without Slurm there is this machine"):
            cluster_kind(RunConfig(cluster=ClusterConfig(nodes=nodes)))
    slurm.answers("sbatch")
    assert cluster_kind(RunConfig(cluster=ClusterConfig(nodes="2-4"))) == "slurm"


def test_an_earlier_start_of_the_very_job_is_over_without_asking(me: SlurmAllocation, slurm: StandInSlurm) -> None:
    before = len(slurm.asked("scontrol"))
    assert me.liveness(replace(me.request(1), restart_count=0)) == "dead"
    assert len(slurm.asked("scontrol")) == before
    assert me.liveness(me.request(1)) == "alive"
    assert me.liveness(replace(me.request(1), job_id="90_4", restart_count=0)) == "dead", "Slurm knows none"


def test_the_time_that_is_left_is_asked_for_seldom(me: SlurmAllocation, answer: Answer, slurm: StandInSlurm) -> None:
    answer(job_line("90_3", "RUNNING", Restarts=1, RunTime="00:10:00", TimeLimit="01:00:00"))
    before = len(slurm.asked("scontrol"))
    left = [me.seconds_left() for _ in range(5)]
    assert all(seconds is not None and 2990 < seconds <= 3000 for seconds in left)
    assert len(slurm.asked("scontrol")) == before + 1


@pytest.mark.parametrize("limit", ["UNLIMITED", "Partition_Limit"])
def test_a_job_without_a_limit_has_all_the_time(me: SlurmAllocation, answer: Answer, limit: str) -> None:
    answer(job_line("90_3", "RUNNING", Restarts=1, RunTime="00:10:00", TimeLimit=limit))
    assert me.seconds_left() is None


def test_where_nobody_says_how_much_time_is_left_there_is_no_limit(me: SlurmAllocation, answer: Answer) -> None:
    answer(refuse='"-o show job"', because="slurm_load_jobs error: Unable to contact slurm controller")
    assert me.seconds_left() is None


def test_a_job_goes_back_to_the_queue_only_if_it_still_runs(me: SlurmAllocation, slurm: StandInSlurm) -> None:
    me.requeue()
    # Without this word a job would come back that somebody has cancelled meanwhile.
    assert changes(slurm) == ["requeue incomplete 90_3"]


@pytest.mark.parametrize("state", ["PENDING", "COMPLETING"])
def test_a_job_that_was_requeued_already_is_only_kept_from_nodes(
    me: SlurmAllocation, answer: Answer, slurm: StandInSlurm, state: str
) -> None:
    answer(job_line("90_3", state, Restarts=2))
    me.requeue()
    assert changes(slurm) == []
    me.requeue(("n1",))
    assert changes(slurm) == ["update JobId=90_3 ExcNodeList=n1"]


@pytest.mark.parametrize("state", ["CANCELLED", "COMPLETING"])
def test_a_job_that_a_person_cancelled_is_left_alone(
    me: SlurmAllocation, answer: Answer, slurm: StandInSlurm, state: str
) -> None:
    slurm.answers("sinfo")
    answer(job_line("90_3", state, Restarts=1))
    me.requeue(("n1",))
    assert changes(slurm) == []


ENDED = {
    "out of time": job_line("90_3", "COMPLETING", Restarts=1, RunTime="01:00:01", TimeLimit="01:00:00"),
    "out of somebody else's time": job_line("90_3", "COMPLETING", Reason="TimeLimit", Restarts=1),
    "preempted for good": job_line("90_3", "PREEMPTED", Restarts=1, PreemptTime="2026-01-01T00:00:00"),
    "forgotten": "",
}


@pytest.mark.parametrize("job", ENDED.values(), ids=ENDED)
def test_a_job_that_slurm_ends_for_good_is_not_taken_for_requeued(
    me: SlurmAllocation, answer: Answer, slurm: StandInSlurm, job: str
) -> None:
    slurm.answers("sinfo")
    answer(job)
    with pytest.raises(NotRequeuedError, match="job 90_3"):
        me.requeue()
    assert changes(slurm) == []


def test_a_job_that_may_not_be_requeued_is_changed_first(
    me: SlurmAllocation, answer: Answer, slurm: StandInSlurm
) -> None:
    answer(job_line("90_3", "RUNNING", Restarts=1, Requeue=0))
    me.requeue()
    assert changes(slurm) == ["update JobId=90_3 Requeue=1", "requeue incomplete 90_3"]


def test_a_site_that_refuses_a_requeue_is_an_error(me: SlurmAllocation, answer: Answer) -> None:
    answer(
        job_line("90_3", "RUNNING", Restarts=1), refuse="requeue", because="Requested operation is presently disabled"
    )
    with pytest.raises(NotRequeuedError, match="presently disabled"):
        me.requeue()


def test_nodes_to_avoid_are_added_to_those_that_are_avoided_already(
    me: SlurmAllocation, answer: Answer, slurm: StandInSlurm
) -> None:
    answer(job_line("90_3", "RUNNING", Restarts=1, ExcNodeList="n4,n7"))
    me.requeue(("n2", "n4"))
    # Slurm takes them only for a job that waits, and instead of those from before.
    assert changes(slurm) == ["requeue incomplete 90_3", "update JobId=90_3 ExcNodeList=n2,n4,n7"]


def test_a_job_that_can_not_be_kept_from_a_node_goes_back_all_the_same(
    me: SlurmAllocation, answer: Answer, slurm: StandInSlurm
) -> None:
    answer(job_line("90_3", "RUNNING", Restarts=1), refuse="update")
    me.requeue(("n2",))
    assert "requeue incomplete 90_3" in changes(slurm)


@pytest.mark.parametrize(("nodes", "can"), [(2, False), ("1-2", True), ("2-3", False)], ids=str)
def test_a_range_can_do_without_a_node_while_its_smallest_number_is_left(
    answer: Answer, slurm: StandInSlurm, nodes: int | str, can: bool
) -> None:
    answer(job_line("90_3", "RUNNING", Restarts=1, Partition="main"))
    slurm.answers("sinfo", "n1|a100|gpu:4|allocated\nn2|a100|gpu:4|allocated\nn3|a100|gpu:4|down*\n")
    assert SlurmAllocation(ClusterConfig(kind="slurm", nodes=nodes)).can_avoid("n2") == can


WHY = {
    "a node, by the accounting": ("COMPLETED\nNODE_FAIL\n", "", "node"),
    "a node, without it": ("", "n2 down*\n", "node"),
    "preempted": ("NODE_FAIL\nPREEMPTED\n", "", "preempted"),
    "requeued by hand": ("NODE_FAIL\nREQUEUED\n", "n2 down*\n", "preempted"),
    "out of time": ("NODE_FAIL\nTIMEOUT\n", "", "deadline"),
    "cancelled": ("NODE_FAIL\nCANCELLED by 1000\n", "", "cancelled"),
    "failed": ("NODE_FAIL\nFAILED\n", "n2 down*\n", "crash"),
    "nobody knows": ("", "n1 idle\nn2 idle\n", None),
    "only the start before it is known": ("NODE_FAIL\n", "", None),
}


@pytest.mark.parametrize(("accounting", "nodes", "cause"), WHY.values(), ids=WHY)
def test_why_a_supervisor_of_this_start_vanished(
    me: SlurmAllocation, slurm: StandInSlurm, accounting: str, nodes: str, cause: str | None
) -> None:
    slurm.answers("sacct", accounting)
    slurm.answers("sinfo", nodes)
    found = me.why_lost(me.request(1), ("n1", "n2"))
    assert (found and found.cause) == cause
    if nodes and found is not None and found.cause == "node":
        assert found.nodes == ("n2",)


def test_a_job_that_slurm_does_not_know_is_not_being_interrupted(me: SlurmAllocation, answer: Answer) -> None:
    answer(refuse='"-o show job"', because=INVALID.strip())
    assert me.interruption() is None


def test_nodes_are_looked_at_only_when_the_job_ends(me: SlurmAllocation, answer: Answer, slurm: StandInSlurm) -> None:
    slurm.answers("sinfo", "n2 down*\n")
    assert me.interruption() is None
    assert slurm.asked("sinfo") == []
    answer(job_line("90_3", "COMPLETING", Restarts=1))
    found = me.interruption()
    assert found is not None
    assert (found.cause, found.nodes, found.final) == ("node", ("n2",), True)


SECOND_OPINIONS = {
    "a node that is back already": (2, "COMPLETED\nNODE_FAIL\n", "node"),
    "a limit of the account": (1, "NODE_FAIL\nTIMEOUT\n", "deadline"),
    "a person": (1, "NODE_FAIL\nCANCELLED by 1000\n", "cancelled"),
    "not known yet": (1, "NODE_FAIL\nRUNNING\n", "cancelled"),
    "no accounting": (2, "", "preempted"),
}


@pytest.mark.parametrize(("restarts", "accounting", "cause"), SECOND_OPINIONS.values(), ids=SECOND_OPINIONS)
def test_the_accounting_knows_better_why_a_job_ends(
    me: SlurmAllocation, answer: Answer, slurm: StandInSlurm, restarts: int, accounting: str, cause: str
) -> None:
    slurm.answers("sinfo", "n1 mixed\nn2 mixed\n")
    slurm.answers("sacct", accounting)
    answer(job_line("90_3", "COMPLETING", Restarts=restarts))
    found = me.interruption()
    assert found is not None
    assert (found.cause, found.final) == (cause, True)


def test_a_probe_that_works_on_no_node_says_nothing(
    me: SlurmAllocation, slurm: StandInSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The supervisor's own node is surely there.
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    slurm.refuses("srun", "srun: error: Unable to create step: Invalid Trackable RESource (TRES) specification\n")
    assert me.interruption(suspicious=True) is None


def test_a_probe_does_not_ask_for_what_the_job_was_sent_with(
    me: SlurmAllocation, slurm: StandInSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_GPUS_PER_NODE", "4")
    script = '#!/bin/sh\necho "$SLURM_GPUS_PER_NODE|$SLURM_JOB_ID" >>"$0.asked"\n'
    (slurm.folder / "srun").write_text(script, encoding="utf-8")
    (slurm.folder / "srun").chmod(0o755)
    assert me.interruption(suspicious=True) is None
    assert slurm.asked("srun") == ["|93", "|93"]
