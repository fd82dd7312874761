"""What each verb shows and changes, on run folders in every state."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from supervisor.harness import wait_until

from hpc_resume.cli.submission import create_submission
from hpc_resume.cluster.local import LocalCluster
from hpc_resume.config.load import load_config
from hpc_resume.journal.folder import SubmissionFolder
from hpc_resume.journal.reader import read_operator
from hpc_resume.recovery import events as ev

Command = Callable[..., subprocess.CompletedProcess[str]]
MakeRuns = Callable[..., SubmissionFolder]

STATES = ("waiting", "running", "requeued", "finished", "failed", "stopped", "cancelled", "lost", "never started")
"""How the fixture makes run 0, 1, ...; a run that never started is lost, too."""


def answer(done: subprocess.CompletedProcess[str]) -> Any:
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_dry_run_prints_the_plan_and_creates_nothing(tmp_path: Path, config: Path, command: Command) -> None:
    done = command("submit", config, "--dry-run", "sweep={training.learning_rate: [1e-4, 3e-4]}")
    assert (done.returncode, done.stderr) == (0, "")
    first, head, *rows = done.stdout.splitlines()
    folder = tmp_path / "runs" / "small"
    assert first == f"would create {folder} and send 2 run(s) to this machine; nothing was created"
    assert " ".join(head.split()) == ("run steps samples a step tokens a step ranks precision ZeRO settings of its own")
    assert [row.split() for row in rows] == [
        ["0", "8", "1", "16", "1", "fp32", "0", "training.learning_rate=0.0001"],
        ["1", "8", "1", "16", "1", "fp32", "0", "training.learning_rate=0.0003"],
    ]
    assert not (tmp_path / "runs").exists()


def test_dry_run_as_json_says_the_same(tmp_path: Path, config: Path, command: Command) -> None:
    assert answer(command("submit", config, "--dry-run", "--json", "training.gradient_accumulation_steps=4")) == {
        "folder": str(tmp_path / "runs" / "small"),
        "exists": False,
        "cluster": "local",
        "runs": [
            {
                "run": 0,
                "changes": {},
                "steps": 8,
                "global_batch_size": 4,
                "tokens_per_step": 64,
                "ranks": 1,
                "sizes": [{"nodes": 1, "ranks": 1, "gradient_accumulation_steps": 4}],
                "precision": "fp32",
                "zero_stage": 0,
                "faults": [],
            },
        ],
    }
    assert not (tmp_path / "runs").exists()


RANGE = ("cluster.kind=slurm", "cluster.nodes=2-4", "cluster.ranks_per_node=8")


def test_dry_run_says_what_becomes_of_each_number_of_nodes(config: Path, command: Command) -> None:
    done = command("submit", config, "--dry-run", *RANGE, "training.gradient_accumulation_steps=2")
    assert done.returncode == 0
    _, _, plan = done.stdout.partition("each run takes the largest of these that is free when its job starts ")
    assert plan.splitlines()[:4] == [
        "(2-4 nodes):",
        "  on 2 node(s): 16 rank(s), gradient_accumulation_steps=4",
        "  on 4 node(s): 32 rank(s), gradient_accumulation_steps=2",
        "the batch script:",
    ]
    assert "\n#SBATCH --nodes=2-4\n" in plan


def test_dry_run_names_the_runs_that_take_other_numbers_of_nodes(config: Path, command: Command) -> None:
    # The settings that the runs share are no run's; they must fit nothing.
    sweep = "sweep={training.gradient_accumulation_steps: [2, 3]}"
    done = command("submit", config, "--dry-run", "cluster.kind=slurm", "cluster.nodes=2-3", sweep)
    assert done.returncode == 2
    assert "run with training.gradient_accumulation_steps=3: cluster.nodes is 2-3, but on 2 nodes" in done.stderr
    sweep = "sweep={training.gradient_accumulation_steps: [4, 6]}"
    done = command("submit", config, "--dry-run", "cluster.kind=slurm", "cluster.nodes=2-3", sweep)
    lines = [line.strip() for line in done.stdout.splitlines() if " node(s): " in line]
    assert lines == [
        "run 0 on 2 node(s): 2 rank(s), gradient_accumulation_steps=6",
        "run 0 on 3 node(s): 3 rank(s), gradient_accumulation_steps=4",
        "run 1 on 2 node(s): 2 rank(s), gradient_accumulation_steps=9",
        "run 1 on 3 node(s): 3 rank(s), gradient_accumulation_steps=6",
    ]


def test_dry_run_tells_that_the_name_is_taken(config: Path, command: Command, make_runs: MakeRuns) -> None:
    make_runs("finished")
    done = command("submit", config, "--dry-run")
    assert done.returncode == 0
    assert "that folder exists already, so `submit` would refuse" in done.stdout
    assert answer(command("submit", config, "--dry-run", "--json"))["exists"] is True


def test_status_names_the_state_of_every_run(command: Command, make_runs: MakeRuns) -> None:
    folder = make_runs(*STATES)
    runs = answer(command("status", folder.path, "--json"))
    assert [run["state"] for run in runs] == [*STATES[:-1], "lost"]
    assert [run["data_seed"] for run in runs] == list(range(len(STATES)))
    assert {run["steps"] for run in runs} == {8}


@pytest.mark.parametrize(
    ("state", "step", "loss"),
    [("waiting", 0, None), ("running", 5, 2.5), ("requeued", 4, 2.6), ("failed", 5, 2.5)],
    ids=["nothing yet", "the newest step", "the step that it goes back to", "the last step"],
)
def test_status_shows_the_step_that_counts(
    command: Command, make_runs: MakeRuns, state: str, step: int, loss: float | None
) -> None:
    (run,) = answer(command("status", make_runs(state).path, "--json"))
    assert (run["step"], run["loss"]) == (step, loss)


def test_a_submission_is_found_by_its_folder_and_its_config(
    config: Path, command: Command, make_runs: MakeRuns
) -> None:
    folder = make_runs("finished", "failed")
    answers = [answer(command("status", target, "--json")) for target in (folder.path, config)]
    assert answers[0] == answers[1]


def test_a_table_that_no_terminal_shows_is_neither_cut_nor_folded(command: Command, make_runs: MakeRuns) -> None:
    folder = make_runs("failed", "lost")
    done = command("status", folder.path)
    head, failed, lost = done.stdout.splitlines()
    assert " ".join(head.split()) == "run settings of its own state step loss attempts data seed last word"
    assert failed.split()[:6] == ["0", "seed=0", "failed", "5/8", "2.5000", "1"]
    assert failed.endswith("(rule: same crash twice): rank 0: OSError: [Errno 28] No space left on device")
    assert lost.endswith(f"the last line of {folder.run(1).supervisor_log()}: supervisor out of [paper]")


def test_report_tells_the_story_and_writes_a_page_for_each_run(command: Command, make_runs: MakeRuns) -> None:
    folder = make_runs("finished", "failed")
    done = command("report", folder.path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "run 0 finished: step 5 of 8, loss 2.5000\n" in done.stdout
    assert "finished at step 8 with loss 2.2500; model in " in done.stdout
    assert "[Errno 28] No space left on device" in done.stdout
    assert "steps trained: 5, none of them given up and trained again" in done.stdout
    for run in folder.runs():
        page = run.report.read_text()
        assert f"report: {run.report}\n" in done.stdout
        assert "<svg" in page
        assert "What happened" in page
        assert not re.search(r"""(src|href)=["'](?!#)""", page), "the page must not need anything from elsewhere"


