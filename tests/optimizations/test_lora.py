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
from trainer.core.train_state import TrainState
from trainer.models._layers.gpt2 import Gpt2Trunk
from trainer.optimizations.lora import OPTIMIZATION, Options, apply
from trainer.state.probe import probe
from trainer.state.weights import evaluation_weights, merged_lora
from trainer.training.evaluate import validate
from trainer.training.loop import train, train_step

STEPS = 12


def _setup(folder: Path, *, optimizer: str = "adamw", **training: Any) -> TrainState:
    """Return a toy TrainState whose inner layer has adapters."""
    train_state = make_setup(folder, optimizer=optimizer, steps=STEPS, **training)
    apply(train_state, Options(rank=2, alpha=4.0))
    return train_state


def _weights(train_state: TrainState) -> dict[str, Tensor]:
    buffers = dict(train_state.model.named_buffers())
    return {
        name: value.detach().clone() for name, value in train_state.model.named_parameters()
    } | {name: value.clone() for name, value in buffers.items()}


def _assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert torch.equal(value, expected[name]), name


def _train(train_state: TrainState, first: int, last: int) -> list[float]:
    return [train_step(train_state, step)["error"].item() for step in range(first, last + 1)]


def test_only_the_adapters_are_trained(tmp_path: Path) -> None:
    train_state = _setup(tmp_path)
    before = _weights(train_state)

    _train(train_state, 1, 5)

    after = dict(train_state.model.named_parameters())
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert changed == {"inner.lora_down", "inner.lora_up"}
    assert sum(len(group["params"]) for group in train_state.optimizer.param_groups) == 2
    assert len(train_state.optimizer.state) == 2


def test_at_first_the_model_computes_what_it_did(tmp_path: Path) -> None:
    plain, adapted = make_setup(tmp_path), _setup(tmp_path)
    x = torch.randn(3, 4)

    assert torch.equal(adapted.model.eval()(x), plain.model.eval()(x))


def test_a_checkpoint_is_a_usual_model_that_computes_what_validation_judged(
    tmp_path: Path,
) -> None:
    train_state = _setup(tmp_path)
    _train(train_state, 1, 5)
    x = torch.randn(3, 4)

    saved = save_checkpoint(train_state, 5, best=False)

    weights = load_file(tmp_path / saved.path / "model.safetensors")
    usual = ToyModel()
    usual.load_state_dict(weights, strict=True)
    with evaluation_weights(train_state), torch.no_grad():
        judged = train_state.model(x)
    assert torch.equal(usual.eval()(x), judged)
    assert not torch.equal(weights["inner.weight"], train_state.model.inner.weight)  # type: ignore[union-attr]
    torch.testing.assert_close(train_state.model.eval()(x), judged)


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
    train_state = _setup(tmp_path, optimizer=optimizer, ema_decay=0.9)
    _train(train_state, 1, 5)
    before, places = (
        _weights(train_state),
        [value.data_ptr() for value in train_state.model.parameters()],
    )

    validate(train_state)

    _assert_equal(_weights(train_state), before)
    assert [value.data_ptr() for value in train_state.model.parameters()] == places


def test_the_average_holds_what_is_trained_and_nothing_else(tmp_path: Path) -> None:
    train_state = _setup(tmp_path, ema_decay=0.9)

    _train(train_state, 1, 3)

    assert set(train_state.average or {}) == {"inner.lora_down", "inner.lora_up"}


def test_a_whole_run_with_adapters_ends_with_checkpoints(tmp_path: Path) -> None:
    events: list[Any] = []

    outcome = train(_setup(tmp_path), events.append)

    checkpoint, complaints = newest_checkpoint(tmp_path / "checkpoints")
    assert outcome == "finished"
    assert checkpoint is not None and complaints == []
    assert set(load_file(checkpoint / "model.safetensors")) == set(ToyModel().state_dict())
    assert json.loads((checkpoint / "config.json").read_text())


def test_the_keys_that_are_saved_can_be_loaded_again(tmp_path: Path) -> None:
    train_state = _setup(tmp_path)
    _train(train_state, 1, 3)
    before = _weights(train_state)

    train_state.model.load_state_dict(train_state.model.state_dict(), strict=True)

    _assert_equal(_weights(train_state), before)


def test_transposed_weights_are_put_together_as_they_are_stored(tmp_path: Path) -> None:
    train_state = make_setup(tmp_path)
    torch.manual_seed(0)
    trunk = Gpt2Trunk(2, 16, 2, dropout=0.0)
    train_state.model = trunk
    train_state.family = replace(train_state.family, blocks=lambda model: list(trunk.h))
    apply(train_state, Options(rank=3))
    with torch.no_grad():
        for name, value in trunk.named_parameters():
            if "lora" in name:
                value.normal_(0, 0.1)
    hidden = torch.randn(2, 5, 16)

    apart = trunk(hidden)
    with merged_lora(train_state):
        together = trunk(hidden)

    torch.testing.assert_close(together, apart, rtol=1e-5, atol=1e-5)
    assert sum("lora_up" in name for name, _ in trunk.named_parameters()) == 8


def test_the_state_tells_what_is_saved(tmp_path: Path) -> None:
    train_state = _setup(tmp_path)

    state = OPTIMIZATION.status(
        train_state, probe(train_state, train_state.train_batches.micro_batches(1)[0])
    )

    assert state.on
    assert "1 layers with adapters of rank 2: 24 of 65 weights are trained" in state.detail


def test_a_model_without_such_layers_is_refused_in_a_sentence(tmp_path: Path) -> None:
    train_state = make_setup(tmp_path)

    with pytest.raises(ConfigError, match="LoRA finds no linear layers in Toy"):
        apply(train_state, Options(target="attention"))


def test_embeddings_are_trained_if_asked(tmp_path: Path) -> None:
    train_state = make_setup(tmp_path)
    train_state.model.add_module("words", nn.Embedding(5, 3))

    apply(train_state, Options(train_embeddings=True))

    trained = {name for name, value in train_state.model.named_parameters() if value.requires_grad}
    assert trained == {"words.weight", "inner.lora_down", "inner.lora_up"}
