"""Train on a Slurm cluster through the optional package submitit.

The run folder must be on a disk that all machines share. A job that is preempted or reaches its
time limit is queued again and continues from the run's last checkpoint.
"""

import os
import shlex
import shutil
import sys
import time
from dataclasses import dataclass
from typing import Any

from trainer.core.child_process import (
    SAFE_PATH,
    child_environment,
    start_child,
    trainer_command,
)
from trainer.core.errors import MissingDependency, RunError
from trainer.launchers._launcher import Handle, Launcher, Resources
from trainer.runs.run import Run

_PORT = 29400  # torchrun's default port for the c10d rendezvous
_RESTARTS = 3  # as many as the supervisor allows in an hour
_POLL_S = 2.0  # seconds; chosen by hand, to spare the cluster's scheduler
# Slurm's job states; FINISHED is that of submitit's local stand-in.
_WAITING = ("PENDING", "REQUEUED", "CONFIGURING")
_RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED")
_ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "FINISHED")


@dataclass(frozen=True)
class TrainOnNode:
    """The task of each machine of a job: torchrun, or just the run if there is one machine."""

    folder: str
    nodes: int
    gpus_per_node: int

    def __call__(self) -> int:
        """Train until the run ends and return the exit code."""
        environment = child_environment() | SAFE_PATH
        return start_child(self.command(), environment=environment).wait()

    def command(self) -> list[str]:
        """Return the command for this machine."""
        if self.nodes == 1:
            return trainer_command("resume", self.folder)
        import submitit

        job = submitit.JobEnvironment()
        # Every machine must agree on who hosts the rendezvous; torchrun's own guess compares host
        # names, which often differ from those that Slurm uses.
        is_first = int(job.node == 0)
        torchrun = [
            "-m", "torch.distributed.run", "--nnodes", str(self.nodes),
            "--nproc-per-node", str(self.gpus_per_node), "--rdzv-backend", "c10d",
            "--rdzv-endpoint", f"{job.hostnames[0]}:{_PORT}", "--rdzv-id", job.job_id,
            "--rdzv-conf", f"is_host={is_first}", "--max-restarts", str(_RESTARTS),
        ]  # fmt: skip
        return [sys.executable, *torchrun, "-m", "trainer", "resume", self.folder]

    def checkpoint(self) -> object:
        """Return the submission that Slurm queues again when the job is preempted."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)


def submit(run: Run, resources: Resources, cluster: str = "slurm") -> Handle:
    """Submit a run to the cluster's queue; `local` is submitit's stand-in for a cluster.

    Raises:
        MissingDependency: submitit is not installed.
        RunError: this machine has no Slurm.
    """
    executor = _executor(run, cluster)
    executor.update_parameters(
        name=f"timbre-{run.name}",
        nodes=resources.nodes,
        tasks_per_node=1,  # torchrun starts the processes of a machine
        gpus_per_node=resources.gpus_per_node,
        cpus_per_task=resources.cpus,
        mem_gb=resources.memory_gib,
        timeout_min=round(60 * resources.hours),
        slurm_setup=_exports(),
    )
    if resources.partition:
        executor.update_parameters(slurm_partition=resources.partition)
    job_on_node = TrainOnNode(str(run.folder), resources.nodes, resources.gpus_per_node)
    job = executor.submit(job_on_node)
    return Handle("slurm", {"job": job.job_id, "cluster": executor.cluster})


def status(run: Run, handle: Handle) -> str:
    """Return the state of the job as the cluster reports it."""
    # Slurm appends details, as in "CANCELLED by 1000" and "CANCELLED+".
    state = _job(run, handle).state.upper().split(" ")[0].rstrip("+")
    if state in _WAITING:
        return "waiting"
    if state in _RUNNING:
        return "running"
    return "ended" if state in _ENDED else "unknown"


def cancel(run: Run, handle: Handle) -> None:
    """Ask a run that is training to save and stop; remove one that is waiting from the queue."""
    if run.status().is_active:
        run.request("stop")
    else:
        _job(run, handle).cancel()


def attach(run: Run, handle: Handle) -> None:
    """Wait until the job has left the cluster."""
    while status(run, handle) in ("waiting", "running"):
        time.sleep(_POLL_S)


def _exports() -> list[str]:
    """Return the lines of a job's script with which its Python finds this Timbre."""
    changed = child_environment() | SAFE_PATH
    return [
        f"export {name}={shlex.quote(value)}"
        for name, value in changed.items()
        if os.environ.get(name) != value
    ]


def _executor(run: Run, cluster: str) -> Any:
    try:
        import submitit
    except ImportError:
        raise MissingDependency("submitit", "Training on Slurm") from None
    if cluster == "slurm" and shutil.which("srun") is None:
        raise RunError(
            "Slurm was not found on this machine (there is no srun). Submit the run from a machine "
            "of the cluster, or train it here with --on local."
        )
    return submitit.AutoExecutor(folder=run.folder / "control" / "jobs", cluster=cluster)


def _job(run: Run, handle: Handle) -> Any:
    """Return submitit's object for a job that another process may have submitted."""
    _executor(run, handle.values["cluster"])
    import submitit

    kinds = {"slurm": submitit.SlurmJob, "local": submitit.LocalJob}
    return kinds[handle.values["cluster"]](run.folder / "control" / "jobs", handle.values["job"])


LAUNCHER = Launcher("slurm", "A Slurm cluster", submit, status, cancel, attach)
