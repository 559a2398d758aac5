"""A whole measurement: asks the server about itself, makes the plan, sends it, and says what came of it."""

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from bench.load.crew import Load, run
from bench.load.measures import Aims, Run, document
from bench.load.plan import Arriving, Asking, plan
from bench.load.prompts import Scale
from bench.load.repeats import merged
from bench.load.server import About, Server
from bench.load.target import Target
from capacity.arrivals import burstiness
from core.errors import ConfigError, Problem

# Prompts whose mean length is off by more than this share are not those that were asked for.
LENGTH_TOLERANCE = 0.05


@dataclass(frozen=True)
class Order:
    """What to measure. `exact`: whether answers are asked to be of the wanted length; None: where the server is one
    that understands it. `settings`: engine settings that the user states. `bounds`: what prompt and output are long.
    """

    target: Target
    arriving: Arriving
    asking: Asking
    aims: Aims = field(default_factory=Aims)
    seed: int = 0
    salt: int = 0
    repeats: int = 1
    processes: int | None = None
    in_flight: int | None = None
    timeout_s: float = 600.0
    exact: bool | None = None
    bounds: tuple[int, int] | None = None
    settings: Mapping[str, object] | None = None


@dataclass(frozen=True)
class Outcome:
    """The document, and the runs behind it."""

    document: dict[str, object]
    runs: tuple[Run, ...]


def carry_out(order: Order, tell: Callable[[int], None] | None = None) -> Outcome:
    """Measures. Raises ConfigError for a plan that cannot be, ForebayError where no server answers."""
    server = Server(order.target)
    try:
        about = server.about(order.asking.model or None)
        order = _named(order, about)
        scale = server.scale(order.asking.model, order.salt)
        documents, runs = [], []
        for repeat in range(order.repeats):
            one = replace(order, seed=order.seed + repeat, salt=order.salt + repeat)
            measured, found = _once(one, server, about, scale, tell)
            documents.append(found)
            runs.append(measured)
        return Outcome(merged(documents), tuple(runs))
    finally:
        server.close()


def _named(order: Order, about: About) -> Order:
    """With the model's name where none was given, and told whether answers are cut to length."""
    model = order.asking.model
    if not model:
        if not about.models:
            raise ConfigError([Problem("model", "missing, and the server names none")])
        model = about.models[0]
    exact = about.exact if order.exact is None else order.exact
    return replace(order, asking=replace(order.asking, model=model, exact=exact))


def _once(
    order: Order, server: Server, about: About, scale: Scale | None, tell: Callable[[int], None] | None
) -> tuple[Run, dict[str, object]]:
    planned = plan(order.arriving, order.asking, seed=order.seed, salt=order.salt, scale=scale or Scale())
    load = Load(
        order.target,
        planned.prompts,
        planned.due,
        planned.users,
        order.in_flight,
        order.timeout_s,
        order.processes,
    )
    before = server.counters()
    measured = run(load, tell)
    after = server.counters()
    if not len(measured):
        raise ConfigError([Problem("requests", "none was sent")])
    wanted = replace(planned.wanted, bounds=order.bounds or planned.wanted.bounds, bounded=order.in_flight is not None)
    made = Run(measured, wanted)
    notes = _notes(made, planned.skipped, scale)
    found = document(made, order.aims, _setup(order, about, made, scale), notes)
    growth = {name.removesuffix("_total"): after[name] - before.get(name, 0.0) for name in after}
    found["server"] = growth
    preempted = growth.get("vllm:num_preemptions")
    found["preemptions"] = None if preempted is None else round(preempted)
    return made, found


def _notes(made: Run, skipped: int, scale: Scale | None) -> list[str]:
    notes = []
    if skipped:
        notes.append(f"trace: {skipped} rows without prompt or answer were left out")
    index = made.found["index"]
    rows = made.answered & (made.found["prompt"] > 0) & (made.wanted.prompt[index] > 0) & (made.found["turn"] == 0)
    if rows.any():
        ratio = float(made.found["prompt"][rows].sum() / made.wanted.prompt[index][rows].sum())
        if abs(ratio - 1) > LENGTH_TOLERANCE:
            how = "" if scale is not None else ", and the server has no /tokenize to make them fit"
            notes.append(f"prompts had {ratio:.2f} times the tokens that were asked for, as the server counts{how}")
    given = made.answered & (made.wanted.output[index] >= 0)
    off = int((made.tokens[given] != made.wanted.output[index][given]).sum())
    if off:
        notes.append(f"{off} answers were not of the wanted length: a server that ends them itself (--ignore-eos off?)")
    silent = int((made.answered & (made.found["output"] < 0)).sum())
    if silent:
        notes.append(f"{silent} answers came without usage: their chunks were counted as tokens")
    return notes


def _setup(order: Order, about: About, made: Run, scale: Scale | None) -> dict[str, object]:
    """What was measured: enough to do it again."""
    due = made.found["due"][made.found["turn"] == 0]
    stream = None
    if made.wanted.open_loop and len(due) > 2 and due[-1] > due[0]:
        found = burstiness(due)
        windows = {f"dispersion_{window}s": value for window, value in found.dispersion.items()}
        stream = {"rate": found.rate, "gap_cv": found.gap_cv, **windows}
    arriving, asking = order.arriving, order.asking
    source = arriving.trace.name if arriving.trace is not None else "closed" if arriving.users else arriving.kind
    return {
        "url": order.target.base,
        "endpoint": order.target.kind,
        "model": asking.model,
        "seed": order.seed,
        "salt": order.salt,
        "workload": {
            "source": source,
            "concurrency": arriving.users,
            "rate": arriving.rate,
            "rate_scale": arriving.rate_scale,
            "ramp": arriving.ramp,
            "duration_s": arriving.duration_s,
            "max_in_flight": order.in_flight,
            "texts": "chats" if asking.chats else "pairs" if asking.mix else "synthetic",
            "shared_prefix_tokens": asking.shared[0] or None,
            "turns": asking.turns,
            "long": {"prompt_tokens": made.wanted.bounds[0], "output_tokens": made.wanted.bounds[1]},
            "arrivals": stream,
        },
        "engine": {**about.limits, **(order.settings or {})},
        "exact_lengths": asking.exact,
        "tokenizer": None if scale is None else {"overhead": scale.overhead, "tokens_per_word": scale.slope},
        "generator": {
            "processes": len(made.measured.busy),
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
    }
