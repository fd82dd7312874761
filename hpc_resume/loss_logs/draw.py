"""Pictures of replayed curves: the loss, what the monitor said, and since when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_resume.errors import ConfigError
from hpc_resume.loss_logs.curve import LoggedPoint, LossCurve
from hpc_resume.loss_logs.thinning import Line, Scale, drawable, levels, missing_stretches, scale_of, thinned
from hpc_resume.monitor import Verdict

MOST_PANELS = 40
"""More curves in one picture could not be looked at, and would soon be more pixels than matplotlib makes."""

_WIDTH_IN, _HEIGHT_IN, _DPI = 11.0, 4.4, 140
_COLUMNS = 1400
"""The axes are about as many pixels wide, so finer detail would not be seen."""

_LEVEL_COLUMNS, _POINTS_A_LEVEL = 280, 16
"""A median of the first many columns shows the level below the noise, if each has as many points as the second."""

_INK, _GRID, _QUIET = "#1b1f24", "#e4e8ec", "#57606a"
_LOSS, _LEVEL, _UNREAL, _UNREAL_LEVEL = "#6ea8e8", "#0b4a94", "#c8ced5", "#959da6"
_INCIDENT, _NEAR_MISS, _MISSING = "#cf222e", "#d97b00", "#8250df"
_FAINT = 0.25
_LONGEST_NAME = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """A part of a curve as it is drawn."""

    loss: Line
    level: Line
    """The medians of its columns; empty where every point can be seen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A verdict in the picture, with the losses at its steps."""

    verdict: Verdict
    onset_loss: float
    loss: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """What is drawn of one curve; small, however long the curve is."""

    name: str
    about: str
    before: Stretch
    """Up to the first incident."""
    after: Stretch
    """From there on, where a live run would have gone back."""
    scale: Scale
    missing: list[tuple[int, int]]
    marks: list[Mark]


def make_panel(curve: LossCurve, verdicts: Sequence[Verdict], about: str) -> Panel:
    """Return what is drawn of a curve and of what the monitor said about it; `about` is said below its name."""
    points = curve.points
    cut = next((verdict.step for verdict in verdicts if verdict.is_incident), points[-1].step)
    losses = {point.step: point.loss for point in points} if verdicts else {}
    return Panel(
        name=curve.name,
        about=about,
        before=_stretch([point for point in points if point.step <= cut], points),
        after=_stretch([point for point in points if point.step >= cut] if cut < points[-1].step else [], points),
        scale=scale_of(points),
        missing=missing_stretches(points),
        marks=[
            Mark(
                verdict=verdict,
                onset_loss=_shown(losses.get(verdict.onset_step)),
                loss=_shown(losses.get(verdict.step)),
            )
            for verdict in verdicts
        ],
    )


def _shown(loss: float | None) -> float:
    """Return where a mark is drawn; NaN where there is no such place."""
    return drawable(loss) if loss is not None and math.isfinite(loss) else math.nan


def _stretch(part: Sequence[LoggedPoint], whole: Sequence[LoggedPoint]) -> Stretch:
    # Each part gets its share of the width.
    share = (part[-1].step - part[0].step + 1) / (whole[-1].step - whole[0].step + 1) if part else 0
    dense = len(whole) > _COLUMNS
    level_columns = min(_LEVEL_COLUMNS, len(whole) // _POINTS_A_LEVEL)
    return Stretch(
        loss=thinned(part, max(1, round(share * _COLUMNS))) if part else [],
        level=levels(part, max(1, round(share * level_columns))) if dense else [],
    )


def draw(panels: Sequence[Panel], path: Path) -> None:
    """Write one PNG with the panels below each other.

    Raises:
        ConfigError: it can't be written, or there are too many panels.
    """
    if len(panels) > MOST_PANELS:
        raise ConfigError(
            f"{path}: one picture can't show {len(panels)} curves, {MOST_PANELS} at most; give --plot a folder instead"
        )
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12, hspace=0.06)
    figure = Figure(figsize=(_WIDTH_IN, _HEIGHT_IN * len(panels)), dpi=_DPI, layout=layout)
    FigureCanvasAgg(figure)
    for axes, panel in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
        _draw_panel(axes, panel)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="png")
    except OSError as error:
        raise ConfigError(f"{path}: the picture can't be written: {error.strerror or error}") from error


def _draw_panel(axes: Any, panel: Panel) -> None:
    _dress(axes, panel)
    _draw_stretch(axes, panel.before, (_LOSS, _LEVEL), ("loss", "its median"))
    _draw_stretch(axes, panel.after, (_UNREAL, _UNREAL_LEVEL), ("past the first incident", "its median there"))
    for first, last in panel.missing:
        axes.axvspan(first, last, ymax=0.035, facecolor=_MISSING, edgecolor=_MISSING, linewidth=1.2)
    if panel.missing:
        axes.plot([], [], color=_MISSING, linewidth=4, solid_capstyle="butt", label="NaN or infinite")
    if panel.marks:
        axes.scatter([], [], label="onset", **_ring(_QUIET))
    first_incident = next((mark for mark in panel.marks if mark.verdict.is_incident), None)
    for kind, color, marker in (("near_miss", _NEAR_MISS, "D"), ("incident", _INCIDENT, "v")):
        marks = [mark for mark in panel.marks if mark.verdict.kind == kind]
        # What follows the first incident is no more than a trace of itself, or it would hide that one.
        later = [mark for mark in marks if first_incident and mark.verdict.step > first_incident.verdict.step]
        _draw_marks(axes, later, color, marker, faint=True)
        _draw_marks(axes, [mark for mark in marks if mark not in later], color, marker, faint=False)
        if later:
            label = f"{kind.replace('_', ' ')} past the first incident"
            axes.scatter([], [], alpha=_FAINT, label=label, **_filled(color, marker))
        if len(marks) > len(later):
            label = f"{kind.replace('_', ' ')} ({len(marks) - len(later)})"
            axes.scatter([], [], label=label, **_filled(color, marker))
    if first_incident is not None:
        _point_out(axes, first_incident.verdict)
    _point_out_missing(axes, panel, first_incident)
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(-0.012, -0.07),
        ncols=6,
        frameon=False,
        fontsize=9,
        labelcolor=_QUIET,
        handletextpad=0.5,
        columnspacing=1.8,
    )


def _dress(axes: Any, panel: Panel) -> None:
    """Name the axes and keep everything that is no data in the background."""
    scale = panel.scale
    if scale.kind == "log":
        axes.set_yscale("log")
    elif scale.kind == "symlog":
        axes.set_yscale("symlog", linthresh=scale.linear_up_to)
    if scale.bounds is not None:
        axes.set_ylim(*scale.bounds)
    name = panel.name if len(panel.name) <= _LONGEST_NAME else f"…{panel.name[1 - _LONGEST_NAME :]}"
    # Neither may be taken for mathematics: paths can hold dollar signs.
    axes.set_title(name, loc="left", fontsize=11.5, fontweight="bold", color=_INK, pad=24, parse_math=False)
    axes.text(0, 1.03, panel.about, transform=axes.transAxes, fontsize=9, color=_QUIET, parse_math=False)
    axes.set_xlabel("optimizer step", loc="right", fontsize=9, color=_QUIET)
    label = "loss" if scale.kind == "linear" else "loss, logarithmic"
    if scale.bounds is not None:
        label += " (the first steps are higher)"
    axes.set_ylabel(label, fontsize=9, color=_QUIET)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#afb8c1")
    axes.tick_params(labelsize=9, labelcolor=_QUIET, color="#afb8c1", which="both")
    axes.tick_params(axis="y", length=0, which="both")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.margins(x=0.012, y=0.07)


def _draw_stretch(axes: Any, stretch: Stretch, colors: tuple[str, str], labels: tuple[str, str]) -> None:
    """Draw a line as it is; one that is too dense to be followed pale, with the medians of its columns over it."""
    if not stretch.loss:
        return
    axes.plot(
        *zip(*stretch.loss, strict=True),
        color=colors[0] if stretch.level else colors[1],
        linewidth=0.7 if stretch.level else 1.3,
        # So few points are seen as such; a lone one would not be seen at all.
        marker="." if len(stretch.loss) < 60 else None,
        markersize=4,
        solid_joinstyle="round",
        label=labels[0],
    )
    if stretch.level:
        axes.plot(*zip(*stretch.level, strict=True), color=colors[1], linewidth=1.5, label=labels[1])


def _ring(color: str) -> dict[str, Any]:
    return {"marker": "o", "s": 38, "facecolors": "white", "edgecolors": color, "linewidths": 1.4}


def _filled(color: str, marker: str) -> dict[str, Any]:
    return {"marker": marker, "s": 48, "facecolors": color, "edgecolors": "white", "linewidths": 0.8}


def _draw_marks(axes: Any, marks: Sequence[Mark], color: str, marker: str, *, faint: bool) -> None:
    """Draw verdicts of one kind: a shade from the onset to the verdict, a ring at the one, a marker at the other."""
    alpha = _FAINT if faint else 1.0
    for mark in () if faint else marks:
        axes.axvspan(
            mark.verdict.onset_step, mark.verdict.step, facecolor=color, edgecolor=color, alpha=0.14, linewidth=0.8
        )
    _scatter(axes, [(mark.verdict.onset_step, mark.onset_loss) for mark in marks], alpha=alpha, **_ring(color))
    _scatter(axes, [(mark.verdict.step, mark.loss) for mark in marks], alpha=alpha, **_filled(color, marker))


def _scatter(axes: Any, places: Sequence[tuple[int, float]], **style: Any) -> None:
    """Mark places on the curve; one that has no finite loss is marked at the foot of the picture."""
    on_curve = [(step, loss) for step, loss in places if math.isfinite(loss)]
    at_the_foot = [(step, 0.035) for step, loss in places if not math.isfinite(loss)]
    if on_curve:
        axes.scatter(*zip(*on_curve, strict=True), zorder=5, **style)
    if at_the_foot:
        axes.scatter(*zip(*at_the_foot, strict=True), zorder=5, transform=axes.get_xaxis_transform(), **style)


def _point_out(axes: Any, verdict: Verdict) -> None:
    """Write beside the first incident what it was, on the side where there is room."""
    low, high = axes.get_xlim()
    on_the_left = verdict.step > low + 0.65 * (high - low)
    axes.annotate(
        f"{verdict.detector} since step {verdict.onset_step:,}, seen at step {verdict.step:,}",
        (verdict.onset_step if on_the_left else verdict.step, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(-7 if on_the_left else 7, -10),
        textcoords="offset points",
        ha="right" if on_the_left else "left",
        fontsize=9,
        color=_INCIDENT,
    )


def _point_out_missing(axes: Any, panel: Panel, first_incident: Mark | None) -> None:
    """Write over the first stretch without a finite loss since when it lasts, unless the first incident says it."""
    if not panel.missing:
        return
    first, last = panel.missing[0]
    if first_incident is not None and first <= first_incident.verdict.step <= last:
        return
    low, high = axes.get_xlim()
    on_the_left = first > low + 0.8 * (high - low)
    axes.annotate(
        f"NaN or infinite {'at' if first == last else 'since'} step {first:,}",
        (first, 1.0),
        xycoords=("data", "axes fraction"),
        # Below what is said of the first incident, and above where losses are late in most trainings.
        xytext=(-7 if on_the_left else 7, -26),
        textcoords="offset points",
        ha="right" if on_the_left else "left",
        fontsize=9,
        color=_MISSING,
    )
