"""Convert the intervals of a configuration, such as `2 epochs`, into steps or minutes."""

from trainer.core.run_config import parse_interval
from trainer.core.train_state import Cadence


def find_cadence(text: str, *, last_step: int, steps_per_epoch: int, auto: int) -> Cadence:
    """Convert an interval such as '2 epochs' into steps or minutes.

    'auto' divides the run into `auto` intervals of equal length.
    """
    interval = parse_interval(text)
    if interval is None:
        return Cadence() if text.strip().lower() == "never" else Cadence(max(1, last_step // auto))
    if interval.unit == "minutes":
        return Cadence(minutes=interval.amount)
    factor = steps_per_epoch if interval.unit == "epochs" else 1
    return Cadence(max(1, round(interval.amount * factor)))
