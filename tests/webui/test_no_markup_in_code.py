"""HTML comes from templates: no module of the page builds markup out of strings."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from webui.views.markup import render

WEBUI = Path(__file__).resolve().parent.parent.parent / "webui"
MODULES = sorted(WEBUI.rglob("*.py"))
WHOLE_PAGES = {"login.py", "token_auth.py"}
"""Documents of their own, shown before there is a page; no value from outside goes into them."""
_TAG = re.compile(r"</?[a-z][a-z0-9]*(\s[^<>]*)?/?>|<[a-z]+\s+[a-z-]+=", re.IGNORECASE)


def _built(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the strings that an expression puts together: f-strings, `%`, `+`, format and join."""
    for node in ast.walk(tree):
        is_sum = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod | ast.Add)
        is_call = isinstance(node, ast.Call) and (
            isinstance(node.func, ast.Attribute) and node.func.attr in ("format", "join")
        )
        if isinstance(node, ast.JoinedStr) or is_sum or is_call:
            parts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
            yield node.lineno, " ".join(part for part in parts if isinstance(part, str))


def _markup(source: str) -> list[str]:
    return [f"{line}: {text}" for line, text in _built(ast.parse(source)) if _TAG.search(text)]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(WEBUI)))
def test_no_module_builds_markup(path: Path) -> None:
    if path.name in WHOLE_PAGES:
        return

    assert _markup(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        'f"<b>{name}</b>"',
        '"<td class=x>" + name',
        '"<i>%s</i>" % name',
        '"<p>{}</p>".format(name)',
        '"".join(f"<li>{each}" for each in names)',
        "f\"<span title='{name}'>\"",
    ],
)
def test_markup_out_of_strings_is_found(source: str) -> None:
    assert _markup(source)


@pytest.mark.parametrize("source", ['"<b>"', 'f"{a} < {b}"', '"a" + "b"', 'f"-> {x}"'])
def test_other_strings_are_let_through(source: str) -> None:
    assert _markup(source) == []


def test_templates_escape_every_value() -> None:
    html = render("notice", words="<img src=x>${1}{{2}}`&")

    words = "&lt;img src=x&gt;&#36;&#123;1}&#123;&#123;2}}&#96;&amp;"
    assert html.strip() == f'<div class="notice">{words}</div>'


def test_no_template_turns_escaping_off() -> None:
    for path in (WEBUI / "views" / "templates").glob("*.html"):
        assert not re.search(r"\|\s*safe|autoescape", path.read_text(encoding="utf-8")), path.name
