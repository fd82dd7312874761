"""`backtest`: what the monitor would have said about trainings that are over, from their logs."""

from __future__ import annotations

import difflib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from hpc_resume.cli.backtest_result import Judged, Rules
    from hpc_resume.loss_logs import LogFiles, LossCurve
    from hpc_resume.loss_logs.draw import Panel

_MOST_NAMED = 5
_FEW_PANELS = 12
_EXAMPLE = "monitor.spike_patience_steps"
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
    been, 2 if something was wrong with the command line, or a log could not be read, or a picture not be written. Such
    a log gets a line on stderr, and the others are replayed all the same. Files of a searched folder that turn out to
    be no logs are no errors.

    The onset is the first step that was wrong already, the step that at which it would have been noticed, the delay
    what lies between, in steps. The severity is how high the loss went, in the detector's own limits: at 1 a single
    value is out of bounds, and below that it took many values to prove it. With --json there are also onset_position
    and position (samples consumed at onset and step; a log does not say how many, so they are steps here), may_recover
    (whether the loss could still come back by itself), at_end (judged so only because the log ends), and the numbers
    of the message. Where a log goes back to an earlier step, the training as it was before is shown as a life of its
    own.
    """
    from hpc_resume.cli import backtest_result as result
    from hpc_resume.cli import output
    from hpc_resume.loss_logs.numbers import counted

    rules, logs, pictures = _rules(config, settings), Logs(), Pictures(plot, _tell)
    answers: list[dict[str, Any]] = []
    fired, explained = False, set[int]()
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
        if (warning := result.warning(judged, explained=judged.interval in explained)) is not None:
            explained.add(judged.interval)
            _tell(f"warning: {warning}")
    logs.finish()
    together = pictures.finish()
    if as_json:
        shared = {} if together is None else {"plot": str(together)}
        output.write_json({"curves": [answer | shared for answer in answers], "unread": logs.unread})
    elif together is not None:
        output.say(f"plot of {counted(len(pictures.kept), 'curve')}: {together}")
    raise typer.Exit(2 if logs.unread or pictures.failed else 0 if fired else 1)


def _tell(line: str) -> None:
    # What was said before about the same curve must stand before it, also where both go into one file.
    sys.stdout.flush()
    sys.stderr.write(f"{line}\n")


def _rules(config: Path | None, settings: list[str]) -> Rules:
    """Load the settings that count: defaults, then the file, then what the command line says."""
    from hpc_resume.cli.backtest_result import Rules
    from hpc_resume.config.load import load_config

    for setting in settings:
        _refuse_other_settings(setting)
    if config is not None:
        loaded = load_config(config, settings)
        return Rules(monitor=loaded.monitor, policy=loaded.recovery)
    # The one place that knows how settings are written reads files; this one leaves everything at its default.
    with tempfile.TemporaryDirectory(prefix="hpc_resume-") as folder:
        defaults = Path(folder) / "defaults.yaml"
        defaults.write_text("{}\n")
        loaded = load_config(defaults, settings)
    return Rules(monitor=loaded.monitor, policy=loaded.recovery)


def _refuse_other_settings(setting: str) -> None:
    """Refuse what is no setting of the monitor or of recovery, and say what may have been meant."""
    from hpc_resume.config.fields import every_key
    from hpc_resume.config.schema import RunConfig
    from hpc_resume.errors import ConfigError

    key, equals, value = setting.partition("=")
    known = [name for name in every_key(RunConfig) if name.startswith(("monitor.", "recovery."))]
    meant = [name for name in known if name.rpartition(".")[2] == key]
    meant = meant or difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    if not equals:
        example = f"write --set {meant[0]}=VALUE" if meant else f"write for example --set {_EXAMPLE}=3"
        raise ConfigError(f"--set {setting}: this is not KEY=VALUE; {example}")
    if not re.match(r"(?:monitor|recovery)\.", key):
        hope = f"; did you mean {meant[0]}={value}?" if meant else f", such as {_EXAMPLE}"
        raise ConfigError(f"--set {setting}: only settings of `monitor` and `recovery` matter to a backtest{hope}")


class Logs:
    """Reads curve after curve; what can't be read is said at once and does not stop the rest."""

    def __init__(self) -> None:
        self.unread: list[dict[str, str]] = []
        self._left_out: dict[Path, list[LogFiles]] = {}
        self._known: set[Path] = set()

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
            if no_logs and len(no_logs) == len(logs):
                self._refuse(path, f"{_no_logs_in(path, no_logs)}; nothing else was found there")
            elif no_logs:
                self._left_out[path] = no_logs

    def finish(self) -> None:
        """Say which files of the folders were left out, each once, however often a folder was searched."""
        for path, logs in self._left_out.items():
            new = [log for log in logs if log.files[0].resolve() not in self._known]
            self._known.update(log.files[0].resolve() for log in new)
            if new:
                _tell(f"left out: {_no_logs_in(path, new)}; name {'it' if len(new) == 1 else 'one'} alone to see why")

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
            if log.may_be_anything:
                no_logs.append(log)
            else:
                self._refuse(log.files[0], error)
        else:
            yield from curves

    def _refuse(self, path: Path, error: Exception | str) -> None:
        text = " ".join(str(error).split())
        self.unread.append({"path": str(path), "error": text})
        _tell(f"error: {text}")


