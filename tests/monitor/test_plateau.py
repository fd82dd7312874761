from __future__ import annotations

from random import Random

import pytest
from monitor.curves import epochs, fallen, hard_batches, level, raised, watched

from hpc_resume.monitor import MonitorSettings
from hpc_resume.monitor.plateau import BLOCK_STEPS, PlateauDetector


def plateaus(losses, **chosen):
    """Kind, onset and step of each verdict of the plateau detector alone."""
    verdicts = watched(losses, PlateauDetector(MonitorSettings(**chosen)))
    assert {verdict.detector for verdict in verdicts} <= {"plateau"}
    return [(verdict.kind, verdict.onset_step, verdict.step) for verdict in verdicts]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("at", [1200, 1203, 1207])
@pytest.mark.parametrize(("share", "blocks"), [(0.03, 22), (0.05, 8), (0.3, 4)], ids=["3 %", "5 %", "30 %"])
def test_a_step_up_that_stays_is_an_incident_that_began_where_it_did(seed, at, share, blocks):
    [(kind, onset, step)] = plateaus(raised(fallen(1500, seed=seed), at, share))
    assert kind == "incident"
    assert abs(onset - (at + 1)) <= BLOCK_STEPS
    assert step <= at + blocks * BLOCK_STEPS


def test_it_is_judged_where_a_block_ends():
    [(_, onset, step)] = plateaus(raised(fallen(1500), 1203, 0.05))
    assert onset % BLOCK_STEPS == 1
    assert step % BLOCK_STEPS == 0


@pytest.mark.parametrize("seed", range(4))
def test_a_step_up_that_comes_back_soon_is_none(seed):
    assert plateaus(raised(fallen(1500, seed=seed), 1200, 0.05, until=1216)) == []


@pytest.mark.parametrize("seed", range(4))
def test_a_rise_by_less_than_the_least_share_is_none(seed):
    losses = raised(fallen(2000, seed=seed), 1200, 0.03)
    assert plateaus(losses, plateau_min_rise=0.04) == []
    assert len(plateaus(losses, plateau_min_rise=0.01)) >= 1


@pytest.mark.parametrize("seed", range(4))
def test_a_loss_that_never_fell_has_a_plateau_to_leave_where_it_is_far_from_zero(seed):
    assert len(plateaus(raised(level(1000, seed=seed), 600, 0.2))) == 1
    assert plateaus(raised(level(1000, noise=0.4, seed=seed), 600, 1.0)) == []


@pytest.mark.parametrize("seed", range(6))
def test_noise_and_lone_hard_batches_are_no_plateaus(seed):
    assert plateaus(fallen(2000, noise=0.1, seed=seed)) == []
    assert plateaus(hard_batches(2000, Random(seed))) == []


@pytest.mark.parametrize("seed", range(4))
def test_drops_at_epoch_boundaries_and_the_slow_rises_between_them_are_none(seed):
    assert plateaus(epochs(2000, Random(seed))) == []


def test_slow_rises_that_are_only_recorded_are_near_misses():
    losses = raised(fallen(1500), 1200, 0.05)
    acted, recorded = plateaus(losses), plateaus(losses, slow_rises="record")
    assert [entry[0] for entry in acted + recorded] == ["incident", "near_miss"]
    assert acted[0][1:] == recorded[0][1:]


def test_the_new_level_is_the_one_to_leave_next():
    losses = raised(raised(fallen(2600), 1200, 0.06), 2000, 0.06)
    [(_, first, _), (_, second, _)] = plateaus(losses)
    assert (abs(first - 1201) <= BLOCK_STEPS, abs(second - 2001) <= BLOCK_STEPS) == (True, True)


def test_the_verdict_names_levels_and_numbers():
    [verdict] = watched(raised(fallen(1500), 1200, 0.06), PlateauDetector(MonitorSettings()))
    assert (verdict.onset_position, verdict.position) == (8 * 1200, 8 * verdict.step)
    assert verdict.numbers["level"] == pytest.approx(2.5, abs=0.02)
    assert verdict.numbers["peak"] == pytest.approx(2.65, abs=0.03)
    assert verdict.numbers["block_steps"] == BLOCK_STEPS
    assert verdict.numbers["blocks"] == (verdict.step - 1200) / BLOCK_STEPS
    assert verdict.severity == pytest.approx(0.15 / (verdict.numbers["limit"] - verdict.numbers["level"]), rel=0.3)
    assert verdict.may_recover
    assert "since step 1201" in verdict.message


def test_it_is_pending_while_blocks_are_high_and_never_speaks_at_the_end():
    detector = PlateauDetector(MonitorSettings())
    losses = raised(fallen(1216), 1200, 0.05)
    watched(losses[:1200], detector)
    assert not detector.pending
    watched(losses[1200:], detector, first=1200)
    assert detector.pending
    assert detector.close(None) is None
    watched([2.4] * 40, detector, first=1216)
    assert not detector.pending


@pytest.mark.parametrize("patience", [200, 500])
def test_a_long_patience_with_spikes_is_waited_out(patience):
    losses = raised(fallen(1900), 1200, 0.3)
    [(_, onset, step)] = plateaus(losses, spike_patience_steps=patience)
    assert patience <= step - onset + 1 < patience + 2 * BLOCK_STEPS
    assert plateaus(raised(fallen(1900), 1200, 0.3, until=1340), spike_patience_steps=patience) == []


def test_blocks_that_were_being_watched_are_dropped_by_a_rollback():
    detector = PlateauDetector(MonitorSettings())
    losses = raised(fallen(1500), 1200, 0.05)
    watched(losses[:1232], detector)
    assert detector.pending
    detector.rewound()
    assert not detector.pending
    assert watched(fallen(1500, seed=1)[1232:], detector, first=1232) == []
