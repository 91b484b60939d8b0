"""Write tests/golden/xtts_text.json: what coqui-tts makes of the sentences beside this script.

Run it in an environment of its own, for coqui-tts and this project do not import together:

    pip install coqui-tts==0.28.0 torch torchaudio torchcodec six pypinyin cutlet unidic-lite
    python tests/parity/make_xtts_text_golden.py
"""

import json
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from TTS.tts.layers.xtts.tokenizer import VoiceBpeTokenizer, multilingual_cleaners

SENTENCES = Path(__file__).with_name("xtts_sentences.json")
GOLDEN = Path(__file__).parents[1] / "golden" / "xtts_text.json"
COMMAND = "python tests/parity/make_xtts_text_golden.py"


def main() -> None:
    """Read the sentences, ask the original, write the golden file."""
    given = json.loads(SENTENCES.read_text(encoding="utf-8"))
    reader = VoiceBpeTokenizer()
    pairs = [(code, text) for code, texts in given["sentences"].items() for text in texts]
    read = [reader.preprocess_text(text, code) for code, text in pairs]
    with tempfile.TemporaryDirectory() as folder:
        vocab = Path(folder) / "vocab.json"
        _train_vocabulary(read, list(given["sentences"])).save(str(vocab))
        encoder = VoiceBpeTokenizer(str(vocab))
        rows = [
            {
                "language": code,
                "text": text,
                "spelt": None if code == "ja" else multilingual_cleaners(text, code),
                "read": words,
                "ids": encoder.encode(text, code),
            }
            for (code, text), words in zip(pairs, read, strict=True)
        ]
        vocabulary = json.loads(vocab.read_text(encoding="utf-8"))
    golden = {
        "upstream": {
            name: version(name)
            for name in (
                "coqui-tts",
                "num2words",
                "tokenizers",
                "pypinyin",
                "cutlet",
                "unidic-lite",
            )
        },
        "command": COMMAND,
        "sentences": rows,
        "deviations": [row | {"upstream": _what_happens(row)} for row in given["deviations"]],
        "vocabulary": vocabulary,
    }
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(_by_lines(golden), encoding="utf-8")


def _by_lines(golden: dict[str, Any]) -> str:
    """Write JSON with one sentence on a line, so that a change shows which one."""
    parts = []
    for key, value in golden.items():
        text = json.dumps(value, ensure_ascii=False)
        if isinstance(value, list):
            lines = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in value)
            text = f"[\n  {lines}\n ]"
        parts.append(f' "{key}": {text}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _train_vocabulary(texts: list[str], codes: list[str]) -> Tokenizer:
    """Learn a small vocabulary of the published kind from some of the texts.

    Every seventh text is left out, so that a few of its characters are unknown.
    """
    names = [f"[{'zh-cn' if code == 'zh' else code}]" for code in codes]
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["[STOP]", "[UNK]", "[SPACE]", "[START]", *names],
        show_progress=False,
    )
    kept = [text for at, text in enumerate(texts) if at % 7]
    tokenizer.train_from_iterator(kept, trainer)
    return tokenizer


def _what_happens(row: dict[str, Any]) -> str:
    try:
        return multilingual_cleaners(row["text"], row["language"])
    except (NotImplementedError, OverflowError, TypeError, ValueError, KeyError) as error:
        return f"raises {type(error).__name__}"


if __name__ == "__main__":
    main()
