"""What a person chooses about XTTS v2."""

from dataclasses import dataclass

from trainer.options import option

LAYERS = {"small": 6, "medium": 15}
"""Trunk layers of a GPT trained from scratch; its width follows the vocoder."""


@dataclass(frozen=True)
class Options:
    """The options of the family, in the order of the form."""

    size: str = option(
        "base",
        "Size",
        "base: fine-tune the GPT of the base checkpoint (without one: a tiny random network that "
        "shows the road, not speech). small, medium: a fresh GPT of 6 or 15 layers with the base's "
        "codes and vocoder.",
        choices=("base", "small", "medium"),
    )
    freeze: str = option(
        "none",
        "Keep fixed",
        "conditioning: the encoder of the reference voice; embeddings: the tables of text and "
        "codes, which then cannot learn new tokens; both: train the trunk and the heads alone.",
        choices=("none", "conditioning", "embeddings", "both"),
    )
    new_tokens: str = option(
        "new languages",
        "Extend the vocabulary",
        "new languages: letters of languages the tokenizer does not know become tokens; always: "
        "unknown letters of every language; never: clips with unknown letters are left out.",
        choices=("new languages", "always", "never"),
    )
    amharic_g2p: bool = option(
        False,
        "Amharic as phonemes",
        "Spell Amharic by sound in Latin letters, which the tokenizer knows.",
    )
    max_audio_s: float = option(
        11.6, "Longest clip for XTTS (s)", "The published limit is 11.6 s (605 codes fit 28 s).",
        min=1.0, max=27.0, folded=True,
    )  # fmt: skip
    max_text_tokens: int = option(
        200, "Longest text (tokens)", "The published limit is 200; the table holds 402.",
        min=10, max=400, folded=True,
    )  # fmt: skip
    text_weight: float = option(
        0.01, "Text loss weight", "Weight of the text's cross entropy.", min=0.0, folded=True
    )
    mel_weight: float = option(
        1.0, "Audio loss weight", "Weight of the codes' cross entropy.", min=0.0, folded=True
    )
    dropout: float = option(
        0.1, "Dropout", "In the trunk, as GPT-2 was trained.", min=0.0, max=0.9, folded=True
    )
    upstream_masking: bool = option(
        False,
        "Mask as coqui-tts does",
        "Repeat the masking faults of coqui-tts, for comparisons with it: the text's end is hidden "
        "from the audio, and the reference's part of the loss is masked at the wrong place, in the "
        "last clip of a batch alone.",
        folded=True,
    )
    temperature: float = option(
        0.75, "Temperature", "Of previews and synthesis.", min=0.05, max=2.0, folded=True
    )
    top_k: int = option(50, "Top k", "Of previews and synthesis.", min=1, max=1000, folded=True)
    top_p: float = option(
        0.85, "Top p", "Of previews and synthesis.", min=0.01, max=1.0, folded=True
    )
    repetition_penalty: float = option(
        5.0, "Repetition penalty", "Of previews and synthesis.", min=1.0, max=20.0, folded=True
    )
