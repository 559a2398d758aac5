"""Does a calibrated step model predict what real engines did? Measured sweeps, each load predicted from the others.

    FOREBAY_DATA=DIR python -m bench.capacity_reality [--out DIR] [--json]

DIR/capacity holds the sweeps. `infperf_openloop_*.csv` (columns requested_rate, n, req_s, args and figures in ms): each
rate of each configuration is left out once, the step model fitted to the other rates, and the rate predicted, overload
included. `nim_closedloop_*.csv` (concurrency, ttft_ms, itl_ms, out_tok_s): the highest concurrency is predicted from
those up to half of it. The scheduler is that of the engine's arguments, with vLLM's defaults for its GPU; where a file
does not tell, the candidates are fitted and the one nearest to the training points is taken. `--out` keeps the step
model of each whole sweep, with the engine settings that it holds for. Exit 1 where a demand is missed.
"""

import argparse
import csv
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from capacity.calibrate import Calibration, Point, calibrate, predict
from capacity.scheduler import Kind, Scheduler
from capacity.step_model import Setting, write_step_model

# Most mean absolute error over the left-out loads.
OPEN_DEMANDS = {"req_s": 0.03, "e2e_mean": 0.08, "e2e_p99": 0.12, "ttft_mean": 0.12}
CLOSED_DEMANDS = {"tok_s": 0.06}
FIGURES = ("ttft_mean", "ttft_p50", "ttft_p90", "ttft_p99", "e2e_mean", "e2e_p50", "e2e_p90", "e2e_p99")
TEST_SEEDS = (11, 12, 13, 14, 15)


@dataclass(frozen=True)
class Sweep:
    """The loads of one engine configuration; the schedulers that it may have had."""

    name: str
    points: Sequence[Point]
    schedulers: Sequence[Scheduler]
    engine: Mapping[str, Setting]


@dataclass(frozen=True)
class Left:
    """A load that was left out: measured figures, and those predicted from the other loads."""

    load: float
    measured: Mapping[str, float]
    predicted: Mapping[str, float]

    def error(self, figure: str) -> float:
        """Predicted over measured, less 1."""
        return self.predicted[figure] / self.measured[figure] - 1


def fitted(sweep: Sweep, points: Sequence[Point]) -> Calibration:
    """The calibration on these points; of several schedulers the one that lies nearest to them."""
    return min((calibrate(points, one, sweep.engine) for one in sweep.schedulers), key=lambda found: found.residual)


def left_out(sweep: Sweep) -> Iterator[Left]:
    """Each load of an open loop, predicted from the others."""
    for place, point in enumerate(sweep.points):
        found = fitted(sweep, [other for index, other in enumerate(sweep.points) if index != place])
        yield Left(point.rate or 0.0, point.measured, predict(found, point, TEST_SEEDS))


def beyond(sweep: Sweep) -> Iterator[Left]:
    """The highest concurrency, predicted from those up to half of it."""
    most = max(point.concurrency or 0 for point in sweep.points)
    below = [point for point in sweep.points if (point.concurrency or 0) * 2 <= most]
    found = fitted(sweep, below)
    for point in sweep.points:
        if point.concurrency == most:
            yield Left(most, point.measured, predict(found, point, TEST_SEEDS))


def open_sweeps(path: Path) -> Iterator[Sweep]:
    """The configurations of an open-loop file."""
    rows = _rows(path)
    for config in dict.fromkeys((row["config"], row["model"], row["gpu"], row["args"]) for row in rows):
        mine = [row for row in rows if (row["config"], row["model"], row["gpu"], row["args"]) == config]
        settings = arguments(mine[0]["args"], mine[0]["gpu"])
        named: dict[str, Setting] = {name: mine[0][name] for name in ("model", "gpu", "image")}
        points = [
            Point(
                int(row["n"]),
                float(row["prompt_mean"]),
                float(row["output_mean"]),
                {"req_s": float(row["req_s"]), **{name: float(row[name]) / 1000 for name in FIGURES if row.get(name)}},
                rate=float(row["requested_rate"]),
            )
            for row in mine
        ]
        yield Sweep(f"{path.stem} {config[0]}", points, [scheduler_of(settings)], {**named, **settings})


def closed_sweeps(path: Path) -> Iterator[Sweep]:
    """The configurations of a closed-loop file; which scheduler the engine had is not in it."""
    rows = _rows(path)
    keys = ("model", "gpu", "precision", "tp", "isl", "osl")
    for config in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
        mine = [row for row in rows if tuple(row[key] for key in keys) == config]
        points = [_closed_point(row) for row in mine]
        most = max(point.concurrency or 0 for point in points)
        tries: tuple[tuple[Kind, int], ...] = (("continuous", 8192), ("chunked", 8192), ("chunked", 2048))
        schedulers = [Scheduler(kind, max(256, most), max(budget, 256, most)) for kind, budget in tries]
        engine: dict[str, Setting] = {"model": config[0], "gpu": config[1], "dtype": config[2]}
        engine["tensor_parallel_size"] = int(config[3])
        yield Sweep(" ".join((path.stem, *config)), points, schedulers, engine)


