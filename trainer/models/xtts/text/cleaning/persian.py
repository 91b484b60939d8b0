"""Clean Persian: one code point for each letter, and ASCII digits."""

# Arabic keyboards have other code points for some Persian letters and for the digits.
_LETTERS = str.maketrans(
    {
        "\u064a": "\u06cc",
        "\u0649": "\u06cc",
        "\u0643": "\u06a9",
        "\u0629": "\u0647",
        "\u0640": None,
        "\u06d4": ".",
        "\u066a": "%",
        "\u066b": ".",
        "\u066c": None,
        **{0x06F0 + digit: str(digit) for digit in range(10)},
        **{0x0660 + digit: str(digit) for digit in range(10)},
    }
)


def clean_persian(text: str) -> str:
    """Unify letters and digits; the zero-width non-joiner stays, because it separates words."""
    return text.translate(_LETTERS)
