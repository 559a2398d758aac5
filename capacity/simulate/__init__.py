"""The simulator: requests through a scheduler, step by step.

`run(workload, scheduler, step_model, seed) -> Result` is all there is to it; `run_until` chooses the length of the run.
"""

from capacity.scheduler import Scheduler, Transfer
from capacity.simulate.result import Result, Slo
from capacity.simulate.runs import Precise, run, run_until

__all__ = ["Precise", "Result", "Scheduler", "Slo", "Transfer", "run", "run_until"]