def test_report_of_one_run_leaves_the_others_out(command: Command, make_runs: MakeRuns) -> None:
    folder = make_runs("finished", "lost", "never started")
    reports = answer(command("report", folder.run(1).path, "--json"))
    assert [report["run"] for report in reports] == [1]
    assert [run.report.exists() for run in folder.runs()] == [False, True, False]


def test_report_of_a_lost_run_says_where_to_look(command: Command, make_runs: MakeRuns) -> None:
    folder = make_runs("lost", "never started")
    lost, never = answer(command("report", folder.path, "--json"))
    assert str(folder.run(0).supervisor_log()) in lost["headline"]
    assert never["headline"] == "step 0 of 8; never started: it was never sent; resubmit sends it"
    assert [entry["text"] for entry in never["timeline"]] == ["submitted"]


def test_resubmit_does_not_pass_an_edited_file_off_as_what_was_submitted(command: Command, config: Path) -> None:
    folder = create_submission(load_config(config))
    config.write_text(config.read_text().replace("steps: 8", "steps: 9"))
    done = command("resubmit", config, "--dry-run")
    assert done.returncode == 2
    assert f"to go on with those name the folder, {folder.path}; to have others, `submit` under" in done.stderr
    assert command("resubmit", folder.path, "--dry-run").returncode == 0
    # What a person only writes differently is no other setting.
    config.write_text(config.read_text().replace("steps: 9", "steps: 8") + "# as before\n")
    assert command("resubmit", config, "--dry-run").returncode == 0


