"""Benchmark what each optimization brings on this machine, in a series of short trainings.

Every trial runs in its own process, so that none inherits memory, flags or compiled code from
another, and a trial that hangs can be killed.
"""

from trainer.profiling.benchmark.benchmark import Benchmark
from trainer.profiling.benchmark.plan import BenchmarkPlan

__all__ = ["Benchmark", "BenchmarkPlan"]
