"""Tasks, descriptors and memory of the gateway over tens of thousands of requests that end in every way.

    python -m bench.leaks [--requests 50000] [--clients 32] [--workers 1] [--seed 1] [--json]

The engines, clients and cases of `bench.faults`, without those that take seconds: whole answers, streams that are cut
or end in error events, resets, refusals, nonsense, clients that leave. Every prompt is new, the exact cache (1 MiB, so
that it is full early) is on, and limits are counted. The load stops ten times; each time the gateway comes to rest, and
its tasks, descriptors and resident memory are noted. The first three stops are warm-up: caches fill, the allocator
grows. Over the rest, the least of the tasks and descriptors of the last three stops must not be more than that of the
first three, and the line through memory must not rise by more than any object would cost that is kept for each request.
Takes about three minutes; exits with 1 where something grows.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from typing import Any

import uvloop

from bench.faults import cases
from bench.faults.load import Crowd
from bench.faults.world import PATIENT, World

STOPS, WARM = 10, 3
# What may run and be open at one stop and not at another: probes, and connections of whoever looks. How many of those
# to engines are kept for the next request differs more than that, from stop to stop, so that several are looked at.
SPARE, LOOKED = 6, 3
# Bytes per request by which memory may rise after the warm-up: less than any object that is kept for a request.
PER_REQUEST = 100.0

MIX: tuple[tuple[cases.Make, int], ...] = (
    (cases.quick, 40), (cases.pieces, 5), (cases.framed, 5), (cases.reset_at_once, 5), (cases.cut_character, 8),
    (cases.error_event, 8), (cases.no_end, 4), (cases.server_error, 5), (cases.refused_by_engine, 4),
    (cases.nonsense, 8), (cases.leaver, 8),
)  # fmt: skip


@dataclass(frozen=True)
class Stop:
    """The gateway at rest after so many requests. `rss` in bytes."""

    requests: int
    tasks: int
    descriptors: int
    rss: float


def slope(stops: list[Stop]) -> float:
    """Bytes of memory per request: the least-squares line through the stops."""
    mean_x = sum(stop.requests for stop in stops) / len(stops)
    mean_y = sum(stop.rss for stop in stops) / len(stops)
    spread = sum((stop.requests - mean_x) ** 2 for stop in stops)
    return sum((stop.requests - mean_x) * (stop.rss - mean_y) for stop in stops) / spread if spread else 0.0


def missed(stops: list[Stop]) -> list[str]:
    """What grows, in words. The first stops are left out."""
    rested = stops[WARM:]
    first, last = rested[:LOOKED], rested[-LOOKED:]
    rise = slope(rested)
    tasks = min(stop.tasks for stop in last) - min(stop.tasks for stop in first)
    descriptors = min(stop.descriptors for stop in last) - min(stop.descriptors for stop in first)
    checks = (
        (tasks <= SPARE, "tasks grow"),
        (descriptors <= SPARE, "descriptors grow"),
        (rise <= PER_REQUEST, f"memory grows by {rise:.0f} bytes per request"),
    )
    return [message for met, message in checks if not met]


async def run(requests: int, clients: int, seed: int, workers: int = 1) -> dict[str, Any]:
    """The whole run as a document."""
    stops: list[Stop] = []
    # None of these cases waits for a limit, and a busy machine must not make them.
    async with World(gateway_settings={"workers": workers}, tier_settings={"timeout": PATIENT}) as world:
        before, _ = world.usage()
        crowd = Crowd(world, seed, clients, MIX)
        for number in range(1, STOPS + 1):
            await crowd.run(lambda goal=requests * number // STOPS: crowd.asked >= goal)  # type: ignore[misc]  # a default
            gauges = await world.settled()
            descriptors, rss = await world.rested(before + SPARE * workers)
            state = await world.admin_state()
            tasks = sum(worker["tasks"] for worker in (state, *state["workers"].values()))
            stops.append(Stop(crowd.asked, tasks, descriptors, rss * 1e6))
            print(f"{stops[-1]}", file=sys.stderr, flush=True)
    report = {"workers": workers, **crowd.tally.report(), "gauges": gauges}
    report["stops"] = [vars(stop) for stop in stops]
    report["bytes_per_request"] = round(slope(stops[WARM:]), 1)
    report["missed"] = missed(stops)
    if any(gauges.values()):
        report["missed"].append("gauges are not back at 0")
    if crowd.tally.bad.total():
        report["missed"].append("clients got wrong answers")
    return report


def main() -> int:
    """Print the report."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.leaks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--clients", type=int, default=32, help="that ask at one time")
    parser.add_argument("--workers", type=int, default=1, help="processes of the gateway")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args()
    report = uvloop.run(run(given.requests, given.clients, given.seed, given.workers))
    if given.json:
        print(json.dumps(report, ensure_ascii=False))
    else:
        for name in ("requests", "wrong_answers", "statuses", "gauges", "bytes_per_request"):
            print(f"{name:18} {report[name]}")
        for line in (*report["wrong"], *(f"missed: {message}" for message in report["missed"])):
            print(line, file=sys.stderr)
    return 1 if report["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
