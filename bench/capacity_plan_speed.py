"""How long plans take, and what they load: one point, a thousand configurations, no torch and no ray.

    python -m bench.capacity_plan_speed [--json]

Seconds after import, of processor time on one core (the simulator is compiled before the clock starts). Demanded: 1 s
for `plan batch` with percentiles and for `plan kv`; 30 s for a thousand batches with percentiles by each exact method,
and for a thousand fleets by the estimate that ranks them. `plan fleet`, which simulates its best candidates, is shown.
Exit code 1 where a demand is missed or an import is one too many.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from capacity.architecture import read_architecture
from capacity.batch_plan import Ask, plan_batch
from capacity.batching import Load
from capacity.devices import DEVICES
from capacity.fleet.ask import Demand, FleetAsk, Objective, TierAsk
from capacity.fleet.options import PARALLEL, ModelOn
from capacity.fleet.plan import plan_fleet
from capacity.fleet.sizing import estimate, settings
from capacity.memory import Budget, Paging, kv_bytes_per_request, max_requests
from capacity.service import ServiceTime
from capacity.weights import count_weights
from capacity.workload import Spread

ONE_S, MANY_S = 1.0, 30.0
SERVICE = ServiceTime(0.05, 0.0005)
MODEL: dict[str, Any] = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}
DEMAND = Demand(20, 800, 200, Spread(800, 200, "lognormal", "lognormal"))
OBJECTIVE = Objective(ttft_s=1.0, tpot_s=0.05)


def one_batch() -> None:
    """The worked example with its objective."""
    plan_batch(Ask(Load(100, SERVICE), [1, 2, 4, 8, 16, 32], slo_p99_s=0.2))


def one_kv() -> None:
    """A model's cache and weights on one GPU."""
    model, weights = read_architecture(MODEL), count_weights(MODEL)
    max_requests(Budget(80 * 2**30, weights.size(), 0.9), kv_bytes_per_request(model, 4096, Paging(block=16)))


def thousand_batches(method: str) -> Callable[[], None]:
    """Batches of 1 to 1,000 with percentiles."""

    def work() -> None:
        load = Load(100, SERVICE, "fixed" if method == "fixed" else "work-conserving")
        for batch in range(1, 1001):
            queue = load.queue(batch)
            _ = (queue.response_s, queue.response_quantile(0.99))

    return work


def thousand_fleets() -> None:
    """Settings of a fleet at as many rates as make a thousand."""
    options = ModelOn(MODEL, DEVICES["H100-SXM"]).all(PARALLEL, 800, 200)
    found = [setting for option in options for setting in settings(option)]
    for place in range(1000):
        estimate(found[place % len(found)], DEMAND, OBJECTIVE, 0.85)


def one_fleet() -> None:
    """One tier, sized and proved."""
    options = ModelOn(MODEL, DEVICES["L40S"]).all((1, 2), 800, 200)
    plan_fleet(FleetAsk(DEMAND, OBJECTIVE, (TierAsk("small", "org/small", 1.0, options),)), {}, lambda _: None)


def seconds(work: Callable[[], None]) -> float:
    """Processor seconds of a piece of work."""
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> int:
    """Print the times; 1 where one is too long."""
    assert __doc__  # noqa: S101  # it is the help
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    loaded = sorted({"torch", "ray", "vllm"} & set(sys.modules))
    one_fleet()
    rows: list[tuple[str, float, float | None]] = [
        ("plan batch, one point", seconds(one_batch), ONE_S),
        ("plan kv, one point", seconds(one_kv), ONE_S),
        ("1,000 full batches with p99", seconds(thousand_batches("fixed")), MANY_S),
        ("1,000 work-conserving limits with p99", seconds(thousand_batches("work-conserving")), MANY_S),
        ("1,000 fleet settings estimated", seconds(thousand_fleets), MANY_S),
        ("plan fleet, one tier simulated", seconds(one_fleet), None),
    ]
    missed = [name for name, took, limit in rows if limit is not None and took > limit]
    if options.json:
        print(json.dumps({"seconds": {name: took for name, took, _ in rows}, "missed": missed, "loaded": loaded}))
    else:
        for name, took, limit in rows:
            print(f"{name:<40}{took:>8.2f} s" + (f"  (at most {limit:g})" if limit is not None else ""))
        print(f"loaded that should not be: {', '.join(loaded) or 'nothing'}")
    return 1 if missed or loaded else 0


if __name__ == "__main__":
    sys.exit(main())
