"""`backtest` through the real command line: what it prints, draws and exits with."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from PIL import Image

Command = Callable[..., subprocess.CompletedProcess[str]]

FIRED, NOTHING, TROUBLE = 0, 1, 2


def quiet(steps: int, seed: int = 0) -> list[float]:
    noise = random.Random(seed)
    return [3 + noise.gauss(0, 0.02) for _ in range(steps)]


def write(path: Path, losses: list[float], *, every: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{every * step} {loss!r}\n" for step, loss in enumerate(losses, 1)))
    return path


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A log with a loss that is not a number at step 101, and later once more."""
    losses = quiet(200)
    losses[100] = losses[150] = math.nan
    return write(tmp_path / "broken.txt", losses)


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    return write(tmp_path / "healthy.txt", quiet(200, seed=1))


def strict(text: str) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_an_incident_is_shown_with_what_would_have_been_done(command: Command, broken: Path) -> None:
    done = command("backtest", broken)
    assert (done.returncode, done.stderr) == (FIRED, "")
    heading, head, first, *rest = done.stdout.splitlines()
    assert heading == f"{broken}: 200 points, steps 1 to 200, every step: 2 incidents"
    assert head.split() == ["kind", "detector", "onset", "step", "step", "delay", "severity", "message"]
    assert first.split()[:5] == ["incident", "non_finite", "101", "101", "0"]
    assert rest[0].split()[:5] == ["incident", "non_finite", "151", "151", "0"]
    assert rest[1] == (
        "  at step 101 it would have gone back to the newest certified checkpoint of step 96 or before, and the "
        "samples that are left would have got a new order (rule: loss incident) [loss budget: 1 of 4 used]"
    )
    assert rest[2].startswith("  what follows step 101 would not have happened as logged")


def test_an_incident_near_the_beginning_goes_back_to_it(command: Command, tmp_path: Path) -> None:
    done = command("backtest", write(tmp_path / "a.txt", [3.0, 3.0, math.nan]))
    assert done.returncode == FIRED
    assert "at step 3 it would have gone back to the beginning, and the samples" in done.stdout
    assert "would not have happened" not in done.stdout


def test_nothing_is_exit_code_1(command: Command, healthy: Path) -> None:
    done = command("backtest", healthy)
    assert (done.returncode, done.stderr) == (NOTHING, "")
    assert done.stdout == f"{healthy}: 200 points, steps 1 to 200, every step: nothing would have fired\n"


def test_a_near_miss_alone_is_exit_code_0(command: Command, tmp_path: Path) -> None:
    losses = quiet(400)
    losses[200:203] = [9.0, 9.0, 9.0]
    done = command("backtest", "--json", write(tmp_path / "a.txt", losses))
    assert done.returncode == FIRED
    (curve,) = strict(done.stdout)["curves"]
    assert {verdict["kind"] for verdict in curve["verdicts"]} == {"near_miss"}
    assert curve["verdicts"][0]["onset_step"] == 201
    assert curve["recovery"] is None


def test_a_log_that_can_not_be_read_gets_a_line_and_the_others_go_on(
    command: Command, tmp_path: Path, broken: Path, healthy: Path
) -> None:
    (tmp_path / "torn.json").write_text('{"log_history": [')
    (tmp_path / "nothing.csv").write_text("")
    done = command("backtest", "torn.json", healthy, "nothing.csv", "missing.log", broken)
    assert done.returncode == TROUBLE
    assert [line.partition(": ")[2].partition(":")[0] for line in done.stderr.splitlines()] == [
        "torn.json",
        "nothing.csv",
        "missing.log",
    ]
    assert all(line.startswith("error: ") for line in done.stderr.splitlines())
    assert f"{healthy}: 200 points" in done.stdout
    assert f"{broken}: 200 points" in done.stdout


def test_a_folder_is_searched_and_what_is_no_log_in_it_is_no_error(command: Command, tmp_path: Path) -> None:
    write(tmp_path / "logs" / "a" / "losses.txt", quiet(50))
    (tmp_path / "logs" / "notes.txt").write_text("buy milk\n")
    (tmp_path / "logs" / "empty.out").write_text("")
    done = command("backtest", "logs")
    assert done.returncode == NOTHING
    assert done.stdout.startswith("logs/a/losses.txt: 50 points")
    assert done.stderr == (
        "left out: logs: 2 files below it have no training loss in a form that is known: empty.out, notes.txt; name "
        "one alone to see why\n"
    )


