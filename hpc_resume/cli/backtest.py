"""`backtest`: what the monitor would have said about trainings that are over, from their logs."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from hpc_resume.cli.backtest_result import Judged, Rules
    from hpc_resume.loss_logs import LogFiles, LossCurve
    from hpc_resume.loss_logs.draw import Panel

_MOST_NAMED = 5
_OTHER_PICTURES = (".pdf", ".svg", ".jpg", ".jpeg", ".webp", ".gif", ".html")


def backtest(
    paths: list[Path] = typer.Argument(..., metavar="PATH...", help="Logs, or folders that have logs in them."),
    config: Path = typer.Option(None, "--config", help="A YAML file, of which `monitor` and `recovery` count."),
    settings: list[str] = typer.Option(
        [], "--set", metavar="KEY=VALUE", help="A setting, like monitor.spike_patience_steps=3; can be repeated."
    ),
    plot: Path = typer.Option(None, "--plot", help="Draw the curves: together as FILE.png, or each into a folder."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Replay the loss monitor over old training logs: what would have fired, when, and what would have been done.

    A PATH is a log, or a folder that is searched for logs: trainer_state.json of the Hugging Face Trainer, JSON lines,
    CSV (wandb's exports, too), columns of `step loss [grad_norm]`, text logs as of Megatron, nanoGPT or llm.c,
    TensorBoard event files, and run folders of our own. All but event files may be compressed (.gz).

    The exit code is as grep has it: 0 if an incident or a near miss would have been reported, 1 if nothing would have
    been, 2 if something was wrong with the command line or a log could not be read. Such a log gets a line on stderr,
    and the others are replayed all the same. Files of a searched folder that turn out to be no logs are no errors.
    """
    from hpc_resume.cli import backtest_result as result
    from hpc_resume.cli import output

    rules, logs, pictures = _rules(config, settings), Logs(), Pictures(plot)
    answers: list[dict[str, Any]] = []
    fired = False
    for curve in logs.curves(paths):
        judged = result.judge(curve, rules)
        fired = fired or bool(judged.verdicts)
        picture = pictures.take(curve, judged)
        if as_json:
            answers.append(result.for_programs(judged, picture))
        else:
            result.show(judged)
            if picture is not None:
                output.say(f"  plot: {picture}")
        if (warning := result.warning(judged)) is not None:
            _tell(f"warning: {warning}")
    pictures.finish()
    if as_json:
        output.write_json({"curves": answers, "unread": logs.unread})
    raise typer.Exit(2 if logs.unread else 0 if fired else 1)


def _tell(line: str) -> None:
    # What was said before about the same curve must stand before it, also where both go into one file.
    sys.stdout.flush()
    sys.stderr.write(f"{line}\n")


def _rules(config: Path | None, settings: list[str]) -> Rules:
    """Load the settings that count: defaults, then the file, then what the command line says."""
    from hpc_resume.cli.backtest_result import Rules
    from hpc_resume.config.load import load_config
    from hpc_resume.errors import ConfigError

    for setting in settings:
        if not re.match(r"(?:monitor|recovery)\.", setting):
            raise ConfigError(f"--set {setting}: only settings of `monitor` and `recovery` matter to a backtest")
    if config is not None:
        loaded = load_config(config, settings)
        return Rules(monitor=loaded.monitor, policy=loaded.recovery)
    # The one place that knows how settings are written reads files; this one leaves everything at its default.
    with tempfile.TemporaryDirectory(prefix="hpc_resume-") as folder:
        defaults = Path(folder) / "defaults.yaml"
        defaults.write_text("{}\n")
        loaded = load_config(defaults, settings)
    return Rules(monitor=loaded.monitor, policy=loaded.recovery)


class Logs:
    """Reads curve after curve; what can't be read is said at once and does not stop the rest."""

    def __init__(self) -> None:
        self.unread: list[dict[str, str]] = []

    def curves(self, paths: list[Path]) -> Iterator[LossCurve]:
        """Yield the curves of all logs in these paths."""
        from hpc_resume.errors import ConfigError
        from hpc_resume.loss_logs import find_logs

        for path in paths:
            try:
                logs = find_logs(path)
            except ConfigError as error:
                self._refuse(path, error)
                continue
            no_logs: list[LogFiles] = []
            for log in logs:
                yield from self._curves_of(log, no_logs)
            if no_logs:
                self._leave_out(path, no_logs, nothing_else=len(no_logs) == len(logs))

    def _curves_of(self, log: LogFiles, no_logs: list[LogFiles]) -> Iterator[LossCurve]:
        from hpc_resume.errors import ConfigError
        from hpc_resume.loss_logs import NoCurveError, read_log

        try:
            curves = read_log(log)
        except NoCurveError as error:
            if log.certain:
                self._refuse(log.files[0], error)
            else:
                no_logs.append(log)
        except ConfigError as error:
            self._refuse(log.files[0], error)
        else:
            yield from curves

    def _refuse(self, path: Path, error: Exception) -> None:
        text = " ".join(str(error).split())
        self.unread.append({"path": str(path), "error": text})
        _tell(f"error: {text}")

    def _leave_out(self, path: Path, logs: list[LogFiles], *, nothing_else: bool) -> None:
        few = ", ".join(log.files[0].name for log in logs[:_MOST_NAMED]) + (", ..." if len(logs) > _MOST_NAMED else "")
        text = f"{path}: {len(logs)} files below it have no training loss in a form that is known: {few}"
        if nothing_else:
            self.unread.append({"path": str(path), "error": text})
            _tell(f"error: {text}; nothing else was found there")
        else:
            _tell(f"left out: {text}; name one alone to see why")


class Pictures:
    """Draws each curve into a folder as it comes, or keeps all for one file."""

    def __init__(self, place: Path | None) -> None:
        from hpc_resume.errors import ConfigError

        if place is not None and place.suffix.lower() in _OTHER_PICTURES:
            raise ConfigError(f"--plot {place}: only PNG is drawn; name a FILE.png, or a folder")
        self._place = place
        self._is_file = place is not None and place.suffix.lower() == ".png"
        self._kept: list[Panel] = []
        self._used: set[str] = set()

    def take(self, curve: LossCurve, judged: Judged) -> Path | None:
        """Return where the picture of a curve is, or will be; None without --plot."""
        if self._place is None:
            return None
        from hpc_resume.cli.backtest_result import heading
        from hpc_resume.loss_logs.draw import draw, make_panel

        panel = make_panel(curve, judged.verdicts, heading(judged))
        if self._is_file:
            self._kept.append(panel)
            return self._place
        path = self._place / self._file_name(curve.name)
        draw([panel], path)
        return path

    def finish(self) -> None:
        """Write what was kept for one file."""
        if self._place is not None and self._kept:
            from hpc_resume.loss_logs.draw import draw

            draw(self._kept, self._place)

    def _file_name(self, curve: str) -> str:
        """Return a file name of its own for each curve, from the end of its name, which tells it from others."""
        plain = re.sub(r"[^\w.-]+", "-", curve).strip("-.")[-80:].lstrip("-.") or "curve"
        name, number = plain, 1
        while name in self._used:
            number += 1
            name = f"{plain}-{number}"
        self._used.add(name)
        return f"{name}.png"
