"""The options of IndexTTS-2."""

from dataclasses import dataclass

from trainer.core.options import option


@dataclass(frozen=True)
class Options:
    """The options of the family, in the order in which the form shows them."""

    # precomputed, because manifests have voices only as arrays, which cannot be trained.
    conditioning: str = option(
        "precomputed",
        "Voices",
        "precomputed: the encoders of references stay as published and need no memory; trained: "
        "they are trained too (340 M more parameters), from audio, not a manifest's arrays.",
        choices=("precomputed", "trained"),
    )
    emotion: str = option(
        "reference",
        "Emotion vector of",
        "reference: the clip that also provides the voice, so a clip cannot leak into its own "
        "prompt; own clip: the clip itself, so the vector keeps describing its prosody.",
        choices=("reference", "own clip"),
    )
    text_ids: str = option(
        "as given",
        "Text of manifests",
        "as given: use the manifest's text_ids; from the text: tokenize its text again, for "
        "example with another bpe.model.",
        choices=("as given", "from the text"),
    )
    bpe_model: str = option(
        "",
        "Other bpe.model",
        "A sentencepiece model for another language; the rows of the text tables are mapped token "
        "by token. Empty: the model of the base.",
        is_path=True,
    )
    # Left out, because the audio has sounds for which such a text has no token.
    unknown_tokens: str = option(
        "leave out",
        "Clips with unknown letters",
        "leave out: the ledger lists them; keep: the unknown token replaces such letters.",
        choices=("leave out", "keep"),
    )
    # Paths have no default: Timbre downloads nothing, and each file has a licence of its own.
    w2v_bert: str = option(
        "",
        "w2v-bert-2.0 folder",
        "Only for audio: the folder of facebook/w2v-bert-2.0 (config.json, model.safetensors; "
        "MIT). Requires the package transformers.",
        is_path=True,
        advanced=True,
    )
    codec: str = option(
        "",
        "Semantic codec file",
        "Only for audio: semantic_codec/model.safetensors of amphion/MaskGCT (CC-BY-NC-4.0: no "
        "commercial use).",
        is_path=True,
        advanced=True,
    )
    original_python: str = option(
        "",
        "Original's Python",
        "For audible previews: the Python interpreter of an environment in which the original "
        "package indextts 2.0 is installed (bilibili model licence).",
        is_path=True,
        advanced=True,
    )
    original_folder: str = option(
        "",
        "Original's checkpoints",
        "Its folder checkpoints, with s2mel.pth and the hf_cache that its first use fills "
        "(w2v-bert-2.0, MaskGCT codec, CAM++, BigVGAN); Timbre downloads nothing.",
        is_path=True,
        advanced=True,
    )
    original_reference: str = option(
        "",
        "Reference for previews",
        "A recording of the voice for such previews; up to 15 s of it are used.",
        is_path=True,
        advanced=True,
    )
    # cpu, because a second model on the GPU may take memory that training needs.
    original_device: str = option(
        "cpu",
        "Device for previews",
        "cpu: slow, but uses no GPU memory; gpu: fast, but needs GPU memory in addition to "
        "training.",
        choices=("cpu", "gpu"),
        advanced=True,
    )
    # Chosen by hand: enough for a slow CPU, and a package that hangs does not stop the run.
    original_limit_s: int = option(
        600, "Preview timeout (s)", "Longest time for a preview.", min=10, max=7200, advanced=True
    )
    # The published position table has 602 rows, for 600 tokens, start and stop.
    max_text_tokens: int = option(
        600, "Longest text (tokens)", "The model supports 600.", min=10, max=600, advanced=True
    )
    # The weights of the community's trainer (train_gpt_v2.py).
    text_weight: float = option(
        0.2, "Text loss weight", "Weight of the text cross-entropy.", min=0.0, advanced=True
    )
    mel_weight: float = option(
        0.8, "Audio loss weight", "Weight of the code cross-entropy.", min=0.0, advanced=True
    )
    dropout: float = option(
        0.1, "Dropout", "Of the trunk; GPT-2 was trained with 0.1.", min=0.0, max=0.9, advanced=True
    )