def test_what_is_broken_in_a_folder_is_an_error(command: Command, tmp_path: Path) -> None:
    write(tmp_path / "logs" / "losses.txt", quiet(50))
    (tmp_path / "logs" / "trainer_state.json").write_text("{")
    (tmp_path / "logs" / "binary.log").write_bytes(bytes(100))
    done = command("backtest", "logs")
    assert done.returncode == TROUBLE
    assert len(done.stderr.splitlines()) == 2
    assert "50 points" in done.stdout


def test_json_of_any_name_is_looked_into_and_what_is_no_log_is_left_out(command: Command, tmp_path: Path) -> None:
    rows = [{"step": step, "loss": loss} for step, loss in enumerate(quiet(50), 1)]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "sft_3epoch.json").write_text(json.dumps({"log_history": rows}))
    (tmp_path / "logs" / "metrics.json").write_text('{"log_history": [{"step"')
    done = command("backtest", "logs")
    assert done.returncode == NOTHING
    assert done.stdout.startswith("logs/sft_3epoch.json: 50 points")
    assert done.stderr == (
        "left out: logs: 1 file below it has no training loss in a form that is known: metrics.json; name it alone to "
        "see why\n"
    )
    assert command("backtest", "logs/metrics.json").returncode == TROUBLE


def test_what_is_left_out_is_named_once_and_by_its_way_there(command: Command, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write(tmp_path / "logs" / folder / "losses.txt", quiet(50))
        (tmp_path / "logs" / folder / "notes.txt").write_text("buy milk\n")
    done = command("backtest", "logs/a", "logs", "logs/b", "logs")
    assert done.returncode == NOTHING
    assert [line.partition(" known: ")[2] for line in done.stderr.splitlines()] == [
        "notes.txt; name it alone to see why",
        "b/notes.txt; name it alone to see why",
    ]


def test_an_incident_that_somebody_went_back_for_is_told_of_the_life_that_had_it(
    command: Command, tmp_path: Path
) -> None:
    path = write(tmp_path / "crash.txt", [*quiet(200), *[9.0] * 30])
    with path.open("a") as file:
        file.writelines(f"{step} {loss!r}\n" for step, loss in enumerate(quiet(300, seed=1), 1) if step > 150)
    done = command("backtest", "--json", path)
    assert done.returncode == FIRED
    first, last = strict(done.stdout)["curves"]
    assert (first["name"], first["life"]) == (f"{path}, life 1", 1)
    assert [(verdict["kind"], verdict["onset_step"]) for verdict in first["verdicts"]] == [("incident", 201)]
    assert (last["name"], last["life"], last["points"], last["verdicts"]) == (str(path), None, 300, [])


def test_a_verdict_of_the_end_of_the_log_says_so(command: Command, tmp_path: Path) -> None:
    path = write(tmp_path / "end.txt", [*quiet(200), *[9.0] * 4])
    done = command("backtest", path)
    assert "; the log ends 4 steps into it\n" in done.stdout
    assert "  at step 204, had training ended there, it would have gone back to" in done.stdout
    (curve,) = strict(command("backtest", "--json", path).stdout)["curves"]
    assert [verdict["at_end"] for verdict in curve["verdicts"]] == [True]


@pytest.mark.parametrize(("points", "told"), [(8, "too short to judge (fewer than 10 points)"), (10, "nothing would")])
def test_a_few_points_are_too_short_to_judge(command: Command, tmp_path: Path, points: int, told: str) -> None:
    path = write(tmp_path / "a.txt", quiet(points))
    done = command("backtest", path)
    assert done.returncode == NOTHING
    assert f"every step: {told}" in done.stdout
    (curve,) = strict(command("backtest", "--json", path).stdout)["curves"]
    assert curve["too_short"] is (points < 10)


@pytest.mark.parametrize("content", [None, "buy milk\n"], ids=["no file", "no log"])
def test_a_folder_without_any_log_is_an_error(command: Command, tmp_path: Path, content: str | None) -> None:
    (tmp_path / "logs").mkdir()
    if content is not None:
        (tmp_path / "logs" / "notes.txt").write_text(content)
    done = command("backtest", "logs")
    assert (done.returncode, done.stdout) == (TROUBLE, "")
    assert len(done.stderr.splitlines()) == 1


def test_json_is_strict_and_says_everything(command: Command, tmp_path: Path, broken: Path, healthy: Path) -> None:
    (tmp_path / "torn.json").write_text("{")
    done = command("backtest", "--json", broken, healthy, "torn.json")
    assert done.returncode == TROUBLE
    answer = strict(done.stdout)
    first, second = answer["curves"]
    assert (first["name"], first["points"], first["first_step"], first["last_step"], first["interval"]) == (
        str(broken),
        200,
        1,
        200,
        1,
    )
    verdict = first["verdicts"][0]
    assert {
        name: verdict[name] for name in ("kind", "detector", "onset_step", "step", "onset_position", "position")
    } == {
        "kind": "incident",
        "detector": "non_finite",
        "onset_step": 101,
        "step": 101,
        "onset_position": 100,
        "position": 101,
    }
    assert {"severity", "may_recover", "message", "numbers"} <= set(verdict)
    recovery = first["recovery"]
    assert (recovery["rule"], recovery["resume_step"], recovery["new_order"]) == ("loss incident", 96, True)
    assert (second["verdicts"], second["recovery"]) == ([], None)
    assert [entry["path"] for entry in answer["unread"]] == ["torn.json"]


def test_a_sparse_log_is_warned_of_in_one_line(command: Command, tmp_path: Path) -> None:
    done = command("backtest", write(tmp_path / "a.txt", quiet(50), every=10))
    assert done.returncode == NOTHING
    assert "every 10 steps" in done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"warning: {tmp_path / 'a.txt'} has a value only every 10 steps")
    assert "patience is counted in steps, but noise and slow rises in values, 8 of them (80 steps)" in line
    assert "two values out of bounds are a spike" in line
    assert "a single one that is 4 times as far up" in line


