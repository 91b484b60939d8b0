"""Race: compare optimizers on the user's own clips and machine, under equal conditions.

A race is a folder with `race.json` (the plan, which never changes) and ordinary run folders. What
it does next depends only on the plan and the runs, so it can be killed and continued at any time.
"""

from trainer.race.plan import Contender, RacePlan
from trainer.race.queue import Race, RaceStatus

__all__ = ["Contender", "Race", "RacePlan", "RaceStatus"]
