"""The pictures and the table of docs/capacity.md: one server, 100 requests/s, T(B) = 50 ms + 0.5 ms · B.

    python -m bench.capacity_example [--out DIR]

Prints the table as Markdown; with --out writes `response.png` and `p99.png` into a folder.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from capacity.batching import CENTILE, Load, Method
from capacity.service import ServiceTime
from core.chart import BLUE, GREEN, ORANGE, Line, chart

RATE, SERVICE = 100.0, ServiceTime(0.05, 0.0005)
BATCHES = range(6, 33)
RULES: tuple[tuple[Method, str, tuple[int, int, int]], ...] = (
    ("surrogate", "surrogate", ORANGE),
    ("fixed", "full batches", BLUE),
    ("work-conserving", "what waits", GREEN),
)


def table() -> str:
    """Mean and p99 by rule, in milliseconds."""
    lines = ["| B | load | surrogate mean | full batches mean, p99 | what waits mean, p99 |", "|---|---|---|---|---|"]
    for batch in (6, 7, 8, 10, 16, 32):
        queues = [Load(RATE, SERVICE, method).queue(batch) for method, _, _ in RULES]
        cells = [f"{queues[0].response_s * 1000:.1f}"]
        cells += [f"{one.response_s * 1000:.1f}, {one.response_quantile(CENTILE) * 1000:.1f}" for one in queues[1:]]
        lines.append(f"| {batch} | {SERVICE.utilization(RATE, batch):.1%} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def pictures() -> dict[str, bytes]:
    """Mean response and p99 against the batch."""
    x = np.array(BATCHES, dtype=float)
    means, tails = [], []
    for method, name, color in RULES:
        queues = [Load(RATE, SERVICE, method).queue(batch) for batch in BATCHES]
        means.append(Line(name, x, np.array([queue.response_s for queue in queues]), color))
        if method != "surrogate":
            tails.append(Line(name, x, np.array([queue.response_quantile(CENTILE) for queue in queues]), color))
    return {
        "response": chart("mean response, 100 requests/s", "batch", "seconds", means),
        "p99": chart("p99 of the response, 100 requests/s", "batch", "seconds", tails),
    }


def main() -> int:
    """Print and write."""
    assert __doc__  # noqa: S101  # it is the help
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="DIR", help="write the pictures here")
    options = parser.parse_args()
    print(table())
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        for name, drawn in pictures().items():
            (options.out / f"{name}.png").write_bytes(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())
