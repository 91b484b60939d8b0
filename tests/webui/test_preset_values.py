"""The values of the presets on the page make the settings that the trainer's presets make."""

from typing import Any

import pytest

from tests.helpers.page import in_blocks
from trainer.config.presets import PRESETS
from trainer.core.run_config import Choice, DataConfig, RunConfig
from webui.forms.preset_values import DEFAULTS, PresetValues
from webui.forms.run_form import RunForm
from webui.tabs.train import with_preset

STARTS = {
    "fresh": RunConfig(),
    "edited": RunConfig(
        optimizer=Choice("adamw", {"lr": 0.5, "cautious": True}),
        schedule=Choice("cosine", {"final_share": 0.25}),
        optimizations={"gradient_checkpointing": {"level": "light"}, "tf32": {}},
    ),
    "other entries": RunConfig(
        family=Choice("xtts", {"dropout": 0.3}),
        optimizer=Choice("lion", {"lr": 0.25}),
        schedule=Choice("noam", {}),
    ),
}


@pytest.fixture(scope="module")
def form() -> RunForm:
    return in_blocks(lambda: RunForm(""))


def apply(plan: list[dict[str, Any]], before: dict[str, Any]) -> dict[str, Any]:
    """Do what the page's script does with the parts of a preset."""
    after = dict(before)
    for part in plan:
        if all(before[field] != value for field, value in part.get("unless", {}).items()):
            after |= part["set"]
    return after


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("preset", [*PRESETS, DEFAULTS])
def test_the_page_fills_what_the_preset_says(form: RunForm, preset: str, start: str) -> None:
    by_id: dict[str, Any] = {str(field.elem_id): field for field in form.components}
    blank = {field: field.value for field in by_id.values()}
    shown = blank | form.fill(STARTS[start])
    wanted = blank | form.fill(with_preset(form.config(shown, DataConfig()), preset))
    before = {name: shown[field] for name, field in by_id.items()}

    after = apply(PresetValues(form).plans[preset], before)

    values = {by_id[name]: value for name, value in after.items()}
    assert form.config(values, DataConfig()) == form.config(wanted, DataConfig())


def test_a_preset_touches_only_what_it_names(form: RunForm) -> None:
    quick = PresetValues(form).plans["quick"]

    touched = {field for part in quick for field in part["set"] if "unless" not in part}

    assert touched == {"training-steps", "training-epochs", "schedule-choice"}
