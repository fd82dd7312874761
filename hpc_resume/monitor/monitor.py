"""All detectors as one."""

from __future__ import annotations

from hpc_resume.errors import CheckpointError
from hpc_resume.monitor.detector import Detector, State
from hpc_resume.monitor.non_finite import NonFiniteDetector
from hpc_resume.monitor.observation import Observation
from hpc_resume.monitor.settings import MonitorSettings
from hpc_resume.monitor.spike import SpikeDetector
from hpc_resume.monitor.threshold import ThresholdDetector
from hpc_resume.monitor.verdict import Verdict


def fresh_detectors(settings: MonitorSettings) -> tuple[Detector, ...]:
    """Every detector there is, none of which has seen a step; a new one is added here."""
    return (NonFiniteDetector(settings), ThresholdDetector(settings), SpikeDetector(settings))


class Monitor:
    """Watch the loss of a run, one optimizer step after the other.

    It is to be told every step once and in order, also those that were skipped. After an incident the run is
    expected to go back to a checkpoint and to load the state that was saved with it.
    """

    def __init__(self, settings: MonitorSettings) -> None:
        self._settings = settings
        self._detectors = fresh_detectors(settings)
        self._last: Observation | None = None

    @property
    def pending(self) -> bool:
        """Whether an anomaly is being watched right now, so that a checkpoint saved now could be suspect."""
        return any(detector.pending for detector in self._detectors)

    @property
    def bad_steps(self) -> int:
        """Steps that were skipped or not finite since the start of the run."""
        return sum(found.bad_steps for found in self._detectors if isinstance(found, NonFiniteDetector))

    def observe(self, observation: Observation) -> Verdict | None:
        """Show one step to every detector and return the gravest verdict.

        An incident goes before a near miss, then the earliest onset, then the order of the detectors.
        """
        self._last = observation
        # A list first: every detector must see the step, also after one of them has spoken.
        return _gravest([detector.observe(observation) for detector in self._detectors])

    def close(self) -> Verdict | None:
        """Return an incident if training ends while the loss is out of bounds: it can't come back any more.

        Without this a run whose loss rose in its last few steps, within the patience, would present what it then
        has as its result.
        """
        if self._last is None:
            return None
        last = self._last
        return _gravest([detector.close(last) for detector in self._detectors])

    def state_dict(self) -> State:
        """Everything that later verdicts depend on, by detector; bounded in size, strict JSON."""
        return {detector.name: detector.state_dict() for detector in self._detectors}

    def load_state_dict(self, state: State) -> None:
        """Go on from what `state_dict` returned.

        A detector without saved state starts afresh, and the state of a detector that is not here is ignored, so
        that a checkpoint of an older or newer version can be used.
        """
        detectors = fresh_detectors(self._settings)
        for detector in detectors:
            if detector.name not in state:
                continue
            try:
                detector.load_state_dict(state[detector.name])
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise CheckpointError(
                    f"loading the monitor's state of detector {detector.name} failed with {error!r}; it is "
                    f"damaged or was saved by another version: resume from an older checkpoint"
                ) from error
        self._detectors = detectors


def _gravest(spoken: list[Verdict | None]) -> Verdict | None:
    verdicts = [verdict for verdict in spoken if verdict is not None]
    return min(verdicts, key=lambda verdict: (not verdict.is_incident, verdict.onset_step), default=None)
