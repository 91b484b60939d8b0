"""Serve the state of races, learning-rate searches, benchmarks and cut recordings as JSON."""

import json
from collections.abc import Callable
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from trainer.profiling.measurements import list_kept
from webui.jobs.background_job import BackgroundJob
from webui.studio import Studio

_KEPT = 20  # Benchmark results listed on the page; chosen by hand.


class JobViews:
    """The views of the background jobs of one studio."""

    def __init__(self, studio: Studio) -> None:
        self._studio = studio

    def views(self) -> dict[str, Callable[[Request], Response]]:
        """Return the views by path."""
        return {
            "/studio/races": self.races,
            "/studio/races/{name}": self.race,
            "/studio/races/{name}/files/{file}": self.race_file,
            "/studio/rates": self.rates,
            "/studio/measurements": self.measurements,
            "/studio/cut": self.cut,
        }

    def races(self, request: Request) -> Response:
        races = self._studio.races
        return _json({"races": races.names(), "running": races.running()})

    def race(self, request: Request) -> Response:
        return _json(self._studio.races.view(request.path_params["name"]))

    def race_file(self, request: Request) -> Response:
        name, file = request.path_params["name"], request.path_params["file"]
        path = self._studio.races.file(name, file)
        return FileResponse(path, filename=f"{name}-{file}", headers={"Cache-Control": "no-store"})

    def rates(self, request: Request) -> Response:
        return _json(describe_rates(self._studio.rates))

    def measurements(self, request: Request) -> Response:
        return _json(describe_measuring(self._studio.measuring))

    def cut(self, request: Request) -> Response:
        return _json(describe_cut(self._studio.cutting))


def describe_rates(job: BackgroundJob) -> dict[str, Any]:
    """Return the progress and the result of the learning-rate search."""
    about, running = job.about(), job.is_running()
    lines = job.lines()
    progress = lines[-1] if lines and "done" in lines[-1] else {"done": 0, "total": 0}
    finding = None
    path = job.folder / str(about.get("out", "")) / "find-lr.json"
    if path.is_file():
        finding = json.loads(path.read_text(encoding="utf-8"))
    state = "running" if running else "done" if finding else "failed" if about else "none"
    return {
        "state": state,
        "optimizer": about.get("optimizer", ""),
        "family": about.get("family", ""),
        "done": progress["done"],
        "total": progress["total"],
        "finding": finding,
        "problem": job.problem() if state == "failed" else "",
    }


def describe_measuring(job: BackgroundJob) -> dict[str, Any]:
    """Return whether a benchmark is running, and the results for this machine."""
    running = job.is_running()
    kept = [
        {"file": path.name} | measurement.to_json()
        for path, measurement in list_kept()[:_KEPT]
    ]  # fmt: skip
    if running and kept and kept[0]["state"] != "running":
        kept.insert(0, {"file": "", "rows": [], "state": "running", "model": {}, "machine": {}})
    is_silent = not running and job.about() and not job.lines()
    return {
        "running": running,
        "kept": kept,
        "problem": job.problem() if is_silent else "",
    }


def describe_cut(job: BackgroundJob) -> dict[str, Any]:
    """Return the progress and the result of cutting recordings."""
    running, lines = job.is_running(), job.lines()
    last = lines[-1] if lines else {}
    found = last if "list" in last and not running else None
    state = "running" if running else "done" if found else "failed" if job.about() else "none"
    return {
        "state": state,
        "source": job.about().get("source", ""),
        "phase": last.get("phase", ""),
        "done": last.get("done", 0),
        "total": last.get("total", 0),
        "found": found,
        "problem": job.problem() if state == "failed" else "",
    }


def _json(values: Any) -> Response:
    headers = {"Cache-Control": "no-store"}
    return Response(orjson.dumps(values), 200, headers, media_type="application/json")
