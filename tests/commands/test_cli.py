"""The command line: what it prints, what it refuses, and flags that round-trip."""

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import trainer.commands
from tests.helpers.clips import write_list, write_tone
from trainer import Run, RunConfig
from trainer.__main__ import reserve_a_core
from trainer.commands import check
from trainer.commands import main as cli
from trainer.commands._command import Command
from trainer.commands._event_text import describe_event
from trainer.commands.main import main
from trainer.config.cli_flags import command_line, config_flags, config_from_args
from trainer.config.presets import PRESETS, apply_preset
from trainer.core import metrics, registry
from trainer.core.child_process import PROJECT, run_child
from trainer.core.errors import ConfigError
from trainer.core.events import RunFinished, RunStarted, StepDone, ValidationDone
from trainer.core.run_config import Choice, DataConfig, TrainingConfig


def _parse(*words: str) -> RunConfig:
    import argparse

    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--run")
    return config_from_args(parser, list(words))[0]


def test_one_core_is_left_to_the_page_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    reserve_a_core()
    usual = os.environ["OMP_NUM_THREADS"]
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    reserve_a_core()

    assert usual == str(max(1, (os.cpu_count() or 2) - 1))
    assert os.environ["OMP_NUM_THREADS"] == "77"


def test_the_help_lists_every_command_in_the_order_of_use(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--help"]) == 0

    text = capsys.readouterr().out
    names = [line.split()[0] for line in text.splitlines() if re.match(r"  [a-z]", line)]
    assert names[:14] == [
        "check", "cut", "train", "resume", "stop", "status", "metrics", "synthesize", "export",
        "launch", "race", "find-lr", "estimate", "measure",
    ]  # fmt: skip


def test_a_new_command_is_one_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "greet.py").write_text(
        "from trainer.commands._command import Command\n"
        "def run(parser, argv, echo):\n"
        "    parser.add_argument('name')\n"
        "    echo(f'Hello {parser.parse_args(argv).name}')\n"
        "    return 7\n"
        "COMMAND = Command('greet', 'greet a person', 15, run)\n"
    )
    monkeypatch.setattr(trainer.commands, "__path__", [*trainer.commands.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "trainer.commands.greet", raising=False)
    registry._discover.cache_clear()

    try:
        code = main(["greet", "Ada"])
        said = capsys.readouterr().out
        main(["--help"])
        listed = capsys.readouterr().out
    finally:
        registry._discover.cache_clear()
        sys.modules.pop("trainer.commands.greet", None)

    assert (code, said) == (7, "Hello Ada\n")
    assert (
        listed.index("  check ")
        < listed.index("  greet       greet a person")
        < listed.index("  cut ")
    )


@pytest.mark.parametrize("words", ["--help", "status", "metrics", "stop", "check"])
def test_commands_that_only_read_do_not_import_torch(tmp_path: Path, words: str) -> None:
    run = Run.create(tmp_path / "voice", RunConfig())
    write_tone(tmp_path / "a.wav")
    path = write_list(tmp_path / "list.csv", "a.wav|Hello there.")
    more = {
        "--help": [],
        "check": ["--train-csv", str(path), "--json"],
        "metrics": [str(run.folder), "--json"],
    }.get(words, [str(run.folder)])
    program = (
        "import sys; from trainer.commands.main import main; main(sys.argv[1:]); "
        "found = {'torch', 'scipy', 'pandas', 'gradio'} & set(sys.modules); "
        "sys.exit(f'{found}' if found else 0)"
    )

    ended = run_child([sys.executable, "-c", program, words, *more], timeout_s=300, folder=PROJECT)

    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ended.stdout


def test_the_help_of_train_explains_the_options_of_what_was_chosen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--optimizer", "prodigy", "--help"])

    text = capsys.readouterr().out

    assert "--d-coef" in text
    assert "--batch-size" in text
    assert "--mixed-precision" in text


def test_flags_become_a_configuration() -> None:
    config = _parse(
        "--train-csv", "a.csv", "--optimizer", "adamw", "--lr", "3e-4", "--batch-size", "16",
        "--mixed-precision", "bf16", "--sdpa", "--schedule", "noam", "--steps", "500",
    )  # fmt: skip

    assert config.data.train_csv == "a.csv"
    assert config.optimizer == Choice("adamw", {"lr": 3e-4})
    assert config.optimizations == {"mixed_precision": {"mode": "bf16"}, "sdpa": {}}
    assert (config.training.batch_size, config.training.steps) == (16, 500)


def test_flags_win_over_the_file_and_the_file_over_the_preset(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"training": {"batch_size": 3, "seed": 5}}))

    config = _parse("--preset", "quick", "--config", str(path), "--batch-size", "4")

    assert config.training.batch_size == 4
    assert config.training.seed == 5


