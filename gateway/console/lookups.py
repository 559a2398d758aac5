"""The last lookups and scores in a block of memory that never grows: what a change of thresholds is tried on.

A row is what the log's line of the request has, to the same four decimals, so that a recount of the log agrees.
"""

from collections.abc import Mapping
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from gateway.account import Account

# Rows kept: 36 bytes each.
KEPT = 50_000
# Position in these is what a row holds; the last one stands for all others.
SEMANTIC = ("none", "hit", "miss", "guarded", "timeout", "error", "bypass")
REASONS = (
    "none", "override", "only_tier", "vision", "tools", "json", "context", "sticky", "complexity", "unfamiliar",
    "no_text", "escalated", "fallback", "other",
)  # fmt: skip
TIERS = ("none", "small", "frontier")
# No similarity and no complexity is as small.
UNKNOWN = -2.0

_ROW = Struct("<dddBBBBII")
_TYPE = np.dtype(
    [
        ("ended", "<f8"), ("similarity", "<f8"), ("complexity", "<f8"), ("semantic", "u1"), ("reason", "u1"),
        ("tier", "u1"), ("usage", "u1"), ("input", "<u4"), ("output", "<u4"),
    ]
)  # fmt: skip
_SEMANTIC: dict[str | None, int] = {word: number for number, word in enumerate(SEMANTIC)} | {None: 0}
_REASONS: dict[str | None, int] = {word: number for number, word in enumerate(REASONS)} | {None: 0}
_TIERS = {word: number for number, word in enumerate(TIERS)}
OTHER, MOST = len(REASONS) - 1, 0xFFFFFFFF
SIZE, pack = _ROW.size, _ROW.pack_into
Columns = Mapping[str, list[float | int | None]]


class Lookups:
    """A ring of rows. `add` belongs to the event loop and costs about a microsecond."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept, self.count = kept, 0
        self._block = bytearray(kept * SIZE)

    def add(self, account: Account, ended: float) -> None:
        """One request that was looked up by meaning or scored; `ended`: monotonic seconds."""
        similarity, complexity, usage = account.similarity, account.complexity, account.usage
        known, read, written = (0, 0, 0) if usage is None else (1, usage.input, usage.output)
        if read > MOST or written > MOST:
            known = read = written = 0
        pack(
            self._block,
            self.count % self._kept * SIZE,
            ended,
            UNKNOWN if similarity is None else similarity,
            UNKNOWN if complexity is None else complexity,
            _SEMANTIC.get(account.semantic, 0),
            _REASONS.get(account.route_reason, OTHER),
            _TIERS.get(account.tier, 0),
            known,
            read,
            written,
        )
        self.count += 1

    def copy(self) -> tuple[bytes, int]:
        """The block as it is, and how many rows there have been."""
        return bytes(self._block), self.count


def columns(block: bytes, count: int, offset: float) -> Columns:
    """The rows of a copy, oldest first, as one list per column. `offset`: from monotonic seconds to those since 1970.

    `time` in whole seconds, `similarity` and `complexity` to four decimals or None, `semantic`, `reason` and `tier` as
    positions in the tables above, `input` and `output` in tokens, None where they are not known. Takes milliseconds:
    call it off the event loop.
    """
    rows = np.frombuffer(block, _TYPE)
    rows = np.roll(rows, -(count % len(rows))) if count > len(rows) else rows[:count]
    known = rows["usage"] == 1
    return {
        "time": (rows["ended"] + offset).astype(np.int64).tolist(),
        "similarity": _share(rows["similarity"]),
        "complexity": _share(rows["complexity"]),
        "semantic": rows["semantic"].tolist(),
        "reason": rows["reason"].tolist(),
        "tier": rows["tier"].tolist(),
        "input": _where(rows["input"], known),
        "output": _where(rows["output"], known),
    }


def _share(column: NDArray[np.float64]) -> list[float | int | None]:
    # Rounded as the log rounds, which writes decimals.
    return [None if value == UNKNOWN else float(f"{value:.4f}") for value in column.tolist()]


def _where(column: NDArray[np.uint32], known: NDArray[np.bool_]) -> list[float | int | None]:
    return [value if there else None for value, there in zip(column.tolist(), known.tolist(), strict=True)]
