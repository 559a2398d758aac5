"""`forebay bench` itself: one load, or a sweep of rates up to the knee."""

import argparse
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from core.errors import ConfigError, Problem
from forebay import arguments

if TYPE_CHECKING:
    from bench.load.order import Order, Outcome
    from bench.load.target import Target

ARRIVALS = ("poisson", "constant", "gamma", "mmpp")
SHAPES = ("fixed", "exponential", "lognormal")
EXAMPLE = """example:
  forebay bench --url http://127.0.0.1:8000/v1 --model m --rate 5 --duration 60s --prompt-tokens 300 --output-tokens 100
  forebay bench --url http://127.0.0.1:8000/v1 --model m --trace requests.csv --rate-scale 2 --slo-ttft 1s --json
  forebay bench --url http://127.0.0.1:8000/v1 --model m --sweep 1 --duration 30s --slo-ttft 1s --html sweep.html
"""


def fill(parser: argparse.ArgumentParser) -> None:
    """The options."""
    target(parser, required=False)
    _load(parser)
    _texts(parser)
    _result(parser)
    parser.set_defaults(run=run)


def target(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Options that say whom to ask."""
    group = parser.add_argument_group("endpoint")
    group.add_argument("--url", required=required, metavar="U", help="http://host:port/v1")
    group.add_argument("--model", metavar="M", help="the model's name; without it, the first that the server names")
    group.add_argument("--endpoint", choices=("chat", "completions"), default="chat")
    group.add_argument("--api-key-env", default="OPENAI_API_KEY", metavar="NAME", help="variable with the key")
    group.add_argument("--header", action="append", default=[], metavar="NAME: VALUE", help="may be given again")
    group.add_argument("--insecure", action="store_true", help="accept any certificate")
    group.add_argument("--timeout", type=arguments.duration, default=600.0, metavar="D", help="of an answer (10m)")


def _load(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "load (open loop: --rate, --trace, --ramp, --sweep, --rates; closed: --concurrency)"
    )
    group.add_argument("--rate", type=arguments.positive, metavar="R", help="requests per second; of a trace, its mean")
    group.add_argument("--concurrency", type=arguments.count, metavar="N", help="clients that wait for their answers")
    group.add_argument("--trace", type=Path, metavar="F", help="own CSV, Azure, BurstGPT or Mooncake; .gz of each")
    group.add_argument(
        "--rate-scale", type=arguments.positive, default=1.0, metavar="X", help="a trace X times as fast"
    )
    group.add_argument("--ramp", type=_pair, metavar="A:B", help="from A to B requests per second over --duration")
    group.add_argument("--rates", type=_rates, metavar="R,R", help="one run each")
    group.add_argument("--sweep", type=arguments.positive, metavar="R", help="rates from R on, up to the knee")
    group.add_argument("--duration", type=arguments.duration, metavar="D")
    group.add_argument("--requests", type=arguments.count, metavar="N", help="of a trace, the first N")
    group.add_argument("--arrivals", choices=ARRIVALS, default="poisson")
    group.add_argument("--cv", type=arguments.positive, default=2.0, help="gamma: variation of the gaps (2)")
    group.add_argument(
        "--think", type=arguments.duration_or_none, default=0.0, metavar="D", help="between answer and next"
    )
    group.add_argument(
        "--ramp-up", type=arguments.duration_or_none, default=0.0, metavar="D", help="clients begin within it"
    )
    group.add_argument(
        "--max-in-flight", type=arguments.count, metavar="N", help="open loop: who is due beyond it waits"
    )
    group.add_argument("--processes", type=arguments.count, metavar="N", help="of the generator (by the rate)")


def _texts(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompts (synthetic, by length, unless a file is given)")
    group.add_argument("--prompt-tokens", type=arguments.positive, default=256, metavar="N", help="mean (256)")
    group.add_argument(
        "--output-tokens", type=arguments.positive, metavar="N", help="mean (128); cap on answers to a file"
    )
    group.add_argument("--prompt-shape", choices=SHAPES, default="fixed")
    group.add_argument("--output-shape", choices=SHAPES, default="fixed")
    group.add_argument("--lengths-from", type=Path, metavar="F", help="draw lengths from a trace's requests")
    group.add_argument(
        "--class",
        dest="classes",
        action="append",
        default=[],
        metavar="NAME:SHARE:PROMPT:OUTPUT",
        help="may be repeated",
    )
    group.add_argument(
        "--shared-prefix", type=_shared, default=(0, 1), metavar="N[:K]", help="N tokens, K different ones"
    )
    group.add_argument(
        "--turns", type=arguments.count, default=1, metavar="N", help="of a conversation, with its history"
    )
    group.add_argument(
        "--chats", type=Path, metavar="F.jsonl", help="rows of messages or prompt, with max_tokens or not"
    )
    group.add_argument("--repeat", type=arguments.fraction, metavar="S", help="share of questions asked before")
    group.add_argument("--paraphrase", type=arguments.fraction, metavar="S", help="share asked before in other words")
    group.add_argument("--pairs", type=Path, metavar="F.jsonl", help="questions in two wordings, a and b; else our own")
    group.add_argument(
        "--ignore-eos", choices=("auto", "on", "off"), default="auto", help="answers of the wanted length"
    )
    group.add_argument("--no-stream", action="store_true", help="whole answers: E2E only")
    group.add_argument("--extra", type=json_object, default={}, metavar="JSON", help="added to every body")
    group.add_argument("--salt", type=int, metavar="N", help="texts differ between salts; drawn anew where not given")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="arrivals and lengths (0)")


def _result(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("result")
    group.add_argument("--slo-ttft", type=arguments.duration, metavar="D", help="goodput: time to the first token")
    group.add_argument("--slo-tpot", type=arguments.duration, metavar="D", help="goodput: time per further token")
    group.add_argument("--slo-e2e", type=arguments.duration, metavar="D", help="goodput: time of the whole answer")
    group.add_argument("--long-prompt", type=arguments.count, metavar="N", help="classes: long from N tokens on (512)")
    group.add_argument("--long-output", type=arguments.count, metavar="N", help="classes: long from N tokens on (128)")
    group.add_argument("--repeats", type=arguments.count, default=1, metavar="N", help="intervals over N runs")
    group.add_argument(
        "--engine", action="append", default=[], metavar="KEY=VALUE", help="setting to keep in the result"
    )
    group.add_argument("--out", type=Path, metavar="F.json", help="write the document")
    group.add_argument("--csv", type=Path, metavar="F.csv", help="write the figures, a line per class and metric")
    group.add_argument("--html", type=Path, metavar="F.html", help="write one page with plots")
    group.add_argument("--requests-out", type=Path, metavar="F.jsonl", help="one line per request")
    group.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Measure, print, write; 1 where the run says nothing."""
    # numpy and scipy take a moment to load.
    from bench.load.order import carry_out  # noqa: PLC0415
    from bench.load.sweep import swept  # noqa: PLC0415

    for path in (args.out, args.csv, args.html, args.requests_out):
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError([Problem("out", f"{path.parent} is not a folder")])
    order = ordered(args)
    with _progress() as tell:
        if args.sweep is not None or args.rates is not None:
            outcome = swept(order, start=args.sweep, rates=args.rates, tell=tell)
        else:
            outcome = carry_out(order, tell)
    _write(args, outcome)
    document: dict[str, Any] = outcome.document
    for note in (*document["warnings"], *(f"INVALID: {reason}" for reason in document["invalid_because"])):
        print(f"bench: {note}", file=sys.stderr)
    return 0 if document["valid"] and document["success"] > 0 else 1


def ordered(args: argparse.Namespace) -> "Order":
    """The order that the options are. Raises ConfigError that names what is missing or does not go together."""
    from bench.load.measures import Aims  # noqa: PLC0415 - as in run
    from bench.load.order import Order  # noqa: PLC0415
    from bench.load.plan import Arriving  # noqa: PLC0415
    from capacity.lengths import LONG_OUTPUT, LONG_PROMPT  # noqa: PLC0415

    loads = [name for name in ("concurrency", "trace", "ramp", "rates", "sweep") if getattr(args, name) is not None]
    if args.rate is not None and loads != ["trace"]:
        loads.append("rate")
    if args.url is None:
        raise ConfigError([Problem("url", "missing; --url http://host:port/v1")])
    if len(loads) != 1:
        found = " and ".join(loads) or "none"
        legal = "one of --rate, --concurrency, --trace, --ramp, --rates, --sweep"
        raise ConfigError([Problem("rate", f"{found}; legal is {legal}")])
    if args.trace is None and args.duration is None and args.requests is None:
        raise ConfigError([Problem("duration", "missing; give --duration D or --requests N")])
    stagger = args.ramp_up / args.concurrency if args.concurrency else 0.0
    arriving = Arriving(
        args.rate, args.concurrency, args.trace, args.ramp, args.arrivals, args.cv, args.rate_scale, args.duration,
        args.requests, args.think, stagger,
    )  # fmt: skip
    return Order(
        endpoint(args),
        arriving,
        _asking(args),
        Aims(args.slo_ttft, args.slo_tpot, args.slo_e2e),
        seed=args.seed,
        salt=secrets.randbelow(10**9) if args.salt is None else args.salt,
        repeats=args.repeats,
        processes=args.processes,
        in_flight=args.max_in_flight,
        timeout_s=args.timeout,
        exact={"auto": None, "on": True, "off": False}[args.ignore_eos],
        bounds=(args.long_prompt or LONG_PROMPT, args.long_output or LONG_OUTPUT),
        settings=settings(args.engine),
    )


def endpoint(args: argparse.Namespace, url: str | None = None) -> "Target":
    """Whom the options name."""
    from bench.load.target import Target  # noqa: PLC0415 - as in run

    headers = {}
    for text in args.header:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise ConfigError([Problem("header", f"{text!r}; legal is NAME: VALUE")])
        headers[name.strip().lower()] = value.strip()
    key = os.environ.get(args.api_key_env)
    if key and "authorization" not in headers:
        headers["authorization"] = f"Bearer {key}"
    return Target(url or args.url, args.endpoint, headers, verify=not args.insecure)


def settings(texts: list[str]) -> dict[str, object]:
    """KEY=VALUE pairs; numbers and truth values as such."""
    found: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError([Problem("engine", f"{text!r}; legal is KEY=VALUE")])
        words = {"true": True, "false": False}
        found[name] = int(value) if value.isdigit() else words.get(value.lower(), value)
    return found


def _asking(args: argparse.Namespace) -> Any:
    from bench.load.plan import Asking  # noqa: PLC0415 - as in run

    if args.chats is not None and (args.repeat is not None or args.paraphrase is not None):
        raise ConfigError([Problem("chats", "a file of chats has its own repeats; --repeat is for pairs")])
    mix = None
    if args.repeat is not None or args.paraphrase is not None or args.pairs is not None:
        mix = (args.repeat or 0.0, args.paraphrase or 0.0)
        if sum(mix) > 1:
            raise ConfigError([Problem("repeat", f"{mix[0]} and {mix[1]} are more than all")])
    cap = None if args.output_tokens is None else round(args.output_tokens)
    groups = [] if args.chats is not None or mix is not None else _groups(args)
    return Asking(
        args.model or "", groups, args.chats, mix, args.pairs, cap, args.shared_prefix, args.turns, args.think,
        args.endpoint, not args.no_stream, extra=args.extra,
    )  # fmt: skip


def _groups(args: argparse.Namespace) -> list[Any]:
    from capacity.traces import read_trace  # noqa: PLC0415 - as in run
    from capacity.workload import Group, Sampled, Spread  # noqa: PLC0415

    if args.lengths_from is not None:
        seen = read_trace(args.lengths_from).requests
        return [Group("all", 1.0, Sampled(seen.prompt, seen.output))]
    found = []
    for text in args.classes:
        try:
            name, share, prompt, output = text.split(":")
            found.append(Group(name, float(share), Spread(float(prompt), float(output))))
        except ValueError:
            raise ConfigError([Problem("class", f"{text!r}; legal is NAME:SHARE:PROMPT:OUTPUT")]) from None
    output = 128 if args.output_tokens is None else args.output_tokens
    spread = Spread(args.prompt_tokens, output, args.prompt_shape, args.output_shape)
    return found or [Group("all", 1.0, spread)]


def _write(args: argparse.Namespace, outcome: "Outcome") -> None:
    from bench.load.files import lines_of, rows_of  # noqa: PLC0415 - as in run
    from bench.load.page import page  # noqa: PLC0415
    from bench.load.table import table  # noqa: PLC0415

    text = orjson.dumps(outcome.document)
    if args.out is not None:
        args.out.write_bytes(orjson.dumps(outcome.document, option=orjson.OPT_INDENT_2) + b"\n")
    if args.csv is not None:
        args.csv.write_text(rows_of(outcome.document), encoding="utf-8")
    if args.requests_out is not None:
        with args.requests_out.open("wb") as out:
            out.writelines(line for made in outcome.runs for line in lines_of(made))
    if args.html is not None:
        args.html.write_text(page(outcome), encoding="utf-8")
    sys.stdout.write(text.decode() + "\n" if args.json else table(outcome.document))


@contextmanager
def _progress() -> Iterator[Callable[[int], None] | None]:
    """Counts the answers on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return

    def tell(count: int) -> None:
        print(f"\rbench: {count} answers", end="", file=sys.stderr, flush=True)

    yield tell
    print("\r" + " " * 40 + "\r", end="", file=sys.stderr, flush=True)


def _pair(text: str) -> tuple[float, float]:
    first, _, last = text.partition(":")
    return arguments.positive(first), arguments.positive(last)


def _rates(text: str) -> list[float]:
    return [arguments.positive(part.strip()) for part in text.split(",")]


def _shared(text: str) -> tuple[int, int]:
    tokens, _, distinct = text.partition(":")
    return arguments.count(tokens), arguments.count(distinct) if distinct else 1


def json_object(text: str) -> dict[str, Any]:
    """An argparse type: a JSON object."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return found
