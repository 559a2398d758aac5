"""Every measurement of the planner and the simulator, one after the other, with one verdict.

    FOREBAY_DATA=DIR python -m bench.capacity [--json]

Closed forms and exact queues, step times from data sheets, speed of plans, then the simulator: theory, reality, speed
and size. The modules say what each demands; the exit code is 1 where one of them does.
"""

import argparse
import json
import subprocess
import sys
import time

MODULES = (
    "bench.capacity_closed_forms",
    "bench.capacity_cross_gpu",
    "bench.capacity_plan_speed",
    "bench.capacity_theory",
    "bench.capacity_reality",
    "bench.capacity_simulator",
)


def main() -> int:
    """Run all; 1 where one missed."""
    assert __doc__  # noqa: S101  # it is the help
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    found = []
    for module in MODULES:
        started = time.perf_counter()
        print(f"== {module}", file=sys.stderr, flush=True)
        done = subprocess.run(  # noqa: S603  # our own modules
            [sys.executable, "-m", module, *(["--json"] if options.json else [])],
            stdout=subprocess.PIPE if options.json else None,
            text=True,
            check=False,
        )
        found.append(
            {
                "module": module,
                "met": done.returncode == 0,
                "seconds": time.perf_counter() - started,
                "result": json.loads(done.stdout) if options.json and done.stdout.strip() else None,
            }
        )
    if options.json:
        print(json.dumps(found))
    else:
        for row in found:
            print(f"{row['module']:<32}{'met' if row['met'] else 'MISSED':<8}{row['seconds']:>7.0f} s")
    return 0 if all(row["met"] for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
