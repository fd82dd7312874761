"""What the loss monitor and other detectors find on real curves: the first part of `monitor.py`, which runs it."""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import shlex
import statistics
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from hpc_resume.monitor import Monitor, MonitorSettings, Observation

CORPUS = Path(__file__).parents[2] / "shared" / "corpus"
OURS, COMMAND = "hpc_resume", "hpc_resume as a program"
REFERENCES = {
    "axolotl watchdog (5.0, patience 3)": "fixed_5.0_p3",
    "llm-foundry KillLossSpike": "window_mean_x2_p4_cap10",
    "Megatron rerun test (x10, NaN)": "max100_x10_or_nan",
    "EMA z > 6 (OLMo, ZClip)": "ema_z_6",
    "rolling median/MAD, k 6, patience 3": "mad_k6_p3",
}
"""Detectors that people have, by the names that the corpus's scorer gives them."""

LONG_POINTS, LATE_STEP = 100_000, 20_000
"""Slow late events are those of curves of so many points, after this step."""


def measure_curves(corpus: Path, split: str, max_points: int, check_cmd: bool) -> dict[str, Any]:
    """Run all detectors over the corpus, and return the scorer's summary of each and more about ours."""
    score = load_scorer(corpus)
    rows = [row for row in score.load_manifest(str(corpus)) if row["split"] == split]
    rows = [row for row in rows if int(row["n_points"]) <= max_points]
    if not rows:
        sys.exit(f"{corpus} has no curves of split {split!r} with at most {max_points} points")
    # The longest first, so that no core ends up with one of them alone.
    rows.sort(key=lambda row: -int(row["n_points"]))
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        curves = list(pool.map(functools.partial(run_detectors, corpus, check_cmd=check_cmd), rows))
    found = {
        "split": split,
        "curves": len(curves),
        "points": sum(curve["points"] for curve in curves),
        "detectors": {name: summary(score, curves, name) for name in curves[0]["scored"]},
        "ours_by_detector": by_detector(curves),
    }
    if check_cmd:
        found["program_differs_in"] = sorted(curve["id"] for curve in curves if curve["program_differs"])
    return found


