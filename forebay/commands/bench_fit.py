"""`forebay bench fit`: an engine's step times, profiled from outside, as a file for `plan` and `simulate`."""

import argparse
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from core.errors import ConfigError, ForebayError, Problem
from forebay import arguments
from forebay.commands import bench_load

if TYPE_CHECKING:
    from argparse import _SubParsersAction

EXAMPLE = (
    "forebay bench fit --url http://127.0.0.1:8000/v1 --model m --batches 1,2,4,8 --engine max_num_seqs=8 "
    "--out step.json"
)


def add(parts: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the part."""
    parser = parts.add_parser(
        "fit",
        help="what a step of an engine costs, for plan and simulate",
        description="Profiles an endpoint that nobody else uses: decode steps at several batches and contexts, "
        "prefills at several lengths, alone and beside half of the largest batch. Writes a step model, with residuals.",
        epilog=f"example: {EXAMPLE}",
    )
    bench_load.target(parser)
    group = parser.add_argument_group("profile")
    group.add_argument("--batches", type=arguments.counts, default=[1, 8, 32], metavar="N,N", help="(1,8,32)")
    group.add_argument(
        "--contexts", type=arguments.counts, default=[32, 512], metavar="N,N", help="prompts of them (32,512)"
    )
    group.add_argument(
        "--prompts", type=arguments.counts, default=[16, 128, 512, 1024], metavar="N,N", help="prefilled alone"
    )
    group.add_argument("--steps", type=arguments.count, default=48, metavar="N", help="tokens of a decode profile (48)")
    group.add_argument("--rounds", type=arguments.count, default=3, metavar="N", help="of everything (3)")
    group.add_argument("--engine", action="append", default=[], metavar="KEY=VALUE", help="setting that it holds for")
    group.add_argument("--out", type=Path, metavar="F.json", help="write the step model")
    group.add_argument("--json", action="store_true", help="print it")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, fit, write."""
    from bench.load.fit import Profile, Profiler  # noqa: PLC0415  # numpy and scipy take a moment to load
    from bench.load.prompts import Scale  # noqa: PLC0415
    from bench.load.server import Server  # noqa: PLC0415

    if args.out is not None and not args.out.absolute().parent.is_dir():
        raise ConfigError([Problem("out", f"{args.out.parent} is not a folder")])
    target, salt = bench_load.endpoint(args), secrets.randbelow(10**9)
    server = Server(target)
    try:
        about = server.about(args.model)
        model = args.model or next(iter(about.models), None)
        if model is None:
            raise ForebayError("the server names no model; give --model")
        scale = server.scale(model, salt)
    finally:
        server.close()
    wanted = Profile(args.batches, args.contexts, _within(args, about.limits), args.steps, args.rounds)
    settings: dict[str, Any] = {"model": model, **about.limits, **bench_load.settings(args.engine)}
    tell = _tell if sys.stderr.isatty() else None
    found = Profiler(target, model, scale or Scale(), salt, args.timeout).profile(wanted, settings, tell)
    document = found.document()
    text = orjson.dumps(document, option=orjson.OPT_INDENT_2)
    if args.out is not None:
        args.out.write_bytes(text + b"\n")
    print(orjson.dumps(document).decode() if args.json else _table(document))
    return 0


def _within(args: argparse.Namespace, limits: Any) -> list[int]:
    """The prompt lengths that the model's context holds."""
    room = limits.get("max_model_len")
    found: list[int] = [one for one in args.prompts if room is None or one + args.steps < room]
    if len(found) < 2:
        raise ConfigError([Problem("prompts", f"fewer than two of them fit into a context of {room}")])
    return found


def _tell(count: int) -> None:
    print(f"\rbench fit: {count} profiles", end="", file=sys.stderr, flush=True)


def _table(document: dict[str, Any]) -> str:
    decode, prefill = document["decode"], document["prefill"]
    lines = [
        (
            f"decode:  {decode['fixed_s'] * 1e3:.3f} ms + {decode['seq_s'] * 1e3:.4f} ms per sequence + "
            f"{decode['ctx_token_s'] * 1e6:.4f} us per token of context"
        ),
        (
            f"prefill: {prefill['fixed_s'] * 1e3:.3f} ms + {prefill['token_s'] * 1e3:.4f} ms per token + "
            f"{prefill['token2_s'] * 1e9:.4f} ns per squared token"
        ),
        f"both:    {prefill.get('mixed_s', 0.0) * 1e3:.3f} ms more than the larger of the two fixed times",
        *_rows("batch", "context", [(one["batch"], one["context_tokens"], one) for one in document["decode_steps"]]),
        *_rows("prompts", "tokens", [(one["prompts"], one["prompt_tokens"], one) for one in document["prefills"]]),
        *_rows("decoding", "prompt", [(one["batch"], one["prompt_tokens"], one) for one in document["mixed_steps"]]),
    ]
    bound, largest = document["compute_bound_batch"], document["largest_batch"]
    if bound is None:
        lines.append(f"decode is memory-bound up to {largest}, the largest batch measured: sequences cost nothing")
    else:
        seen = "" if document["compute_bound_seen"] else f", beyond the largest batch measured ({largest})"
        lines.append(f"decode turns compute-bound at a batch of {bound:.1f}{seen}")
    if document["convex"]:
        lines.append("steps bend upward at the largest batches: larger ones cost more than the model says")
    return "\n".join(lines)


def _rows(first: str, second: str, measured: list[tuple[int, float, dict[str, Any]]]) -> list[str]:
    lines = [f"{first:>8} {second:>9} {'ms':>9} {'spread':>8} {'fitted':>8}"]
    for count, tokens, one in measured:
        figures = f"{one['seconds'] * 1e3:>9.3f} {one['spread_s'] * 1e3:>8.3f} {one['fitted_over_measured'] - 1:>+8.1%}"
        lines.append(f"{count:>8} {tokens:>9.0f} {figures}")
    return lines
