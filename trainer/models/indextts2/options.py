"""What a person chooses about IndexTTS-2."""

from dataclasses import dataclass

from trainer.options import option


@dataclass(frozen=True)
class Options:
    """The options of the family, in the order of the form."""

    conditioning: str = option(
        "precomputed",
        "Voices",
        "precomputed: what hears a reference stays as published and is not in memory; trained: it "
        "learns too (340 M more parameters), which needs audio instead of a manifest's arrays.",
        choices=("precomputed", "trained"),
    )
    emotion: str = option(
        "reference",
        "Emotion vector of",
        "reference: the other clip that lends the voice, so that nothing of a clip leaks into its "
        "own prompt; own clip: the clip itself, so that emotion goes on to tell of its prosody.",
        choices=("reference", "own clip"),
    )
    text_ids: str = option(
        "as given",
        "Text of manifests",
        "as given: the text_ids that a manifest names; from the text: tokenise its text anew, as "
        "after a change of the bpe.model.",
        choices=("as given", "from the text"),
    )
    bpe_model: str = option(
        "",
        "Other bpe.model",
        "A sentencepiece model of another language; the text tables are carried over token by "
        "token. Empty: the base's.",
        is_path=True,
    )
    unknown_tokens: str = option(
        "leave out",
        "Clips with unknown letters",
        "leave out: the ledger names them; keep: the unknown token stands for such letters.",
        choices=("leave out", "keep"),
    )
    w2v_bert: str = option(
        "",
        "w2v-bert-2.0 folder",
        "For audio only: the folder of facebook/w2v-bert-2.0 (config.json, model.safetensors; "
        "MIT). Needs the package transformers.",
        is_path=True,
        folded=True,
    )
    codec: str = option(
        "",
        "Semantic codec file",
        "For audio only: semantic_codec/model.safetensors of amphion/MaskGCT (CC-BY-NC-4.0: not "
        "for commercial use).",
        is_path=True,
        folded=True,
    )
    original_python: str = option(
        "",
        "Original's Python",
        "For previews that can be heard: the python of an environment in which the original "
        "package indextts 2.0 is installed (bilibili model licence).",
        is_path=True,
        folded=True,
    )
    original_folder: str = option(
        "",
        "Original's checkpoints",
        "Its folder checkpoints with s2mel.pth and the hf_cache that its first use fills "
        "(w2v-bert-2.0, MaskGCT codec, CAM++, BigVGAN); nothing is fetched here.",
        is_path=True,
        folded=True,
    )
    original_reference: str = option(
        "",
        "Reference of previews",
        "A recording of the voice that such previews take, up to 15 s of it.",
        is_path=True,
        folded=True,
    )
    original_device: str = option(
        "cpu",
        "Previews are made on",
        "cpu: slow, but takes none of the GPU's memory; gpu: fast, in memory besides training's.",
        choices=("cpu", "gpu"),
        folded=True,
    )
    original_limit_s: int = option(
        600, "Longest wait (s)", "After it a preview is given up.", min=10, max=7200, folded=True
    )
    max_text_tokens: int = option(
        600, "Longest text (tokens)", "The table holds 600.", min=10, max=600, folded=True
    )
    text_weight: float = option(
        0.2, "Text loss weight", "Weight of the text's cross entropy.", min=0.0, folded=True
    )
    mel_weight: float = option(
        0.8, "Audio loss weight", "Weight of the codes' cross entropy.", min=0.0, folded=True
    )
    dropout: float = option(
        0.1, "Dropout", "In the trunk, as GPT-2 was trained.", min=0.0, max=0.9, folded=True
    )
