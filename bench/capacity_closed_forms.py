"""The planner's formulas against independently computed values, every number of them.

    FOREBAY_DATA=DIR python -m bench.capacity_closed_forms [--json] [--verbose]

DIR/capacity holds `expected_public.json` (closed forms to 1e-6, exact queues to 0.1 %, simulated percentiles to 2 %,
choices exactly), `model_arch.csv` (KV bytes per token, exactly) and `distserve_kv_capacity_*.csv` (cache sizes of real
engines, to 3 % after fitting the share of memory that the engine takes). Exit code 1 where one of them is missed.
"""

import argparse
import csv
import json
import math
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.capacity_memory import cache_sizes, kv_bytes
from capacity import queues, speculation
from capacity.batching import Load, best_batch, max_batch_slo, minimums
from capacity.bulk import Bulk
from capacity.closed_window import ClosedWindow
from capacity.devices import find_device, ridge_batch
from capacity.fixed_batch import FixedBatch
from capacity.service import ServiceTime, min_replicas, min_stable_batch, stable_batch
from capacity.step_model import total_latency
from capacity.window import min_wait, surrogate_wait, window

CLOSED, QUEUE, TAIL, EXACT = 1e-6, 1e-3, 2e-2, 0.0
Document = dict[str, Any]


@dataclass(frozen=True)
class Check:
    """One number: what it should be, what it is, how far apart they may be (a share; 0 for equal)."""

    section: str
    name: str
    wanted: float | None
    found: float | None
    tolerance: float

    @property
    def error(self) -> float:
        """Distance as a share of what is wanted."""
        if self.wanted is None or self.found is None or math.isinf(self.wanted) or math.isinf(self.found):
            return 0.0 if self.wanted == self.found else math.inf
        return abs(self.found - self.wanted) / max(abs(self.wanted), 1e-12)

    @property
    def holds(self) -> bool:
        """Whether it is near enough. Waits of picoseconds are as good as none."""
        if self.wanted is not None and self.found is not None and abs(self.wanted - self.found) < 1e-13:
            return True
        return self.error <= self.tolerance


def number(value: object) -> float | None:
    """A number of the file; "inf" is infinite, null is None."""
    return None if value is None else float(str(value))


def checks(expected: Document) -> Iterator[Check]:
    """Every comparison that the file allows."""
    service = ServiceTime(expected["gpt3"]["Tfixed_s"], expected["gpt3"]["treq_s"])
    rate = expected["gpt3"]["lam"]
    yield from _fixed(expected["gpt3_table_fixed_batch"], service, rate)
    yield from _choices(expected, service, rate)
    yield from _windows(expected, service, rate)
    yield from _bulk(expected, service, rate)
    yield from _simulated(expected["monte_carlo"]["sim"], service, rate)
    yield from _servers(expected)
    yield from _steps(expected, service, rate)


def _fixed(table: Document, service: ServiceTime, rate: float) -> Iterator[Check]:
    for key, row in table.items():
        batch = int(key)
        fixed = Load(rate, service, "fixed").queue(batch)
        surrogate = Load(rate, service, "surrogate").queue(batch)
        found = {
            "Tsvc_ms": service.seconds(batch) * 1e3,
            "mu": service.rate(batch),
            "rho": service.utilization(rate, batch),
            "EW_ms": surrogate.wait_s * 1e3,
            "acc_ms": fixed.accumulation_s * 1e3,
            "ET_ms": surrogate.response_s * 1e3,
            "EW_exact_ms": fixed.wait_s * 1e3,
            "ET_exact_ms": fixed.response_s * 1e3,
        }
        for name, value in found.items():
            yield Check("fixed batches", f"{name} B={batch}", number(row[name]), value, CLOSED)


