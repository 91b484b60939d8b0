"""LoRA: what is trained, what is taken away, that a resume is exact, and that nothing leaks."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tests.helpers.toy import ToyModel, make_setup
from trainer.checkpoints.checkpoint import newest_checkpoint, restore_checkpoint, save_checkpoint
from trainer.core.errors import ConfigError
from trainer.core.options import build_options
from trainer.core.probe import probe
from trainer.core.registry import find
from trainer.core.specs import OptimizerSpec
from trainer.core.train_state import Setup, evaluation_weights
from trainer.models._layers.gpt2 import Gpt2Trunk
from trainer.optimizations.lora import OPTIMIZATION, Options, apply, merged
from trainer.optimizers._core.param_groups import param_groups
from trainer.training.evaluate import validate
from trainer.training.loop import train, train_step

STEPS = 12


def _setup(folder: Path, *, optimizer: str = "adamw", **training: Any) -> Setup:
    """Return a toy Setup whose inner layer has adapters."""
    setup = make_setup(folder, optimizer=optimizer, steps=STEPS, **training)
    spec = find("trainer.optimizers", OptimizerSpec, optimizer)
    options = build_options(spec.options, {"lr": setup.base_lr}, optimizer)

    def build(model: nn.Module) -> torch.optim.Optimizer:
        return spec.build(param_groups(model, 0.01), options, setup.device)

    setup.build_optimizer = build
    apply(setup, Options(rank=2, alpha=4.0))
    return setup


def _weights(setup: Setup) -> dict[str, Tensor]:
    buffers = dict(setup.model.named_buffers())
    return {name: value.detach().clone() for name, value in setup.model.named_parameters()} | {
        name: value.clone() for name, value in buffers.items()
    }


def _assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert torch.equal(value, expected[name]), name


def _train(setup: Setup, first: int, last: int) -> list[float]:
    return [train_step(setup, step)["error"].item() for step in range(first, last + 1)]


def test_only_the_adapters_are_trained(tmp_path: Path) -> None:
    setup = _setup(tmp_path)
    before = _weights(setup)

    _train(setup, 1, 5)

    after = dict(setup.model.named_parameters())
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert changed == {"inner.lora_down", "inner.lora_up"}
    assert sum(len(group["params"]) for group in setup.optimizer.param_groups) == 2
    assert len(setup.optimizer.state) == 2


def test_at_first_the_model_computes_what_it_did(tmp_path: Path) -> None:
    plain, adapted = make_setup(tmp_path), _setup(tmp_path)
    x = torch.randn(3, 4)

    assert torch.equal(adapted.model.eval()(x), plain.model.eval()(x))


def test_a_checkpoint_is_a_usual_model_that_computes_what_validation_judged(
    tmp_path: Path,
) -> None:
    setup = _setup(tmp_path)
    _train(setup, 1, 5)
    x = torch.randn(3, 4)

    saved = save_checkpoint(setup, 5, best=False)

    weights = load_file(tmp_path / saved.path / "model.safetensors")
    usual = ToyModel()
    usual.load_state_dict(weights, strict=True)
    with evaluation_weights(setup), torch.no_grad():
        judged = setup.model(x)
    assert torch.equal(usual.eval()(x), judged)
    assert not torch.equal(weights["inner.weight"], setup.model.inner.weight)  # type: ignore[union-attr]
    torch.testing.assert_close(setup.model.eval()(x), judged)


@pytest.mark.parametrize("optimizer", ["adamw", "schedule_free_adamw"])
@pytest.mark.parametrize("ema_decay", [0.0, 0.9])
def test_a_resumed_run_ends_with_the_same_bits(
    optimizer: str, ema_decay: float, tmp_path: Path
) -> None:
    whole = _setup(tmp_path / "whole", optimizer=optimizer, ema_decay=ema_decay)
    expected = _train(whole, 1, STEPS)
    first = _setup(tmp_path / "parts", optimizer=optimizer, ema_decay=ema_decay)
    _train(first, 1, 5)
    validate(first)
    save_checkpoint(first, 5, best=False)

    second = _setup(tmp_path / "parts", optimizer=optimizer, ema_decay=ema_decay)
    checkpoint, _ = newest_checkpoint(tmp_path / "parts" / "checkpoints")
    assert checkpoint is not None
    restore_checkpoint(second, checkpoint)

    assert _train(second, 6, STEPS) == expected[5:]
    _assert_equal(_weights(second), _weights(whole))
    _assert_equal(second.average or {}, whole.average or {})


@pytest.mark.parametrize("optimizer", ["adamw", "schedule_free_adamw"])
def test_evaluating_leaves_every_bit_of_the_weights(optimizer: str, tmp_path: Path) -> None:
    setup = _setup(tmp_path, optimizer=optimizer, ema_decay=0.9)
    _train(setup, 1, 5)
    before, places = _weights(setup), [value.data_ptr() for value in setup.model.parameters()]

    validate(setup)

    _assert_equal(_weights(setup), before)
    assert [value.data_ptr() for value in setup.model.parameters()] == places


def test_the_average_holds_what_is_trained_and_nothing_else(tmp_path: Path) -> None:
    setup = _setup(tmp_path, ema_decay=0.9)

    _train(setup, 1, 3)

    assert set(setup.average or {}) == {"inner.lora_down", "inner.lora_up"}


def test_a_whole_run_with_adapters_ends_with_checkpoints(tmp_path: Path) -> None:
    events: list[Any] = []

    outcome = train(_setup(tmp_path), events.append)

    checkpoint, complaints = newest_checkpoint(tmp_path / "checkpoints")
    assert outcome == "finished"
    assert checkpoint is not None and complaints == []
    assert set(load_file(checkpoint / "model.safetensors")) == set(ToyModel().state_dict())
    assert json.loads((checkpoint / "config.json").read_text())


def test_the_keys_that_are_saved_can_be_loaded_again(tmp_path: Path) -> None:
    setup = _setup(tmp_path)
    _train(setup, 1, 3)
    before = _weights(setup)

    setup.model.load_state_dict(setup.model.state_dict(), strict=True)

    _assert_equal(_weights(setup), before)


def test_transposed_weights_are_put_together_as_they_are_stored(tmp_path: Path) -> None:
    setup = make_setup(tmp_path)
    torch.manual_seed(0)
    trunk = Gpt2Trunk(2, 16, 2, dropout=0.0)
    setup.model = trunk
    setup.build_optimizer = lambda model: torch.optim.SGD(param_groups(model, 0.0), lr=0.1)
    setup.family = replace(setup.family, blocks=lambda model: list(trunk.h))
    apply(setup, Options(rank=3))
    with torch.no_grad():
        for name, value in trunk.named_parameters():
            if "lora" in name:
                value.normal_(0, 0.1)
    hidden = torch.randn(2, 5, 16)

    apart = trunk(hidden)
    with merged(trunk):
        together = trunk(hidden)

    torch.testing.assert_close(together, apart, rtol=1e-5, atol=1e-5)
    assert sum("lora_up" in name for name, _ in trunk.named_parameters()) == 8


def test_the_state_tells_what_is_saved(tmp_path: Path) -> None:
    setup = _setup(tmp_path)

    state = OPTIMIZATION.state(setup, probe(setup, setup.train_batches.micro_batches(1)[0]))

    assert state.on
    assert "1 layers with adapters of rank 2: 24 of 65 weights are trained" in state.detail


def test_a_model_without_such_layers_is_refused_in_a_sentence(tmp_path: Path) -> None:
    setup = make_setup(tmp_path)

    with pytest.raises(ConfigError, match="LoRA finds no linear layers in Toy"):
        apply(setup, Options(target="attention"))


def test_embeddings_are_trained_if_asked(tmp_path: Path) -> None:
    setup = make_setup(tmp_path)
    setup.model.add_module("words", nn.Embedding(5, 3))
    setup.build_optimizer = lambda model: torch.optim.SGD(param_groups(model, 0.0), lr=0.1)

    apply(setup, Options(train_embeddings=True))

    trained = {name for name, value in setup.model.named_parameters() if value.requires_grad}
    assert trained == {"words.weight", "inner.lora_down", "inner.lora_up"}
