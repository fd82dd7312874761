"""Pictures show every spike, however long the curve, and whatever its losses are."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from hpc_resume.errors import ConfigError
from hpc_resume.loss_logs import LoggedPoint, LossCurve, replay
from hpc_resume.loss_logs.draw import MOST_PANELS, Panel, draw, make_panel
from hpc_resume.loss_logs.thinning import levels, missing_stretches, scale_of, thinned
from hpc_resume.monitor import MonitorSettings, Verdict


def points(losses: list[float]) -> list[LoggedPoint]:
    return [LoggedPoint(step=step, loss=loss) for step, loss in enumerate(losses, 1)]


def test_a_spike_of_one_step_among_143_000_stays_as_high_as_it_was() -> None:
    losses = [3 - step / 143_000 for step in range(143_000)]
    losses[77_777] = 50.0
    line = thinned(points(losses), 1000)
    assert len(line) <= 2000
    assert (77_778, 50.0) in line
    assert [step for step, _ in line] == sorted(step for step, _ in line)


def test_a_curve_with_fewer_points_than_columns_is_drawn_whole() -> None:
    assert thinned(points([3.0, 2.0, 4.0]), 1000) == [(1, 3.0), (2, 2.0), (3, 4.0)]


def test_a_line_is_broken_where_the_loss_is_no_number() -> None:
    line = thinned(points([3.0, math.nan, 2.0]), 1000)
    assert [step for step, _ in line] == [1, 2, 3]
    assert math.isnan(line[1][1])
    assert missing_stretches(points([1, math.nan, math.inf, 1, math.nan])) == [(2, 3), (5, 5)]


def test_the_level_is_the_median_of_a_column() -> None:
    assert levels(points([1.0, 9.0, 2.0, 3.0, math.nan]), 1) == [(3, 2.0)]
    assert math.isnan(levels(points([math.nan]), 1)[0][1])


@pytest.mark.parametrize(
    ("losses", "kind"),
    [
        ([11.0, 5.0, 2.0], "linear"),
        ([2.0, 1.0, 900.0], "log"),
        ([-1.0, 0.5, 2.0], "linear"),
        ([*[0.0, -0.5, 0.5] * 100, 1e9], "symlog"),
        ([math.nan], "linear"),
        ([0.0, 0.0], "linear"),
    ],
)
def test_the_axis_is_logarithmic_where_a_curve_spans_orders_of_magnitude(losses: list[float], kind: str) -> None:
    assert scale_of(points(losses)).kind == kind


def colours(path: Path) -> int:
    with Image.open(path) as image:
        assert image.format == "PNG"
        found = image.convert("RGB").getcolors(1 << 24)
    assert found is not None
    return len(found)


def verdict(kind: str, onset: int, step: int) -> Verdict:
    return Verdict(
        kind="incident" if kind == "incident" else "near_miss",
        detector="spike",
        onset_step=onset,
        onset_position=onset - 1,
        step=step,
        position=step,
        severity=2.0,
        may_recover=True,
        message="it rose",
        numbers={},
    )


@pytest.mark.parametrize(
    "losses",
    [
        [3.0] * 50,
        [3.0],
        [math.nan] * 5,
        [0.0] * 50,
        [*[2.0] * 40, math.nan, math.inf, -math.inf, *[2.0] * 7],
        [*[2.0] * 40, *[1e308] * 10],
        [*[-1e308] * 10, *[1e308] * 10, *[0.0] * 30],
        [1e-320, *[5e-324] * 20],
        [2 + math.sin(step) for step in range(5000)],
    ],
    ids=["flat", "one point", "nothing finite", "zero", "gaps", "huge", "all sizes", "tiny", "long"],
)
def test_any_curve_can_be_drawn(tmp_path: Path, losses: list[float]) -> None:
    curve = LossCurve(name="$x_1$ runs/[a]", points=tuple(points(losses)))
    last = len(losses)
    marks = [verdict("near_miss", 1, 1), verdict("incident", last, last), verdict("incident", last - 1 or 1, last)]
    path = tmp_path / "new" / "picture.png"
    draw([make_panel(curve, marks, "about $it$"), make_panel(curve, [], "nothing")], path)
    assert colours(path) > 10


@pytest.fixture
def panel() -> Callable[[list[float], MonitorSettings], Panel]:
    def made(losses: list[float], settings: MonitorSettings) -> Panel:
        curve = LossCurve(name="curve", points=tuple(points(losses)))
        return make_panel(curve, replay(curve, settings).verdicts, "")

    return made


def test_the_curve_is_told_apart_from_the_first_incident_on(
    panel: Callable[[list[float], MonitorSettings], Panel],
) -> None:
    made = panel([3.0, 3.0, 9.0, 9.0, 3.0], MonitorSettings(loss_watchdog_threshold=5.0, loss_watchdog_patience=2))
    assert [step for step, _ in made.before.loss] == [1, 2, 3, 4]
    assert [step for step, _ in made.after.loss] == [4, 5]
    assert [(mark.verdict.onset_step, mark.onset_loss, mark.loss) for mark in made.marks] == [(3, 9.0, 9.0)]


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect all that is written into pictures."""
    from matplotlib.text import Text

    seen: list[str] = []
    draw_text = Text.draw

    def collect(self: Any, renderer: Any) -> None:
        seen.append(self.get_text())
        draw_text(self, renderer)

    monkeypatch.setattr(Text, "draw", collect)
    return seen


def test_the_legend_says_what_pale_and_dark_lines_and_faded_marks_are(tmp_path: Path, words: list[str]) -> None:
    curve = LossCurve(name="long", points=tuple(points([2 + math.sin(step) for step in range(5000)])))
    marks = [verdict("near_miss", 90, 99), verdict("incident", 2000, 2010), verdict("incident", 3000, 3010)]
    draw([make_panel(curve, marks, "")], tmp_path / "a.png")
    assert {"loss", "its median", "past the first incident", "its median there"} <= set(words)
    assert {"near miss (1)", "incident (1)", "incident past the first incident"} <= set(words)


@pytest.mark.parametrize(
    ("incident_at", "told"), [(20, True), (41, False), (None, True)], ids=["before it", "it itself", "no incident"]
)
def test_a_loss_that_is_no_number_is_named_where_the_first_incident_does_not(
    tmp_path: Path, words: list[str], incident_at: int | None, told: bool
) -> None:
    curve = LossCurve(name="gap", points=tuple(points([*[2.0] * 40, *[math.nan] * 10, *[2.0] * 9])))
    marks = [] if incident_at is None else [verdict("incident", incident_at, incident_at)]
    draw([make_panel(curve, marks, "")], tmp_path / "a.png")
    assert ("NaN or infinite since step 41" in words) is told


def test_more_curves_than_can_be_looked_at_are_refused(
    tmp_path: Path, panel: Callable[[list[float], MonitorSettings], Panel]
) -> None:
    with pytest.raises(ConfigError, match=f"{MOST_PANELS} at most"):
        draw([panel([3.0], MonitorSettings())] * (MOST_PANELS + 1), tmp_path / "a.png")


def test_a_picture_that_can_not_be_written_is_an_error_of_one_line(
    tmp_path: Path, panel: Callable[[list[float], MonitorSettings], Panel]
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="can't be written"):
        draw([panel([3.0], MonitorSettings())], tmp_path / "file" / "a.png")