def _choices(expected: Document, service: ServiceTime, rate: float) -> Iterator[Check]:
    wanted = expected["gpt3"]
    stable, target = minimums(Load(rate, service), 512, wanted["rho_target"])
    yield Check("choices", "stable batch", wanted["bmin_stable_int"], stable, EXACT)
    yield Check("choices", "stable batch, real", wanted["bmin_stable_real"], stable_batch(service, rate), CLOSED)
    yield Check("choices", "target batch", wanted["bmin_target_int"], target, EXACT)
    for method, name in (("surrogate", "argmin_surrogate"), ("fixed", "argmin_exact")):
        load = Load(rate, service, "surrogate" if method == "surrogate" else "fixed")
        best = best_batch(load, 512)
        yield Check("choices", f"best batch, {method}", wanted[name], best, EXACT)
        response = load.queue(best).response_s * 1e3 if best else math.inf
        yield Check("choices", f"its response, {method}", wanted[f"{name}_ET_ms"], response, CLOSED)
    for row in expected["bmin_edges"]:
        edge = ServiceTime(row["Tf"], row["tr"])
        name = f"λ={row['lam']} Tf={row['Tf']} tr={row['tr']}"
        yield Check("choices", f"stable {name}", row["integer"], min_stable_batch(edge, row["lam"]), EXACT)
        yield Check("choices", f"stable, real {name}", number(row["real"]), stable_batch(edge, row["lam"]), CLOSED)
    tails = {batch: row["p99_ms"] for batch, row in _by_batch(expected["monte_carlo"]["sim"], "fixed").items()}
    for objective in (200.0, 250.0):
        kept = [batch for batch, p99 in tails.items() if p99 <= objective]
        # The simulated rows skip batches: the answer lies from the last that keeps the objective to the next row.
        if kept and max(kept) + 1 in tails:
            found = max_batch_slo(Load(rate, service, "fixed"), 512, objective / 1e3)
            yield Check("choices", f"largest batch with p99 < {objective:.0f} ms", max(kept), found, EXACT)
    for gain, batch in expected["doubling_B_for_gain"].items():
        yield Check("choices", f"doubling gains {gain}", batch, service.batch_of_doubling_gain(float(gain)), CLOSED)
    for key, row in expected["doubling_gain"].items():
        gains = service.doubling_gain(int(key))
        yield Check("choices", f"doubling {key}: throughput", row["thr_gain"], gains[0], CLOSED)
        yield Check("choices", f"doubling {key}: latency", row["svc_latency_gain"], gains[1], CLOSED)


def _windows(expected: Document, service: ServiceTime, rate: float) -> Iterator[Check]:
    for key, row in expected["window_formulas_lam100"].items():
        limit, wait = (float(part.split("=")[1]) for part in key.split(","))
        found = window(rate, int(limit), wait / 1e3)
        yield Check("windows", f"E[B] {key}", row["EB"], found.mean_batch, CLOSED)
        yield Check("windows", f"delay {key}", row["ETbatch_ms"], found.accumulation_s * 1e3, CLOSED)
        yield Check("windows", f"full {key}", row["P_full"], found.full, CLOSED)
        if row["E_tau_k_full_ms"] is not None:
            yield Check("windows", f"fill {key}", row["E_tau_k_full_ms"], found.fill_s * 1e3, CLOSED)
    for key, row in expected["window_surrogate_gpt3"].items():
        limit, wait = (float(part.split("=")[1]) for part in key.split(","))
        found = window(rate, int(limit), wait / 1e3)
        pairs = {
            "EB2": found.second_moment,
            "rho": service.utilization(rate, found.mean_batch),
            "EW": surrogate_wait(service, rate, found),
            "ETsvc_batch": found.service_mean(service),
            "ETsvc_request": found.request_service_mean(service),
            "ET": Load(rate, service, "surrogate", wait / 1e3).queue(int(limit)).response_s,
        }
        for name, value in pairs.items():
            yield Check("windows", f"{name} {key}", row[name], value, CLOSED)
    for limit, row in expected["min_Tmax_ms_for_utilisation_window_policy"].items():
        for load, wanted in row.items():
            shortest = min_wait(service, rate, int(limit), float(load))
            milliseconds = None if shortest is None else shortest * 1e3
            yield Check("windows", f"shortest wait B={limit} at {load}", wanted, milliseconds, CLOSED)


