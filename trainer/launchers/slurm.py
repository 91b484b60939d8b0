"""Slurm: a run becomes a job of a cluster through submitit, an optional package.

The folder of the run must be on a disk that all machines share. A job that is preempted or runs
out of time is put back into the queue and goes on from the run's last checkpoint.
"""

import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.errors import MissingDependency, RunError
from trainer.launchers._launcher import Handle, Launcher, Resources
from trainer.runs import Run

_PORT = 29400
_RESTARTS = 3
_POLL_S = 2.0
_PROJECT = Path(__file__).resolve().parent.parent.parent
_WAITING = ("PENDING", "REQUEUED", "CONFIGURING")
_RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED")
_ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "FINISHED")


@dataclass(frozen=True)
class TrainOnNode:
    """What each machine of a job does: one torchrun with its GPUs, or the run itself on one."""

    folder: str
    nodes: int
    gpus_per_node: int

    def __call__(self) -> int:
        """Train until the run ends and return the exit code."""
        environment = os.environ | {"PYTHONPATH": _python_path()}
        return subprocess.run(self.command(), env=environment, check=False).returncode

    def command(self) -> list[str]:
        """Return the command of this machine."""
        resume = ["-m", "trainer", "resume", self.folder]
        if self.nodes == 1:
            return [sys.executable, *resume]
        import submitit

        job = submitit.JobEnvironment()
        is_first = int(job.node == 0)
        torchrun = [
            "-m", "torch.distributed.run", "--nnodes", str(self.nodes),
            "--nproc-per-node", str(self.gpus_per_node), "--rdzv-backend", "c10d",
            "--rdzv-endpoint", f"{job.hostnames[0]}:{_PORT}", "--rdzv-id", job.job_id,
            "--rdzv-conf", f"is_host={is_first}", "--max-restarts", str(_RESTARTS),
        ]  # fmt: skip
        return [sys.executable, *torchrun, *resume]

    def checkpoint(self) -> Any:
        """Return what Slurm puts back into its queue when the job is preempted."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)


def submit(run: Run, resources: Resources, cluster: str = "slurm") -> Handle:
    """Send a run to the cluster's queue; `local` is submitit's stand-in for a cluster.

    Raises:
        MissingDependency: submitit is not installed.
        RunError: there is no Slurm here.
    """
    executor = _executor(run, cluster)
    executor.update_parameters(
        name=f"timbre-{run.name}",
        nodes=resources.nodes,
        tasks_per_node=1,
        gpus_per_node=resources.gpus_per_node,
        cpus_per_task=resources.cpus,
        mem_gb=resources.memory_gib,
        timeout_min=round(60 * resources.hours),
        slurm_setup=[f"export PYTHONPATH={shlex.quote(_python_path())}"],
    )
    if resources.partition:
        executor.update_parameters(slurm_partition=resources.partition)
    deed = TrainOnNode(str(run.folder), resources.nodes, resources.gpus_per_node)
    job = executor.submit(deed)
    return Handle("slurm", {"job": job.job_id, "cluster": executor.cluster})


def status(run: Run, handle: Handle) -> str:
    """Return what the cluster says of the job."""
    state = _job(run, handle).state.upper().split(" ")[0].rstrip("+")
    if state in _WAITING:
        return "waiting"
    if state in _RUNNING:
        return "running"
    return "ended" if state in _ENDED else "unknown"


def cancel(run: Run, handle: Handle) -> None:
    """Ask a run that trains to save and stop; take one that waits out of the queue."""
    if run.status().is_active:
        run.request("stop")
    else:
        _job(run, handle).cancel()


def attach(run: Run, handle: Handle) -> None:
    """Wait until the job has left the cluster."""
    while status(run, handle) in ("waiting", "running"):
        time.sleep(_POLL_S)


def _python_path() -> str:
    return os.pathsep.join(filter(None, [str(_PROJECT), os.environ.get("PYTHONPATH", "")]))


def _executor(run: Run, cluster: str) -> Any:
    try:
        import submitit
    except ImportError:
        raise MissingDependency("submitit", "Training on Slurm") from None
    if cluster == "slurm" and shutil.which("srun") is None:
        raise RunError(
            "There is no Slurm on this machine (srun is not found). Send the run from a machine of "
            "the cluster, or train it here with --on local."
        )
    return submitit.AutoExecutor(folder=run.folder / "control" / "jobs", cluster=cluster)


def _job(run: Run, handle: Handle) -> Any:
    """Return submitit's view of a job that another process may have sent."""
    _executor(run, handle.values["cluster"])
    import submitit

    kinds = {"slurm": submitit.SlurmJob, "local": submitit.LocalJob}
    return kinds[handle.values["cluster"]](run.folder / "control" / "jobs", handle.values["job"])


LAUNCHER = Launcher("slurm", "A Slurm cluster", submit, status, cancel, attach)
