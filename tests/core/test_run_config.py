"""RunConfig: what a person chose survives JSON, and whatever cannot be used is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from trainer.core.errors import ConfigError
from trainer.core.run_config import (
    Choice,
    DataConfig,
    Interval,
    RunConfig,
    TrainingConfig,
    merge_values,
    parse_interval,
    read_config,
)


def _problems(values: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_json(values)
    return caught.value.problems


def test_a_configuration_survives_json() -> None:
    config = RunConfig(
        data=DataConfig(train_csv="a.csv", language="ko", min_duration_s=0.5),
        training=TrainingConfig(steps=10, loader_workers=0, save_every="2 epochs"),
        family=Choice("fastspeech2", {"size": "standard"}),
        base="base",
        optimizer=Choice("prodigy", {"d_coef": 2.0}),
        schedule=Choice("constant"),
        optimizations={"sdpa": {}, "mixed_precision": {"mode": "bf16"}},
    )

    text = json.dumps(config.to_json())

    assert RunConfig.from_json(json.loads(text)) == config


def test_what_is_absent_takes_its_default() -> None:
    assert RunConfig.from_json({}) == RunConfig()
    assert RunConfig.from_json({"training": {"batch_size": 2}}) == RunConfig(
        training=TrainingConfig(batch_size=2)
    )


def test_a_choice_may_be_a_name_and_optimizations_a_list() -> None:
    config = RunConfig.from_json({"optimizer": "prodigy", "optimizations": ["sdpa"]})

    assert config.optimizer == Choice("prodigy", {})
    assert config.optimizations == {"sdpa": {}}


def test_every_problem_of_every_part_is_listed_at_once() -> None:
    problems = _problems(
        {
            "trainig": {},
            "data": {"languge": "en"},
            "training": {"batch_size": 0, "seed": "x"},
            "family": 3,
            "optimizations": {"sdpa": True},
        }
    )

    assert len(problems) == 6
    assert "Did you mean 'training'?" in problems[0]
    assert "Did you mean 'language'?" in problems[1]
    assert "(batch_size) is 0" in problems[2]
    assert "(seed) is 'x'" in problems[3]
    assert "'family' is 3" in problems[4]
    assert "'optimizations'" in problems[5]


@pytest.mark.parametrize(
    "values",
    [
        {"data": 5},
        {"data": ["train_csv"]},
        {"training": None},
        {"base": 5},
        {"optimizer": {"name": "adamw", "lr": 1}},
        {"optimizer": {"options": {}}},
        {"schedule": {"name": "cosine", "options": []}},
        {"optimizations": "sdpa"},
        {"format": "1"},
    ],
)
def test_a_part_of_another_shape_is_named_with_what_was_expected(values: dict[str, Any]) -> None:
    problems = _problems(values)

    assert len(problems) == 1
    assert next(iter(values)) in problems[0]
    assert "expected" in problems[0]


def test_a_newer_format_is_refused_with_what_to_do() -> None:
    (problem,) = _problems({"format": 2, "something": "new"})

    assert "Update Timbre" in problem


def test_fields_that_contradict_each_other_are_refused_together() -> None:
    with pytest.raises(ConfigError) as caught:
        RunConfig(
            data=DataConfig(train_csv="a.csv", train_data="b"),
            training=TrainingConfig(steps=1, epochs=1.0, save_every="often"),
        )

    assert len(caught.value.problems) == 3
    assert "'often' is not a valid interval" in caught.value.problems[0]
    assert "Set one" in caught.value.problems[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("200", Interval(200, "steps")),
        ("200 steps", Interval(200, "steps")),
        ("1 step", Interval(1, "steps")),
        (" 2 Epochs ", Interval(2, "epochs")),
        ("0.5 epochs", Interval(0.5, "epochs")),
        ("10min", Interval(10, "minutes")),
        ("10 minutes", Interval(10, "minutes")),
        ("auto", None),
        ("NEVER", None),
    ],
)
def test_an_interval_is_read_as_people_write_it(text: str, expected: Interval | None) -> None:
    assert parse_interval(text) == expected


@pytest.mark.parametrize("text", ["", "0", "0 steps", "-5", "5 hours", "steps", "2 3"])
def test_what_is_no_interval_is_answered_with_examples(text: str) -> None:
    with pytest.raises(ConfigError, match="200 steps, 2 epochs, 10 minutes or auto"):
        parse_interval(text)


def test_values_are_laid_over_others_part_by_part() -> None:
    base = RunConfig(optimizer=Choice("adamw", {"lr": 1.0, "eps": 1e-8})).to_json()

    merged = merge_values(base, {"training": {"seed": 7}, "optimizer": {"options": {"lr": 2.0}}})

    assert merged["training"] == base["training"] | {"seed": 7}
    assert merged["optimizer"] == {"name": "adamw", "options": {"lr": 2.0, "eps": 1e-8}}
    assert base["optimizer"]["options"]["lr"] == 1.0


def test_options_of_another_entry_are_not_mixed_in() -> None:
    base = {"optimizer": {"name": "adamw", "options": {"lr": 1.0}}}

    merged = merge_values(base, {"optimizer": {"name": "prodigy", "options": {}}})

    assert merged == {"optimizer": {"name": "prodigy", "options": {}}}


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(RunConfig(base="x").to_json()), encoding="utf-8")

    assert read_config(path) == RunConfig(base="x")


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"{", "is not a JSON file"), (b"\xff\xfe", "is not a JSON file"), (b"[]", "JSON object")],
)
def test_a_file_that_is_no_configuration_is_named(
    content: bytes, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)

    with pytest.raises(ConfigError, match=said) as caught:
        read_config(path)

    assert str(path) in str(caught.value)


def test_a_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        read_config(tmp_path / "no.json")
