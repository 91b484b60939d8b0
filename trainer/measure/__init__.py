"""Measure: what each optimization brings on this machine, a ladder of short trainings.

Every row trains in a process of its own, so that none inherits memory, flags or compiled code from
another, and one that hangs can be ended.
"""

from trainer.measure.ladder import Ladder
from trainer.measure.plan import MeasurePlan

__all__ = ["Ladder", "MeasurePlan"]
