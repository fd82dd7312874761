"""What `submit` says and how it exits once its runs have ended, by the way in which they did."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_resume.cli.output import after_sending
from hpc_resume.cli.submission import create_submission, record_operator
from hpc_resume.cluster.local_allocation import LocalAllocation
from hpc_resume.config.load import load_config
from hpc_resume.journal.writer import JournalWriter
from hpc_resume.recovery import events as ev
from hpc_resume.recovery.decisions import Decision


@pytest.mark.parametrize(
    ("rules", "trained", "code"),
    [
        (["input"], False, 2),
        (["input", "input"], False, 2),
        (["input", "out of memory"], False, 1),
        (["out of memory"], False, 1),
        (["input"], True, 1),
    ],
    ids=["its input", "the input of both", "one of them its input", "something else", "its input, later"],
)
def test_runs_that_failed_by_their_input_are_the_users_to_mend(
    config: Path, capsys: pytest.CaptureFixture[str], rules: list[str], trained: bool, code: int
) -> None:
    loaded = load_config(config, [f"sweep={{seed: {list(range(len(rules)))}}}"])
    folder = create_submission(loaded)
    runs = list(range(len(rules)))
    record_operator(folder, ev.Submitted(runs=tuple(runs), cluster="local")).close()
    for index, rule in enumerate(rules):
        writer = JournalWriter(folder.run(index).claim(1), LocalAllocation().request(1))
        writer.record(ev.ClaimOpened(claim=1, committed=()))
        if trained:
            writer.record(ev.AttemptStarted(attempt=1, claim=1, data_seed=0, host="n"))
            folder.run(index).metrics(1).parent.mkdir()
            folder.run(index).metrics(1).write_text('{"step":3,"loss":2.5,"step_s":0.5}\n')
        stop = Decision(number=1, action="stop", rule=rule, reason="it says why", outcome="failed")
        writer.record(ev.Decided(decision=stop))
        writer.record(ev.ClaimEnded(claim=1, outcome="failed", message="it says why"))
        writer.close()
    with pytest.raises(SystemExit) as caught:
        after_sending(folder, loaded, "local", "", runs, detach=False, as_json=True)
    assert caught.value.code == code
    advice = (
        "the input can't be used: correct it, then submit under another name with name=..., "
        f"or delete {folder.path} and submit again\n"
    )
    assert capsys.readouterr().err == (advice if "input" in rules and not trained else "")
