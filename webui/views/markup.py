"""Render the HTML of the page from the templates beside this module; every value is escaped."""

from html import escape
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup


def render(template: str, **values: object) -> str:
    """Return the HTML of `templates/<template>.html` with these values."""
    return _TEMPLATES.get_template(f"{template}.html").render(values)


def escape_html(text: str) -> str:
    """Escape text for HTML and for the template syntax that Gradio evaluates in it."""
    return escape(text).replace("{", "&#123;").replace("$", "&#36;").replace("`", "&#96;")


def _finalize(value: object) -> Markup:
    """Escape a value before Jinja prints it; None prints nothing."""
    if isinstance(value, Markup):
        return value
    # Jinja's own escaping would leave Gradio's template syntax as it is.
    return Markup("" if value is None else escape_html(str(value)))


_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    finalize=_finalize,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
