"""Facts that the published state_dicts do not contain: symbols, sizes, aliases of letters."""

from torch import Tensor

from trainer.models.fastspeech2.facts import BaseFacts, Voice
from trainer.models.fastspeech2.network import Sizes
from trainer.models.fastspeech2.tokens import BEGIN, END, PAD

# The parts of ming024's symbol table: ARPAbet for English, pinyin for Mandarin.
_VOWELS = "AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW"
_CONSONANTS = "B CH D DH F G HH JH K L M N NG P R S SH T TH V W Y Z ZH"
_INITIALS = "b c ch d f g h j k l m n p q r s sh t w x y z zh"
_FINALS = (
    "a ai an ang ao e ei en eng er i ia ian iang iao ie ii iii in ing iong iou o ong ou u ua uai "
    "uan uang uei uen uo v van ve vn"
)

_SOUNDS = {
    "p": "P", "b": "B", "t": "T", "d": "D", "k": "K", "\u0261": "G", "g": "G", "f": "F", "v": "V",
    "\u03b8": "TH", "\u00f0": "DH", "s": "S", "z": "Z", "\u0283": "SH", "\u0292": "ZH", "h": "HH",
    "m": "M", "n": "N", "\u014b": "NG", "l": "L", "\u0279": "R", "r": "R", "j": "Y", "w": "W",
    "i": "IY1", "\u026a": "IH1", "e": "EH1", "\u025b": "EH1", "\u00e6": "AE1", "a": "AE1",
    "\u0251": "AA1", "\u0252": "AA1", "\u0254": "AO1", "o": "OW1", "\u028a": "UH1", "u": "UW1",
    "\u028c": "AH1", "\u0259": "AH0", "\u0250": "AH0", "\u025c": "ER1", "\u025a": "ER0",
    "\u1d7b": "IH0", "\u027e": "T", "c": "K", "q": "K", "x": "K", "y": "IY0",
    " ": "sp", ",": "sp", ".": "sp", BEGIN: "sil", END: "sil",
}  # fmt: skip

PUBLISHED_ALIASES = {symbol: f"@{sound}" for symbol, sound in _SOUNDS.items()}
"""IPA symbols and letters -> the nearest ARPAbet symbol of the published English checkpoints, which
were trained on phonemes, so that their rows for plain letters are random."""


def describe_published(state: dict[str, Tensor]) -> BaseFacts:
    """Return the facts of a published state_dict, derived from its shapes."""
    embedding = state["encoder.src_word_emb.weight"]
    speakers = state.get("speaker_emb.weight")
    num_speakers = 0 if speakers is None else len(speakers)
    return {
        "family": "fastspeech2",
        "size": "standard",
        "sizes": _read_sizes(state).to_json(),
        "symbols": published_symbols(len(embedding)),
        "speakers": [unmeasured_voice(f"speaker-{number}") for number in range(num_speakers)],
        "has_untrained_letters": True,
    }


def published_symbols(count: int) -> list[str]:
    """Return the symbol table of ming024/FastSpeech2: 361 symbols, ARPAbet and pinyin among them.

    For another count, the symbols are unknown and get placeholder names.
    """
    vowels = [vowel + stress for vowel in _VOWELS.split() for stress in ("", "0", "1", "2")]
    finals = [final + tone for final in _FINALS.split() for tone in "12345"]
    arpabet = sorted([*_CONSONANTS.split(), *vowels])
    pinyin = [*_INITIALS.split(), *finals, "rr"]
    # "@" marks the sounds, as in ming024's table, where letters have rows of their own.
    upper = [chr(code) for code in range(ord("A"), ord("Z") + 1)]
    letters = [*upper, *(letter.lower() for letter in upper)]
    sounds = [f"@{name}" for name in (*arpabet, *pinyin, "sp", "spn", "sil")]
    symbols = [PAD, "-", *"!'(),.:;? ", *letters, *sounds, "<unused>"]
    if len(symbols) == count:
        return symbols
    return [PAD, *(f"<symbol {number}>" for number in range(1, count))]


def _read_sizes(state: dict[str, Tensor]) -> Sizes:
    """Derive the sizes from the shapes; `load` reports missing weights, so defaults do here."""
    width = state["encoder.src_word_emb.weight"].shape[1]
    first = state.get("encoder.layer_stack.0.pos_ffn.w_1.weight")
    predictor = state.get("variance_adaptor.pitch_predictor.linear_layer.weight")
    bins = state.get("variance_adaptor.pitch_embedding.weight")
    postnet = state.get("postnet.convolutions.0.0.conv.weight")
    mel = state.get("mel_linear.bias")
    return Sizes(
        blocks="transformer",
        width=width,
        encoder_blocks=_count_blocks(state, "encoder"),
        decoder_blocks=_count_blocks(state, "decoder"),
        ffn_width=1024 if first is None else first.shape[0],
        ffn_kernel=9 if first is None else first.shape[2],
        predictor_width=256 if predictor is None else predictor.shape[1],
        num_bins=256 if bins is None else len(bins),
        postnet_width=512 if postnet is None else len(postnet),
        n_mels=80 if mel is None else len(mel),
    )


def _count_blocks(state: dict[str, Tensor], part: str) -> int:
    """Count the blocks of the encoder or decoder from their keys."""
    prefix = f"{part}.layer_stack."
    return len({name.split(".")[2] for name in state if name.startswith(prefix)})


def unmeasured_voice(name: str) -> Voice:
    """Return a published speaker; its statistics are not published, so these are typical ones."""
    # Chosen by hand; exp(5.2) is 181 Hz. Speakers that have clips are measured instead.
    return {
        "name": name, "language": "en", "pitch_mean": 5.2, "pitch_std": 0.25,
        "energy_mean": 40.0, "energy_std": 35.0,
    }  # fmt: skip
