"""Lines: the events of a run in words, for people at a terminal."""

from trainer.events import (
    CheckpointSaved,
    Event,
    Notice,
    PhaseChanged,
    PlanChanged,
    PreviewMade,
    RunFinished,
    RunStarted,
    StepDone,
    ValidationDone,
)


def describe_event(event: Event) -> str | None:
    """Return an event as a line for a person at a terminal; None: nothing to show."""
    match event:
        case PhaseChanged():
            return f"{event.phase} {event.done}/{event.total}" if event.total else event.phase
        case RunStarted():
            on = [name for name, state in event.optimizations.items() if state["on"]]
            return f"Training from step {event.first_step} to {event.last_step}; on: {on or 'none'}"
        case StepDone():
            metrics = event.metrics
            seconds, memory = metrics["perf/s_per_step"], metrics["perf/memory_gib"]
            loss = metrics["train/loss"]
            return f"step {event.step}  loss {loss:.4f}  {seconds:.3f} s/step  {memory:.2f} GiB"
        case ValidationDone():
            return f"step {event.step}  val loss {event.metrics['val/loss']:.4f}"
        case CheckpointSaved():
            return f"step {event.step}  saved {event.path}{' (best)' if event.best else ''}"
        case PreviewMade():
            return f"step {event.step}  preview {event.path}"
        case PlanChanged():
            return f"step {event.step}  the run now goes to step {event.last_step}"
        case Notice():
            return f"{event.level}: {event.text} {event.remedy}"
        case RunFinished():
            return f"{event.outcome} at step {event.step} {event.reason} {event.remedy}".strip()
    return None
