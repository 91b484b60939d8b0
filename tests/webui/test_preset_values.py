"""The values of the presets on the page make the settings that the trainer's presets make."""

import pytest

from trainer.config.presets import PRESETS
from trainer.core.run_config import Choice, DataConfig, RunConfig
from webui.forms.form import FormValues
from webui.forms.preset_values import DEFAULTS, Part, plan_presets
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
    return RunForm("")


def apply(plan: list[Part], form: RunForm, values: FormValues) -> FormValues:
    """Do what the page's script does with the parts of a preset."""
    before = form.initial() | dict(values)
    after = dict(values)
    for part in plan:
        if all(before[field] != value for field, value in part.get("unless", {}).items()):
            starts = tuple(part.get("reset", []))
            after = {field: value for field, value in after.items() if not field.startswith(starts)}
            after |= part.get("set", {})
    return after


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("preset", [*PRESETS, DEFAULTS])
def test_the_page_fills_what_the_preset_says(form: RunForm, preset: str, start: str) -> None:
    shown = form.fill(STARTS[start])
    wanted = form.fill(with_preset(form.config(shown, DataConfig()), preset))

    values = apply(plan_presets(form)[preset], form, shown)

    assert form.config(values, DataConfig()) == form.config(shown | wanted, DataConfig())


def test_a_preset_touches_only_what_it_names(form: RunForm) -> None:
    quick = plan_presets(form)["quick"]

    touched = {field for part in quick for field in part.get("set", {})}

    assert touched == {"training-steps", "training-epochs", "schedule-choice"}
    assert [part["reset"] for part in quick if "reset" in part] == [["schedule-cosine-"]]


def test_a_reset_reaches_the_options_of_one_entry_alone(form: RunForm) -> None:
    starts = {start for plan in plan_presets(form).values() for part in plan
              for start in part.get("reset", [])}  # fmt: skip
    choices = (form.family, form.optimizer, form.schedule)
    options = [options for choice in choices for options in choice.forms.values()]
    entries = {f"{each.name}-": set(each.ids) for each in options}

    for start in starts & entries.keys():
        assert {field for field in form.ids if field.startswith(start)} == entries[start]
