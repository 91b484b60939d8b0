"""The rate finder: what it reads out of curves, and one real range test."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.helpers.toy import make_setup
from trainer.commands.find_lr import write_finding
from trainer.core.errors import ConfigError
from trainer.core.run_config import Choice, DataConfig, RunConfig, TrainingConfig
from trainer.profiling.lr_finder import (
    RateFinding,
    find_rate,
    measure_rates,
    suggest_rate,
)

RATES = np.geomspace(1e-5, 1.0, 101)
"""Rates a twentieth of a decade apart."""


def _judge(changes: np.ndarray) -> RateFinding:
    return suggest_rate("adamw", RATES[: len(changes)], 3.0 + changes, changes)


def _valley(falls_at: float, rises_at: float) -> np.ndarray:
    """Return changes that fall fastest at one rate and are above the start from another on."""
    fall = -1 / (1 + (falls_at / RATES) ** 3)
    return fall + np.minimum((RATES / rises_at) ** 4, 10.0)


def test_the_steepest_fall_is_suggested_where_the_end_is_far() -> None:
    finding = _judge(_valley(1e-3, 1e-1))

    assert finding.steepest == pytest.approx(1e-3, rel=0.3)
    assert finding.lost == pytest.approx(1e-1, rel=0.3)
    assert finding.suggestion == pytest.approx(finding.steepest, rel=0.05)


def test_a_tenth_of_the_lost_rate_is_suggested_where_the_end_is_near() -> None:
    finding = _judge(_valley(1e-2, 3e-2))

    assert finding.lost is not None
    assert finding.suggestion == pytest.approx(finding.lost / 10, rel=0.05)


def test_odd_batches_do_not_move_the_suggestion() -> None:
    changes = _valley(1e-3, 1e-1)
    changes[4::9] += 3.0

    assert _judge(changes).suggestion == pytest.approx(1e-3, rel=0.5)


def test_a_loss_that_is_no_number_is_the_end() -> None:
    changes = _valley(1e-3, 1e3)[:81]
    changes[-1] = np.nan

    finding = _judge(changes)

    assert finding.lost == pytest.approx(RATES[80])
    assert finding.suggestion == pytest.approx(1e-3, rel=0.3)


def test_nothing_is_suggested_where_nothing_lowered_the_loss() -> None:
    finding = _judge(np.linspace(0.001, 4.0, 101))

    assert finding.suggestion is None
    assert "No rate in this range" in finding.text


def test_a_range_test_of_a_network_finds_falling_and_lost_rates(tmp_path: Path) -> None:
    state = make_setup(tmp_path, steps=120)
    rates = np.geomspace(1e-4, 1e4, 120)

    losses, changes = measure_rates(state, rates)
    finding = suggest_rate("adamw", rates[: len(losses)], losses, changes)

    assert changes[0] == pytest.approx(0.0, abs=1e-6)
    assert len(losses) < 120
    assert finding.suggestion is not None and finding.lost is not None
    assert 1e-3 < finding.suggestion < 1.0
    assert finding.suggestion < finding.lost


def test_looking_at_the_initial_weights_leaves_them_as_they_are(tmp_path: Path) -> None:
    state = make_setup(tmp_path, steps=30)
    before = {name: value.clone() for name, value in state.model.state_dict().items()}

    losses, _ = measure_rates(state, np.geomspace(1e-12, 2e-12, 30))

    for name, value in state.model.state_dict().items():
        if "running" not in name and "num_batches" not in name:
            torch.testing.assert_close(value, before[name], rtol=0, atol=1e-6)
    assert int(state.model.state_dict()["norm.num_batches_tracked"]) == 30
    assert len(losses) == 30


def test_the_finding_is_written_as_numbers_and_as_a_picture(tmp_path: Path) -> None:
    changes = _valley(1e-3, 1e3)[:81]
    changes[-1] = np.nan

    write_finding(_judge(changes), RunConfig(), tmp_path / "out", lambda text: None)

    values = json.loads((tmp_path / "out" / "find-lr.json").read_text())
    assert values["changes"][-1] is None
    assert values["suggestion"] == pytest.approx(1e-3, rel=0.3)
    assert (tmp_path / "out" / "find-lr.png").read_bytes().startswith(b"\x89PNG")


def test_prodigy_is_refused_with_what_to_do_instead() -> None:
    config = RunConfig(data=DataConfig(train_csv="a.csv"), optimizer=Choice("prodigy"))

    with pytest.raises(ConfigError, match="race"):
        find_rate(config)


def test_bounds_that_make_no_range_are_refused() -> None:
    config = RunConfig(training=TrainingConfig(steps=50))

    with pytest.raises(ConfigError, match="a higher highest rate"):
        find_rate(config, lowest=1e-2, highest=1e-3)
