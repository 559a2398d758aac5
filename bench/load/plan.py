"""From what is asked for to what is sent when: arrivals, lengths and texts of a run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import JsonValue

from bench.load.loop import Users
from bench.load.measures import Wanted
from bench.load.prompts import Chats, Mixed, Prompts, Said, Scale, Synthetic, Texts, mixed
from bench.questions import PARAPHRASES
from capacity.arrivals import Arrivals, Constant, Gamma, Immediate, Mmpp, Poisson
from capacity.lengths import LONG_OUTPUT, LONG_PROMPT
from capacity.traces import read_trace
from capacity.workload import Group, Lengths, Requests
from capacity.workload import Synthetic as Drawn
from core.errors import ConfigError, Problem

ARRIVALS = ("poisson", "constant", "gamma", "mmpp")


@dataclass(frozen=True)
class Arriving:
    """When requests come. One of `rate` (per second), `users` (a closed loop), `trace`; `ramp` goes from one rate to
    another over the duration. `cv`: of gamma gaps.
    """

    rate: float | None = None
    users: int | None = None
    trace: Path | None = None
    ramp: tuple[float, float] | None = None
    kind: str = "poisson"
    cv: float = 2.0
    rate_scale: float = 1.0
    duration_s: float | None = None
    requests: int | None = None
    think_s: float = 0.0
    stagger_s: float = 0.0


@dataclass(frozen=True)
class Asking:
    """What is asked. `groups`: lengths of synthetic texts; or `chats`, a file; or `pairs` in shares `mix` of repeats
    and paraphrases. `shared`: tokens and number of shared beginnings. `cap`: longest answer to a chat.
    """

    model: str
    groups: Sequence[Group] = ()
    chats: Path | None = None
    mix: tuple[float, float] | None = None
    pairs: Path | None = None
    cap: int | None = None
    shared: tuple[int, int] = (0, 1)
    turns: int = 1
    think_s: float = 0.0
    kind: str = "chat"
    stream: bool = True
    exact: bool = True
    extra: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A run that is ready to go. `due` None: a closed loop of `users`. `skipped`: rows of a trace without a request."""

    prompts: Prompts
    due: NDArray[np.float64] | None
    users: Users | None
    wanted: Wanted
    skipped: int = 0


def plan(arriving: Arriving, asking: Asking, *, seed: int, salt: int, scale: Scale) -> Plan:
    """The run. Raises ConfigError for what does not go together."""
    drawn, skipped = _drawn(arriving, asking, seed)
    texts = _texts(asking, drawn, seed, salt, scale)
    prompts = Prompts(
        asking.model, texts, asking.kind, asking.stream, asking.exact, asking.turns, asking.think_s, asking.extra
    )
    users = None
    if arriving.users is not None:
        users = Users(arriving.users, arriving.think_s, arriving.duration_s, arriving.stagger_s)
    return Plan(
        prompts, None if users is not None else drawn.arrived, users, _wanted(texts, drawn, users is None), skipped
    )


def _drawn(arriving: Arriving, asking: Asking, seed: int) -> tuple[Requests, int]:
    if arriving.trace is not None:
        return _replayed(arriving)
    count = _count(arriving)
    groups = list(asking.groups) or [Group("all", 1.0, _Unknown())]
    drawn = Drawn(_process(arriving), count, groups).draw(seed)
    if arriving.ramp is not None:
        drawn = replace(drawn, arrived=_ramped(arriving, count, np.random.default_rng((seed, 1))))
    if arriving.duration_s is not None and arriving.users is None:
        drawn = drawn.take(np.flatnonzero(drawn.arrived < arriving.duration_s))
    if not len(drawn):
        raise ConfigError([Problem("duration", "no request arrives within it")])
    return drawn, 0


def _replayed(arriving: Arriving) -> tuple[Requests, int]:
    assert arriving.trace is not None  # noqa: S101 - asked before
    trace = read_trace(arriving.trace)
    requests = trace.requests
    if arriving.requests is not None:
        requests = requests.take(np.arange(min(arriving.requests, len(requests))))
    scale = arriving.rate_scale
    if arriving.rate is not None:
        length = float(requests.arrived[-1] - requests.arrived[0])
        if length <= 0:
            raise ConfigError([Problem("rate", "the trace takes no time, so it has no rate to scale")])
        scale = arriving.rate / ((len(requests) - 1) / length)
    if scale <= 0:
        raise ConfigError([Problem("rate_scale", f"{scale}; legal is a number above 0")])
    requests = replace(requests, arrived=requests.arrived / scale)
    if arriving.duration_s is not None and arriving.users is None:
        requests = requests.take(np.flatnonzero(requests.arrived < arriving.duration_s))
    return requests, trace.skipped


class _Unknown(Lengths):
    """Lengths that the texts decide."""

    def draw(self, count: int, rng: np.random.Generator) -> tuple[NDArray[np.int32], NDArray[np.int32]]:  # noqa: ARG002
        """-1 for every one."""
        return np.full(count, -1, dtype=np.int32), np.full(count, -1, dtype=np.int32)


