"""Old names of optimizers and options that no longer exist still work, in runs, files and flags."""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.helpers.toy import make_setup
from trainer.checkpoints.checkpoint import restore_checkpoint, save_checkpoint
from trainer.checkpoints.compatibility import compare_scopes, describe_scope
from trainer.commands.main import main
from trainer.config.cli_flags import command_line, config_from_args
from trainer.config.resolve import find_optimizer, resolve
from trainer.core.events import Event, Notice
from trainer.core.run_config import Choice, RunConfig
from trainer.race.contenders import read_contenders
from trainer.training.assemble import _report_retired_options
from trainer.training.loop import train_step

OLD_NAMES = {"prodigy_reference": "prodigy", "schedule_free_reference": "schedule_free_adamw"}
COMPILED = ("ademamix", "lion", "prodigy", "schedule_free_adamw")

each_old_name = pytest.mark.parametrize(("old", "new"), OLD_NAMES.items())


@each_old_name
def test_an_old_run_json_selects_the_package(old: str, new: str) -> None:
    stored = {"optimizer": {"name": old, "options": {"beta2": 0.99}}}

    config = RunConfig.from_json(stored)

    assert config.optimizer == Choice(new, {"implementation": "package", "beta2": 0.99})
    assert RunConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert find_optimizer(old) is find_optimizer(new)


@each_old_name
def test_an_old_command_selects_the_package(old: str, new: str) -> None:
    words = ["--optimizer", old, "--beta2", "0.99", "--schedule", "constant"]

    config, _ = config_from_args(argparse.ArgumentParser(), words)

    assert config.optimizer == Choice(new, {"implementation": "package", "beta2": 0.99})
    assert "--implementation package" in " ".join(command_line(config, "run"))


def test_an_old_name_races_beside_the_new_one() -> None:
    contenders = read_contenders("prodigy:d_coef=1,prodigy_reference:d_coef=1", RunConfig(), 1)

    found = [replace(RunConfig(), optimizer=each.optimizer).optimizer for each in contenders]

    assert [each.name for each in contenders] == ["prodigy", "prodigy_reference"]
    assert found == [Choice("prodigy"), Choice("prodigy", {"implementation": "package"})]


@each_old_name
def test_a_checkpoint_under_an_old_name_goes_on_bit_for_bit(
    old: str, new: str, tmp_path: Path
) -> None:
    state = make_setup(tmp_path, optimizer=old)
    for step in (1, 2, 3):
        train_step(state, step)
    folder = tmp_path / save_checkpoint(state, 3, best=False).path
    scope = describe_scope(state)
    scope["config"]["optimizer"] = {"name": old, "options": {}}  # as the old version wrote it

    resumed = make_setup(tmp_path / "again", optimizer=old)
    differences = compare_scopes(scope, describe_scope(resumed))
    restore_checkpoint(resumed, folder)
    for each in (state, resumed):
        train_step(each, 4)

    assert differences == []
    weights = zip(state.model.parameters(), resumed.model.parameters(), strict=True)
    assert all(torch.equal(value, same) for value, same in weights)


@pytest.mark.parametrize("name", COMPILED)
def test_a_stored_option_that_was_retired_is_ignored_with_a_notice(name: str) -> None:
    schedule = Choice("constant")
    entries = [
        resolve(RunConfig(optimizer=Choice(name, values), schedule=schedule))
        for values in ({"compiled": True}, {"compiled": False}, {})
    ]
    notices: list[list[Event]] = [[], [], []]

    for entry, found in zip(entries, notices, strict=True):
        _report_retired_options(entry, found.append)

    label = find_optimizer(name).label
    text = f"{label} ignores the option Compiled: optimizers are no longer compiled."
    assert notices == [[Notice("info", text)], [], []]


def test_a_retired_flag_is_accepted_and_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    config, _ = config_from_args(argparse.ArgumentParser(), ["--optimizer", "lion", "--compiled"])

    with pytest.raises(SystemExit):
        main(["train", "--optimizer", "lion", "--help"])

    assert config.optimizer == Choice("lion", {"compiled": True})
    assert "--compiled" not in capsys.readouterr().out
