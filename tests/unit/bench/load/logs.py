"""Hand-made event logs: what a run would have recorded, without a run."""

from collections.abc import Sequence

import numpy as np

from bench.load.exchange import Exchange
from bench.load.measures import Run, Wanted
from bench.load.records import Measured, measured


def exchange(
    index: int, due: float, tokens: Sequence[float], *, usage: int | None = None, late: float = 0.0, error: str = ""
) -> Exchange:
    """A request due at `due` whose tokens came at `tokens` (seconds)."""
    one = Exchange(index, 0, due, begun=due + late, sent=due + late)
    one.status, one.error = (200, error)
    one.ended = tokens[-1] if tokens else due + late
    if tokens:
        one.byte = one.first = tokens[0]
        one.last = tokens[-1]
        one.chunks = len(tokens)
        one.gaps.extend(np.diff(tokens).tolist())
    if usage is not None:
        one.output_tokens = usage
    return one


def run_of(seen: Sequence[Exchange], *, open_loop: bool = True, area: float | None = None) -> Run:
    """The run that these exchanges were."""
    counted = sum(one.ended - one.begun for one in seen) if area is None else area
    return Run(recorded(seen, counted), wanted(len(seen), open_loop=open_loop))


def recorded(seen: Sequence[Exchange], area: float = 1.0) -> Measured:
    return measured(seen, 0.0, area, 0.1)


def wanted(count: int, *, open_loop: bool = True) -> Wanted:
    unknown = np.full(count, -1)
    return Wanted(unknown, unknown, (), (512, 128), open_loop)
