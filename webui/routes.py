"""Serve what the page polls or plays: read-only GET routes. Changes go through Gradio events."""

import functools
import json
from collections.abc import Callable
from urllib.parse import quote

import orjson
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from trainer.core.errors import RunNotFound, TimbreError
from trainer.core.metrics import METRICS, TRAIN_LOSS
from trainer.data.lists.ledger import escape_formula
from trainer.runs.points import csv_texts, json_texts
from webui.jobs import listening_test
from webui.jobs.listening_test import read_clips
from webui.jobs.speech_stream import Speeches
from webui.scripts import SCRIPTS_PATH, STATIC, script_file
from webui.security.login import is_logged_in
from webui.status import Row, describe
from webui.studio import Studio
from webui.views.trial_results import JobViews

View = Callable[[Request], Response]
_NEWEST_ONLY = frozenset(name for name, metric in METRICS.items() if metric.newest_only)
"""A zoom and the downloads have all values of these too."""
DICTIONARIES = ("ko.json", "am.json", "fa.json")


def build_routes(studio: Studio) -> list[Route]:
    """Return the routes; when the page has a password, they require a login."""
    runs, speeches = _Runs(studio), Speeches(studio.library)
    views: dict[str, View] = {
        "/studio/active": runs.active,
        "/studio/runs": runs.table,
        "/studio/trash": runs.trash,
        "/studio/comparison.{kind}": runs.comparison,
        "/studio/runs/{name}/rows": runs.rows,
        "/studio/runs/{name}/status": runs.status,
        "/studio/runs/{name}/config": runs.config,
        "/studio/runs/{name}/log": runs.log,
        "/studio/runs/{name}/metrics.csv": runs.metrics,
        "/studio/runs/{name}/metrics.json": runs.all_metrics,
        "/studio/runs/{name}/curves.{kind}": runs.curves,
        "/studio/runs/{name}/previews": runs.previews,
        "/studio/runs/{name}/previews/{file}": runs.preview,
        "/studio/runs/{name}/takes": runs.takes,
        "/studio/runs/{name}/takes/{take}.wav": runs.take,
        "/studio/speech": speeches.speech,
    } | JobViews(studio).views()
    routes = [Route(path, _answering(view), methods=["GET"]) for path, view in views.items()]
    return [
        *routes,
        Route(SCRIPTS_PATH, script_file, methods=["GET"]),
        Route("/studio/page/{file}", page_file, methods=["GET"]),
    ]


def page_file(request: Request) -> Response:
    """Serve the style sheet or a dictionary; public, as the login page needs them."""
    headers = {"Cache-Control": "no-cache"}
    if request.path_params["file"] == "page.css":
        return FileResponse(STATIC / "css" / "page.css", media_type="text/css", headers=headers)
    if request.path_params["file"] in DICTIONARIES:
        words = STATIC / "translations" / request.path_params["file"]
        return FileResponse(words, media_type="application/json", headers=headers)
    return _json({"error": "File not found."}, 404)


