"""The options of XTTS v2."""

from dataclasses import dataclass

from trainer.core.options import option

LAYERS = {"small": 6, "medium": 15}
"""Trunk layers of a GPT that is trained from scratch, of the published 30; chosen by hand.

Its width is that of the base, because the vocoder reads its hidden vectors.
"""


@dataclass(frozen=True)
class Options:
    """The options of the family, in the order in which the form shows them."""

    size: str = option(
        "base",
        "Size",
        "base: fine-tune the GPT of the base checkpoint (without one: a tiny random network, to "
        "try the workflow; it cannot speak). small, medium: train a new GPT of 6 or 15 layers with "
        "the base's codes and vocoder.",
        choices=("base", "small", "medium"),
    )
    freeze: str = option(
        "none",
        "Freeze",
        "conditioning: the encoder of the reference voice; embeddings: the tables of text and "
        "codes, so new tokens cannot be learned; both: train only the trunk and the heads.",
        choices=("none", "conditioning", "embeddings", "both"),
    )
    new_tokens: str = option(
        "new languages",
        "Extend the vocabulary",
        "new languages: add the letters of languages that the tokenizer does not know; always: add "
        "unknown letters of every language; never: leave out clips with unknown letters.",
        choices=("new languages", "always", "never"),
    )
    amharic_g2p: bool = option(
        False,
        "Amharic as phonemes",
        "Write Amharic by sound in Latin letters, which the tokenizer knows.",
    )
    # 11.6 s are 255,995 samples, the published limit; the position table ends at 28 s.
    max_audio_s: float = option(
        11.6, "Longest clip for XTTS (s)", "The published limit is 11.6 s (605 codes are 28 s).",
        min=1.0, max=27.0, advanced=True,
    )  # fmt: skip
    max_text_tokens: int = option(
        200, "Longest text (tokens)", "The published limit is 200; the model supports 402.",
        min=10, max=400, advanced=True,
    )  # fmt: skip
    # The defaults of gpt_loss_text_ce_weight and gpt_loss_mel_ce_weight (GPTArgs of coqui-tts).
    text_weight: float = option(
        0.01, "Text loss weight", "Weight of the text cross-entropy.", min=0.0, advanced=True
    )
    mel_weight: float = option(
        1.0, "Audio loss weight", "Weight of the code cross-entropy.", min=0.0, advanced=True
    )
    dropout: float = option(
        0.1, "Dropout", "Of the trunk; GPT-2 was trained with 0.1.", min=0.0, max=0.9, advanced=True
    )
    # Off, because training then matches inference (docs/decisions/0050).
    upstream_masking: bool = option(
        False,
        "Mask as coqui-tts does",
        "Reproduce the masking bugs of coqui-tts, for comparisons: the end of the text is hidden "
        "from the audio, and the part of the loss that belongs to the reference is masked at the "
        "wrong place, and only in the last clip of a batch.",
        advanced=True,
    )
    # This and the next three are the settings in the published config.json.
    temperature: float = option(
        0.75, "Temperature", "For previews and synthesis.", min=0.05, max=2.0, advanced=True
    )
    top_k: int = option(50, "Top k", "For previews and synthesis.", min=1, max=1000, advanced=True)
    top_p: float = option(
        0.85, "Top p", "For previews and synthesis.", min=0.01, max=1.0, advanced=True
    )
    repetition_penalty: float = option(
        5.0, "Repetition penalty", "For previews and synthesis.", min=1.0, max=20.0, advanced=True
    )
