"""What arrives: when, how long, of which class; drawn from distributions or read from a trace."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from capacity.arrivals import Arrivals
from core.errors import ConfigError, Problem

Times = NDArray[np.float64]
Counts = NDArray[np.int32]


@dataclass(frozen=True)
class PrefixBlocks:
    """The prompt's prefix as ids of whole blocks of `tokens` tokens each: equal ids, equal prefix up to there.

    Request i has `ids[offsets[i]:offsets[i + 1]]`; ids are 0 … `distinct` - 1.
    """

    offsets: NDArray[np.int64]
    ids: Counts
    tokens: int
    distinct: int


@dataclass(frozen=True)
class Clients:
    """Bounded senders: at most `in_flight` requests at a time; who has an answer waits `think_s` before the next one.

    With all arrivals at 0 this is a closed loop of `in_flight` clients; with later arrivals it is a load generator that
    falls behind its schedule when it runs out of connections.
    """

    in_flight: int
    think_s: float = 0.0


@dataclass(frozen=True)
class Requests:
    """A drawn workload; arrays of one length. `arrived` (seconds) ascends; tokens are at least 1.

    `priority`: 0 is served first. `group` indexes `names`; empty `names`: requests are classed by their lengths.
    `work`: own seconds of service where a scheduler ignores lengths (a queue of theory), None for 0.
    """

    arrived: Times
    prompt: Counts
    output: Counts
    group: NDArray[np.int16]
    priority: NDArray[np.int8]
    names: tuple[str, ...] = ()
    prefix: PrefixBlocks | None = None
    work: Times | None = None
    clients: Clients | None = None

    def __len__(self) -> int:
        return len(self.arrived)

    def take(self, rows: NDArray[np.int64]) -> "Requests":
        """The requests of these rows, in this order; a bound on clients is for the whole and is dropped."""
        prefix = self.prefix
        if prefix is not None:
            lengths = np.diff(prefix.offsets)[rows]
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
            source = np.repeat(prefix.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
            prefix = replace(prefix, offsets=offsets, ids=prefix.ids[source])
        return replace(
            self,
            arrived=self.arrived[rows],
            prompt=self.prompt[rows],
            output=self.output[rows],
            group=self.group[rows],
            priority=self.priority[rows],
            prefix=prefix,
            work=None if self.work is None else self.work[rows],
            clients=None,
        )


class Workload(Protocol):
    """Something that requests can be drawn from: the same seed, the same requests."""

    def draw(self, seed: int) -> Requests:
        """The requests, at least one."""
        ...


class Lengths(Protocol):
    """A joint distribution of prompt and output tokens."""

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Counts, Counts]:
        """Prompt and output tokens of `count` requests, each at least 1."""
        ...


@dataclass(frozen=True)
class Spread:
    """Independent prompt and output lengths around their means (tokens).

    `fixed`: the mean itself (rounded); `exponential`: geometric on 1, 2, … with that mean; `lognormal`: that mean with
    the coefficient of variation `cv`, rounded up.
    """

    prompt: float
    output: float
    prompt_shape: str = "fixed"
    output_shape: str = "fixed"
    cv: float = 1.0

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Counts, Counts]:
        """Prompt and output tokens."""
        return (
            _around(self.prompt, self.prompt_shape, self.cv, count, rng),
            _around(self.output, self.output_shape, self.cv, count, rng),
        )


SHAPES = ("fixed", "exponential", "lognormal")


def _around(mean: float, shape: str, cv: float, count: int, rng: np.random.Generator) -> Counts:
    if mean < 1:
        raise ConfigError([Problem("tokens", f"a mean of {mean} tokens; legal is at least 1")])
    if shape == "fixed":
        return np.full(count, round(mean), dtype=np.int32)
    if shape == "exponential":
        return np.minimum(rng.geometric(1 / mean, count), 2**31 - 1).astype(np.int32)
    if shape == "lognormal":
        sigma2 = np.log1p(cv**2)
        # Rounding up adds half a token to the mean.
        values = rng.lognormal(np.log(max(mean - 0.5, 0.5)) - sigma2 / 2, np.sqrt(sigma2), count)
        rounded: Counts = np.maximum(np.ceil(values), 1).astype(np.int32)
        return rounded
    raise ConfigError([Problem("lengths", f"{shape!r} is unknown; legal are {', '.join(SHAPES)}")])


@dataclass(frozen=True)
class Sampled:
    """Prompt and output drawn together from observed pairs, so that their correlation stays."""

    prompt: Counts
    output: Counts

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Counts, Counts]:
        """Rows of the observation, with replacement."""
        rows = rng.integers(0, len(self.prompt), count)
        return self.prompt[rows], self.output[rows]


@dataclass(frozen=True)
class Group:
    """A class of requests: its share of the arrivals, its lengths and its priority (0 is served first)."""

    name: str
    share: float
    lengths: Lengths
    priority: int = 0


@dataclass(frozen=True)
class Synthetic:
    """`count` requests from an arrival process, of one or more classes.

    `work_mean_s` and `work_shape` (`fixed`, `exponential`) give each request its own service time, for queues whose
    scheduler ignores lengths.
    """

    arrivals: Arrivals
    count: int
    groups: Sequence[Group]
    work_mean_s: float = 0.0
    work_shape: str = "fixed"
    clients: Clients | None = None

    def draw(self, seed: int) -> Requests:
        """The requests of one seed."""
        rng = np.random.default_rng(seed)
        arrived = self.arrivals.times(self.count, rng)
        group, prompt, output = self._kinds(rng)
        priorities = np.array([entry.priority for entry in self.groups], dtype=np.int8)
        work = None
        if self.work_mean_s > 0:
            exponential = self.work_shape == "exponential"
            work = (
                rng.exponential(self.work_mean_s, self.count) if exponential else np.full(self.count, self.work_mean_s)
            )
        names = tuple(entry.name for entry in self.groups) if len(self.groups) > 1 else ()
        return Requests(arrived, prompt, output, group, priorities[group], names, work=work, clients=self.clients)

    def _kinds(self, rng: np.random.Generator) -> tuple[NDArray[np.int16], Counts, Counts]:
        if len(self.groups) == 1:
            return np.zeros(self.count, dtype=np.int16), *self.groups[0].lengths.draw(self.count, rng)
        shares = np.array([entry.share for entry in self.groups])
        if (shares < 0).any() or shares.sum() <= 0:
            raise ConfigError([Problem("class", "shares are numbers from 0 whose sum is above 0")])
        group = rng.choice(len(shares), self.count, p=shares / shares.sum()).astype(np.int16)
        prompt, output = np.empty(self.count, dtype=np.int32), np.empty(self.count, dtype=np.int32)
        for index, entry in enumerate(self.groups):
            rows = group == index
            prompt[rows], output[rows] = entry.lengths.draw(int(rows.sum()), rng)
        return group, prompt, output


@dataclass(frozen=True)
class Replay:
    """Requests as they were recorded; `rate_scale` 2 lets them come twice as fast. The seed changes nothing."""

    requests: Requests
    rate_scale: float = 1.0

    def draw(self, seed: int) -> Requests:  # noqa: ARG002 - a recording has nothing to draw
        """The recording."""
        if self.rate_scale == 1.0:
            return self.requests
        return replace(self.requests, arrived=self.requests.arrived / self.rate_scale)


def plain(arrived: Times, prompt: Counts, output: Counts, prefix: PrefixBlocks | None = None) -> Requests:
    """Requests of one class and one priority."""
    zeros = np.zeros(len(arrived), dtype=np.int16)
    return Requests(arrived, prompt, output, zeros, zeros.astype(np.int8), prefix=prefix)