class _Runs:
    """The views of the runs in one folder."""

    def __init__(self, studio: Studio) -> None:
        self._studio = studio
        self._library = studio.library

    def active(self, request: Request) -> Response:
        return _json({"active": self._studio.run_list.active()})

    def table(self, request: Request) -> Response:
        most = _number(request, "most", 500, 1, 10_000)
        queue, trash = self._library.queue, self._library.trash
        waiting = [entry.name for entry in queue.waiting()]
        values = {"runs": self._studio.run_list.rows(most), "discarded": trash.count()}
        return _json(values | {"queue": {"paused": queue.is_paused, "names": waiting}})

    def trash(self, request: Request) -> Response:
        return _json({"discarded": [vars(entry) for entry in self._library.trash.contents()]})

    def rows(self, request: Request) -> Response:
        name = request.path_params["name"]
        most = _number(request, "max", 2000, 10, 20_000)
        series = self._library.series(name)
        if "from" in request.query_params:
            first = _number(request, "from", 0, 0, 2**53)
            last = _number(request, "to", 2**53, 0, 2**53)
            return _json({"run": name} | series.between(first, last, most))
        values = series.after(request.query_params.get("cursor", ""), most, brief=_NEWEST_ONLY)
        status = describe(self._library.status(name))
        return _json({"run": name, "status": status, "active": self._others(name)} | values)

    def status(self, request: Request) -> Response:
        status = self._library.status(request.path_params["name"])
        values = {"metrics": status.metrics, "facts": status.facts}
        return _json(describe(status) | values | {"optimizations": status.optimizations})

    def config(self, request: Request) -> Response:
        return _json(self._library.get(request.path_params["name"]).config.to_json())

    def log(self, request: Request) -> Response:
        run = self._library.get(request.path_params["name"])
        return PlainTextResponse(run.log_tail(), headers={"Cache-Control": "no-store"})

    def metrics(self, request: Request) -> Response:
        name = request.path_params["name"]
        texts = csv_texts(**self._library.series(name).tables(), title=escape_formula)
        return StreamingResponse(texts, media_type="text/csv", headers=_download(f"{name}.csv"))

    def all_metrics(self, request: Request) -> Response:
        name = request.path_params["name"]
        texts = json_texts(self._library.series(name).tables(), f'"run": {json.dumps(name)}, ')
        headers = _download(f"{name}.json")
        return StreamingResponse(texts, media_type="application/json", headers=headers)

    def curves(self, request: Request) -> Response:
        from webui.views.charts import draw_curves  # matplotlib is slow to import and rarely needed

        name = request.path_params["name"]
        series = self._library.series(name)
        return _picture(request, name, lambda kind: draw_curves(name, series, kind))

    def comparison(self, request: Request) -> Response:
        from webui.views.charts import draw_comparison

        names = list(dict.fromkeys(request.query_params.getlist("run")))
        metric = request.query_params.get("metric", TRAIN_LOSS)
        if not 2 <= len(names) <= 6:
            raise ValueError(f"Got {len(names)} runs; choose two to six to compare.")
        compared = [name for name, metric in METRICS.items() if metric.compared]
        if metric not in compared:
            raise ValueError(f"Unknown metric '{metric}'; choose one of {', '.join(compared)}.")
        runs = {name: self._library.series(name) for name in names}
        draw = functools.partial(draw_comparison, runs, metric)
        return _picture(request, "comparison", draw)

    def previews(self, request: Request) -> Response:
        run = self._library.get(request.path_params["name"])
        return _json({"files": [path.name for path in run.previews()]})

    def preview(self, request: Request) -> Response:
        run = self._library.get(request.path_params["name"])
        known = {path.name: path for path in run.previews()}
        path = known.get(request.path_params["file"])
        if path is None:
            return _json({"error": "Preview not found."}, 404)
        media_type = "image/svg+xml" if path.suffix == ".svg" else "audio/wav"
        # An SVG that is opened directly is a document, so it must not run scripts.
        headers = {"Content-Security-Policy": "default-src 'none'; sandbox"}
        return FileResponse(path, media_type=media_type, headers=headers)

    def takes(self, request: Request) -> Response:
        run = self._library.get(request.path_params["name"])
        values = {
            "takes": [vars(take) for take in listening_test.read_takes(run)],
            "choices": listening_test.choices(run, read_clips(run)),
        }
        return _json(values | listening_test.standings(run))

    def take(self, request: Request) -> Response:
        run = self._library.get(request.path_params["name"])
        path = listening_test.take_path(run, request.path_params["take"])
        if path is None:
            return _json({"error": "Take not found. Generate it again."}, 404)
        return FileResponse(path, media_type="audio/wav")

    def _others(self, name: str) -> list[Row]:
        return [row for row in self._studio.run_list.active() if row["name"] != name]


def _picture(request: Request, file: str, draw: Callable[[str], bytes]) -> Response:
    kind = request.path_params["kind"]
    if kind not in ("png", "svg"):
        return _json({"error": f"Unsupported format '{kind}'; use png or svg."}, 404)
    media_type = "image/png" if kind == "png" else "image/svg+xml"
    return Response(draw(kind), media_type=media_type, headers=_download(f"{file}.{kind}"))


def _answering(view: View) -> View:
    @functools.wraps(view)
    def answer(request: Request) -> Response:
        if not is_logged_in(request):
            return _json({"error": "Log in first."}, 401)
        try:
            return view(request)
        except RunNotFound as error:
            return _json({"error": str(error)}, 404)
        except (TimbreError, ValueError) as error:
            return _json({"error": str(error)}, 400)

    return answer


def _json(values: object, status: int = 200) -> Response:
    headers = {"Cache-Control": "no-store"}
    return Response(orjson.dumps(values), status, headers, media_type="application/json")


def _number(request: Request, name: str, default: int, low: int, high: int) -> int:
    text = request.query_params.get(name, str(default))
    if not text.isdigit():
        raise ValueError(f"'{name}' is '{text}'; expected an integer.")
    return min(max(int(text), low), high)


def _download(file: str) -> dict[str, str]:
    value = f"attachment; filename*=UTF-8''{quote(file, safe='')}"
    return {"Content-Disposition": value, "Cache-Control": "no-store"}