def _closed_point(row: Mapping[str, str]) -> Point:
    concurrency = round(float(row["concurrency"]))
    measured = {
        "tok_s": float(row["out_tok_s"]),
        "ttft_mean": float(row["ttft_ms"]) / 1000,
        "itl_mean": float(row["itl_ms"]) / 1000,
    }
    return Point(max(20 * concurrency, 200), float(row["isl"]), float(row["osl"]), measured, concurrency=concurrency)


def arguments(text: str, gpu: str) -> dict[str, Setting]:
    """vLLM's scheduler settings from its arguments, with the defaults of vLLM 0.11's server for this GPU."""
    large = any(name in gpu.lower() for name in ("h100", "h200", "b200", "mi300"))
    found: dict[str, Setting] = {
        "max_num_seqs": 1024 if large else 256,
        "max_num_batched_tokens": 8192 if large else 2048,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": True,
    }
    words = shlex.split(text)
    for place, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, _, value = word[2:].partition("=")
        following = words[place + 1] if place + 1 < len(words) else "--"
        value = value or ("" if following.startswith("--") else following)
        on = not name.startswith("no-")
        name = name.removeprefix("no-").replace("-", "_")
        if name in found:
            found[name] = int(value) if value.isdigit() else on
    return found


def scheduler_of(settings: Mapping[str, Setting]) -> Scheduler:
    """The simulated scheduler with these settings; prompts of a sweep are all different, so no prefix is shared."""
    slots, budget = int(settings["max_num_seqs"] or 1), int(settings["max_num_batched_tokens"] or 1)
    kind: Kind = "chunked" if settings["enable_chunked_prefill"] else "continuous"
    return Scheduler(kind, max_num_seqs=slots, max_num_batched_tokens=max(budget, slots))


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def report(sweep: Sweep, lefts: Sequence[Left], demands: Mapping[str, float]) -> dict[str, object]:
    """What the result says of one sweep."""
    errors = {name: float(np.mean([abs(left.error(name)) for left in lefts])) for name in lefts[0].measured}
    return {
        "sweep": sweep.name,
        "loads": [{"load": left.load, **{name: left.error(name) for name in left.measured}} for left in lefts],
        "mean_absolute_error": errors,
        "missed": [name for name, most in demands.items() if errors[name] > most],
    }


def main() -> int:
    """Run every sweep that is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="DIR", help="write the step model of each whole sweep here")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    folder = os.environ.get("FOREBAY_DATA")
    if folder is None:
        print("FOREBAY_DATA names no folder of measured sweeps", file=sys.stderr)
        return 2
    files = Path(folder) / "capacity"
    reports, started = [], time.perf_counter()
    for path in sorted(files.glob("infperf_openloop_*.csv")):
        reports += [_run(sweep, list(left_out(sweep)), OPEN_DEMANDS, args.out) for sweep in open_sweeps(path)]
    for path in sorted(files.glob("nim_closedloop_*.csv")):
        reports += [_run(sweep, list(beyond(sweep)), CLOSED_DEMANDS, args.out) for sweep in closed_sweeps(path)]
    if args.json:
        print(orjson.dumps({"sweeps": reports}, option=orjson.OPT_INDENT_2).decode())
    else:
        _print(reports)
        print(f"{time.perf_counter() - started:.0f} s")
    return 1 if not reports or any(one["missed"] for one in reports) else 0


def _run(sweep: Sweep, lefts: Sequence[Left], demands: Mapping[str, float], out: Path | None) -> dict[str, object]:
    if out is not None:
        whole = fitted(sweep, sweep.points)
        write_step_model(whole.model, out / f"{sweep.name.replace(' ', '_').replace('/', '-')}.json")
    return report(sweep, lefts, demands)


def _print(reports: Sequence[Mapping[str, object]]) -> None:
    for one in reports:
        print(one["sweep"])
        loads, errors = one["loads"], one["mean_absolute_error"]
        assert isinstance(loads, list)  # noqa: S101 - the report is ours
        assert isinstance(errors, dict)  # noqa: S101
        print(f"{'load':>10} " + " ".join(f"{name:>10}" for name in errors))
        for line in loads:
            print(f"{line['load']:>10.2f} " + " ".join(f"{line[name]:>+10.1%}" for name in errors))
        print(f"{'mean |e|':>10} " + " ".join(f"{value:>10.1%}" for value in errors.values()))
        print("missed: " + (", ".join(map(str, one["missed"])) if one["missed"] else "nothing"))  # type: ignore[call-overload]


if __name__ == "__main__":
    sys.exit(main())