def test_resubmit_chooses_what_ended_without_finishing(command: Command, make_runs: MakeRuns) -> None:
    folder = make_runs(*STATES)
    again = [STATES.index(state) for state in ("failed", "stopped", "lost", "never started")]
    assert answer(command("resubmit", folder.path, "--dry-run", "--json"))["runs"] == again
    with_cancelled = sorted([*again, STATES.index("cancelled")])
    assert answer(command("resubmit", folder.path, "--dry-run", "--json", "--cancelled"))["runs"] == with_cancelled
    assert len(list(folder.path.glob("operator-*"))) == len(STATES) + 1


@pytest.mark.parametrize(("runs", "expected"), [("4", [4]), ("3-5", [4, 5]), ("0,7-8", [7, 8]), ("0-3", [])])
def test_resubmit_takes_only_the_runs_that_are_named(
    command: Command, make_runs: MakeRuns, runs: str, expected: list[int]
) -> None:
    folder = make_runs(*STATES)
    assert answer(command("resubmit", folder.path, "--dry-run", "--json", "--runs", runs))["runs"] == expected


@pytest.mark.parametrize("target", ["the folder", "with a slash", "a link"])
def test_the_folder_of_a_run_means_that_run_alone(
    tmp_path: Path, command: Command, make_runs: MakeRuns, target: str
) -> None:
    folder = make_runs("failed", "failed", "lost")
    run = folder.run(1).path
    (tmp_path / "link").symlink_to(run)
    name = {"the folder": run, "with a slash": f"{run}/", "a link": "link"}[target]
    for verb in ("status", "report"):
        assert [one["run"] for one in answer(command(verb, name, "--json"))] == [1]
    assert answer(command("resubmit", name, "--dry-run", "--json"))["runs"] == [1]
    assert command("resubmit", name, "--dry-run").stdout == "would send run 1 again\n"
    assert command("cancel", name).stdout == "cancelled run 1\n"
    assert [run["state"] for run in answer(command("status", folder.path, "--json"))] == ["failed", "cancelled", "lost"]


@pytest.mark.parametrize("verb", ["cancel", "resubmit"])
def test_a_target_and_runs_that_disagree_are_refused(command: Command, make_runs: MakeRuns, verb: str) -> None:
    folder = make_runs("failed", "failed")
    before = sorted(folder.path.rglob("*"))
    done = command(verb, folder.run(1).path, "--runs", "0-1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: the target is run 1, but --runs is '0-1'; leave --runs out, "
        f"or name the whole submission: {folder.path}\n"
    )
    assert sorted(folder.path.rglob("*")) == before
    assert command("cancel", folder.run(1).path, "--runs", "1").stdout == "cancelled run 1\n"


def test_why_nothing_is_sent_again_names_each_reason_once(command: Command, make_runs: MakeRuns) -> None:
    folder = make_runs("finished", "out of reach", "finished")
    done = command("resubmit", folder.path)
    assert done.stdout == (
        "nothing to send again: runs 0, 2 finished; "
        "run 1 has a supervisor that can't be asked from here (--owner-is-gone sends it)\n"
    )


def test_status_shows_what_each_run_of_a_sweep_has_of_its_own(command: Command, make_runs: MakeRuns) -> None:
    folder = make_runs("finished", "lost")
    assert [run["changes"] for run in answer(command("status", folder.path, "--json"))] == [{"seed": 0}, {"seed": 1}]
    rows = command("status", folder.path).stdout.splitlines()[1:]
    assert [row.split()[1] for row in rows] == ["seed=0", "seed=1"]


