"""A thread of the web server that starts or follows a run and explains how it ended."""

import threading
import time
from collections.abc import Callable

from trainer.core.errors import RunOwned
from trainer.core.events import RunFinished
from trainer.runs.metric_store import MetricStore
from trainer.runs.restart_policy import explain_exit
from trainer.runs.run import Run


class TrainerThread(threading.Thread):
    """Starts a run's process or attaches to it, follows its log and explains how it ended.

    Then calls `then` with the run.
    """

    def __init__(
        self,
        run: Run,
        series: MetricStore,
        *,
        start_process: bool,
        then: Callable[[Run], None] | None = None,
    ) -> None:
        super().__init__(name=f"trainer-{run.name}", daemon=True)
        self.run_folder = run
        self.series = series
        self._then = then
        self._process = run.start() if start_process else None

    def run(self) -> None:
        """Follow the event log until the process has ended, then log how it ended."""
        while self._is_alive():
            self.series.update()
            time.sleep(0.25)  # chosen by hand: soon enough for a live page, little CPU
        self.series.update()
        # Without a last event the process was killed and could not log the reason itself.
        if self.series.finished is None:
            self._explain()
            self.series.update()
        if self._then is not None:
            self._then(self.run_folder)

    def _is_alive(self) -> bool:
        if self._process is not None:
            return self._process.poll() is None
        return self.run_folder.is_owned() or self.run_folder.is_supervised()

    def _explain(self) -> None:
        code = self._process.returncode if self._process is not None else None
        if code is None or code == RunOwned.exit_code:
            return
        reason, remedy = explain_exit(code, self.run_folder.log_tail(40))
        # Only the owner may write to the log; another process may have taken the run already.
        try:
            lock = self.run_folder.take()
        except RunOwned:
            return
        event = RunFinished("failed", self.series.last_step, reason, remedy)
        self.run_folder.events.append(event)
        lock.release()