def test_the_warning_of_sparse_logs_says_what_holds_for_their_interval_and_only_once(
    command: Command, tmp_path: Path
) -> None:
    logs = [write(tmp_path / f"{every}-{i}.txt", quiet(50), every=every) for every in (2, 5) for i in range(2)]
    lines = command("backtest", *logs).stderr.splitlines()
    assert [len(line) > 200 for line in lines] == [True, False, True, False]
    assert ["two values out of bounds" in line for line in lines] == [False, False, True, False]
    assert not any("a single one" in line for line in lines)
    assert lines[1] == f"warning: {logs[1]} has a value only every 2 steps, too"


def test_help_explains_the_columns(command: Command) -> None:
    words = " ".join(command("backtest", "--help").stdout.split())
    for explained in ("The onset is", "The severity is", "onset_position", "may_recover", "at_end"):
        assert explained in words


def test_settings_come_from_the_command_line(command: Command, healthy: Path) -> None:
    settings = ("--set", "monitor.loss_watchdog_threshold=2", "--set", "monitor.loss_watchdog_patience=7")
    done = command("backtest", "--json", healthy, *settings)
    verdict = strict(done.stdout)["curves"][0]["verdicts"][0]
    assert (verdict["detector"], verdict["onset_step"], verdict["step"]) == ("threshold", 1, 7)


