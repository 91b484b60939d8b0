"""The words and phrases that this project's prose does without, wherever people read it."""

import ast
import io
import json
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = next(
    folder for folder in Path(__file__).resolve().parents if (folder / "pyproject.toml").exists()
)

BANNED = (
    r"deeds?",
    r"anew",
    r"mend(?:s|ed|ing)?",
    r"reckon(?:s|ed|ing)?",
    r"foretell(?:s|ing)?|foretold",
    r"foresee(?:s|ing|n)?|foresaw|foresight",
    r"whoever",
    r"struck down",
    r"so that it be",
    r"need be done",
    r"(?:take|takes|taken|took) along",
    r"at hand",
    r"so-and-so-many(?:-th)?",
    r"round(?:s|ed|ing)? by chance",
    # "There is no file" is plain English; "x is no file" is not.
    r"(?<!there )(?:is|are|was|were) no (?:number|picture|folder|file|name|row|list|text)s?",
    r"does harm",
    r"errands?",
)
_BANNED = re.compile(r"\b(?:" + "|".join(BANNED) + r")\b", re.IGNORECASE)
_PYTHON = ("trainer", "webui")
_MARKDOWN = ("*.md", "docs/**/*.md")
# Strings, templates and comments of JavaScript; a slash that divides is none of them.
_JAVASCRIPT = re.compile(
    r"/\*.*?\*/|(?<!:)//[^\n]*|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`",
    re.DOTALL,
)


def test_no_prose_uses_a_banned_word() -> None:
    """Strings, docstrings and comments of Python and JavaScript, Markdown, and translation keys."""
    hits = [hit for path in _sources() for hit in find_banned(path)]

    assert not hits, "use plain words instead:\n" + "\n".join(hits)


def test_a_planted_word_is_found_wherever_prose_stands(tmp_path: Path) -> None:
    python = tmp_path / "planted.py"
    python.write_text(
        '"""Do the deed."""\n'
        "# Build it anew.\n"
        "anew = 1  # a name is no prose\n"
        'TEXT = "Give another path, or mend this one."\n'
        'WORDS = f"{anew} is no number."\n'
        'KEY = "errands"  # stored by earlier versions\n'
    )
    script = tmp_path / "planted.js"
    script.write_text('const anew = 1 / 2; // the deed\nt.say("Whoever comes");\n/* 1\n anew */\n')
    markdown = tmp_path / "planted.md"
    markdown.write_text("All is well.\n\nPublished weights were not at\nhand.\n")
    translation = tmp_path / "ko.json"
    translation.write_text('{\n "The loss is no number.": "anew"\n}\n')

    found = [find_banned(path) for path in (python, script, markdown, translation)]

    assert [[hit.rpartition("planted.")[2] for hit in hits] for hits in found[:3]] == [
        ["py:1: deed", "py:2: anew", "py:4: mend", "py:5: is no number"],
        ["js:1: deed", "js:2: Whoever", "js:4: anew"],
        ["md:3: at hand"],
    ]
    assert [hit.rpartition("ko.json")[2] for hit in found[3]] == [":2: is no number"]


def find_banned(path: Path) -> list[str]:
    """Return `file:line: word` for each banned word in the prose of a file."""
    text = path.read_text(encoding="utf-8")
    if not _BANNED.search(" ".join(text.split())):
        return []
    passages = {".py": _python, ".js": _javascript, ".json": _keys, ".md": _markdown}[path.suffix]
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    hits = [
        (line + passage.count("\n", 0, match.start()), " ".join(match[0].split()))
        for line, passage in passages(text)
        for match in _BANNED.finditer(_spaced(passage))
    ]
    return [f"{name}:{line}: {word}" for line, word in sorted(hits)]


def _spaced(passage: str) -> str:
    """Let a phrase run over the end of a line; lengths stay, so that lines can be counted."""
    return re.sub(r"(?<=\w)\n(?=\w)", " ", passage)


def _python(text: str) -> Iterator[tuple[int, str]]:
    """Yield comments, docstrings and all strings that are sentences rather than keys."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    nodes = list(ast.walk(ast.parse(text)))
    pieces = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(_text_of(part) for part in node.values)
        elif isinstance(node, ast.Constant) and id(node) not in pieces:
            is_sentence = isinstance(node.value, str) and " " in node.value
            yield node.lineno, str(node.value) if is_sentence else ""


def _text_of(part: ast.expr) -> str:
    """Return a piece of an f-string, a letter where a value will stand."""
    return str(part.value) if isinstance(part, ast.Constant) else "x"


def _javascript(text: str) -> Iterator[tuple[int, str]]:
    for match in _JAVASCRIPT.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match[0]


def _keys(text: str) -> Iterator[tuple[int, str]]:
    """Yield the English sentences of a translation, each on the line where it stands."""
    for key in json.loads(text):
        place = text.find(json.dumps(key, ensure_ascii=False))
        yield text.count("\n", 0, max(0, place)) + 1, key


def _markdown(text: str) -> Iterator[tuple[int, str]]:
    yield 1, text


def _sources() -> list[Path]:
    """Return the tracked and new files that hold prose of this project."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return [ROOT / name for name in listed if _is_prose(name) and (ROOT / name).exists()]


def _is_prose(name: str) -> bool:
    path = Path(name)
    if path.suffix == ".py":
        return path.parts[0] in _PYTHON or name == "app.py"
    if path.suffix == ".js":
        return path.parts[0] in ("assets", "webui")
    if path.suffix == ".json":
        return path.stem in ("ko", "am", "fa")
    return path.suffix == ".md" and (len(path.parts) == 1 or path.parts[0] in ("docs", "trainer"))