def test_a_run_whose_queue_is_gone_is_told_from_one_that_failed(command: Command, make_runs: MakeRuns) -> None:
    folder = make_runs("never started")
    folder.cluster.mkdir()
    (run,) = answer(command("status", folder.path, "--json"))
    assert run["last_word"] == "never started: its queue is gone; resubmit sends it"


def test_the_plan_shows_zero_and_every_injected_fault(config: Path, command: Command) -> None:
    faults = "faults=[{kind: spike, step: 3}, {kind: rank_kill, step: 5, times: 2}]"
    done = command("submit", config, "--dry-run", "training.deepspeed={zero_optimization: {stage: 2}}", faults)
    _, _, row, *lines = done.stdout.splitlines()
    assert row.split() == ["0", "8", "1", "16", "1", "fp32", "2", "-"]
    assert lines == [
        "injected fault: spike at step 3, learning rate x 100 for 3 step(s)",
        "injected fault: rank_kill at step 5 in rank 0, up to 2 times",
    ]


def test_the_plan_names_the_run_of_a_fault_that_not_all_have(config: Path, command: Command) -> None:
    done = command("submit", config, "--dry-run", "sweep={faults: [[], [{kind: node_lost, step: 2}]]}")
    assert done.stdout.splitlines()[4:] == ["injected fault in run 1: node_lost at step 2"]


EXAMPLES = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))


@pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_every_example_can_be_planned_where_there_is_no_slurm(tmp_path: Path, command: Command, example: Path) -> None:
    on_slurm = load_config(example).cluster.kind == "slurm"
    overrides = [f"runs_dir={tmp_path}/runs"]
    if on_slurm:
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "config.json").write_text('{"model_type": "llama"}')
        (tmp_path / "corpus.jsonl").write_text('{"text": "' + "word " * 1_000_000 + '"}\n')
        overrides += [f"model.name_or_path={tmp_path}/model", f"data.paths=[{tmp_path}/corpus.jsonl]"]
    done = command("submit", example, *overrides, "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    first, second, *_ = done.stdout.splitlines()
    assert first.endswith(f" to {'Slurm' if on_slurm else 'this machine'}; nothing was created")
    assert (second == "there is no sbatch here: submit from a login node") is on_slurm
    assert not (tmp_path / "runs").exists()


def test_resubmit_without_anything_to_send_changes_nothing(command: Command, make_runs: MakeRuns) -> None:
    folder = make_runs("finished", "waiting", "running", "cancelled")
    before = sorted(folder.path.rglob("*"))
    done = command("resubmit", folder.path)
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "nothing to send again: run 0 finished; run 1 waits in its queue; run 2 is alive; "
        "run 3 was cancelled (--cancelled brings it back)\n",
        "",
    )
    assert sorted(folder.path.rglob("*")) == before


def test_cancel_takes_every_run_that_did_not_finish(command: Command, make_runs: MakeRuns) -> None:
    folder = make_runs(*STATES)
    cancelled = [i for i, state in enumerate(STATES) if state not in ("finished", "cancelled")]
    assert answer(command("cancel", folder.path, "--json")) == {"runs": cancelled, "what": "cancelled"}
    states = [run["state"] for run in answer(command("status", folder.path, "--json"))]
    assert states == ["cancelled", "cancelling", "cancelled", "finished", *["cancelled"] * 5]


def test_cancel_names_a_run_that_is_about_to_leave_again(command: Command, make_runs: MakeRuns) -> None:
    folder = make_runs("running")
    assert command("cancel", folder.path).stdout == "cancelled run 0\n"
    assert answer(command("status", folder.path, "--json"))[0]["state"] == "cancelling"
    assert command("cancel", folder.path).stdout == "cancelled run 0\n"