def _count(arriving: Arriving) -> int:
    """How many requests to draw; a duration cuts them afterwards."""
    if arriving.requests is not None:
        return arriving.requests
    if arriving.duration_s is None:
        raise ConfigError([Problem("duration", "missing; give --duration D or --requests N")])
    if arriving.users is not None:
        # Ten thousand answers per second and user are more than any server gives.
        return min(max(int(arriving.duration_s * arriving.users * 200), 1000), 500_000)
    rate = max(arriving.ramp) if arriving.ramp is not None else arriving.rate or 1.0
    mean = rate * arriving.duration_s
    spread = {"gamma": arriving.cv, "mmpp": 5.0, "constant": 0.0}.get(arriving.kind, 1.0)
    return math.ceil(mean + (6 * math.sqrt(mean) + 10) * max(spread, 0.1))


def _process(arriving: Arriving) -> Arrivals:
    if arriving.users is not None or arriving.ramp is not None:
        return Immediate()
    if arriving.rate is None or not 0 < arriving.rate < math.inf:
        raise ConfigError([Problem("rate", f"{arriving.rate}; legal is a number of requests per second above 0")])
    made: dict[str, Arrivals] = {
        "poisson": Poisson(arriving.rate),
        "constant": Constant(arriving.rate),
        "gamma": Gamma(arriving.rate, arriving.cv),
        "mmpp": Mmpp(arriving.rate),
    }
    return made[arriving.kind]


def _ramped(arriving: Arriving, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """A Poisson stream whose rate goes in a straight line: a unit stream read on the clock of expected arrivals."""
    assert arriving.ramp is not None  # noqa: S101 - asked before
    first, last = arriving.ramp
    if arriving.duration_s is None:
        raise ConfigError([Problem("duration", "missing; a ramp goes over --duration D")])
    times = np.linspace(0.0, arriving.duration_s, 10_001)
    expected = first * times + (last - first) * times**2 / (2 * arriving.duration_s)
    unit = np.cumsum(rng.exponential(1.0, count))
    return np.where(unit < expected[-1], np.interp(unit, expected, times), np.inf)


def _texts(asking: Asking, drawn: Requests, seed: int, salt: int, scale: Scale) -> Texts:
    count = len(drawn)
    if asking.chats is not None:
        return Chats(read_chats(asking.chats), count, asking.cap)
    if asking.mix is not None:
        pairs = PARAPHRASES if asking.pairs is None else read_pairs(asking.pairs)
        return mixed(pairs, count, asking.mix, np.random.default_rng((seed, 2)), asking.cap)
    tokens, distinct = asking.shared
    return Synthetic(drawn.prompt, drawn.output, salt, scale, tokens, distinct, drawn.prefix)


def _wanted(texts: Texts, drawn: Requests, open_loop: bool) -> Wanted:
    kinds: Sequence[str] = ()
    prompt, output = drawn.prompt.astype(np.int64), drawn.output.astype(np.int64)
    if isinstance(texts, Mixed):
        kinds = texts.kinds
    elif isinstance(texts, Chats):
        kinds = [texts.kind(index) for index in range(len(texts))]
    if not isinstance(texts, Synthetic):
        prompt, output = np.full(len(drawn), -1), np.full(len(drawn), -1)
    bounds, named = (LONG_PROMPT, LONG_OUTPUT), drawn.names
    return Wanted(prompt, output, kinds, bounds, open_loop, names=named, group=drawn.group if named else None)


def read_chats(path: Path) -> list[Said]:
    """Rows of `{"messages": […]}` or `{"prompt": "…"}`, each with `max_tokens` or without. Raises ConfigError."""
    rows = []
    for line, row in _lines(path):
        messages = row.get("messages")
        if messages is None and isinstance(row.get("prompt"), str):
            messages = [{"role": "user", "content": row["prompt"]}]
        if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
            raise ConfigError([Problem("chats", f"{path}:{line}: legal are messages (a list) or prompt (a text)")])
        limit = row.get("max_tokens")
        rows.append(Said(messages, None, limit if isinstance(limit, int) and limit > 0 else None))
    return rows


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Rows of `{"a", "b"}`, the same question in two wordings; rows with `same: 0` are left out. Raises ConfigError."""
    pairs = []
    for line, row in _lines(path):
        if row.get("same", 1) == 0:
            continue
        if not isinstance(row.get("a"), str) or not isinstance(row.get("b"), str):
            raise ConfigError([Problem("pairs", f"{path}:{line}: legal are the texts a and b")])
        pairs.append((row["a"], row["b"]))
    if not pairs:
        raise ConfigError([Problem("pairs", f"{path} holds no pairs")])
    return pairs


def _lines(path: Path) -> list[tuple[int, dict[str, Any]]]:
    try:
        lines = path.read_bytes().splitlines()
        rows = [(number, orjson.loads(line)) for number, line in enumerate(lines, start=1) if line.strip()]
    except (OSError, orjson.JSONDecodeError) as error:
        raise ConfigError([Problem("chats", f"{path} cannot be read: {error}")]) from None
    if not rows or not all(isinstance(row, dict) for _, row in rows):
        raise ConfigError([Problem("chats", f"{path} is no file of JSON objects, one a line")])
    return rows
