"""The form: every option becomes a widget, and a dataclass comes back equal to what went in."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.clips import write_list, write_tone
from tests.helpers.page import in_blocks, make_studio
from trainer.config.presets import PRESETS, apply_preset
from trainer.config.resolve import mismatches, missing_files, resolve
from trainer.config.schedules import SCHEDULES
from trainer.core.errors import ConfigError, DataError, FieldProblem
from trainer.core.options import OptionInfo, build_options, describe, parse_value, to_values
from trainer.core.registry import discover
from trainer.core.run_config import Choice, DataConfig, RunConfig, TrainingConfig
from trainer.core.specs import ModelFamily, Optimization, OptimizerSpec
from trainer.data.lists.manifest import read_manifest
from webui.forms.form import FormDescription, OptionsForm, read_values
from webui.forms.form_validation import about_lists, field_errors
from webui.forms.run_form import DataForm, RunForm, show_training
from webui.studio import Studio
from webui.tabs.data import store_upload
from webui.tabs.start import machine_facts
from webui.tabs.train import preset_shown, with_preset
from webui.views.clip_table import TableView, ledger_page, report
from webui.views.lr_curve import draw_lr_curve
from webui.views.markup import escape_html

_ENTRIES = [
    *discover("trainer.models", ModelFamily).values(),
    *discover("trainer.optimizers", OptimizerSpec).values(),
    *discover("trainer.optimizations", Optimization).values(),
    *SCHEDULES.values(),
]
_OPTIONS = [entry.options for entry in _ENTRIES] + [DataConfig, TrainingConfig]
_IDS = [entry.name for entry in _ENTRIES] + ["data", "training"]


@pytest.mark.parametrize("options_class", _OPTIONS, ids=_IDS)
def test_an_untouched_form_gives_the_defaults(options_class: type) -> None:
    read = OptionsForm(options_class, "options").read({})

    assert build_options(options_class, read, "options") == options_class()


@pytest.mark.parametrize("options_class", _OPTIONS, ids=_IDS)
def test_options_shown_in_the_form_come_back_equal(options_class: type) -> None:
    changed = {info.name: _other_value(info) for info in _shown_options(options_class)}
    form = OptionsForm(options_class, "options")

    read = form.read(form.fill(changed))

    assert read == changed


@pytest.mark.parametrize("options_class", _OPTIONS, ids=_IDS)
def test_every_field_is_described_with_its_label_help_and_default(options_class: type) -> None:
    described = FormDescription()
    described.add("options", OptionsForm(options_class, "options"))
    sent: Any = json.loads(json.dumps(described.to_json()))

    fields = {name: (sent["looks"][look], start) for name, look, start in
              sent["entries"]["options"]["fields"]}  # fmt: skip

    assert list(fields) == [info.name for info in _shown_options(options_class)]
    for info in _shown_options(options_class):
        (label, text, kind, is_advanced, *_), start = fields[info.name]
        assert (label, text, is_advanced) == (info.label, info.help, info.advanced)
        assert (kind == "tick") == (info.kind is bool)
        assert parse_value(info, start) == info.default


def test_what_many_entries_share_is_described_once() -> None:
    described = FormDescription()
    entry = discover("trainer.optimizers", OptimizerSpec)["adamw"]
    for name in ("adamw", "twin"):
        described.add(name, OptionsForm(entry.options, name))

    sent: Any = described.to_json()

    assert len(sent["looks"]) == len(_shown_options(entry.options))
    assert sent["entries"]["adamw"]["fields"] == sent["entries"]["twin"]["fields"]


@pytest.mark.parametrize("sent", ["", "@form", "[]", "null", '{"training-steps": 3}', None])
def test_what_the_script_did_not_send_is_refused(sent: Any) -> None:
    with pytest.raises(ConfigError, match="Reload the page"):
        read_values(sent)


def _shown_options(options_class: type) -> list[OptionInfo]:
    """Return the options that a form shows."""
    return [info for info in describe(options_class) if not info.retired]


def _other_value(info: Any) -> Any:
    """Return a valid value that differs from the default."""
    if info.kind is bool:
        return not info.default
    if info.choices:
        return next(choice for choice in info.choices if choice != info.default)
    if info.kind is str:
        return "10 epochs"
    low = info.min if info.min is not None else 0
    high = info.max if info.max is not None else low + 10
    value = info.kind((low + high) / 2)
    return value if value != info.default else info.kind(high)


@pytest.fixture
def studio(tmp_path: Path) -> Studio:
    return make_studio(tmp_path)


@pytest.fixture
def clips_csv(tmp_path: Path) -> Path:
    """A list of two clips that are there and one that is not."""
    folder = tmp_path / "clips"
    rows = [f"{write_tone(folder / name).name}|{name} speaks" for name in ("a.wav", "b.wav")]
    return write_list(folder / "train.csv", *rows, "missing.wav|nobody speaks")


@pytest.fixture(scope="module")
def run_form() -> RunForm:
    return RunForm("/base")


def test_an_untouched_run_form_gives_the_default_run(run_form: RunForm) -> None:
    data = DataConfig(train_csv="/clips/train.csv")

    config = run_form.config({}, data)

    defaults = {
        name: {}
        for name, entry in discover("trainer.optimizations", Optimization).items()
        if entry.default_on and name in run_form.optimizations.forms
    }
    assert config == RunConfig(data=data, base="/base", optimizations=defaults)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_comes_back_from_the_form_as_it_went_in(
    run_form: RunForm, preset: str
) -> None:
    config = apply_preset(RunConfig(), preset)

    read = run_form.config(run_form.fill(config), DataConfig())

    assert _complete(read) == _complete(config)


def test_the_form_tells_which_preset_it_shows(run_form: RunForm) -> None:
    def shown(config: RunConfig, chosen: str) -> str:
        return preset_shown(run_form, config, chosen)

    untouched = run_form.config({}, DataConfig())
    low_memory = apply_preset(untouched, "low-memory")
    smaller = low_memory.with_values(training=replace(low_memory.training, batch_size=1))

    assert shown(untouched, "quick") == "defaults"
    assert shown(low_memory, "defaults") == "low-memory"
    assert shown(smaller, "low-memory") == "own"
    # What a preset leaves alone may be changed without leaving it.
    assert shown(smaller, "balanced") == "balanced"
    assert with_preset(smaller, "defaults") == untouched


def _complete(config: RunConfig) -> dict[str, Any]:
    """Return a configuration with every option spelled out, so that defaults count as equal."""
    values = config.to_json()
    for part, entries in (
        ("family", discover("trainer.models", ModelFamily)),
        ("optimizer", discover("trainer.optimizers", OptimizerSpec)),
        ("schedule", SCHEDULES),
    ):
        choice = values[part]
        options = build_options(entries[choice["name"]].options, choice["options"], part)
        values[part] = {"name": choice["name"], "options": to_values(options)}
    values["optimizations"] = sorted(values["optimizations"])
    return values


def test_all_unusable_fields_are_named_at_once(run_form: RunForm) -> None:
    values = {"training-steps": "many", "training-clip_norm": "-1"}

    with pytest.raises(ConfigError) as caught:
        run_form.config(values, DataConfig())

    assert len(caught.value.problems) == 2


def test_contradictions_between_fields_are_refused(run_form: RunForm) -> None:
    values = {"training-steps": "10", "training-epochs": "2"}

    with pytest.raises(ConfigError, match="Set one") as caught:
        run_form.config(values, DataConfig())

    told = json.loads(field_errors(caught.value.problems, _on_train(run_form)))
    assert [mark["field"] for mark in told["marks"]] == ["training-steps", "training-epochs"]


def _on_train(form: RunForm) -> dict[str, str]:
    return dict.fromkeys(form.ids, "train")


def test_every_problem_of_a_field_is_told_with_its_tab_in_the_order_of_the_page(
    run_form: RunForm,
) -> None:
    values = {
        "optimizer-adamw-lr": "fast", "training-keep_last": "0", "training-batch_size": " ",
        "family-fastspeech2-size": "huge",
    }  # fmt: skip

    with pytest.raises(ConfigError) as caught:
        run_form.config(values, DataConfig())

    told = json.loads(field_errors(caught.value.problems, _on_train(run_form), pressed=True))
    assert [(mark["field"], mark["tab"]) for mark in told["marks"]] == [
        ("family-fastspeech2-size", "train"), ("training-batch_size", "train"),
        ("optimizer-adamw-lr", "train"), ("training-keep_last", "train"),
    ]  # fmt: skip
    assert "is empty. Enter a whole number" in told["marks"][1]["words"]
    assert told["marks"][-1]["words"].startswith("Checkpoints kept (keep_last) is '0'; expected")
    assert told["pressed"]


def test_another_base_needs_its_path(run_form: RunForm) -> None:
    with pytest.raises(ConfigError, match="Enter the path") as caught:
        run_form.config({"base": False}, DataConfig())

    told = json.loads(field_errors(caught.value.problems, _on_train(run_form)))
    assert [mark["field"] for mark in told["marks"]] == ["base"]
    assert run_form.config({"base": "/mine"}, DataConfig()).base == "/mine"
    assert run_form.config({"base": ""}, DataConfig()).base == ""


def test_every_check_of_the_trainer_that_is_about_a_field_of_the_page_finds_it(
    run_form: RunForm, tmp_path: Path
) -> None:
    data = DataForm()
    gone = str(tmp_path / "gone")
    wrong = RunConfig(
        data=DataConfig(train_csv=gone, eval_csv=gone), base=gone,
        family=Choice("fastspeech2", {"aligner": "ctc", "ctc_model": gone}),
        optimizer=Choice("schedule_free_adamw"), schedule=Choice("noam"),
    )  # fmt: skip
    problems = [*missing_files(wrong), *mismatches(resolve(wrong))]
    for config in (
        wrong.with_values(schedule=Choice("noam", {"milestones": "soon"})),
        wrong.with_values(family=Choice("fastspeech2", {"aligner": "ctc"})),
    ):
        with pytest.raises(ConfigError) as caught:
            resolve(config)
        problems += caught.value.problems

    told = json.loads(field_errors(problems, dict.fromkeys([*data.ids, *run_form.ids], "")))

    assert sorted(mark["field"] for mark in told["marks"]) == [
        "base", "data-eval_csv", "data-train_csv", "family-fastspeech2-ctc_model",
        "schedule-choice", "schedule-noam-milestones",
    ]  # fmt: skip
    assert len(problems) == 7


@pytest.mark.parametrize("name", ["train_csv", "eval_csv", "train_data"])
def test_a_list_that_cannot_be_read_is_told_beside_the_field_that_names_it(
    studio: Studio, clips_csv: Path, name: str
) -> None:
    train = {} if name == "train_data" else {"train_csv": str(clips_csv)}
    data = DataConfig(**(train | {name: str(clips_csv.parent / "gone")}))

    with pytest.raises(DataError) as caught:
        studio.read_manifest(data)

    (problem,) = about_lists(caught.value, data)
    assert isinstance(problem, FieldProblem)
    assert problem.fields == (f"data.{name}",)


def test_ticked_optimizations_and_only_those_are_in_the_run(run_form: RunForm) -> None:
    boxes = run_form.optimizations.boxes.items()
    values = {box: name == "gradient_checkpointing" for name, box in boxes}

    config = run_form.config(values, DataConfig())

    assert config.optimizations == {"gradient_checkpointing": {}}


@pytest.mark.fault("E9")
def test_an_optimization_that_cannot_work_here_says_why_and_cannot_be_ticked() -> None:
    form = RunForm("")
    html = in_blocks(lambda: show_training(form)).value

    for name, reason in form.optimizations.unavailable.items():
        box = html.split(f'id="optimization-{name}"')[1].split("</div>")[0]
        assert " disabled" in box
        assert escape_html(reason) in box
        assert name not in form.config({f"optimization-{name}": True}, DataConfig()).optimizations


def test_the_data_form_gives_a_data_config() -> None:
    form = DataForm()
    data = DataConfig(train_csv="/a/train.csv", language="am", max_duration_s=11.6)

    assert form.config(form.fill(vars(data))) == data


def test_choices_keep_their_options_when_another_entry_is_filled_in(run_form: RunForm) -> None:
    config = RunConfig(schedule=Choice("noam", {"warmup_steps": 7}))

    read = run_form.config(run_form.fill(config), DataConfig())

    assert read.schedule == Choice("noam", {"warmup_steps": 7})


def test_the_learning_rate_is_drawn_from_the_first_step_to_the_last() -> None:
    picture = draw_lr_curve([(1, 0.001), (50, 0.002), (100, 0.0)])

    assert "step 100" in picture
    assert "0.002" in picture


@pytest.mark.fault("F7")
def test_foreign_words_in_the_report_are_escaped(clips_csv: Path) -> None:
    manifest = read_manifest(DataConfig(train_csv=str(clips_csv)))
    nasty = replace(manifest.clips[0], speaker="<img src=x> ${1} {{this}}")

    page = report(replace(manifest, clips=(nasty, *manifest.clips[1:])))

    assert "<img" not in page
    assert "${" not in page
    assert "{{" not in page


def test_only_problems_leaves_the_kept_rows_out(clips_csv: Path) -> None:
    manifest = read_manifest(DataConfig(train_csv=str(clips_csv)))

    rows, _ = ledger_page(manifest, TableView(only_problems=True))

    assert [row[7] for row in rows] == ["missing.wav"]
    assert all(isinstance(cell, str) for row in rows for cell in row)


def test_uploaded_lists_and_clips_make_a_dataset(clips_csv: Path, studio: Studio) -> None:
    files = [str(path) for path in sorted(clips_csv.parent.iterdir())]

    data = store_upload(studio, files, "")

    assert len(read_manifest(data).clips) == 2


def test_an_uploaded_list_finds_clips_on_the_server(clips_csv: Path, studio: Studio) -> None:
    data = store_upload(studio, [str(clips_csv)], str(clips_csv.parent))

    assert len(read_manifest(data).clips) == 2


def test_the_machine_is_described(studio: Studio) -> None:
    from trainer.core.device import Device

    facts = machine_facts(studio, [Device("cuda", 0, "T4", 16.0, (7, 5))])

    assert "**T4**: 16 GB memory, no bf16" in facts
