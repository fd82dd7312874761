"""All detectors as one."""

from __future__ import annotations

from hpc_resume.errors import CheckpointError
from hpc_resume.monitor.detector import Detector, State
from hpc_resume.monitor.divergence import DivergenceDetector
from hpc_resume.monitor.non_finite import NonFiniteDetector
from hpc_resume.monitor.observation import Observation
from hpc_resume.monitor.overflow import OverflowDetector
from hpc_resume.monitor.plateau import PlateauDetector
from hpc_resume.monitor.settings import LARGEST_BLOCK_STEPS, MonitorSettings
from hpc_resume.monitor.spike import SpikeDetector
from hpc_resume.monitor.threshold import ThresholdDetector
from hpc_resume.monitor.verdict import Verdict

NO_INCIDENT = (0, -(1 << 62))
"""Onset and step of the last incident, before there was one."""


def fresh_detectors(settings: MonitorSettings) -> tuple[Detector, ...]:
    """Every detector there is, none of which has seen a step; a new one is added here."""
    return (
        NonFiniteDetector(settings),
        OverflowDetector(settings),
        ThresholdDetector(settings),
        SpikeDetector(settings),
        PlateauDetector(settings),
        DivergenceDetector(settings),
    )


class Monitor:
    """Watch the loss of a run, one optimizer step after the other.

    It is to be told every step once and in order, also those that were skipped. After an incident the run is
    expected to go back to a checkpoint and to load the state that was saved with it.
    """

    def __init__(self, settings: MonitorSettings) -> None:
        self._settings = settings
        self._detectors = fresh_detectors(settings)
        self._last: Observation | None = None
        self._incident = NO_INCIDENT

    @property
    def pending(self) -> bool:
        """Whether an anomaly is being watched right now, so that a checkpoint saved now could be suspect."""
        return any(detector.pending for detector in self._detectors)

    def observe(self, observation: Observation) -> Verdict | None:
        """Show one step to every detector and return the gravest verdict.

        An incident goes before a near miss, then the earliest onset, then the order of the detectors. What began with
        an incident, or between its onset and its call, is the same event, seen by another detector, and is not told.
        """
        self._last = observation
        # A list first: every detector must see the step, also after one of them has spoken.
        return self._told(_gravest([detector.observe(observation) for detector in self._detectors]))

    def close(self) -> Verdict | None:
        """Return an incident if training ends while the loss is out of bounds: it can't come back any more.

        Without this a run whose loss rose in its last few steps, within the patience, would present what it then
        has as its result.
        """
        if self._last is None:
            return None
        last = self._last
        return self._told(_gravest([detector.close(last) for detector in self._detectors]))

    def _told(self, verdict: Verdict | None) -> Verdict | None:
        onset, step = self._incident
        # Not to the step: another detector may see it in blocks of steps.
        if verdict is None or onset - LARGEST_BLOCK_STEPS <= verdict.onset_step <= step:
            return None
        if verdict.is_incident:
            self._incident = (verdict.onset_step, verdict.step)
        return verdict

    def rewound(self) -> None:
        """Be told that training goes on from the state just loaded otherwise than it did after that was saved.

        An anomaly that was being watched then is dropped, since its samples do not come again, or not so; a grace
        begins.
        """
        self._incident = NO_INCIDENT
        for detector in self._detectors:
            detector.rewound()

    def state_dict(self) -> State:
        """Everything that later verdicts depend on, by detector; bounded in size, strict JSON."""
        found: State = {detector.name: detector.state_dict() for detector in self._detectors}
        return {**found, "incident": list(self._incident)}

    def load_state_dict(self, state: State) -> None:
        """Go on from what `state_dict` returned.

        A detector without saved state starts afresh, and the state of a detector that is not here is ignored, so
        that a checkpoint of an older or newer version can be used.

        Raises:
            CheckpointError: the state of some detectors can't be used. The monitor is usable: these have started
                afresh, the others go on.
        """
        names = []
        detectors = []
        for fresh, detector in zip(fresh_detectors(self._settings), fresh_detectors(self._settings), strict=True):
            try:
                if detector.name in state:
                    detector.load_state_dict(state[detector.name])
                detectors.append(detector)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                names.append(f"{detector.name} ({error!r})")
                detectors.append(fresh)
        self._detectors = tuple(detectors)
        onset, step = state.get("incident", NO_INCIDENT)
        self._incident = (onset, step)
        if names:
            raise CheckpointError(
                f"the monitor's saved state of {', '.join(names)} can't be used, it is another version's or damaged; "
                f"what this knew of the loss has to be learned anew"
            )


def _gravest(spoken: list[Verdict | None]) -> Verdict | None:
    verdicts = [verdict for verdict in spoken if verdict is not None]
    return min(verdicts, key=lambda verdict: (not verdict.is_incident, verdict.onset_step), default=None)
