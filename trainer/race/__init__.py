"""Race: optimizers compared on the user's own clips and machine, under equal conditions.

A race is a folder: `race.json` (the plan, which never changes) and ordinary run folders beside it.
What it does next follows from the plan and from the runs alone, so it can be killed at any time.
"""

from trainer.race.plan import Entrant, RacePlan
from trainer.race.queue import Race, RaceStatus

__all__ = ["Entrant", "Race", "RacePlan", "RaceStatus"]