def _bulk(expected: Document, service: ServiceTime, rate: float) -> Iterator[Check]:
    rows: list[tuple[str, int, int | None, Document]] = [
        (f"B={key}", int(key), None, row) for key, row in expected["gpt3_greedy_bulk_exact"].items()
    ]
    for key, row in expected["gpt3_greedy_bulk_K"].items():
        numbers = [int(part.split("=")[1]) for part in key.split(",")]
        rows.append((key, numbers[0], numbers[1], row))
    for name, limit, room, row in rows:
        found = Bulk(service, rate, limit, room)
        pairs = {
            "ET": found.response_s,
            "EW": found.wait_s,
            "ETsvc_request": found.service_s,
            "Ebatch": found.mean_batch,
            "util": found.busy,
        }
        for part, value in pairs.items():
            yield Check("work-conserving", f"{part} {name}", row[part], value, QUEUE)
        if row["loss"] > 1e-7:
            yield Check("work-conserving", f"loss {name}", row["loss"], found.loss, QUEUE)


def _by_batch(simulated: Document, kind: str) -> dict[int, Document]:
    rows = {key: row for key, row in simulated.items() if key.startswith(f"{kind} B=")}
    return {int(key.split()[1].removeprefix("B=")): row for key, row in rows.items() if key.endswith("c=1")}


def _simulated(simulated: Document, service: ServiceTime, rate: float) -> Iterator[Check]:
    for key, row in simulated.items():
        words = key.split()
        values = dict(word.split("=") for word in words[1:] if "=" in word)
        queue = _queue(words[0], values, service, rate)
        if queue is None:
            continue
        # An unstable queue is a simulated one whose times are as long as the simulation lets them be.
        if row.get("unstable") or row["mean_ms"] > 1e4:
            yield Check("simulated", f"unstable: {key}", 1, int(not queue.stable), EXACT)
            continue
        yield Check("simulated", f"mean {key}", row["mean_ms"], queue.response_s * 1e3, 5e-3)
        if values.get("K") is None:
            yield Check("simulated", f"p99 {key}", row["p99_ms"], queue.response_quantile(0.99) * 1e3, TAIL)


def _queue(
    kind: str, values: dict[str, str], service: ServiceTime, rate: float
) -> FixedBatch | Bulk | ClosedWindow | None:
    """The queue of a simulated row; None where there is no formula (several servers, windows that keep filling)."""
    limit, servers = int(values["B"]), int(values["c"])
    if kind == "fixed":
        return FixedBatch(rate, service.seconds(limit), limit, servers)
    if kind == "greedy" and servers == 1:
        return Bulk(service, rate, limit, int(values["K"]) if "K" in values else None)
    if kind == "window" and servers == 1:
        return ClosedWindow(service, rate, limit, float(values["Tmax"].removesuffix("ms")) / 1e3)
    return None


def _servers(expected: Document) -> Iterator[Check]:
    for row in expected["mgc"]:
        given = (row["lam"], row["S"], row["c"])
        name = f"λ={row['lam']} c={row['c']} cv²={row['cv2']}"
        yield Check("servers", f"Erlang C {name}", row["erlang_c"], queues.mmc(*given).wait_probability, CLOSED)
        yield Check("servers", f"M/M/c {name}", row["mmc_wq"], queues.mmc(*given).wait_s, CLOSED)
        yield Check("servers", f"M/D/c {name}", row["mdc_exact"], queues.mdc_wait(*given), CLOSED)
        yield Check("servers", f"Kimura {name}", row["kimura"], queues.mgc_wait(*given, row["cv2"]), CLOSED)
        approximate = queues.allen_cunneen_wait(*given, row["cv2"])
        yield Check("servers", f"Allen-Cunneen {name}", row["allen_cunneen"], approximate, CLOSED)
    for row in expected["mmck"]:
        found = queues.mmck(row["lam"], row["S"], row["c"], row["K"])
        name = f"λ={row['lam']} c={row['c']} K={row['K']}"
        for part, value in zip(
            ("loss", "L", "ET", "util"), (found.loss, found.in_system, found.response_s, found.utilization), strict=True
        ):
            yield Check("servers", f"{part} {name}", row[part], value, CLOSED)


