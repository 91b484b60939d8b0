"""Find the columns of a list that hold the audio file, the text, the speaker and the language.

Known layouts: Coqui and F5-TTS (with a header), LJSpeech, Piper, GPT-SoVITS, Style-Bert-VITS2,
preprocessed FastSpeech 2, and any CSV whose header uses known column names.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainer.core.errors import DataError
from trainer.data.lists.rows import ListRow, ListRows, looks_like_audio

# The first name that a header has wins, so normalized text is preferred to raw text.
_SYNONYMS = {
    "audio": (
        "audio_file", "audio", "audio_path", "audio_filepath", "audio_file_path", "audio_filename",
        "wav", "wav_path", "wav_file", "wav_filename", "wave", "file", "file_name", "filename",
        "file_path", "filepath", "path", "clip", "name", "basename", "utterance_id", "utt_id", "id",
        "\uc624\ub514\uc624", "\ud30c\uc77c", "\ud30c\uc77c\uba85",
    ),
    "text": (
        "normalized_text", "normalised_text", "normalized_transcription", "text", "transcript",
        "transcription", "transcript_text", "sentence", "raw_text", "raw_transcription", "content",
        "utterance", "caption", "\ud14d\uc2a4\ud2b8", "\ubb38\uc7a5", "\ub300\uc0ac",
    ),
    "speaker": (
        "speaker_name", "speaker", "speaker_id", "spk", "spk_id", "voice", "voice_id", "client_id",
        "\ud654\uc790",
    ),
    "language": (
        "language", "lang", "language_code", "lang_code", "language_id", "locale", "\uc5b8\uc5b4",
    ),
}  # fmt: skip
_LANGUAGES = {
    "jp": "ja", "jpn": "ja", "japanese": "ja", "all_ja": "ja", "kr": "ko", "kor": "ko",
    "korean": "ko", "all_ko": "ko", "cn": "zh", "zho": "zh", "chi": "zh", "chinese": "zh",
    "all_zh": "zh", "mandarin": "zh", "eng": "en", "english": "en", "all_yue": "yue",
    "cantonese": "yue", "amh": "am", "amharic": "am", "fas": "fa", "per": "fa", "persian": "fa",
    "farsi": "fa", "deu": "de", "ger": "de", "german": "de", "fra": "fr", "fre": "fr",
    "french": "fr", "spa": "es", "spanish": "es", "ita": "it", "italian": "it", "por": "pt",
    "portuguese": "pt", "rus": "ru", "russian": "ru",
}  # fmt: skip
_LANGUAGE_CELL = re.compile(r"(?:all_)?[A-Za-z]{2,3}(?:[-_][A-Za-z]{2,4})?")
_SAMPLE = 500  # Rows that are looked at; enough to tell columns apart, fast for long lists.


@dataclass(frozen=True)
class Dialect:
    """The layout of a list; the value of a role is its column, counted from 0."""

    name: str
    audio: int
    text: int
    width: int
    speaker: int | None = None
    language: int | None = None
    fallback_text: int | None = None
    has_header: bool = False
    columns: tuple[str, ...] = ()

    @property
    def least_width(self) -> int:
        """The fewest cells of a valid row; LJSpeech rows may lack the normalized text."""
        return self.width if self.fallback_text is None else self.fallback_text + 1


def is_header(cells: Sequence[str]) -> bool:
    """Return whether the cells are column names that include audio and text."""
    roles = _header_roles(cells)
    return "audio" in roles and "text" in roles


def find_dialect(rows: ListRows, file_name: str, columns: str = "") -> Dialect:
    """Detect the layout: from `columns` if given, else from the header, else from the cells.

    `columns` assigns roles, as in `audio=1, text=3, speaker=name`, by number from 1 or heading.

    Raises:
        DataError: `columns` names a column that does not exist.
    """
    first = rows.rows[0]
    if columns.strip():
        return _from_columns(rows, parse_columns(columns))
    if is_header(first.cells):
        return _by_header(first.cells, rows.separator)
    body = [row.cells for row in rows.rows[:_SAMPLE] if len(row.cells) == rows.width]
    has_header = _is_unknown_header(first, body)
    body = body[1:] if has_header else body
    dialect = _by_content(body, rows.width, rows.separator, file_name)
    if not has_header:
        return dialect
    names = tuple(cell.strip() for cell in first.cells)
    return replace(dialect, has_header=True, columns=names)


def parse_columns(text: str) -> dict[str, str]:
    """Parse `audio=1, text=3` as role -> column.

    Raises:
        DataError: a part is not `role=column`, or audio or text is missing.
    """
    roles = {}
    for part in text.split(","):
        role, _, column = (piece.strip() for piece in part.partition("="))
        if role not in _SYNONYMS or not column:
            raise DataError(
                f"'{part.strip()}' is not a valid column. Write audio=1, text=3, speaker=2; roles "
                f"are {', '.join(_SYNONYMS)}, and a column is a number from 1 or a heading."
            )
        roles[role] = column
    if not {"audio", "text"} <= roles.keys():
        raise DataError("Assign at least the audio and the text column.")
    return roles


def to_language_code(cell: str, default: str) -> str:
    """Convert a language cell (JP, ZH, en_US, Korean) to a BCP-47 code."""
    name = cell.strip().lower()
    if not name or name == "auto":
        return default
    if name in _LANGUAGES:
        return _LANGUAGES[name]
    first, _, region = name.replace("_", "-").partition("-")
    first = _LANGUAGES.get(first, first)
    if not region:
        return first
    return f"{first}-{region.upper() if len(region) == 2 else region.title()}"


def _header_roles(cells: Sequence[str]) -> dict[str, int]:
    names = [re.sub(r"[\s\-]+", "_", cell.strip().strip('"').lower()) for cell in cells]
    roles = {}
    for role, synonyms in _SYNONYMS.items():
        found = [name for name in synonyms if name in names]
        if found:
            roles[role] = names.index(found[0])
    return roles


def _from_columns(rows: ListRows, told: dict[str, str]) -> Dialect:
    first = [cell.strip().strip('"') for cell in rows.rows[0].cells]
    roles = {}
    for role, column in told.items():
        number = int(column) - 1 if column.isascii() and column.isdigit() else -1
        if column in first:
            number = first.index(column)
        if not 0 <= number < rows.width:
            raise DataError(
                f"There is no column '{column}' for the {role}. The list has {rows.width}: "
                f"{', '.join(first)[:200]}."
            )
        roles[role] = number
    audio = roles["audio"]
    body = [row.cells for row in rows.rows[1:_SAMPLE] if len(row.cells) == rows.width]
    named = sum(looks_like_audio(cells[audio]) for cells in body)
    # A first row that is too short is reported as a problem, not taken as a header.
    is_other = audio < len(first) and not looks_like_audio(first[audio])
    is_named = any(column in first for column in told.values())
    has_header = is_named or is_header(first) or (is_other and named * 2 > len(body))
    columns = tuple(first) if has_header else ()
    return Dialect(
        "columns as told", width=rows.width, has_header=has_header, columns=columns, **roles
    )


def _by_header(cells: Sequence[str], separator: str) -> Dialect:
    roles = _header_roles(cells)
    columns = tuple(cell.strip().strip('"') for cell in cells)
    lowered = [column.lower() for column in columns]
    if separator == "|" and lowered[:2] == ["audio_file", "text"]:
        name = "Coqui" if "speaker" in roles else "F5-TTS"
    else:
        name = "table with a header"
    raw = [lowered.index(raw) for raw in ("text", "raw_text", "transcription") if raw in lowered]
    # Only where the normalized text is last: a row without it is then short, not shifted.
    fallback = raw[0] if raw and raw[0] < roles["text"] == len(cells) - 1 else None
    return Dialect(
        name, width=len(cells), has_header=True, columns=columns, fallback_text=fallback, **roles
    )


def _is_unknown_header(first: ListRow, body: list[tuple[str, ...]]) -> bool:
    if len(body) < 2 or body[0] != first.cells:
        return False
    audio = _audio_column(body[1:])
    named = sum(looks_like_audio(cells[audio]) for cells in body[1:])
    # 90 %, as in `_as_list_file`: chosen by hand, tolerates some broken rows.
    return named >= 0.9 * (len(body) - 1) and not any(map(looks_like_audio, first.cells))


def _audio_column(body: list[tuple[str, ...]]) -> int:
    width = len(body[0])
    counts = [sum(looks_like_audio(cells[column]) for cells in body) for column in range(width)]
    return counts.index(max(counts))


def _by_content(body: list[tuple[str, ...]], width: int, separator: str, file_name: str) -> Dialect:
    # Four columns are GPT-SoVITS or FastSpeech 2; preprocessing by Style-Bert-VITS2 gives seven.
    if separator == "|" and width in (4, 7):
        listed = _as_list_file(body, width, file_name)
        if listed is not None:
            return listed
    audio = _audio_column(body)
    others = [
        column for column in range(width)
        if column != audio and any(cells[column].strip() for cells in body)
    ]  # fmt: skip
    has_extension = sum(looks_like_audio(cells[audio]) for cells in body) * 2 >= len(body)
    if separator == "|" and width == 3 and audio == 0 and not has_extension and len(others) == 1:
        return Dialect("LJSpeech", 0, 2, width, fallback_text=1)
    if len(others) == 1:
        return Dialect(_two_column_name(separator, has_extension), audio, others[0], width)
    if len(others) == 2:
        return _three_columns(body, audio, others, separator)
    text = max(others, key=lambda column: _mean_length(body, column), default=width - 1)
    return Dialect("table without a header", audio, text, width)


def _as_list_file(body: list[tuple[str, ...]], width: int, file_name: str) -> Dialect | None:
    codes = sum(_LANGUAGE_CELL.fullmatch(cells[2].strip()) is not None for cells in body)
    if codes >= 0.9 * len(body):
        is_bert = width == 7 or file_name.lower() == "esd.list"
        name = "Style-Bert-VITS2" if is_bert else "GPT-SoVITS"
        return Dialect(name, 0, 3, width, speaker=1, language=2)
    # The FastSpeech 2 code by ming024 writes phones in braces, as in {HH AH0 L OW1}.
    phones = sum(cells[2].strip().startswith("{") for cells in body)
    if width == 4 and phones >= 0.9 * len(body):
        return Dialect("FastSpeech 2 (preprocessed)", 0, 3, width, speaker=1)
    return None


def _two_column_name(separator: str, has_extension: bool) -> str:
    if separator != "|":
        return "table without a header"
    return "Piper" if has_extension else "LJSpeech (two columns)"


def _three_columns(
    body: list[tuple[str, ...]], audio: int, others: list[int], separator: str
) -> Dialect:
    width = len(body[0])
    first, second = others
    lengths = sorted(_mean_length(body, column) for column in others)
    # Two columns with the same sentences are raw and normalized text (LJSpeech). The length is
    # compared too, because a speaker's name may also occur in the text. 0.5, 0.4: chosen by hand.
    if _overlap(body, first, second) >= 0.5 and lengths[0] >= 0.4 * lengths[1]:
        name = "LJSpeech" if separator == "|" and audio == 0 else "table without a header"
        return Dialect(name, audio, second, width, fallback_text=first)
    speaker, text = sorted(others, key=lambda column: _label_rank(body, column))
    piped = separator == "|" and audio == 0 and width == 3
    names = {1: "Piper (several speakers)", 2: "Coqui (no header)"}
    name = names[speaker] if piped else "table without a header"
    return Dialect(name, audio, text, width, speaker=speaker)


def _overlap(body: list[tuple[str, ...]], first: int, second: int) -> float:
    shares = []
    for cells in body[:100]:
        one, two = _letter_pairs(cells[first]), _letter_pairs(cells[second])
        if one and two:
            shares.append(len(one & two) / min(len(one), len(two)))
    return sum(shares) / len(shares) if shares else 0.0


def _letter_pairs(text: str) -> set[str]:
    lowered = text.lower()
    return {lowered[i : i + 2] for i in range(len(lowered) - 1)}


def _label_rank(body: list[tuple[str, ...]], column: int) -> tuple[int, float]:
    """Rank a column as labels: speaker names are few and short, sentences many and long."""
    return len({cells[column] for cells in body}), _mean_length(body, column)


def _mean_length(body: list[tuple[str, ...]], column: int) -> float:
    return sum(len(cells[column]) for cells in body) / max(1, len(body))