def test_settings_come_from_a_config_and_the_command_line_goes_first(
    command: Command, config: Path, broken: Path
) -> None:
    section = (
        "monitor: {loss_watchdog_threshold: 2, loss_watchdog_patience: 7}\nrecovery: {rollback_margin_steps: 20}\n"
    )
    config.write_text(config.read_text() + section)
    done = command("backtest", "--json", broken, "--config", config, "--set", "monitor.loss_watchdog_threshold=null")
    curve = strict(done.stdout)["curves"][0]
    assert curve["verdicts"][0]["detector"] == "non_finite"
    assert curve["recovery"]["resume_step"] == 81


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--set", "monitor.nonsense=1"), "on the command line: monitor.nonsense is not a setting"),
        (("--set", "monitor.spike_patience_steps=0"), "on the command line: monitor.spike_patience_steps is 0"),
        (("--set", "training.steps=3"), "only settings of `monitor` and `recovery` matter"),
        (("--set", "spike_patience_steps=3"), "; did you mean monitor.spike_patience_steps=3?"),
        (("--set", "mointor.grace_steps=3"), "; did you mean monitor.grace_steps=3?"),
        (("--set", "X"), "--set X: this is not KEY=VALUE; write for example --set monitor.spike_patience_steps=3"),
        (("--set", "monitor.slow_rises"), "this is not KEY=VALUE; write --set monitor.slow_rises=VALUE"),
        (("--plot",), "see `python -m hpc_resume backtest --help`"),
        (("--config", "missing.yaml"), "missing.yaml: there is no such file"),
        (("--nonsense",), "No such option"),
        (("--plot", "a.pdf"), "only PNG is drawn"),
    ],
    ids=[
        *("unknown", "wrong", "of something else", "without section", "misspelled section", "no value"),
        *("no value for a known one", "no place", "no config", "no option", "no PNG"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(
    command: Command, healthy: Path, arguments: tuple[str, ...], told: str
) -> None:
    done = command("backtest", healthy, *arguments)
    assert (done.returncode, done.stdout) == (TROUBLE, "")
    (line,) = done.stderr.splitlines()
    assert told in line


def test_a_path_is_needed(command: Command) -> None:
    done = command("backtest")
    assert (done.returncode, done.stdout) == (TROUBLE, "")
    assert "PATH" in done.stderr


def colours(path: Path) -> int:
    with Image.open(path) as image:
        assert image.format == "PNG"
        found = image.convert("RGB").getcolors(1 << 24)
    assert found is not None
    return len(found)


def test_each_curve_is_drawn_into_a_folder_under_a_name_of_its_own(
    command: Command, tmp_path: Path, broken: Path, healthy: Path
) -> None:
    done = command("backtest", "--json", broken, healthy, broken, "--plot", "pictures")
    pictures = [tmp_path / curve["plot"] for curve in strict(done.stdout)["curves"]]
    assert len(set(pictures)) == 3
    assert sorted(pictures) == sorted((tmp_path / "pictures").iterdir())
    assert all(colours(path) > 10 for path in pictures)


def test_all_curves_are_drawn_into_one_file(command: Command, tmp_path: Path, broken: Path, healthy: Path) -> None:
    done = command("backtest", broken, healthy, "--plot", "new/both.png")
    assert (done.returncode, done.stderr) == (FIRED, "")
    assert done.stdout.splitlines()[-1] == "plot of 2 curves: new/both.png"
    assert colours(tmp_path / "new" / "both.png") > 10
    with Image.open(tmp_path / "new" / "both.png") as image:
        assert image.height > 0.7 * image.width


def test_the_curves_of_one_picture_all_have_it(command: Command, broken: Path, healthy: Path) -> None:
    done = command("backtest", "--json", broken, healthy, "--plot", "both.png")
    assert [curve["plot"] for curve in strict(done.stdout)["curves"]] == ["both.png", "both.png"]


@pytest.mark.parametrize("place", ["file/a.png", "file/pictures"], ids=["file", "folder"])
@pytest.mark.parametrize("arguments", [(), ("--json",)], ids=["words", "JSON"])
def test_a_picture_that_can_not_be_written_is_an_error_and_is_not_listed(
    command: Command, tmp_path: Path, broken: Path, healthy: Path, place: str, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "file").write_text("")
    done = command("backtest", broken, healthy, "--plot", place, *arguments)
    assert done.returncode == TROUBLE
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {place}")
    assert "can't be written" in line
    if arguments:
        assert [curve["plot"] for curve in strict(done.stdout)["curves"]] == [None, None]
    else:
        assert f"{healthy}: 200 points" in done.stdout
        assert "plot" not in done.stdout


def test_for_many_curves_in_one_picture_a_folder_is_advised(command: Command, tmp_path: Path) -> None:
    short = write(tmp_path / "a.txt", [3.0, 3.0])
    done = command("backtest", *[short] * 13, "--plot", "all.png")
    assert done.stderr == (
        "hint: 13 curves in one picture are hard to look at; with a folder, as in --plot all, each is drawn alone\n"
    )
    assert command("backtest", *[short] * 12, "--plot", "all.png").stderr == ""


def test_nothing_heavy_is_imported_without_need(healthy: Path) -> None:
    code = (
        "import sys\n"
        f"sys.argv = ['hpc_resume', 'backtest', {str(healthy)!r}]\n"
        "from hpc_resume.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 1\n"
        "print('loaded:', *sorted({name.partition('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = done.stdout.splitlines()[-1].split()
    assert loaded[0] == "loaded:"
    assert not set(loaded) & {"torch", "matplotlib", "tensorboard", "pandas", "numpy", "deepspeed", "submitit"}