def _steps(expected: Document, service: ServiceTime, rate: float) -> Iterator[Check]:
    target = expected["gpt3"]["rho_target"]
    for key, row in expected["gpt3_with_decode_100tok"].items():
        batch, per = int(key), service
        if row["iter_ms"] is None:
            # The limit of large batches: the fixed time is shared by all.
            per = ServiceTime(0.0, service.request_s)
        name = f"B={key}"
        found = min_replicas(per, rate, batch, passes=100)
        yield Check("replicas", name, row["replicas_for_100qps"], found, EXACT)
        found = min_replicas(per, rate, batch, passes=100, utilization=target)
        yield Check("replicas", f"{name} at {target}", row["replicas_at_rho075"], found, EXACT)
    for row in expected["latency_eq"]:
        latency = total_latency(row["ttft"], row["n"], row["tpot"])
        yield Check("steps", f"latency of {row['n']} tokens", row["total"], latency, CLOSED)
    for row in expected["spec_decode"]:
        plan = speculation.Speculation(row["alpha"], row["gamma"], row["c"])
        name = f"a={row['alpha']} g={row['gamma']} c={row['c']}"
        yield Check("steps", f"tokens per step {name}", row["tokens_per_step"], plan.tokens_per_step, CLOSED)
        yield Check("steps", f"speed-up {name}", row["speedup"], plan.speedup, CLOSED)
    for name, wanted in expected["decode_ridge_batch_fp16"].items():
        device = find_device(name)
        yield Check("steps", f"ridge batch {name}", wanted, ridge_batch(device), 1e-2)
    little = expected["little"]
    yield Check("steps", "Little", little["Q"], queues.in_system(rate, little["ET_s_seed"]), CLOSED)


def summary(rows: list[Check]) -> list[dict[str, Any]]:
    """One line per section."""
    sections: dict[str, list[Check]] = defaultdict(list)
    for row in rows:
        sections[row.section].append(row)
    return [
        {
            "section": name,
            "checks": len(found),
            "missed": sum(not row.holds for row in found),
            "largest_error": max((row.error for row in found if row.holds and row.error < math.inf), default=0.0),
        }
        for name, found in sections.items()
    ]


def main() -> int:
    """Print the table; 1 where something is missed."""
    assert __doc__  # noqa: S101  # it is the help
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--verbose", action="store_true", help="every number")
    options = parser.parse_args()
    folder = Path(os.environ["FOREBAY_DATA"]) / "capacity"
    started = time.perf_counter()
    expected = json.loads((folder / "expected_public.json").read_text(encoding="utf-8"))
    rows = list(checks(expected))
    architectures = list(csv.DictReader((folder / "model_arch.csv").open(encoding="utf-8")))
    rows += [Check("KV bytes", name, wanted, found, EXACT) for name, wanted, found in kv_bytes(architectures)]
    for path in sorted(folder.glob("distserve_kv_capacity_*.csv")):
        sizes = cache_sizes(list(csv.DictReader(path.open(encoding="utf-8"))), architectures)
        rows += [Check("cache sizes", name, wanted, found, 0.03) for name, wanted, found in sizes]
    missed = [row for row in rows if not row.holds]
    lines = summary(rows)
    if options.json:
        found = {"sections": lines, "missed": [asdict(row) for row in missed], "seconds": time.perf_counter() - started}
        print(json.dumps(found, default=str))
        return 1 if missed else 0
    for row in rows if options.verbose else missed:
        mark = "ok" if row.holds else "MISSED"
        print(f"{mark:<7}{row.section:<16}{row.name:<44}{row.wanted!s:>24}{row.found!s:>24}{row.error:>10.1e}")
    for line in lines:
        counts = f"{line['checks']:>5} checks {line['missed']:>4} missed"
        print(f"{line['section']:<18}{counts}  largest error {line['largest_error']:.1e}")
    print(f"{time.perf_counter() - started:.1f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