def test_a_file_takes_nothing_from_a_preset_that_it_does_not_name(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"training": {"batch_size": 3}, "optimizations": ["sdpa"]}))
    preset = apply_preset(RunConfig(), "low-memory")

    config = _parse("--preset", "low-memory", "--config", str(path))

    assert config.training == replace(preset.training, batch_size=3)
    assert (config.optimizer, config.family) == (preset.optimizer, preset.family)
    path.write_text(json.dumps({"training": {"steps": 50}}))
    training = _parse("--preset", "low-memory", "--config", str(path)).training
    assert (training.steps, training.epochs) == (50, None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check", "--train-csv", "a" * 300], "File name too long"),
        (["status", "a" * 300], "File name too long"),
        (["estimate", "--config", "."], "Is a directory"),
        (["train", "--run", "none", "--train-csv", "~nobody-here/x.csv"], "does not exist"),
        (["train", "--run", "none", "--train-csv", "a" * 300], "does not exist"),
    ],
)
def test_a_path_that_cannot_be_used_is_a_sentence(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) != 0

    told = capsys.readouterr().err
    assert told.startswith("Error: ") and said in told


def test_a_full_disk_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    refusing = Command("status", "refuse", 0, refuse)
    monkeypatch.setattr(cli, "list_commands", lambda: {"status": refusing})

    assert main(["status", "run"]) == 1
    assert capsys.readouterr().err.startswith("Error: No space left on device.")


def test_check_counts_only_what_the_family_can_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "abc":
        write_tone(tmp_path / f"{name}.wav")
    rows = [f"{name}.wav|Hello there {name}." for name in "abc"]
    path = write_list(tmp_path / "list.csv", *rows)
    monkeypatch.setattr(check, "_charset_for", lambda *_: {})
    monkeypatch.setattr(
        check, "_judge_for", lambda *given: ({clip.id: "Too long." for clip in given[2][:2]}, [])
    )
    words = ["check", "--train-csv", str(path), "--eval-fraction", "0"]

    main(words)
    whole = capsys.readouterr().out
    main([*words, "--family", "xtts"])
    told = capsys.readouterr().out

    assert "3 clips are usable (0.1 minutes, 3 train, 0 val), 0 rows" in whole
    assert "1 clips are usable (0.0 minutes, 1 train, 0 val), 2 rows" in told


def test_a_preset_gives_way_to_flags() -> None:
    config = _parse("--preset", "quick", "--epochs", "2")

    assert (config.training.steps, config.training.epochs) == (None, 2.0)


def test_an_optimization_of_a_preset_can_be_switched_off() -> None:
    config = _parse("--preset", "low-memory", "--mixed-precision", "off", "--no-sdpa")

    assert set(config.optimizations) == {"gradient_checkpointing"}


def test_options_of_an_optimization_are_flags_of_their_own() -> None:
    config = _parse("--gradient-checkpointing", "--gradient-checkpointing-level", "light")

    assert config.optimizations == {"gradient_checkpointing": {"level": "light"}}
    with pytest.raises(ConfigError, match="lora-rank has no effect because lora is off"):
        _parse("--lora-rank", "8")


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_survives_the_way_through_its_command_line(name: str) -> None:
    config = apply_preset(RunConfig(data=DataConfig(train_csv="a b.csv")), name)

    words = command_line(config, "runs/x")

    assert _parse(*words[4:]) == _with_defaults_dropped(config)


