"""A rank that plays a training from a script: everything is real but the model.

The script is `script.json` beside the config: `steps`, `save_every`, `certify_after`, and `actions`. An action
`{"do": ..., "step": ..., "rank": 0, "times": 1}` happens before that step (or in the save after it), so many times
over all attempts, or only in the attempt that it names. Step -1 is while loading, before anything was resumed.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hpc_resume.worker.train
from hpc_resume.checkpoints import catalog
from hpc_resume.checkpoints.catalog import Manifest
from hpc_resume.cluster.processes import is_running
from hpc_resume.cluster.srun import become_rank
from hpc_resume.errors import RunBusyError, TrainerError
from hpc_resume.journal.claims import is_replaced
from hpc_resume.journal.folder import RunFolder
from hpc_resume.journal.metrics import read_rows
from hpc_resume.journal.order import segments_in_force
from hpc_resume.journal.reader import read_journal
from hpc_resume.journal.writer import JournalWriter, sync_folder
from hpc_resume.recovery import decide
from hpc_resume.recovery import events as ev
from hpc_resume.recovery.history import apply
from hpc_resume.recovery.policy import Policy
from hpc_resume.worker.__main__ import main

BATCH = 8
ERRORS = {"RuntimeError": RuntimeError, "MemoryError": MemoryError, "TrainerError": TrainerError}


class Script:
    def __init__(self, folder: RunFolder, attempt: int, rank: int) -> None:
        self._attempt = attempt
        # The elements of a job array each have a script of their own if there is one, and else the same.
        home = Path(os.environ.get("SCRIPT_HOME", folder.submission.path))
        self._home = home / folder.path.name if (home / folder.path.name / "script.json").exists() else home
        self._rank = rank
        data = json.loads((self._home / "script.json").read_text())
        self.steps: int = data["steps"]
        self.save_every: int = data["save_every"]
        self.certify_after: int = data["certify_after"]
        self.policy = Policy(**{**data["policy"], "perturb_on": tuple(data["policy"]["perturb_on"])})
        self._actions: list[dict[str, Any]] = data["actions"]

    def due(self, step: int, kinds: str) -> dict[str, Any] | None:
        """Take an action that is due now; it is marked as done before it happens."""
        for index, action in enumerate(self._actions):
            mine = action.get("rank", 0) == self._rank and action.get("attempt", self._attempt) == self._attempt
            if not mine or action["step"] != step or action["do"].startswith("save_") != (kinds == "save"):
                continue
            for time_of in range(action.get("times", 1)):
                try:
                    (self._home / f"done-{index}-{time_of}").touch(exist_ok=False)
                except FileExistsError:
                    continue
                return action
        return None

    def say(self, word: str) -> None:
        (self._home / word).touch()

    def heard(self, word: str) -> bool:
        return (self._home / word).exists()

    def wait_for(self, word: str, meanwhile: Callable[[], bool] = lambda: False) -> None:
        while not self.heard(word) and not meanwhile():
            time.sleep(0.01)


class Rank0:
    """What session, recorder and saver do on rank 0."""

    def __init__(self, folder: RunFolder, attempt: int, claim: int, stop_requested: Callable[[], bool]) -> None:
        self.folder = folder
        self.attempt = attempt
        self.stop_requested = stop_requested
        self.script = Script(folder, attempt, 0)
        self.refuse_company()
        journal = read_journal(folder)
        self.history = journal.history
        self.claim = claim
        ranks = int(os.environ["WORLD_SIZE"])
        ready = ev.WorkersReady(attempt=attempt, world_size=ranks, num_samples=1000, claim=claim)
        self.writer = JournalWriter(folder.attempt(attempt), ready, journal.counts)
        self.history = apply(self.history, ready)
        folder.metrics(attempt).parent.mkdir(exist_ok=True, mode=0o700)
        self.metrics = folder.metrics(attempt).open("a")
        self.leaving = False

    def refuse_company(self) -> None:
        """Leave word if a rank of another attempt of this claim's view is still running."""
        for report in self.folder.path.glob("reports/attempt-*/rank-*.json"):
            data = json.loads(report.read_text())
            other = report.parent.name != f"attempt-{self.attempt:04d}"
            if other and is_running(data["pid"], data["start_ticks"]):
                self.script.say(f"company-{self.attempt}-{report.parent.name}")

    def row(self, **values: Any) -> None:
        self.metrics.write(json.dumps(values) + "\n")
        self.metrics.flush()

    def record(self, event: ev.Event) -> None:
        self.writer.record(event)
        self.history = apply(self.history, event)

    def decide(self, event: ev.LossIncident | ev.CheckpointRejected) -> None:
        decision = decide(self.script.policy, self.history, event)
        self.record(ev.Decided(decision=decision))
        self.leaving = decision.action in ("requeue", "stop")

    def train(self) -> None:
        step = self.resume()
        while not self.leaving:
            if step == self.script.steps:
                self.save(step)
                self.record(
                    ev.RunFinished(
                        attempt=self.attempt,
                        step=step,
                        position=step * BATCH,
                        loss=1.0,
                        weights_digest="",
                        model=str(self.folder.model),
                    )
                )
                return
            step += 1
            self.act(step)
            if not self.leaving:
                self.step(step)

    def resume(self) -> int:
        self.row(phase="load")
        self.act(-1)
        while not self.leaving:
            plan = self.history.plan_decision.plan
            assert plan is not None
            problem = self.find_problem(plan.checkpoint) if plan.checkpoint else None
            if problem is None:
                self.record(
                    ev.Resumed(
                        attempt=self.attempt,
                        checkpoint=plan.checkpoint,
                        step=plan.step,
                        position=plan.position,
                        first_samples=(),
                    )
                )
                self.row(phase=None)
                return plan.step
            name = str(plan.checkpoint)
            catalog.set_aside(self.folder.checkpoints, name)
            self.record(ev.CheckpointQuarantined(name=name, reason=f"rejected: {problem}"))
            rejected = ev.CheckpointRejected(name=name, reason=problem)
            self.record(rejected)
            self.decide(rejected)
        return -1

    def find_problem(self, name: str) -> str | None:
        try:
            return catalog.find_damage(self.folder.checkpoints, catalog.read_manifest(self.folder.checkpoints, name))
        except ValueError as error:
            return str(error)

    def step(self, step: int) -> None:
        order = max((s.number for s in segments_in_force(self.history)), default=0)
        self.row(step=step, branch=self.history.branch, order=order, loss=1.0, samples=step * BATCH, step_s=0.001)
        for checkpoint in self.history.lineage:
            old_enough = checkpoint.step + self.script.certify_after <= step
            if old_enough and checkpoint.name not in self.history.certified:
                self.record(ev.CheckpointCertified(name=checkpoint.name, step=step))
        if self.stop_requested():
            self.record(ev.StopAgreed(attempt=self.attempt, step=step, checkpoint=self.save(step)))
            self.leaving = True
        elif step % self.script.save_every == 0:
            self.save(step)

    def save(self, step: int) -> str | None:
        """Commit a checkpoint as the store and the saver do; return its name."""
        if self.history.lineage and self.history.lineage[-1].step == step:
            return self.history.lineage[-1].name
        if is_replaced(self.folder, self.claim):
            raise RunBusyError("a newer supervisor owns this run; this attempt leaves")
        action = self.script.due(step, "save") or {"do": ""}
        if action["do"] == "save_stalls":
            self.script.say("saving")
            self.script.wait_for("go on saving")
        number = catalog.next_save_number(self.folder.checkpoints, self.history.known)
        name = catalog.checkpoint_name(step, number)
        place = self.folder.checkpoints / name
        place.mkdir(mode=0o700)
        (place / "rank-0000.pt").write_text(f"state after step {step}")
        checkpoint = ev.Checkpoint(
            name=name,
            step=step,
            position=step * BATCH,
            branch=self.history.branch,
            save_number=number,
            parent=self.history.lineage[-1].name if self.history.lineage else None,
        )
        self.commit(place, self.manifest(checkpoint, place), action["do"])
        self.record(ev.CheckpointCommitted(attempt=self.attempt, checkpoint=checkpoint))
        return name

    def commit(self, place: Path, manifest: Manifest, action: str) -> None:
        temporary = place / ".manifest.json.tmp"
        temporary.write_text(manifest.to_json())
        if action == "save_uncommitted":
            os.kill(os.getpid(), signal.SIGKILL)
        temporary.rename(place / catalog.MANIFEST)
        sync_folder(place)
        if action == "save_unrecorded":
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "save_unrecorded_node":
            self.kill_supervisor()

    def manifest(self, checkpoint: ev.Checkpoint, place: Path) -> Manifest:
        return Manifest(
            schema=catalog.SCHEMA,
            checkpoint=checkpoint,
            claim=self.claim,
            attempt=self.attempt,
            world_size=1,
            zero_stage=0,
            precision="fp32",
            model="",
            parameters=0,
            num_samples=1000,
            segments=[],
            versions={},
            files={path.name: catalog.digest_file(path) for path in place.iterdir()},
        )

    def act(self, step: int) -> None:
        action = self.script.due(step, "step")
        if action is None:
            return
        match action["do"]:
            case "wait":
                self.script.say(f"waiting at {step}")
                self.script.wait_for("go", lambda: self.stop_requested() or self.beat())
            case "loss" | "loss_undecided":
                incident = ev.LossIncident(
                    attempt=self.attempt,
                    detector="scripted",
                    onset_step=action["onset"],
                    onset_position=(action["onset"] - 1) * BATCH,
                    step=step,
                    position=step * BATCH,
                    message=f"scripted incident at step {step}",
                )
                self.record(incident)
                if action["do"] == "loss_undecided":
                    os.kill(os.getpid(), signal.SIGKILL)
                self.decide(incident)
                if action.get("then") == "stay":
                    self.script.say("decided")
                    self.script.wait_for("leave")
            case "lose_peer":
                self.script.say("about to lose a peer")
                lost = json.loads(self.folder.rank_report(self.attempt, action["peer"]).read_text())
                while is_running(lost["pid"], lost["start_ticks"]):
                    time.sleep(0.01)
                raise RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4242")
            case "node_lost":
                self.kill_supervisor()
            case "fork":
                if os.fork() == 0:
                    self.script.say(f"child {os.getpid()}")
                    threading.Event().wait()
            case _:
                fail(action)

    def beat(self) -> bool:
        self.row(phase=None)
        return False

    def kill_supervisor(self) -> None:
        pid = next(c.request.pid for c in self.history.claims if c.request.claim == self.claim)
        os.kill(pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def fail(action: dict[str, Any]) -> None:
    match action["do"]:
        case "crash":
            raise ERRORS[action.get("error", "RuntimeError")](action.get("message", "scripted crash"))
        case "crash_on_full_disk":
            # From here on no file of this process can grow; and a thread keeps Python from ending, as what is left
            # of a broken process group does.
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
            threading.Thread(target=threading.Event().wait).start()
            raise RuntimeError("scripted crash")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            threading.Event().wait()
        case other:
            raise ValueError(f"no such action: {other}")


def follow(folder: RunFolder, attempt: int, rank: int) -> None:
    """Be a rank that waits for rank 0 at each step."""
    script = Script(folder, attempt, rank)
    seen = 0
    while not script.heard(f"over-{attempt}"):
        steps = [row["step"] for row in read_rows(folder.metrics(attempt)) if "step" in row]
        # Rank 0 acts before step n when it has written step n - 1.
        while seen < (steps[-1] + 1 if steps else 1):
            seen += 1
            action = script.due(seen, "step")
            if action is not None:
                if "when" in action:
                    script.wait_for(action["when"])
                fail(action)
        time.sleep(0.01)


def train(folder: RunFolder, attempt: int, claim: int, stop_requested: Callable[[], bool]) -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank != 0:
        follow(folder, attempt, rank)
        return
    while not all(folder.rank_report(attempt, peer).exists() for peer in range(world_size)):
        time.sleep(0.01)
    rank_0 = Rank0(folder, attempt, claim, stop_requested)
    rank_0.train()
    rank_0.script.say(f"over-{attempt}")


def start_late() -> None:
    """Wait, if the script says so, as a slow file system makes a rank wait before it runs a line of ours."""
    script = Script(RunFolder(Path(sys.argv[1])), int(sys.argv[2]), int(os.environ["RANK"]))
    if script.due(0, "step"):
        script.say("starting")
        script.wait_for("begin")


if __name__ == "__main__":
    become_rank(os.environ)
    start_late()
    hpc_resume.worker.train.train = train
    main()
