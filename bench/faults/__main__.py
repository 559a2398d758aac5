"""Everything that can go wrong between a client and an engine, over real sockets, and what the client sees of it.

    python -m bench.faults [--seconds 30] [--clients 48] [--streams 200] [--workers 1] [--seed 1] [--json]

Three scripted engines and `forebay serve` as processes, and a tier whose address swallows connections. A closed loop
of clients asks for answers that are whole, trickle, hang, are reset, cut, half-open, cut in the middle of a
character, end in error events or do not end, for storms of 429, and with nonsense; some clients read in sips, some
leave. In the middle one engine is killed and comes back. Every client must get the right status, a whole and exact
answer, or, after the first content, the exact beginning of one and an error event. Afterwards every gauge must be 0
and every descriptor closed; then a reload raises the limits, and SIGTERM comes while so many streams run, of which
none may break. Takes `--seconds` and about 20 s more; exits with 1 where something is not as it should be.
"""

import argparse
import asyncio
import json
import sys
from typing import Any

import uvloop

from bench.faults.drain import drain, missed
from bench.faults.load import Crowd
from bench.faults.world import World

# Descriptors that may be left: connections of probes and of whoever looks.
KEPT = 8


async def run(seconds: float, clients: int, streams: int, seed: int, workers: int = 1) -> dict[str, Any]:
    """The whole run as a document; `missed` says what is not as it should be."""
    async with World(gateway_settings={"workers": workers}) as world:
        before, _ = world.usage()
        crowd = Crowd(world, seed, clients)
        await _mix(world, crowd, seconds)
        gauges = await world.settled()
        after, rss = await world.rested(before + KEPT * workers)
        alive = world.gateway.ended() is None
        await world.until_ready()
        # An engine that finds no processor for a second must not be what breaks a stream.
        await world.be_patient()
        tally, stopping = await drain(world, streams)
        log = world.gateway.log.read_text(encoding="utf-8", errors="replace")
    report = {
        "seconds": seconds,
        "seed": seed,
        "workers": workers,
        **crowd.tally.report(),
        "gauges": gauges,
        "descriptors": {"before": before, "after": after},
        "rss_mb": round(rss, 1),
        "drain": stopping,
    }
    report["wrong"] += tally.wrong
    tracebacks = log.count("Traceback")
    checks = (
        (not crowd.tally.bad.total(), "clients got wrong answers"),
        (alive, "the gateway ended"),
        (not any(gauges.values()), "gauges are not back at 0"),
        (after <= before + KEPT * workers, "descriptors stay open"),
        (tracebacks == 0, "the gateway's log has tracebacks"),
    )
    report["missed"] = [message for met, message in checks if not met] + missed(stopping)
    return report


async def _mix(world: World, crowd: Crowd, seconds: float) -> None:
    """The load, with one engine killed after a third of it and back after two."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + seconds
    engine = world.engines[0]

    async def kill() -> None:
        await asyncio.sleep(seconds / 3)
        crowd.begin_trouble()
        await asyncio.to_thread(engine.kill)
        await asyncio.sleep(seconds / 3)
        await asyncio.to_thread(engine.start)
        await world.until_ready()
        crowd.end_trouble()

    async with asyncio.TaskGroup() as group:
        group.create_task(kill())
        await crowd.run(lambda: loop.time() >= ends)


def main() -> int:
    """Print the report."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="of the mixed load")
    parser.add_argument("--clients", type=int, default=48, help="that ask at one time")
    parser.add_argument("--streams", type=int, default=200, help="that run when SIGTERM comes")
    parser.add_argument("--workers", type=int, default=1, help="processes of the gateway")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args()
    report = uvloop.run(run(given.seconds, given.clients, given.streams, given.seed, given.workers))
    if given.json:
        print(json.dumps(report, ensure_ascii=False))
    else:
        for case, counts in report["cases"].items():
            print(f"{case:22} {counts['asked']:7} asked {counts['wrong']:5} wrong")
        for name in ("requests", "wrong_answers", "statuses", "gauges", "descriptors", "rss_mb", "drain"):
            print(f"{name:22} {report[name]}")
        for line in (*report["wrong"], *(f"missed: {message}" for message in report["missed"])):
            print(line, file=sys.stderr)
    return 1 if report["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
