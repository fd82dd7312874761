"""`submit`: check everything, make the folder, send the runs."""

from __future__ import annotations

from pathlib import Path

import typer


def submit(
    config: Path = typer.Argument(..., help="The YAML file that describes the runs."),
    overrides: list[str] = typer.Argument(None, help="Settings that go before the file's: key=value."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Print the plan; create and start nothing."),
    detach: bool = typer.Option(False, "--detach", help="Do not wait for runs on this machine."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Submit the runs that a config describes, as one job array.

    On this machine the progress is shown until they end; Ctrl-C stops them cleanly, and `resubmit` goes on.
    """
    from hpc_resume.cli import output
    from hpc_resume.cli.plan import show_plan
    from hpc_resume.cli.submission import create_submission, send
    from hpc_resume.cluster.choose import cluster_kind, has_sbatch, make_cluster, wanted_kind
    from hpc_resume.config.check import check_before_submit
    from hpc_resume.config.load import load_config
    from hpc_resume.config.sweep import expand
    from hpc_resume.recovery.events import Submitted

    loaded = load_config(config, overrides or [])
    # A plan can be looked at anywhere; only to send it the cluster must be there.
    kind = wanted_kind(loaded) if dry_run else cluster_kind(loaded)
    check_before_submit(loaded, kind)
    if dry_run:
        show_plan(loaded, kind, can_send=kind != "slurm" or has_sbatch(), as_json=as_json)
        return
    make_cluster(kind).check(loaded)
    folder = create_submission(loaded)
    runs = list(range(len(expand(loaded))))
    job_id = send(folder, loaded, kind, Submitted(runs=tuple(runs), cluster=kind), new=True)
    output.after_sending(folder, loaded, kind, job_id, runs, detach=detach, as_json=as_json)
