"""IndexTTS-2 without clips and weights: what is imagined is what a run would hold."""

from typing import Any

import pytest
import torch

from trainer.config.presets import USABLE_SHARE, apply_preset
from trainer.core.device import Device
from trainer.core.run_config import Choice, RunConfig
from trainer.core.types import Batch, Features
from trainer.models.indextts2 import FAMILY
from trainer.models.indextts2.options import Options
from trainer.profiling.memory_estimate import estimate
from trainer.profiling.synthetic_batches import make_synthetic_clips

GPU = Device("cuda", 0, "a GPU of another machine", 24.0, (8, 9))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMBRE_CACHE", str(tmp_path_factory.getbasetemp() / "rehearsal-cache"))


@pytest.mark.parametrize("conditioning", ["precomputed", "trained"])
def test_imagined_clips_train_the_bare_network(conditioning: str) -> None:
    options = Options(conditioning=conditioning)
    assert FAMILY.synthetic is not None and FAMILY.draws is not None
    corpus = FAMILY.synthetic.make_synthetic(
        None, options, make_synthetic_clips([1.0, 2.5]), "tiny"
    )
    model = FAMILY.synthetic.network(options, corpus.facts)

    drawn: list[Features] = list(corpus.features.values())
    counted: list[dict[str, float]] = [FAMILY.counts(clip) for clip in drawn]
    totals: dict[str, Any] = {name: sum(each[name] for each in counted) for name in counted[0]}
    parts = FAMILY.losses(model, Batch(FAMILY.collate(drawn), ["a", "b"], totals, 1.0))
    torch.stack(list(parts.values())).sum().backward()

    assert [len(clip["codes"]) for clip in drawn] == [50, 125]
    assert all(value.grad is not None for value in model.parameters())


def test_the_korean_study_is_estimated_to_fit_its_gpu() -> None:
    config = apply_preset(RunConfig(family=Choice("indextts2")), "indextts2-korean")

    found = estimate(config, device=GPU, size="full")

    assert found.parameters == 527_083_235
    assert found.optimizer == pytest.approx(8 * found.parameters, rel=0.01)
    assert 0.5 * 24 < found.peak_gib <= USABLE_SHARE * 24
