"""A mixed load on everything at once, and whether dashboards, alerts and `forebay review` see what there is to see.

    python -m bench.watch [--minutes 10] [--rate 8] [--case mixed|healthy|long|tau|frontier]
                          [--scrape JOB=URL] [--pictures docs/dashboards] [--json]

Starts a store, two scripted engines, the gateway with every part on, and a real Prometheus with the alert rules
(Debian: apt-get install prometheus). `mixed` has faults, limits and a store that hangs for a moment; `healthy` has none
of them; the others plant one problem: a tenant with long prompts, a τ of 0.97, a router that always chooses the
frontier tier.
Prints every query of a dashboard that has no number, the health of the rules, and what the review found. Exits with 1
where a panel is silent, a rule is not healthy, or the review misses what was planted or finds what was not.
`--pictures` needs matplotlib. `--scrape ray=http://…` adds real engines, such as Ray's of `forebay up`.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench.watch.load import Load, Mix
from bench.watch.panels import draw, silent
from bench.watch.world import World
from helm.dashboards import BOARDS

CASES: dict[str, dict[str, Any]] = {
    "mixed": {},
    "healthy": {},
    "long": {},
    "tau": {"cache": {"semantic": {"threshold": 0.97}}},
    "frontier": {"router": {"threshold": 0.0}},
}
PLANTED = {"long": "long_prompts_monopolise", "tau": "threshold_too_high", "frontier": "router_always_frontier"}


# How long the store hangs under the mixed load, in seconds.
HANGS = 2.0


def run(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One case, from start to verdict."""
    seconds, long = given.minutes * 60, given.minutes >= 3
    window = "60s" if long else "15s"
    others = dict(one.split("=", 1) for one in given.scrape)
    with World(folder, CASES[given.case], interval=5.0 if long else 1.0, others=others) as world:
        started = time.time()
        answered = asyncio.run(_load(world, given.case, given.rate, seconds))
        # The last scrape must have come.
        time.sleep(6 if long else 2)
        ended = time.time()
        prometheus = world.prometheus
        quiet = silent(prometheus, window) if given.case == "mixed" else []
        review = reviewed(prometheus.url, ended - started, world.log)
        if given.pictures is not None:
            given.pictures.mkdir(parents=True, exist_ok=True)
            for board in BOARDS:
                draw(board, prometheus, (started, ended), window, given.pictures / f"{board.name}.png")
        rules, down = prometheus.rules(), prometheus.down()
    problems = [one["code"] for one in review["findings"] if one["severity"] == "problem"]
    first = PLANTED.get(given.case)
    told = not problems if given.case == "healthy" else first is None or problems[:1] == [first]
    mistaken = [code for code in problems if code in PLANTED.values() and code != first and given.case != "mixed"]
    return {
        "case": given.case,
        "answered": {str(status): count for status, count in sorted(answered.items())},
        "targets_down": down,
        "rules": dict(Counter(rules.values())),
        "silent_panels": [vars(one) for one in quiet if one.shown],
        "silent_without_fallback": [f"{one.board}: {one.panel}" for one in quiet if not one.shown],
        "problems": problems,
        "titles": [one["title"] for one in review["findings"]],
        "good": told and not mistaken and not any(one.shown for one in quiet) and set(rules.values()) == {"ok"},
    }


async def _load(world: World, case: str, rate: float, seconds: float) -> Counter[int]:
    load = Load(world.url, Mix(rate, faults=case == "mixed", long_prompts=case == "long"))
    async with asyncio.TaskGroup() as group:
        group.create_task(load.run(seconds))
        if case == "mixed" and world.store is not None:
            await asyncio.sleep(seconds * 0.7)
            world.store.stop()
            await asyncio.sleep(HANGS)
            world.store.go()
    return load.seen


def reviewed(url: str, seconds: float, log: Path, *words: str) -> dict[str, Any]:
    """What the command finds in so many seconds up to this moment."""
    command = [sys.executable, "-m", "forebay", "review", "--prometheus", url, "--since", f"{round(seconds)}s"]
    done = subprocess.run(  # noqa: S603  # ours
        [*command, "--log", str(log), "--json", *words], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> int:
    """Run one case."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.watch", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=8.0, help="requests per second")
    parser.add_argument("--case", choices=CASES, default="mixed")
    parser.add_argument("--scrape", action="append", default=[], metavar="JOB=URL", help="scrape this too")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="draw every dashboard")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="forebay-watch-") as folder:
        found = run(given, Path(folder))
    if given.json:
        print(json.dumps(found))
    else:
        for key, value in found.items():
            print(f"{key}: {json.dumps(value)}")
    return 0 if found["good"] else 1


if __name__ == "__main__":
    sys.exit(main())
