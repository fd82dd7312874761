"""The report as one HTML file without anything outside of it."""

from __future__ import annotations

import html
import io
import math
from typing import TYPE_CHECKING

from hpc_resume.journal.folder import RunFolder
from hpc_resume.recovery import History
from hpc_resume.reporting.curve import Curve

if TYPE_CHECKING:
    from hpc_resume.reporting.report import Report

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.headline { color: #57606a; margin-top: .25rem; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; }
td, th { text-align: left; padding: .3rem .75rem .3rem 0; border-bottom: 1px solid #d8dee4; vertical-align: top; }
td.n { white-space: nowrap; font-variant-numeric: tabular-nums; }
tr.LossIncident td, tr.AttemptEnded td, tr.CheckpointRejected td, tr.SaveFailed td { background: #fff1e5; }
tr.RunFinished td { background: #dafbe1; }
svg { width: 100%; height: auto; } code { font-size: .85rem; }
"""


def write_page(folder: RunFolder, report: Report, curves: list[Curve], history: History) -> None:
    """Write the page of a run through a temporary file, so that a reader never sees half of it."""
    name = f"{folder.submission.path.name}, run {report.run}"
    parts = [
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{_e(name)}: {_e(report.state)}</title>",
        f"<style>{_STYLE}</style></head><body><h1>{_e(name)}: {_e(report.state)}</h1>",
        f"<p class='headline'>{_e(report.headline)}</p>",
        _plot(curves, history),
        "<h2>What happened</h2>",
        _table(
            ["when", "step", ""],
            [
                (entry.kind, [entry.when, "" if entry.step is None else str(entry.step), entry.text])
                for entry in report.timeline
            ],
        ),
        "<h2>What it cost</h2>",
        _table(["", ""], [("", [key, value]) for key, value in report.costs.items()]),
        "<h2>Out of the ordinary</h2>",
        _table(["", ""], [("", [key, str(count)]) for key, count in report.odd.items() if count])
        if any(report.odd.values())
        else "<p>Nothing.</p>",
        "<h2>Order of the data</h2>",
        "<ul>" + "".join(f"<li>{_e(line)}</li>" for line in report.order) + "</ul>",
        "<h2>Checkpoints</h2>",
        _table(
            ["step", "name", "state"],
            [("", [row["step"], row["name"], row["state"]]) for row in report.checkpoints],
        ),
        "<h2>Where things lie</h2>",
        _table(["", ""], [("", [key, value]) for key, value in _places(folder).items()]),
        "</body></html>",
    ]
    temporary = folder.report.with_suffix(".tmp")
    temporary.write_text("\n".join(parts), encoding="utf-8")
    temporary.replace(folder.report)


def _e(text: str) -> str:
    return html.escape(text)


def _table(head: list[str], rows: list[tuple[str, list[str]]]) -> str:
    header = "<tr>" + "".join(f"<th>{_e(cell)}</th>" for cell in head) + "</tr>" if any(head) else ""
    body = "".join(
        f"<tr class='{kind}'>"
        + "".join(f"<td{' class=n' if i < len(cells) - 1 else ''}>{_e(cell)}</td>" for i, cell in enumerate(cells))
        + "</tr>"
        for kind, cells in rows
    )
    return f"<table>{header}{body}</table>"


def _places(folder: RunFolder) -> dict[str, str]:
    return {
        "model": str(folder.model),
        "checkpoints": str(folder.checkpoints),
        "logs of the ranks": str(folder.log(1, 0).parent.parent),
        "log of the supervisors": str(folder.supervisor_log()),
        "journal": str(folder.journal),
        "settings": str(folder.submission.config),
    }


def _plot(curves: list[Curve], history: History) -> str:
    if not curves:
        return "<p>No step was trained yet.</p>"
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    bottom, top = _limits(curves)
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    seen: set[str] = set()
    for curve in sorted(curves, key=lambda c: not c.abandoned):
        points = [(row["step"], row["loss"]) for row in curve.rows if math.isfinite(row["loss"])]
        highest = max((y for _, y in points), default=0.0)
        label = "given up" if curve.abandoned else "kept"
        if curve.abandoned and highest > top:
            label = f"given up (up to {highest:.3g})"
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            color="#bf8700" if curve.abandoned else "#0969da",
            linewidth=1.0 if curve.abandoned else 1.6,
            alpha=0.8,
            label=None if label in seen else label,
        )
        seen.add(label)
    for incident in history.incidents:
        axes.axvline(incident.onset_step, color="#cf222e", linewidth=0.8, linestyle="--")
        axes.annotate(
            f"{incident.detector} since step {incident.onset_step}",
            (incident.onset_step, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(3, -10),
            textcoords="offset points",
            fontsize=8,
            color="#cf222e",
        )
    axes.set_ylim(bottom, top)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("loss")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    text = io.StringIO()
    figure.savefig(text, format="svg")
    return text.getvalue()[text.getvalue().index("<svg") :]


def _limits(curves: list[Curve]) -> tuple[float, float]:
    """Choose where the loss axis begins and ends: a spike that was given up must not press the kept curve flat."""

    def losses(*, abandoned: bool) -> list[float]:
        chosen = [curve for curve in curves if curve.abandoned is abandoned]
        return [row["loss"] for curve in chosen for row in curve.rows if math.isfinite(row["loss"])]

    kept, given_up = losses(abandoned=False), losses(abandoned=True)
    shown = kept or given_up or [0.0]
    margin = 0.15 * (max(shown) - min(shown)) or 0.15 * abs(shown[0]) or 1.0
    lowest, highest = min(shown + given_up), max(shown + given_up)
    return max(lowest, min(shown) - margin) - 0.3 * margin, min(highest + 0.3 * margin, max(shown) + margin)