def test_resubmit_tells_of_an_owner_that_can_not_be_asked_and_takes_a_persons_word(
    command: Command, make_runs: MakeRuns
) -> None:
    folder = make_runs("out of reach", "running", "failed")
    done = command("resubmit", folder.path, "--dry-run")
    assert done.stdout == "would send run 2 (of 3) again\n"
    assert done.stderr.startswith("run 0 is left alone: its supervisor (process ")
    assert done.stderr.endswith(
        "on elsewhere) can't be asked from here; if you know that it is gone, add --owner-is-gone\n"
    )
    done = command("resubmit", folder.path, "--owner-is-gone", "--dry-run")
    assert (done.stdout, done.stderr) == ("would send runs 0, 2 (of 3) again\n", "")


def test_that_word_is_recorded_for_the_runs_that_it_is_about(command: Command, make_runs: MakeRuns) -> None:
    folder = make_runs("out of reach", "failed")
    for run in folder.runs():
        run.path.chmod(0o770)  # so that each supervisor refuses at once, and nothing is trained
    sent = answer(command("resubmit", folder.path, "--owner-is-gone", "--detach", "--json"))
    wait_until(lambda: not LocalCluster().live_runs(sent["job_id"], (0,)), "the queue has ended")
    asked = [r.event for r in read_operator(folder) if isinstance(r.event, ev.ResubmitRequested)]
    assert [(e.runs, e.gone) for e in asked] == [((0, 1), {"0": 1})]


def test_resubmit_brings_back_what_was_cancelled_before_and_nothing_else(command: Command, make_runs: MakeRuns) -> None:
    folder = make_runs("failed")
    command("cancel", folder.path)
    folder.run(0).path.chmod(0o770)  # so that the supervisor refuses at once, and nothing is trained
    sent = answer(command("resubmit", folder.path, "--cancelled", "--detach", "--json"))
    wait_until(lambda: not LocalCluster().live_runs(sent["job_id"], (0,)), "the queue has ended")
    assert answer(command("status", folder.path, "--json"))[0]["state"] != "cancelled"
    command("cancel", folder.path)
    assert answer(command("status", folder.path, "--json"))[0]["state"] == "cancelled"


def test_what_is_cancelled_stays_cancelled(command: Command, make_runs: MakeRuns) -> None:
    folder = make_runs("failed", "lost", "cancelled before its start", "failed")
    assert command("cancel", folder.path, "--runs", "0-2").stdout == "cancelled runs 0, 1 (of 3)\n"
    assert (
        command("cancel", folder.path, "--runs", "0-2").stdout
        == "nothing to cancel: runs 0, 1, 2 were cancelled before\n"
    )
    assert command("resubmit", folder.path, "--dry-run").stdout == "would send run 3 (of 4) again\n"
    states = [run["state"] for run in answer(command("status", folder.path, "--json"))]
    assert states == ["cancelled", "cancelled", "cancelled", "failed"]


@pytest.mark.parametrize(
    ("state", "code"),
    [("finished", 0), ("failed", 1), ("cancelled", 143), ("stopped", 143)],
)
def test_run_on_a_run_that_has_ended_says_so_by_its_exit_code_and_starts_nothing(
    command: Command, make_runs: MakeRuns, state: str, code: int
) -> None:
    folder = make_runs(state)
    assert command("run", folder.path).returncode == code
    assert answer(command("status", folder.path, "--json"))[0]["state"] == state
    assert not folder.run(0).attempt(2).exists()


def test_run_on_a_run_that_somebody_alive_owns_is_refused(command: Command, make_runs: MakeRuns) -> None:
    folder = make_runs("running")
    done = command("run", folder.path)
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].startswith(f"error: {folder.run(0).path}: supervisor 1 is alive")
    assert answer(command("status", folder.path, "--json"))[0]["state"] == "running"


@pytest.mark.parametrize("verb", ["submit", "status", "report", "cancel", "resubmit", "run"])
def test_every_verb_explains_itself(command: Command, verb: str) -> None:
    done = command(verb, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: python -m hpc_resume {verb} ")


def test_a_reader_that_leaves_early_is_no_error(make_runs: MakeRuns) -> None:
    folder = make_runs("finished")
    done = subprocess.run(
        ["bash", "-c", f'"$0" -m hpc_resume status {folder.path} | true', sys.executable],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""
