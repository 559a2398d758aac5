"""`forebay plan fleet`: replicas, engines and queues of both tiers for a load and an objective."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import yaml

from core.errors import ConfigError, Problem
from forebay import arguments
from forebay.commands.plan_kv import read_settings

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from capacity.fleet.ask import Demand, EngineOption, FleetAsk, TierAsk
    from capacity.fleet.options import ModelOn
    from capacity.fleet.tier import TierPlan

EXAMPLE = (
    "forebay plan fleet --model org/small --model-config small.json --gpu L40S --rate 20 "
    "--prompt-tokens 800 --output-tokens 200 --slo-ttft 1s --slo-tpot 50ms"
)
PROFILES = ("vllm", "trtllm", "eager")


def add(parts: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the part."""
    parser = parts.add_parser(
        "fleet",
        help="how many replicas of what, for a load and an objective",
        description="Sizes tiers by their step times, proves the fleet by simulation, and says what would be cheaper. "
        "Engines are described by a model's config.json and a GPU (data sheet), or by a calibration of `bench fit`. "
        "Exit code 1 where no plan keeps the objective; the nearest is printed.",
        epilog=f"example: {EXAMPLE}",
    )
    _add_load(parser)
    for prefix in ("", "frontier-"):
        _add_tier(parser, prefix)
    objective = parser.add_argument_group("objective")
    objective.add_argument("--slo-ttft", type=arguments.duration, metavar="D", help="time to the first token")
    objective.add_argument("--slo-tpot", type=arguments.duration, metavar="D", help="time per further token")
    objective.add_argument("--slo-e2e", type=arguments.duration, metavar="D", help="time of the whole answer")
    objective.add_argument("--percentile", type=arguments.fraction, default=0.99, metavar="P", help="kept by (0.99)")
    objective.add_argument(
        "--target-utilization", type=arguments.share, default=0.85, metavar="U", help="at most (0.85)"
    )
    result = parser.add_argument_group("result")
    result.add_argument("--out", type=Path, metavar="F.yaml", help="write the configuration fragment")
    result.add_argument("--report", type=Path, metavar="F", help="write F.md (with PNG beside it) or F.html")
    result.add_argument("--seed", type=int, default=0, metavar="N", help="of the simulations (0)")
    result.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def _add_load(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("load")
    load.add_argument("--trace", type=Path, metavar="F", help="own CSV, Azure, BurstGPT or Mooncake; .gz of each")
    load.add_argument("--rate-scale", type=arguments.positive, default=1.0, metavar="X", help="a trace X times as fast")
    load.add_argument("--rate", type=arguments.positive, metavar="R", help="requests per second before the cache")
    load.add_argument("--prompt-tokens", type=arguments.positive, metavar="N", help="mean")
    load.add_argument("--output-tokens", type=arguments.positive, metavar="N", help="mean")
    load.add_argument("--shape", choices=("fixed", "exponential", "lognormal"), default="lognormal", help="of lengths")
    load.add_argument("--hit-rate", type=arguments.fraction, metavar="S", help="answered by the cache (0)")
    load.add_argument("--frontier-share", type=arguments.fraction, metavar="S", help="of the rest, to the frontier (0)")
    load.add_argument("--metrics", type=Path, metavar="F", help="/metrics of a gateway: hit rate, share, mean lengths")


def _add_tier(parser: argparse.ArgumentParser, prefix: str) -> None:
    group = parser.add_argument_group("frontier tier" if prefix else "small tier")
    group.add_argument(f"--{prefix}model", metavar="NAME", help="name in the configuration")
    group.add_argument(f"--{prefix}model-config", type=Path, metavar="F", help="the model's config.json")
    group.add_argument(f"--{prefix}gpu", metavar="G", help="A100-SXM-80GB, H100-SXM, L40S …")
    group.add_argument(f"--{prefix}quantization", default="fp16", metavar="Q", help="of the weights (fp16)")
    group.add_argument(f"--{prefix}cache-dtype", choices=("auto", "fp8"), default="auto", help="of the KV cache")
    group.add_argument(
        f"--{prefix}tensor-parallel", type=arguments.counts, metavar="N,N", help="to choose from: 1,2,4,8"
    )
    group.add_argument(f"--{prefix}engine", choices=PROFILES, default="vllm", help="whose efficiency (vllm)")
    group.add_argument(f"--{prefix}step-model", type=Path, metavar="F", help="a calibration instead of the data sheet")
    group.add_argument(
        f"--{prefix}kv-tokens", type=arguments.count, metavar="N", help="KV cache of the calibrated engine"
    )
    group.add_argument(f"--{prefix}gpu-price", type=arguments.positive, metavar="P", help="per GPU and hour")
    if not prefix:
        group.add_argument("--memory-fraction", type=arguments.share, default=0.9, metavar="F", help="of GPUs (0.9)")
        group.add_argument("--link", type=arguments.size, default=50 * 10**9, metavar="SIZE", help="per second (50GB)")


def run(options: argparse.Namespace) -> int:
    """Print the plan; 1 where nothing keeps the objective."""
    # numpy, scipy and the compiled simulator take a moment to load.
    from capacity.fleet.plan import plan_fleet  # noqa: PLC0415

    try:
        ask, cheaper = _ask(options)
    except ValueError as error:
        raise ConfigError([Problem("", str(error))]) from None
    document, plans = plan_fleet(ask, cheaper, _note)
    _note("")
    if document["config"] is not None:
        _check(document["config"])
    text = yaml.safe_dump(document["config"], sort_keys=False) if document["config"] is not None else ""
    if options.out is not None and text:
        options.out.write_text(text, encoding="utf-8")
    if options.report is not None:
        _write_report(options.report, document, plans, ask)
    print(json.dumps(document) if options.json else _text(document, text))
    for warning in document["warnings"]:
        print(f"forebay: {warning}", file=sys.stderr)
    return 0 if document["meets_slo"] else 1


def planned(words: Sequence[str]) -> dict[str, Any]:
    """The plan for these options of the command, as a document. Raises ConfigError where they are none."""
    from capacity.fleet.plan import plan_fleet  # noqa: PLC0415  # as above

    parser = _Parser()
    add(parser.add_subparsers(parser_class=_Parser))
    try:
        options = parser.parse_args(["fleet", *words])
        ask, cheaper = _ask(options)
    except ValueError as error:
        raise ConfigError([Problem("--plan", str(error))]) from None
    document, _ = plan_fleet(ask, cheaper, _note)
    _note("")
    return document


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with the options to whoever gave them, and does not exit."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _ask(options: argparse.Namespace) -> "tuple[FleetAsk, dict[str, dict[str, EngineOption]]]":
    from capacity.fleet.ask import FleetAsk, Objective  # noqa: PLC0415  # as above
    from capacity.fleet.observed import Observed, observed  # noqa: PLC0415  # as above

    seen = Observed(None, None, None, None)
    if options.metrics is not None:
        seen = observed(options.metrics.read_text(encoding="utf-8"))
    objective = Objective(options.slo_ttft, options.slo_tpot, options.slo_e2e, options.percentile)
    if not objective.targets:
        raise ValueError("no objective: give --slo-ttft, --slo-tpot or --slo-e2e")
    demand = _demand(options, seen.prompt_tokens, seen.output_tokens)
    hit_rate = _given(options.hit_rate, seen.hit_rate)
    share = _given(options.frontier_share, seen.frontier_share)
    frontier = options.frontier_model_config is not None or options.frontier_step_model is not None
    if share > 0 and not frontier:
        raise ValueError("a frontier share needs --frontier-model-config and --frontier-gpu, or --frontier-step-model")
    small, small_cheaper = _tier(options, "", "small", (1 - hit_rate) * (1 - share), demand)
    tiers, cheaper = [small], {"small": small_cheaper}
    if frontier:
        tier, cheaper["frontier"] = _tier(options, "frontier_", "frontier", (1 - hit_rate) * share, demand)
        tiers.append(tier)
    ask = FleetAsk(demand, objective, tuple(tiers), hit_rate, share, options.target_utilization, options.link)
    return replace(ask, seed=options.seed, memory_fraction=options.memory_fraction), cheaper


def _given(option: float | None, seen: float | None) -> float:
    return option if option is not None else seen or 0.0


def _demand(options: argparse.Namespace, prompt: float | None, output: float | None) -> "Demand":
    from capacity.fleet.ask import Demand  # noqa: PLC0415  # as above
    from capacity.traces import read_trace  # noqa: PLC0415  # as above
    from capacity.workload import Spread  # noqa: PLC0415  # as above

    if options.trace is not None:
        demand = Demand.of_trace(read_trace(options.trace).requests, options.rate_scale)
        # A rate with a trace asks for the trace's shape at that rate.
        return (
            demand if options.rate is None else Demand.of_trace(demand.recorded or _none(), options.rate / demand.rate)
        )
    prompt, output = options.prompt_tokens or prompt, options.output_tokens or output
    if options.rate is None or prompt is None or output is None:
        raise ValueError("give --trace F, or --rate R with --prompt-tokens N and --output-tokens N (or --metrics F)")
    return Demand(options.rate, prompt, output, Spread(prompt, output, options.shape, options.shape))


def _none() -> Any:
    raise ValueError("a trace without requests")


def _tier(
    options: argparse.Namespace, prefix: str, name: str, share: float, demand: "Demand"
) -> "tuple[TierAsk, dict[str, EngineOption]]":
    from capacity.fleet.ask import TierAsk  # noqa: PLC0415  # as above

    def option(key: str) -> Any:
        return getattr(options, f"{prefix}{key}")

    model = option("model") or (option("model_config").stem if option("model_config") else f"{name}-model")
    if option("step_model") is not None:
        engines, cheaper = _calibrated(option)
    else:
        engines, cheaper = _from_sheet(option, options.memory_fraction, demand)
    return TierAsk(name, model, share, engines, option("gpu_price")), cheaper


def _calibrated(option: Any) -> "tuple[tuple[EngineOption, ...], dict[str, EngineOption]]":
    from capacity.architecture import read_architecture  # noqa: PLC0415  # as above
    from capacity.fleet.options import calibrated  # noqa: PLC0415  # as above
    from capacity.memory import kv_bytes_per_token  # noqa: PLC0415  # as above
    from capacity.step_model import read_step_model  # noqa: PLC0415  # as above

    model = read_step_model(option("step_model"))
    tokens, kv_bytes = option("kv_tokens"), 0.0
    if option("model_config") is not None:
        kv_bytes = kv_bytes_per_token(read_architecture(read_settings(option("model_config"))))
        if tokens is None and option("gpu") is not None:
            ranks = model.engine.get("tensor_parallel_size", 1)
            tokens = _model_on(option, 0.9).room(ranks if isinstance(ranks, int) else 1)
    wanted = {"gpu": option("gpu"), "model": option("model")}
    mismatches = model.mismatches({key: value for key, value in wanted.items() if value is not None})
    if mismatches:
        raise ValueError(f"the calibration is of another engine: {'; '.join(mismatches)}")
    return (calibrated(model, tokens, kv_bytes, option("gpu") or "", option("quantization")),), {}


def _model_on(option: Any, memory_fraction: float) -> "ModelOn":
    from capacity.devices import find_device  # noqa: PLC0415  # as above
    from capacity.fleet.options import ModelOn  # noqa: PLC0415  # as above

    if option("model_config") is None or option("gpu") is None:
        raise ValueError("a tier needs --model-config F and --gpu G, or --step-model F")
    settings = read_settings(option("model_config"))
    device = find_device(option("gpu"))
    return ModelOn(settings, device, option("engine"), option("quantization"), option("cache_dtype"), memory_fraction)


def _from_sheet(
    option: Any, memory_fraction: float, demand: "Demand"
) -> "tuple[tuple[EngineOption, ...], dict[str, EngineOption]]":
    from capacity.fleet.options import PARALLEL  # noqa: PLC0415  # as above

    on = _model_on(option, memory_fraction)
    ranks: Sequence[int] = option("tensor_parallel") or PARALLEL
    engines = on.all(ranks, demand.prompt_tokens, demand.output_tokens)
    cheaper: dict[str, EngineOption] = {}
    if engines:
        least = engines[0].tensor_parallel
        changed = {"kv_fp8": replace(on, cache_dtype="fp8"), "weights_fp8": replace(on, quantization="fp8")}
        for code, other in changed.items():
            found = other.option(least, demand.prompt_tokens, demand.output_tokens) if other != on else None
            if found is not None:
                cheaper[code] = found
        more = on.option(2 * least, demand.prompt_tokens, demand.output_tokens)
        if more is not None:
            cheaper["more_ranks"] = more
    return engines, cheaper


def _check(fragment: dict[str, Any]) -> None:
    """The fragment must be a configuration. Raises ConfigError: a fault here is ours."""
    from core.config import validate  # noqa: PLC0415  # as above

    validate(fragment)


def _write_report(path: Path, document: dict[str, Any], plans: "list[TierPlan]", ask: "FleetAsk") -> None:
    from capacity.fleet.report import markdown, page, picture  # noqa: PLC0415  # as above

    pictures = {plan.ask.name: drawn for plan in plans if (drawn := picture(plan, ask)) is not None}
    if path.suffix == ".html":
        path.write_text(page(document, pictures), encoding="utf-8")
        return
    names = {}
    for name, drawn in pictures.items():
        beside = path.with_name(f"{path.stem}-{name}.png")
        beside.write_bytes(drawn)
        names[name] = beside.name
    path.write_text(markdown(document, names), encoding="utf-8")


def _note(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text:<70}\r", end="", file=sys.stderr, flush=True)


def _text(document: dict[str, Any], fragment: str) -> str:
    from capacity.fleet.report import markdown  # noqa: PLC0415  # as above

    return markdown(document, {}) + (f"\n```yaml\n{fragment}```" if fragment else "")
