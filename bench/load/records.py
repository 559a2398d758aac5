"""Every request of a run as arrays, from one process or from several."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bench.load.exchange import NEVER, Exchange

Values = NDArray[np.float64]

# Times are seconds after the start; NaN: it did not happen. Tokens are -1 where nobody said.
RECORD = np.dtype(
    [
        ("index", "i8"), ("turn", "i4"), ("due", "f8"), ("begun", "f8"), ("sent", "f8"), ("byte", "f8"),
        ("first", "f8"), ("last", "f8"), ("ended", "f8"), ("status", "i4"), ("chunks", "i4"), ("prompt", "i8"),
        ("output", "i8"), ("cached", "i8"), ("lag", "f8"), ("resent", "?"), ("error", "U24"), ("cache", "U16"),
        ("tier", "U16"), ("process", "i2"),
    ]
)  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """A run. `requests`: one `RECORD` each, in the order in which they were due.

    `gaps[offsets[i]:offsets[i + 1]]`: seconds between the chunks of request i. `area`: the number in flight, integrated
    over the run as the generator counted it. `busy`: the share of a core that each generator process used.
    """

    requests: NDArray[np.void]
    gaps: NDArray[np.float32]
    offsets: NDArray[np.int64]
    area: float
    busy: Sequence[float] = field(default_factory=tuple)

    def __len__(self) -> int:
        return len(self.requests)


def measured(seen: Sequence[Exchange], start: float, area: float, busy: float, process: int = 0) -> Measured:
    """The arrays of one process. `start`: monotonic seconds."""
    rows = np.zeros(len(seen), dtype=RECORD)
    for row, one in zip(rows, seen, strict=True):
        for name in ("due", "begun", "sent", "byte", "first", "last", "ended"):
            at = getattr(one, name)
            row[name] = np.nan if at == NEVER else at - start
        row["index"], row["turn"], row["status"], row["chunks"] = one.index, one.turn, one.status, one.chunks
        row["prompt"], row["output"], row["cached"] = one.prompt_tokens, one.output_tokens, one.cached_tokens
        row["lag"], row["resent"], row["process"] = one.lag, one.resent, process
        row["error"], row["cache"], row["tier"] = one.error, one.cache, one.tier
    lengths = [len(one.gaps) for one in seen]
    gaps = np.concatenate([np.frombuffer(one.gaps, dtype=np.float32) for one in seen]) if seen else np.zeros(0, "f4")
    return _ordered(Measured(rows, gaps, _offsets(lengths), area, (busy,)))


def together(parts: Sequence[Measured]) -> Measured:
    """The runs of several processes as one."""
    if len(parts) == 1:
        return parts[0]
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    return _ordered(
        Measured(
            np.concatenate([part.requests for part in parts]),
            np.concatenate([part.gaps for part in parts]),
            _offsets(lengths),
            sum(part.area for part in parts),
            tuple(share for part in parts for share in part.busy),
        )
    )


def taken(run: Measured, rows: NDArray[np.int64]) -> Measured:
    """The requests of these rows, in this order; the area stays that of the whole run."""
    lengths = np.diff(run.offsets)[rows]
    offsets = _offsets(lengths)
    source = np.repeat(run.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
    return Measured(run.requests[rows], run.gaps[source], offsets, run.area, run.busy)


def _ordered(run: Measured) -> Measured:
    return taken(run, np.argsort(run.requests["due"], kind="stable"))


def _offsets(lengths: "Sequence[int] | NDArray[np.int64]") -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
