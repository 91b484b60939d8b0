"""Start, stop and describe races; each race runs in its own process."""

from pathlib import Path

from trainer.core.errors import RunError, RunNotFound
from trainer.race.plan import RacePlan
from trainer.race.queue import Race
from trainer.race.view import FILES, files_of, view_race
from trainer.runs.run_store import free_name


class Races:
    """The races in one folder; finished races are read once and cached."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: dict[str, Race] = {}
        self._finished: dict[str, dict[str, object]] = {}

    def names(self) -> list[str]:
        """List the races, newest first."""
        found = [path.parent for path in self.folder.glob("*/race.json")]
        found.sort(key=lambda folder: (folder / "race.json").stat().st_mtime, reverse=True)
        return [folder.name for folder in found]

    def get(self, name: str) -> Race:
        """Open a race by name.

        Raises:
            RunNotFound: no race has that name (a name with a path separator never matches).
        """
        if name not in self.names():
            raise RunNotFound(f"There is no race named '{name}' in {self.folder}.")
        if name not in self._open:
            self._open[name] = Race.open(self.folder / name)
        return self._open[name]

    def start(self, wanted: str, plan: RacePlan) -> str:
        """Create and start a race under the given name or a free variant; return its name.

        Raises:
            RunError: another race is running; two at once would distort each other's speeds.
        """
        self._refuse_two()
        self.folder.mkdir(parents=True, exist_ok=True)
        race = Race.create(self.folder / free_name(self.folder, wanted), plan)
        race.start()
        return race.name

    def resume(self, name: str) -> None:
        """Resume a stopped race."""
        race = self.get(name)
        self._refuse_two()
        race.start()

    def stop(self, name: str) -> None:
        """Ask a race to save its current run and stop."""
        race = self.get(name)
        if not race.is_running():
            raise RunError(f"The race {name} is not running.")
        race.request_stop()

    def running(self) -> str:
        """Return the name of the running race, or an empty string."""
        return next((name for name in self.names() if self.get(name).is_running()), "")

    def view(self, name: str) -> dict[str, object]:
        """Return everything the page shows about a race."""
        race = self.get(name)
        if name not in self._finished or race.is_running():
            values = view_race(race)
            if values["state"] != "finished":
                return values
            self._finished[name] = values
        return self._finished[name] | {"files": files_of(race)}

    def file(self, name: str, file: str) -> Path:
        """Return the path of a result file of a race.

        Raises:
            RunNotFound: the race has no such file.
        """
        path = self.get(name).folder / file
        if file not in FILES or not path.is_file():
            raise RunNotFound(f"The race {name} has no file '{file}'.")
        return path

    def _refuse_two(self) -> None:
        running = self.running()
        if running:
            text = f"The race {running} is running. Wait until it finishes, or stop it first."
            raise RunError(text)
