"""Clean Amharic: Ethiopic marks and numerals, and rules that turn letters into sounds.

An Ethiopic letter is a consonant with one of seven vowels. Unicode has the consonants in rows of
eight: seven vowels, then a labialized form with `a`. The script does not show which consonants are
long (all are short here), nor whether the sixth vowel is spoken or silent, which `amharic_g2p`
decides from the structure of the syllable.
"""

import re

_MARKS = str.maketrans(
    {
        "\u1360": " ", "\u1361": " ", "\u1362": ".", "\u1363": ",", "\u1364": ";", "\u1365": ":",
        "\u1366": ":", "\u1367": "?", "\u1368": ".",
        # Marks of long consonants and vowels; they are rarely written.
        "\u135d": None, "\u135e": None, "\u135f": None,
    }
)  # fmt: skip
_NUMERALS = re.compile("[\u1369-\u137c]+")
_HUNDRED, _MYRIAD = 0x137B, 0x137C
# Rows that sound the same today: the first is replaced by the second. In rows of open consonants,
# the first and the fourth vowel sound the same too.
_HOMOPHONES = {0x1210: 0x1200, 0x1280: 0x1200, 0x1220: 0x1230, 0x12D0: 0x12A0, 0x1340: 0x1338}
_ALIKE = {old + order: new + order for old, new in _HOMOPHONES.items() for order in range(7)}
_ALIKE |= {0x1203: 0x1200, 0x1213: 0x1200, 0x1283: 0x1200, 0x12A3: 0x12A0, 0x12D3: 0x12A0}

# Letters of the scholarly transcription. Where the published vocabulary lacks one, a letter with a
# similar sound in a published language: Turkish dotless i for the sixth vowel.
_ROWS = {
    0x1200: "h", 0x1208: "l", 0x1210: "h", 0x1218: "m", 0x1220: "s", 0x1228: "r", 0x1230: "s",
    0x1238: "\u0161", 0x1240: "q", 0x1250: "q", 0x1260: "b", 0x1268: "v", 0x1270: "t",
    0x1278: "\u010d", 0x1280: "h", 0x1290: "n", 0x1298: "\u0148", 0x12A0: "", 0x12A8: "k",
    0x12B8: "h", 0x12C8: "w", 0x12D0: "", 0x12D8: "z", 0x12E0: "\u017e", 0x12E8: "y", 0x12F0: "d",
    0x12F8: "d", 0x1300: "j", 0x1308: "g", 0x1318: "\u014b", 0x1320: "t'", 0x1328: "\u010d'",
    0x1330: "p'", 0x1338: "ts'", 0x1340: "ts'", 0x1348: "f", 0x1350: "p",
}  # fmt: skip
_LABIAL_ROWS = {0x1248: "qw", 0x1258: "qw", 0x1288: "hw", 0x12B0: "kw", 0x12C0: "hw", 0x1310: "gw"}
_SIXTH = "\u0131"
_VOWELS = ("\u00e4", "u", "i", "a", "e", _SIXTH, "o", "wa")
# Rows whose first vowel is pronounced like the fourth.
_OPEN_ROWS = (0x1200, 0x1210, 0x1280, 0x12A0, 0x12D0)
_SINGLES = {0x12A7: ("", "\u00e4"), 0x1358: ("r", "ya"), 0x1359: ("m", "ya"), 0x135A: ("f", "ya")}
_WORD = re.compile("[\u1200-\u135a]+")
# The sonority of consonants: 1 for stops, then fricatives, nasals, liquids and glides.
_LOUDNESS = {
    **dict.fromkeys("fs\u0161z\u017ehv", 2), **dict.fromkeys("mn\u0148\u014b", 3),
    **dict.fromkeys("lr", 4), **dict.fromkeys("wy", 5),
}  # fmt: skip


def clean_amharic(text: str) -> str:
    """Write marks in ASCII, numerals as digits, and each sound with one letter."""
    text = text.translate(_MARKS)
    text = _NUMERALS.sub(lambda match: f" {_value(match[0])} ", text)
    return " ".join(text.translate(_ALIKE).split()).replace(" .", ".").replace(" ,", ",")


def amharic_g2p(text: str) -> str:
    """Write the Ethiopic words of a text in Latin letters by sound; the rest is unchanged."""
    return _WORD.sub(lambda match: _spoken(match[0]), text)


def _value(numerals: str) -> int:
    """Return the value of numerals such as (10 + 9) 100 90 9: hundreds multiply what precedes."""
    total = pending = 0
    for code in map(ord, numerals):
        if code == _MYRIAD:
            total, pending = (total + pending or 1) * 10000, 0
        elif code == _HUNDRED:
            total, pending = total + (pending or 1) * 100, 0
        else:
            place = code - 0x1369
            pending += place + 1 if place < 9 else (place - 8) * 10
    return total + pending


def _spoken(word: str) -> str:
    """Join the sounds of the letters; a sixth vowel is spoken if its syllable needs one."""
    sounds = ""
    waiting: list[str] = []
    for letter in word:
        consonant, vowel = _sounds_of(letter)
        if vowel == _SIXTH and consonant and not consonant.endswith("w", 1):
            waiting.append(consonant)
            continue
        sounds += _break_up(waiting, after_vowel=bool(sounds)) + consonant + vowel
        waiting = []
    return sounds + _close(waiting, after_vowel=bool(sounds))


def _sounds_of(letter: str) -> tuple[str, str]:
    """Return the consonant and vowel of a letter; letters that Amharic lacks are unchanged."""
    code = ord(letter)
    row, order = code - code % 8, code % 8
    if code in _SINGLES:
        return _SINGLES[code]
    if row in _LABIAL_ROWS and order < 6:
        return _LABIAL_ROWS[row], _VOWELS[order]
    if row not in _ROWS:
        return letter, ""
    return _ROWS[row], _VOWELS[3] if order == 0 and row in _OPEN_ROWS else _VOWELS[order]


def _break_up(consonants: list[str], after_vowel: bool) -> str:
    """Return consonants before another syllable: one may close a syllable, the rest form pairs."""
    coda, rest = (consonants[:1], consonants[1:]) if after_vowel else ([], consonants)
    pairs = [rest[at : at + 2] for at in range(0, len(rest), 2)]
    return "".join(coda) + "".join(_SIXTH.join((pair[0], "".join(pair[1:]))) for pair in pairs)


def _close(consonants: list[str], after_vowel: bool) -> str:
    """Return consonants at the end of a word: two may end it if the second is less sonorous."""
    if not consonants:
        return ""
    falls = len(consonants) > 1 and _loudness(consonants[-2]) > _loudness(consonants[-1])
    size = 2 if falls and (after_vowel or len(consonants) > 2) else 1
    rest, end = consonants[:-size], "".join(consonants[-size:])
    if not rest:
        return end if after_vowel else end + _SIXTH
    return _break_up(rest[:-1], after_vowel) + rest[-1] + _SIXTH + end


def _loudness(consonant: str) -> int:
    # Sounds such as "ts'" count by their first letter, here as a stop.
    return _LOUDNESS.get(consonant[0], 1)
