"""Define the fonts and colors of the page; all text meets the WCAG AA contrast ratio."""

from gradio.themes import Default
from gradio.themes.base import Base
from gradio.themes.utils import colors, fonts

_SCRIPTS = ("Noto Sans KR", "Noto Sans Ethiopic", "Noto Naskh Arabic")
_RED, _RED_DARK = "#b91c1c", "#991b1b"


def build_theme() -> Base:
    """Return the theme; its fonts ship with Gradio, so nothing is loaded from other sites."""
    theme = Default(
        primary_hue=colors.indigo,
        secondary_hue=colors.indigo,
        neutral_hue=colors.slate,
        # Gradio's semi-bold font files lack half the alphabet; regular and bold are complete.
        font=(
            fonts.LocalFont("IBM Plex Sans", weights=(400, 700)),
            *_SCRIPTS,
            "system-ui",
            "sans-serif",
        ),
        font_mono=(fonts.LocalFont("IBM Plex Mono", weights=(400, 700)), "monospace"),
    )
    return theme.set(
        body_background_fill="#f6f7fb",
        body_background_fill_dark="#0f1117",
        block_background_fill_dark="#171a23",
        background_fill_primary_dark="#171a23",
        background_fill_secondary_dark="#12141c",
        border_color_primary_dark="#2c3140",
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_300",
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_300",
        block_label_text_color="*neutral_700",
        block_label_text_color_dark="*neutral_200",
        block_title_text_color="*neutral_700",
        block_title_text_color_dark="*neutral_200",
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_hover="*primary_700",
        button_primary_background_fill_dark="*primary_600",
        button_primary_background_fill_hover_dark="*primary_700",
        button_primary_text_color="white",
        button_cancel_background_fill=_RED,
        button_cancel_background_fill_hover=_RED_DARK,
        button_cancel_background_fill_dark=_RED,
        button_cancel_background_fill_hover_dark=_RED_DARK,
        button_cancel_text_color="white",
        button_cancel_text_color_dark="white",
        link_text_color="*primary_700",
        link_text_color_dark="*primary_300",
    )
