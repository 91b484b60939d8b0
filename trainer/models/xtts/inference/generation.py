"""Sample audio codes from the GPT, one at a time, with a cache of keys and values.

The filters work in the order and with the meaning of coqui-tts's inference, so its settings can be
used here. This includes an accident: coqui-tts fills the prefix with code 1, so code 1 is penalized
as a repetition from the start, as is the start code.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.core.errors import ConfigError
from trainer.models._layers.gpt2 import KeyValueCache
from trainer.models.xtts.network.gpt import XttsGpt

_PREFIX_CODE = 1


@dataclass(frozen=True)
class Sampling:
    """The settings for sampling; the defaults are those of the published model.

    `length_penalty` is a setting of beam search and has no effect on the single sequence that is
    sampled here. It exists because the published settings have it.
    """

    temperature: float = 0.75
    top_k: int = 50
    top_p: float = 0.85
    repetition_penalty: float = 5.0
    length_penalty: float = 1.0
    do_sample: bool = True

    def __post_init__(self) -> None:
        problems = []
        if self.temperature <= 0:
            problems.append(f"Temperature is {self.temperature}; enter a value above 0.")
        if self.top_k < 0:
            problems.append(f"Top-k is {self.top_k}; enter 0 (off) or more.")
        if not 0 < self.top_p <= 1:
            problems.append(f"Top-p is {self.top_p}; enter a value above 0 and at most 1.")
        if self.repetition_penalty <= 0:
            problems.append(
                f"Repetition penalty is {self.repetition_penalty}; enter a value above 0 (1: off)."
            )
        if problems:
            raise ConfigError(problems)


@dataclass(frozen=True)
class Generated:
    """The result of sampling.

    codes: (T,) int64 without the stop code. latents: (K, D), the input of the vocoder: one vector
    per code, and one for the stop code if there is one. stopped: whether the model ended by itself.
    """

    codes: Tensor
    latents: Tensor
    stopped: bool


@dataclass(frozen=True)
class Drawn:
    """A code, and the hidden vector (D,) that it was sampled from."""

    code: int
    latent: Tensor


def generate(
    model: XttsGpt,
    latents: Tensor,
    tokens: Tensor,
    sampling: Sampling,
    seed: int,
    max_codes: int | None = None,
) -> Generated:
    """Sample codes until the model stops or there are `max_codes`.

    latents: (1, num_latents, D). tokens: (T_text,) int64 without start and stop.
    """
    drawn = list(draw(model, latents, tokens, sampling, seed, max_codes))
    stopped = bool(drawn) and drawn[-1].code == model.sizes.stop_audio
    codes = [step.code for step in (drawn[:-1] if stopped else drawn)]
    width = (0, model.sizes.width)
    heard = torch.stack([step.latent for step in drawn]) if drawn else latents.new_empty(width)
    return Generated(torch.tensor(codes, dtype=torch.long, device=latents.device), heard, stopped)


def stream(
    model: XttsGpt,
    latents: Tensor,
    tokens: Tensor,
    sampling: Sampling,
    seed: int,
    max_codes: int | None = None,
) -> Iterator[int]:
    """Yield codes as they are sampled, without the stop code; shapes are those of `generate`."""
    for step in draw(model, latents, tokens, sampling, seed, max_codes):
        if step.code != model.sizes.stop_audio:
            yield step.code


@torch.no_grad()
def draw(
    model: XttsGpt,
    latents: Tensor,
    tokens: Tensor,
    sampling: Sampling,
    seed: int,
    max_codes: int | None = None,
) -> Iterator[Drawn]:
    """Yield each code, including the stop code, with its hidden vector for the vocoder.

    latents: (1, num_latents, D). tokens: (T_text,) int64 without start and stop. max_codes: limited
    to the number of positions; None is upstream's limit, three fewer than in training.
    """
    sizes = model.sizes
    if max_codes is None:
        max_codes = sizes.max_audio_tokens - 3
    prefix = model.prefix(latents, tokens)
    cache = KeyValueCache(prefix.shape[1] + max_codes)
    # On the CPU, so that a seed gives the same random numbers on every device.
    noise = torch.Generator().manual_seed(seed)
    seen = torch.zeros(sizes.num_audio_tokens, dtype=torch.bool, device=latents.device)
    seen[[_PREFIX_CODE, sizes.start_audio]] = True
    code = torch.full((1,), sizes.start_audio, device=latents.device)
    for position in range(min(max_codes, sizes.audio_positions)):
        hidden = model.embed_audio(code[None], first=position)
        if position == 0:
            hidden = torch.cat([prefix, hidden], dim=1)
        latent = model.final_norm(model.gpt.extend(hidden, cache)[0, -1])
        scores = adjust(model.mel_head(latent).float(), seen, sampling)
        code = choose(scores, sampling, noise)
        seen.index_fill_(0, code, True)
        drawn = Drawn(int(code), latent)
        yield drawn
        if drawn.code == sizes.stop_audio:
            return


def adjust(logits: Tensor, seen: Tensor, sampling: Sampling) -> Tensor:
    """Penalize repetition and, for sampling, exclude unlikely codes.

    logits: (V,). seen: (V,) bool, codes that have occurred. Returns scores (V,), minus infinity for
    excluded codes.
    """
    penalty = sampling.repetition_penalty
    scores = torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)
    if not sampling.do_sample:
        return scores
    scores = scores / sampling.temperature
    if sampling.top_k:
        # Ties with the last of the k are kept, as in transformers, which coqui-tts samples with.
        least = scores.topk(min(sampling.top_k, len(scores))).values[-1]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if sampling.top_p < 1:
        ascending, order = scores.sort()
        # On the CPU: CUDA has no deterministic cumsum, and the option `reproducible` forbids the
        # other one. The loop waits for every code anyway.
        shares = ascending.softmax(dim=0).cpu().cumsum(dim=0).to(scores.device)
        is_tail = shares <= 1 - sampling.top_p
        is_tail[-1] = False  # always keep the most likely code
        scores = scores.masked_fill(
            torch.empty_like(is_tail).scatter_(0, order, is_tail), -torch.inf
        )
    return scores


def choose(scores: Tensor, sampling: Sampling, noise: torch.Generator) -> Tensor:
    """Sample a code (1,) int64 from scores (V,), or take the most likely one without sampling."""
    if not sampling.do_sample:
        return scores.argmax(dim=0, keepdim=True)
    # Of exponential variables with rates p, the i-th is the smallest with probability p[i], so
    # noise from the CPU can be used on any device. The lower limit avoids 0 / 0.
    times = torch.empty(len(scores)).exponential_(generator=noise).clamp_min(1e-30)
    return (scores.softmax(dim=0) / times.to(scores.device)).argmax(dim=0, keepdim=True)