@functools.cache
def load_scorer(corpus: Path) -> Any:
    """Import the corpus's own scorer."""
    sys.dont_write_bytecode = True  # the corpus's folder is not ours to write to
    spec = importlib.util.spec_from_file_location("corpus_score", corpus / "score.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_detectors(corpus: Path, row: dict[str, str], *, check_cmd: bool) -> dict[str, Any]:
    """Run every detector over one curve and let the scorer compare the alarms with the labels."""
    score = load_scorer(corpus)
    label = score.load_labels(str(corpus))[row["id"]]
    step, loss, norm, _ = score.load_curve(row["id"], str(corpus))
    verdicts = our_verdicts(step.tolist(), loss.tolist(), norm)
    references = dict(score.REFERENCES)
    alarms: dict[str, list[int]] = {OURS: list(verdicts)}
    alarms |= {name: [int(at) for at in references[key](step, loss, norm)] for name, key in REFERENCES.items()}
    if check_cmd:
        alarms[COMMAND] = score.command_detector(shlex.join([sys.executable, "-m", "hpc_resume.monitor"]))(
            step, loss, norm
        )
    about = {"id": row["id"], "repo": row["source_repo"], "status": label["status"]}
    return {
        **about,
        "label": label,
        "points": len(loss),
        "verdicts": verdicts,
        # By step: a log may have a step twice, and the program names steps.
        "program_differs": {step[at] for at in alarms[OURS]} != {step[at] for at in alarms.get(COMMAND, alarms[OURS])},
        "scored": {
            name: {how: {**score.score_curve(at, len(loss), label, step, how), **about} for how in ("count", "ignore")}
            for name, at in alarms.items()
        },
    }


def our_verdicts(steps: list[float], losses: list[float], norms: Any) -> dict[int, tuple[str, str]]:
    """Return detector and kind of each verdict, by the index of the point at which it was reached."""
    monitor = Monitor(MonitorSettings())
    # As the scorer tells it to a program: a norm that is NaN was not logged.
    known = [None] * len(steps) if norms is None else [None if math.isnan(norm) else norm for norm in norms.tolist()]
    found: dict[int, tuple[str, str]] = {}
    for index, (step, loss, norm) in enumerate(zip(steps, losses, known, strict=True)):
        verdict = monitor.observe(
            Observation(step=int(step), start_position=index, position=index + 1, loss=loss, grad_norm=norm)
        )
        if verdict is not None:
            found[index] = (verdict.detector, verdict.kind)
    return found


def summary(score: Any, curves: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the scorer's figures of one detector, and how many of the slow late events it found."""
    scored = [curve["scored"][name] for curve in curves]
    found = score.summarise([each["count"] for each in scored])
    found["fa_per_10k_without_outliers"] = score.summarise([each["ignore"] for each in scored])["fa_per_10k"]
    late = [
        (delay is not None, curve["scored"][name]["count"]["chance"])
        for curve in curves
        if curve["points"] >= LONG_POINTS
        for event, (kind, delay) in zip(scored_events(curve), curve["scored"][name]["count"]["hits"], strict=True)
        if kind != "nan" and event["onset_step"] > LATE_STEP
    ]
    chances = [chance for _, chance in late if chance is not None]
    found |= {
        "late_events": len(late),
        "late_detected": sum(hit for hit, _ in late),
        "late_chance": statistics.mean(chances) if chances else None,
    }
    return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in found.items()}


def scored_events(curve: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events that count, in the order of the scorer's hits."""
    return [event for event in curve["label"]["events"] if event["confidence"] == "high"]


def by_detector(curves: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Return what each of our detectors was the first to find, and what it said where nothing was to be found."""
    rows: dict[str, Counter[str]] = {}

    def count(verdict: tuple[str, str], what: str) -> None:
        rows.setdefault(verdict[0], Counter())[what] += 1

    for curve in curves:
        scored = curve["scored"][OURS]["count"]
        for event, (kind, delay) in zip(scored_events(curve), scored["hits"], strict=True):
            if delay is not None:
                count(curve["verdicts"][event["onset_index"] + delay], kind)
        for index in scored["false"]:
            count(curve["verdicts"][index], "false")
        if curve["status"] == "clean":
            for verdict in curve["verdicts"].values():
                count(verdict, f"clean_{verdict[1]}")
    return {name: dict(counted) for name, counted in sorted(rows.items())}


def curves_text(found: dict[str, Any]) -> str:
    """Return what was found on the curves as text."""
    head = "detector,events found,recall,by repo,chance,FA,FA*,clean runs hit,delay,slow late,chance".split(",")
    rows = [head] + [
        [
            name,
            f"{each['detected']}/{each['events']}",
            *(number(each[key]) for key in ("recall", "recall_by_repo", "chance", "fa_per_10k")),
            number(each["fa_per_10k_without_outliers"]),
            f"{each['clean_curves_alarmed']}/{each['clean_curves']}",
            number(each["delay_median"], 0),
            f"{each['late_detected']}/{each['late_events']}",
            number(each["late_chance"]),
        ]
        for name, each in found["detectors"].items()
    ]
    kinds = found["detectors"][OURS]["by_kind"]
    more = ["false", "clean_near_miss", "clean_incident"]
    ours = [["ours", *kinds, "false alarms", "near misses", "incidents"]]
    ours += [["all", *(f"{hit}/{of}" for hit, of in kinds.values()), str(found["detectors"][OURS]["false_alarms"])]]
    for name, each in found["ours_by_detector"].items():
        ours.append([name, *(str(each.get(key, 0)) for key in [*kinds, *more])])
    ours[1] += [str(sum(each.get(key, 0) for each in found["ours_by_detector"].values())) for key in more[1:]]
    lines = [
        f"{found['curves']} curves of split {found['split']}, {found['points']:,} points, by the corpus's own scorer.",
        "FA: false alarms per 10,000 clean points; FA*: the same without lone outliers; delay: median, in points;",
        "chance: how often a clean stretch as long as the window for an event holds an alarm anyway;",
        f"slow late: events other than NaN after step {LATE_STEP:,} in curves of {LONG_POINTS:,} points or more.",
        "",
        aligned(rows),
        "",
        "Ours by kind of event, and by the detector that was first to find it;",
        "near misses and incidents are all those in clean curves.",
        "",
        aligned(ours),
    ]
    if "program_differs_in" in found:
        differs = ", ".join(found["program_differs_in"])
        told = f"other alarms on {differs}" if differs else "the same alarms on every curve"
        lines += ["", f"python -m hpc_resume.monitor gives {told}."]
    return "\n".join(lines)


def number(value: float | None, digits: int = 2) -> str:
    """Return a number as text, and a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def aligned(rows: list[list[str]]) -> str:
    """Return rows in columns, the first one to the left."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    cells = ([cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return "\n".join("  ".join([row[0].ljust(widths[0]), *rest]) for row, (_, *rest) in zip(rows, cells, strict=True))