def _no_logs_in(path: Path, logs: list[LogFiles]) -> str:
    from hpc_resume.loss_logs.numbers import counted

    named = [os.path.relpath(log.files[0], path) for log in logs[:_MOST_NAMED]]
    few = ", ".join([*named, *(["..."] if len(logs) > _MOST_NAMED else [])])
    have = "has" if len(logs) == 1 else "have"
    return f"{path}: {counted(len(logs), 'file')} below it {have} no training loss in a form that is known: {few}"


class Pictures:
    """Draws each curve into a folder as it comes, or keeps all for one file."""

    def __init__(self, place: Path | None, complain: Callable[[str], None]) -> None:
        from hpc_resume.errors import ConfigError

        if place is not None and place.suffix.lower() in _OTHER_PICTURES:
            raise ConfigError(f"--plot {place}: only PNG is drawn; name a FILE.png, or a folder")
        self._place = place
        self._complain = complain
        self._is_file = place is not None and place.suffix.lower() == ".png"
        self._used: set[str] = set()
        self.kept: list[Panel] = []
        self.failed = False
        """A picture could not be written; no other one is tried."""

    def take(self, curve: LossCurve, judged: Judged) -> Path | None:
        """Return where the picture of a curve lies; None if it has none of its own."""
        if self._place is None or self.failed:
            return None
        from hpc_resume.cli.backtest_result import heading
        from hpc_resume.loss_logs.draw import make_panel

        panel = make_panel(curve, judged.verdicts, heading(judged))
        if self._is_file:
            self.kept.append(panel)
            return None
        return self._drawn([panel], self._place / self._file_name(curve.name))

    def finish(self) -> Path | None:
        """Draw what was kept for one file, and return where it lies; None if there is no such picture."""
        if self._place is None or not self.kept:
            return None
        path = self._drawn(self.kept, self._place)
        if path is not None and len(self.kept) > _FEW_PANELS:
            self._complain(
                f"hint: {len(self.kept)} curves in one picture are hard to look at; with a folder, as in "
                f"--plot {self._place.with_suffix('')}, each is drawn alone"
            )
        return path

    def _drawn(self, panels: list[Panel], path: Path) -> Path | None:
        from hpc_resume.errors import ConfigError
        from hpc_resume.loss_logs.draw import draw

        try:
            draw(panels, path)
        except ConfigError as error:
            self.failed = True
            self._complain(f"error: {' '.join(str(error).split())}")
            return None
        return path

    def _file_name(self, curve: str) -> str:
        """Return a file name of its own for each curve, from the end of its name, which tells it from others."""
        plain = re.sub(r"[^\w.-]+", "-", curve).strip("-.")[-80:].lstrip("-.") or "curve"
        name, number = plain, 1
        while name in self._used:
            number += 1
            name = f"{plain}-{number}"
        self._used.add(name)
        return f"{name}.png"
