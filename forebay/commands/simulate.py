"""`forebay simulate`: a trace or a made-up load through one scheduler, or through the whole fleet."""

import argparse
import math
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from capacity.arrivals import Arrivals, Constant, Gamma, Immediate, Mmpp, Poisson, burstiness
from capacity.scheduler import DISPATCHES, KINDS, WINDOWS, Scheduler, Transfer
from capacity.step_model import StepModel, read_step_model
from capacity.traces import read_trace
from capacity.workload import SHAPES, Clients, Group, Lengths, Replay, Sampled, Spread, Synthetic, Times, Workload
from core.config.units import parse_duration
from core.errors import ConfigError, Problem

if TYPE_CHECKING:
    from capacity.simulate import Result
    from capacity.simulate.fleet import Fleet

ARRIVALS = ("poisson", "gamma", "mmpp", "constant", "closed")
# Steps kept for a picture: more than a viewer can show at once.
LOGGED_STEPS = 100_000
EXAMPLE = """example:
  forebay simulate --trace requests.csv --scheduler continuous --step-model step.json --max-num-seqs 128 --slo-ttft 1s
  forebay simulate --arrivals poisson --rate 100 --requests 100000 --prompt-tokens 1 --output-tokens 1 \\
    --scheduler fixed --max-num-seqs 8 --t-fixed 50ms --t-req 0.5ms
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `simulate`."""
    parser = subparsers.add_parser(
        "simulate",
        help="a trace or a made-up load through one scheduler, or through the whole fleet",
        description="Simulate a scheduler step by step: latency percentiles, throughput, goodput. No GPU is needed.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_load(parser)
    _add_scheduler(parser)
    _add_fleet(parser)
    _add_output(parser)
    parser.set_defaults(run=_run)


def _add_load(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("load")
    source = load.add_mutually_exclusive_group(required=True)
    source.add_argument("--trace", type=Path, metavar="F", help="own CSV, Azure, BurstGPT or Mooncake; .gz of each")
    source.add_argument("--arrivals", choices=ARRIVALS, help="closed: --concurrency clients, each waits for its answer")
    load.add_argument("--rate-scale", type=float, default=1.0, metavar="X", help="a trace X times as fast")
    load.add_argument("--rate", type=float, metavar="R", help="requests per second")
    load.add_argument("--requests", type=int, metavar="N", help="how many; of a trace, the first N")
    load.add_argument("--cv", type=float, default=2.0, help="gamma: coefficient of variation of the gaps (2)")
    load.add_argument("--burst-ratio", type=float, default=5.0, help="mmpp: rate in a burst over the calm rate (5)")
    load.add_argument("--burst", type=_duration, default=10.0, metavar="D", help="mmpp: mean length of a burst (10s)")
    load.add_argument("--calm", type=_duration, default=40.0, metavar="D", help="mmpp: mean time between bursts (40s)")
    load.add_argument("--concurrency", type=int, metavar="N", help="closed: clients; else: most requests in flight")
    load.add_argument("--think", type=_duration, default=0.0, metavar="D", help="pause of a client after an answer")
    load.add_argument("--prompt-tokens", type=float, metavar="N", help="mean")
    load.add_argument("--output-tokens", type=float, metavar="N", help="mean")
    load.add_argument("--prompt-shape", choices=SHAPES, default="fixed", help="distribution around the mean (fixed)")
    load.add_argument("--output-shape", choices=SHAPES, default="fixed", help="distribution around the mean (fixed)")
    load.add_argument("--lengths-from", type=Path, metavar="F", help="draw lengths from a trace's requests")
    load.add_argument(
        "--class",
        dest="classes",
        action="append",
        default=[],
        metavar="NAME:SHARE:PROMPT:OUTPUT[:PRIORITY]",
        help="a class of requests instead of one for all; priority 0 is served first; may be given again",
    )
    load.add_argument("--seed", type=int, default=0, metavar="N", help="the same seed, the same bytes (0)")


def _add_scheduler(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("scheduler")
    group.add_argument("--scheduler", choices=KINDS, default="continuous")
    group.add_argument("--max-num-seqs", type=int, default=256, metavar="N", help="slots, or the largest batch (256)")
    group.add_argument("--max-num-batched-tokens", type=int, metavar="N", help="tokens of a step (8192; chunked 2048)")
    group.add_argument("--kv-blocks", type=int, metavar="N", help="blocks of the KV cache; without it, unbounded")
    group.add_argument("--block-size", type=int, default=16, metavar="N", help="tokens of a block (16)")
    group.add_argument("--prefix-cache", action="store_true", help="share blocks of prompts whose trace has hash_ids")
    group.add_argument("--max-wait", type=_duration, metavar="D", help="window: closes this long after it opened")
    group.add_argument("--window", choices=WINDOWS, default="close", help="also while busy, or filling until free")
    group.add_argument("--replicas", type=int, default=1, metavar="N")
    group.add_argument("--dispatch", choices=DISPATCHES, help="batches: shared queue; engines: least-outstanding")
    group.add_argument("--max-waiting", type=int, metavar="N", help="requests waiting per queue; the rest is refused")
    group.add_argument("--queue-timeout", type=_duration, metavar="D", help="who has not started by then leaves")
    group.add_argument("--prefill-replicas", type=int, default=1, metavar="N", help="disaggregated")
    group.add_argument("--transfer", type=_duration, default=0.0, metavar="D", help="KV hand-over, per request")
    group.add_argument("--transfer-token", type=_duration, default=0.0, metavar="D", help="KV hand-over, per token")
    group.add_argument("--step-model", type=Path, metavar="F", help="what a step costs, as `bench fit` writes it")
    group.add_argument("--t-fixed", type=_duration, metavar="D", help="instead: a step of B takes t-fixed + B t-req")
    group.add_argument("--t-req", type=_duration, metavar="D")


def _add_fleet(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("fleet (the scheduler above is the small tier)")
    group.add_argument("--cache-hit-rate", type=float, default=0.0, metavar="S", help="share answered by the cache")
    group.add_argument("--cache-latency", type=_duration, default=0.001, metavar="D", help="of a hit (1ms)")
    group.add_argument("--overhead", type=_duration, default=0.0, metavar="D", help="of the gateway, on each miss")
    group.add_argument("--frontier-share", type=float, default=0.0, metavar="S", help="of the misses")
    group.add_argument("--frontier-step-model", type=Path, metavar="F")
    group.add_argument("--frontier-replicas", type=int, metavar="N")
    group.add_argument("--frontier-max-num-seqs", type=int, metavar="N")
    group.add_argument("--frontier-kv-blocks", type=int, metavar="N")


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("result")
    group.add_argument("--slo-ttft", type=_duration, metavar="D", help="goodput: time to the first token")
    group.add_argument("--slo-tpot", type=_duration, metavar="D", help="goodput: time per further token")
    group.add_argument("--warmup", type=float, default=0.0, metavar="S", help="share left out of percentiles (0)")
    group.add_argument(
        "--precision",
        type=float,
        metavar="X",
        help="double --requests until mean E2E is known to +-X of itself (95 %%)",
    )
    group.add_argument("--requests-out", type=Path, metavar="F.jsonl", help="one line per request")
    group.add_argument("--chrome-trace", type=Path, metavar="F.json", help="steps and requests for a trace viewer")
    group.add_argument("--json", action="store_true", help="print one JSON document")


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _run(args: argparse.Namespace) -> int:
    # The simulator brings numba in, which is slow to import and which no other command needs.
    from capacity.simulate import Slo  # noqa: PLC0415
    from capacity.simulate.picture import chrome_trace  # noqa: PLC0415

    scheduler, model = _scheduler(args), _model(args)
    for path in (args.requests_out, args.chrome_trace):
        if path is not None and not path.parent.is_dir():
            raise ConfigError([Problem("out", f"{path.parent} is not a folder")])
    workload, skipped = _workload(args)
    result = _simulated(args, workload, scheduler, model)
    notes = [*result.warnings]
    if skipped:
        notes.append(f"trace: {skipped} rows without prompt or answer were left out")
    if args.max_wait is not None and args.scheduler != "window":
        notes.append("--max-wait is the window's and changes nothing here")
    if args.rate is not None and (args.trace is not None or args.arrivals == "closed"):
        notes.append("--rate is for open arrivals and changes nothing here; a trace has --rate-scale")
    result = replace(result, warnings=tuple(notes), setup=_setup(args, scheduler, model, result))
    slo = Slo(args.slo_ttft, args.slo_tpot)
    document = result.document(slo)
    if args.requests_out is not None:
        with args.requests_out.open("wb") as out:
            out.writelines(orjson.dumps(row) + b"\n" for row in result.rows())
    if args.chrome_trace is not None:
        args.chrome_trace.write_bytes(chrome_trace(result))
    for note in notes:
        print(f"simulate: {note}", file=sys.stderr)
    sys.stdout.write(orjson.dumps(document).decode() + "\n" if args.json else _table(document))
    return 0


def _simulated(args: argparse.Namespace, workload: Workload, scheduler: Scheduler, model: StepModel) -> "Result":
    from capacity.simulate import run, run_until  # noqa: PLC0415 - as in _run
    from capacity.simulate.fleet import run_fleet  # noqa: PLC0415

    log = LOGGED_STEPS if args.chrome_trace is not None else 0
    fleet = _fleet(args, scheduler, model)
    if fleet is not None:
        return run_fleet(workload, fleet, args.seed, warmup=args.warmup, log_steps=log)
    if args.precision is None:
        return run(workload, scheduler, model, args.seed, warmup=args.warmup, log_steps=log)
    if not isinstance(workload, Synthetic):
        raise ConfigError([Problem("precision", "a trace is as long as it is; precision is for --arrivals")])
    found = run_until(
        lambda count: replace(workload, count=count),
        scheduler,
        model,
        args.seed,
        estimate=lambda result: result.mean("e2e"),
        relative=args.precision,
        least=workload.count,
    )
    if found.reached:
        return found.result
    note = f"precision {args.precision} was not reached with {len(found.result)} requests: unstable, or very bursty"
    return replace(found.result, warnings=(*found.result.warnings, note))


def _scheduler(args: argparse.Namespace) -> Scheduler:
    return Scheduler(
        kind=args.scheduler,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        kv_blocks=args.kv_blocks,
        block_size=args.block_size,
        prefix_cache=args.prefix_cache,
        max_wait_s=args.max_wait,
        window=args.window,
        replicas=args.replicas,
        dispatch=args.dispatch,
        max_waiting=args.max_waiting,
        queue_timeout_s=args.queue_timeout,
        prefill_replicas=args.prefill_replicas,
        transfer=Transfer(args.transfer, args.transfer_token),
    )


def _model(args: argparse.Namespace) -> StepModel:
    textbook = args.t_fixed is not None and args.t_req is not None
    if (args.step_model is not None) == textbook or (args.t_fixed is None) != (args.t_req is None):
        raise ConfigError([Problem("step_model", "give either --step-model, or --t-fixed and --t-req")])
    return StepModel.of_batch(args.t_fixed, args.t_req) if textbook else read_step_model(args.step_model)


def _fleet(args: argparse.Namespace, scheduler: Scheduler, model: StepModel) -> "Fleet | None":
    from capacity.simulate.fleet import Fleet, Tier  # noqa: PLC0415 - as in _run

    if args.cache_hit_rate == 0 and args.frontier_share == 0 and args.overhead == 0:
        return None
    frontier = None
    if args.frontier_step_model is not None:
        strong = replace(
            scheduler,
            replicas=args.frontier_replicas or scheduler.replicas,
            max_num_seqs=args.frontier_max_num_seqs or scheduler.max_num_seqs,
            kv_blocks=args.frontier_kv_blocks or scheduler.kv_blocks,
        )
        frontier = Tier(strong, read_step_model(args.frontier_step_model))
    return Fleet(
        Tier(scheduler, model), frontier, args.frontier_share, args.cache_hit_rate, args.cache_latency, args.overhead
    )


def _workload(args: argparse.Namespace) -> tuple[Workload, int]:
    """The load, and how many rows of a trace held no request."""
    clients = None if args.concurrency is None else Clients(args.concurrency, args.think)
    if args.concurrency is not None and args.concurrency < 1:
        raise ConfigError([Problem("concurrency", f"{args.concurrency}; legal is a number from 1")])
    if args.trace is not None:
        trace = read_trace(args.trace)
        if args.rate_scale <= 0:
            raise ConfigError([Problem("rate_scale", f"{args.rate_scale}; legal is a number above 0")])
        requests = trace.requests
        if args.requests is not None:
            requests = requests.take(np.arange(min(_least("requests", args.requests), len(requests))))
        return Replay(replace(requests, clients=clients), args.rate_scale), trace.skipped
    if args.requests is None:
        raise ConfigError([Problem("requests", "missing; how many requests are to arrive")])
    groups = [_group(text) for text in args.classes] or [Group("all", 1.0, _lengths(args))]
    return Synthetic(_arrivals(args), _least("requests", args.requests), groups, clients=clients), 0


def _least(name: str, value: int) -> int:
    if value < 1:
        raise ConfigError([Problem(name, f"{value}; legal is a number from 1")])
    return value


def _arrivals(args: argparse.Namespace) -> Arrivals:
    if args.arrivals == "closed":
        if args.concurrency is None:
            raise ConfigError([Problem("concurrency", "missing; a closed loop needs its number of clients")])
        return Immediate()
    if args.rate is None or not 0 < args.rate < math.inf:
        raise ConfigError([Problem("rate", f"{args.rate}; legal is a number of requests per second above 0")])
    rate: float = args.rate
    made: dict[str, Arrivals] = {
        "poisson": Poisson(rate),
        "gamma": Gamma(rate, args.cv),
        "mmpp": Mmpp(rate, args.burst_ratio, args.burst, args.calm),
        "constant": Constant(rate),
    }
    return made[args.arrivals]


def _lengths(args: argparse.Namespace) -> Lengths:
    if args.lengths_from is not None:
        seen = read_trace(args.lengths_from).requests
        return Sampled(seen.prompt, seen.output)
    missing = [name for name in ("prompt_tokens", "output_tokens") if getattr(args, name) is None]
    if missing:
        raise ConfigError([Problem(name, "missing; give it, or --lengths-from, or --class") for name in missing])
    return Spread(args.prompt_tokens, args.output_tokens, args.prompt_shape, args.output_shape)


def _group(text: str) -> Group:
    legal = "legal is NAME:SHARE:PROMPT:OUTPUT[:PRIORITY], such as chat:0.7:300:200:0"
    try:
        name, share, prompt, output, *rest = text.split(":")
        priority = int(rest[0]) if rest else 0
        group = Group(name, float(share), Spread(float(prompt), float(output)), priority)
    except ValueError as error:
        raise ConfigError([Problem("class", f"{text!r}; {legal}")]) from error
    if len(rest) > 1 or not 0 <= priority < 8:
        raise ConfigError([Problem("class", f"{text!r}; {legal}, priorities 0 to 7")])
    return group


def _setup(args: argparse.Namespace, scheduler: Scheduler, model: StepModel, result: "Result") -> dict[str, object]:
    """What was simulated: enough to say it again."""
    records = result.records
    return {
        "seed": args.seed,
        "workload": {
            "source": str(args.trace.name) if args.trace is not None else args.arrivals,
            "prompt_tokens": float(records["prompt"].mean()),
            "output_tokens": float(records["output"].mean()),
            "arrivals": _stream(records["arrived"]),
        },
        "scheduler": {**asdict(scheduler), "dispatch": scheduler.dispatching, "token_budget": scheduler.token_budget},
        "step_model": model.document(),
    }


def _stream(arrived: Times) -> dict[str, object] | None:
    if len(arrived) < 3 or arrived[-1] <= arrived[0]:
        return None
    found = burstiness(arrived)
    windows = {f"dispersion_{window}s": value for window, value in found.dispersion.items()}
    return {"rate": found.rate, "gap_cv": found.gap_cv, **windows}


def _table(document: dict[str, Any]) -> str:
    duration, tokens = document["duration_s"], document["throughput_tok_s"]
    rates = f"{_figure(document['throughput_rps'], 1)} requests/s, {_figure(tokens, 0)} output tokens/s"
    lines = [
        f"{document['requests']} requests in {duration:.1f} s: {rates}, answered {document['success']:.2%}",
        f"{'seconds':<30} {'requests':>9} {'mean':>9} {'p50':>9} {'p95':>9} {'p99':>9}   95 % of p99",
    ]
    for metric in ("ttft", "tpot", "e2e"):
        lines.append(_line(metric, document["requests"], document[metric]))
        if len(document["classes"]) > 1:
            lines += [_line(f"  {one['name']}", one["requests"], one[metric]) for one in document["classes"]]
    if document["goodput"] is not None:
        lines.append(f"goodput {document['goodput']:.2%}, {_figure(document['goodput_rps'], 2)} requests/s")
    use = document["slot_utilization"]
    lines.append(f"slots used {'-' if use is None else f'{use:.1%}'}, preemptions {document['preemptions']}")
    return "\n".join(lines) + "\n"


def _line(name: str, requests: int, found: dict[str, Any]) -> str:
    figures = " ".join(f"{_figure(found[key], 4):>9}" for key in ("mean", "p50", "p95", "p99"))
    ends = found.get("ci95", {}).get("p99")
    interval = "" if ends is None else f"{_figure(ends[0], 4)} … {_figure(ends[1], 4)}"
    return f"{name[:30]:<30} {requests:>9} {figures}   {interval}".rstrip()


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
