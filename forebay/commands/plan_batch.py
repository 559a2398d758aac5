"""`forebay plan batch`: which batch, by which rule of dispatch, for one server of a Poisson stream."""

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from forebay import arguments

if TYPE_CHECKING:
    from argparse import _SubParsersAction

Show = Callable[[dict[str, Any]], str]
EXAMPLE = "forebay plan batch --arrival-rate 100 --t-fixed 50ms --t-req 0.5ms --batch 1,2,4,8,16,32 --slo-p99 200ms"


def add(parts: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the part."""
    parser = parts.add_parser(
        "batch",
        help="batch size of one server, by exact queueing",
        description="A pass over a batch of B takes t-fixed + t-req · B; requests are a Poisson stream.",
        epilog=f"example: {EXAMPLE}",
    )
    parser.add_argument(
        "--arrival-rate", type=arguments.positive, required=True, metavar="R", help="requests per second"
    )
    parser.add_argument(
        "--t-fixed", type=arguments.duration_or_none, required=True, metavar="D", help="time per pass, 50ms"
    )
    parser.add_argument(
        "--t-req", type=arguments.duration_or_none, required=True, metavar="D", help="time per request in a pass, 0.5ms"
    )
    parser.add_argument(
        "--batch", type=arguments.counts, default=[1, 2, 4, 8, 16, 32], metavar="B,B", help="rows to show"
    )
    parser.add_argument("--target-utilization", type=arguments.share, default=0.75, metavar="U", help="default 0.75")
    parser.add_argument("--max-batch", type=arguments.count, default=512, metavar="B", help="largest searched, 512")
    parser.add_argument(
        "--method",
        choices=("surrogate", "fixed", "work-conserving"),
        default="work-conserving",
        help="full batches as a Poisson stream, full batches exactly, or what waits when the server is idle (default)",
    )
    parser.add_argument(
        "--max-wait", type=arguments.duration_or_none, metavar="D", help="a timed window: closes when full or after D"
    )
    parser.add_argument("--slo-p99", type=arguments.duration, metavar="D", help="objective for p99 of the response")
    parser.add_argument(
        "--output-tokens", type=arguments.count, metavar="N", help="passes per request; rows then count replicas"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the plan; 1 where no batch is stable or what is recommended misses the objective."""
    # scipy takes a moment to load.
    from capacity.batch_plan import Ask, plan_batch  # noqa: PLC0415
    from capacity.batching import Load  # noqa: PLC0415
    from capacity.service import ServiceTime  # noqa: PLC0415
    from core.errors import ConfigError, Problem  # noqa: PLC0415

    try:
        service = ServiceTime(options.t_fixed, options.t_req)
    except ValueError as error:
        raise ConfigError([Problem("", f"--t-fixed and --t-req: {error}")]) from None
    load = Load(options.arrival_rate, service, options.method, options.max_wait)
    document = plan_batch(
        Ask(load, options.batch, options.max_batch, options.target_utilization, options.slo_p99, options.output_tokens)
    )
    print(json.dumps(document) if options.json else _text(document))
    found = document["recommended"]
    return 0 if found is not None and found["meets_slo"] is not False else 1


def _text(document: dict[str, Any]) -> str:
    rows = document["rows"]
    columns: list[tuple[str, Show]] = [
        ("batch", lambda row: str(row["batch"])),
        ("util", lambda row: f"{row['utilization']:.1%}"),
        ("req/s", lambda row: f"{row['throughput_rps']:.1f}"),
        *((name, _milliseconds(key)) for name, key in _TIMES if any(key in row for row in rows)),
        ("in system", lambda row: "-" if row["in_system"] is None else f"{row['in_system']:.2f}"),
        *((name, _plain(name)) for name in ("replicas", "replicas_target") if name in rows[0]),
        ("advice", lambda row: " ".join(row["advice"])),
    ]
    table = [[name for name, _ in columns]] + [[show(row) for _, show in columns] for row in rows]
    widths = [max(len(line[place]) for line in table) for place in range(len(columns))]
    lines = ["  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
    lines += ["", f"method {document['method']}; stable from batch {_or_none(document['min_batch_stable'])}"]
    lines[-1] += f"; at {document['target_utilization']:.0%} from {_or_none(document['min_batch_target'])}"
    lines[-1] += f"; best {_or_none(document['best_batch'])}"
    if "max_batch_slo" in document:
        lines.append(f"largest batch with p99 within the objective: {_or_none(document['max_batch_slo'])}")
    found = document["recommended"]
    if found is not None:
        lines.append(
            f"recommended: {found['dispatch']}, up to {found['max_batch']}: mean {found['response_s'] * 1000:.1f} ms, "
            f"p99 {found['p99_s'] * 1000:.1f} ms"
        )
    return "\n".join(lines + [f"{advice['code']}: {advice['text']}" for advice in document["advice"]])


_TIMES = (
    ("wait ms", "wait_s"),
    ("fill ms", "accumulation_s"),
    ("service ms", "service_s"),
    ("response ms", "response_s"),
    ("p99 ms", "p99_s"),
    ("min wait ms", "min_wait_s"),
)


def _milliseconds(key: str) -> Show:
    return lambda row: "-" if row[key] is None else f"{row[key] * 1000:.2f}"


def _plain(key: str) -> Show:
    return lambda row: str(row[key])


def _or_none(value: int | None) -> str:
    return "none" if value is None else str(value)