def _with_defaults_dropped(config: RunConfig) -> RunConfig:
    """Options equal to their defaults are not printed, so they do not come back."""
    values = config.to_json()
    for flag in config_flags(config):
        if (
            len(flag.path) == 3
            and values[flag.path[0]]["options"].get(flag.path[2]) == flag.info.default
        ):
            values[flag.path[0]]["options"].pop(flag.path[2], None)
    return RunConfig.from_json(values)


def test_bad_values_are_sentences_and_all_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(
        ["train", "--run", str(tmp_path / "r"), "--train-csv", "a.csv", "--batch-size", "0",
         "--clip-norm", "-1"]
    )  # fmt: skip

    text = capsys.readouterr().err

    assert code == 2
    assert "Batch size" in text
    assert "Gradient clipping" in text
    assert not (tmp_path / "r").exists()


def test_an_unknown_optimizer_names_the_nearest_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(
        ["train", "--run", str(tmp_path / "r"), "--optimizer", "prodgy", "--train-csv", "a"]
    )

    assert code == 2
    assert "Did you mean 'prodigy'?" in capsys.readouterr().err


def test_training_without_clips_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--run", str(tmp_path / "r")]) == 2

    assert "--train-csv" in capsys.readouterr().err


def test_an_existing_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Run.create(tmp_path / "r", RunConfig())

    assert main(["train", "--run", str(tmp_path / "r"), "--train-csv", __file__]) == 1

    assert "never overwritten" in capsys.readouterr().err


def test_progress_and_status_show_labels_and_units_of_the_registry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.create(tmp_path / "r", RunConfig(training=TrainingConfig(steps=2)))
    step = StepDone(1, {metrics.TRAIN_LOSS: 0.123456, metrics.MEMORY_GIB: 1.25, "train/new": 1.0})
    run.events.append(RunStarted(1, 2, 1))
    run.events.append(step)

    main(["status", str(run.folder)])

    assert describe_event(step) == "step 1  train loss 0.1235  memory 1.25 GiB"
    assert "  train loss 0.1235\n  memory 1.25 GiB\n" in capsys.readouterr().out


def test_status_and_metrics_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run.create(tmp_path / "r", RunConfig(training=TrainingConfig(steps=2)))
    run.events.append(RunStarted(1, 2, 1))
    run.events.append(StepDone(1, {"train/loss": 2.0}))
    run.events.append(ValidationDone(1, {"val/loss": 3.0}))
    run.events.append(StepDone(2, {"train/loss": 1.0}))
    run.events.append(RunFinished("finished", 2))

    main(["status", str(run.folder), "--json"])
    status = json.loads(capsys.readouterr().out)
    main(["metrics", str(run.folder), "--csv"])
    rows = capsys.readouterr().out.splitlines()
    main(["metrics", str(run.folder), "--json"])
    columns = json.loads(capsys.readouterr().out)

    assert (status["state"], status["step"], status["total_steps"]) == ("finished", 2, 2)
    assert rows[0] == "step,time,train/loss,val/loss"
    assert rows[1].endswith(",2.0,3.0")
    assert columns["steps"]["train/loss"] == [2.0, 1.0]


def test_a_folder_that_is_no_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resume", str(tmp_path)]) == 1

    assert "holds no run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--train-csv", "nowhere.csv"], "nowhere.csv does not exist"),
        (["--train-csv", __file__, "--base", "nothing"], "nothing does not exist"),
        (["--train-csv", __file__, "--device", "cuda:7"], "no device 'cuda:7'"),
        (["--train-csv", __file__, "--device", "cpu", "--tf32"], "TF32 is not available here"),
    ],
)
def test_what_must_fail_is_said_before_a_folder_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    code = main(["train", "--run", str(tmp_path / "r"), *words])

    assert code == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_more_steps_are_asked_of_a_run_that_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.create(tmp_path / "voice", RunConfig(training=TrainingConfig(steps=30)))
    lock = run.take()

    code = main(["resume", str(run.folder), "--more-steps", "12"])
    lock.release()

    assert (code, run.requested_steps()) == (0, 42)
    assert "now ends at step 42" in capsys.readouterr().out
