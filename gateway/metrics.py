"""Every metric of the gateway in one table.

A request updates a dozen of them. prometheus_client's own instruments take a lock and several calls for each, more than
parsing the request costs; these are plain additions, and the library writes them out when they are scraped. They belong
to one thread, the event loop's; a scrape in another thread reads numbers that are at most one update old.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Generic, Literal, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
# Values of one label that clients or operators can make up; the rest is counted as "other".
MAX_VALUES = 1000
OTHER = "other"

_REQUEST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 600)
_FIRST = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.5, 5, 10, 20, 40, 60)
_TOKEN = (0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)
_OVERHEAD = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1)
_WAIT = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_UNIT = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.825, 0.85, 0.875, 0.9, 0.925, 0.95, 0.975, 1.0)
_TENTHS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_PROMPT = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_SIZES = (1, 2, 4, 8, 16, 32, 64)
_EMBED = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28)

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Spec:
    """One row of the table.

    `bounded`: the label whose values are capped. `over_workers`: what a gauge of several processes is; of counters and
    histograms it is the sum.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    bounded: str | None = None
    over_workers: Literal["sum", "max"] = "sum"


TABLE = (
    Spec("forebay_requests_total", "counter", "Requests", ("route", "tier", "cache", "status")),
    Spec("forebay_request_duration_seconds", "histogram", "Arrival to last byte", ("tier", "cache"), _REQUEST),
    Spec(
        "forebay_time_to_first_token_seconds",
        "histogram",
        "Arrival to first content of a stream",
        ("tier", "cache"),
        _FIRST,
    ),
    Spec(
        "forebay_time_per_output_token_seconds",
        "histogram",
        "First to last content of a stream, per further output token",
        ("tier",),
        _TOKEN,
    ),
    Spec(
        "forebay_overhead_seconds",
        "histogram",
        "Time in the gateway itself: waits for queue, tier and client taken out",
        ("cache",),
        _OVERHEAD,
    ),
    Spec("forebay_cache_lookups_total", "counter", "Cache lookups", ("layer", "result")),
    Spec("forebay_cache_similarity", "histogram", "Best similarity per semantic lookup", (), _UNIT),
    Spec("forebay_cache_entries", "gauge", "Stored answers that the layer can serve", ("layer",)),
    Spec(
        "forebay_cache_writes_skipped_total", "counter", "Answers that were not stored", ("reason",), bounded="reason"
    ),
    Spec("forebay_cache_judge_total", "counter", "Doubts of the guard by what the judge said", ("verdict",)),
    Spec("forebay_cache_shadow_total", "counter", "Semantic hits compared with a fresh answer", ("agreement",)),
    Spec("forebay_cache_shadow_skipped_total", "counter", "Semantic hits drawn but not compared", ("reason",)),
    Spec("forebay_saved_tokens_total", "counter", "Output tokens that were not generated", ("source",)),
    Spec("forebay_saved_cost_total", "counter", "Cost avoided, in the unit of the tiers' prices", ("source",)),
    Spec("forebay_embed_seconds", "histogram", "One forward pass of the embedder", (), _EMBED),
    Spec("forebay_embed_batch_size", "histogram", "Texts in one forward pass", (), _SIZES),
    Spec("forebay_router_decisions_total", "counter", "Tier decisions", ("tier", "reason")),
    Spec("forebay_router_complexity", "histogram", "Complexity of scored requests", (), _TENTHS),
    Spec(
        "forebay_router_drift",
        "gauge",
        "Live scores against the training sample: population stability index",
        over_workers="max",
    ),
    Spec(
        "forebay_router_misrouted_total",
        "counter",
        "Requests on the wrong tier, estimated from samples",
        ("direction",),
    ),
    Spec("forebay_feedback_total", "counter", "Feedback on answers", ("tier", "verdict")),
    Spec(
        "forebay_cascade_held_seconds",
        "histogram",
        "First content of the small tier to the cascade's verdict",
        ("verdict",),
        _FIRST,
    ),
    Spec("forebay_queue_wait_seconds", "histogram", "Time in the tier's queue", ("tier", "priority"), _WAIT),
    Spec("forebay_queue_depth", "gauge", "Requests in the tier's queue", ("tier",)),
    Spec("forebay_inflight", "gauge", "Requests inside the tier", ("tier",)),
    Spec("forebay_queue_limit", "gauge", "Requests that the tier's queue holds when full", ("tier",)),
    Spec("forebay_inflight_limit", "gauge", "Requests inside the tier when full", ("tier",)),
    Spec("forebay_replicas_up", "gauge", "Servers of the tier that answer", ("tier",), over_workers="max"),
    Spec(
        "forebay_token_price",
        "gauge",
        "Configured price per million tokens",
        ("tier", "kind"),
        over_workers="max",
    ),
    Spec("forebay_cache_threshold", "gauge", "Configured least similarity of a semantic hit", over_workers="max"),
    Spec("forebay_router_threshold", "gauge", "Configured complexity for the frontier tier", over_workers="max"),
    Spec("forebay_shed_total", "counter", "Requests refused before the tier", ("tier", "reason")),
    Spec("forebay_tokens_total", "counter", "Tokens as the engine counts them", ("tier", "kind")),
    Spec(
        "forebay_prompt_tokens", "histogram", "Prompt tokens per request as the engine counts them", ("tier",), _PROMPT
    ),
    Spec("forebay_tenant_requests_total", "counter", "Requests by tenant", ("tenant",), bounded="tenant"),
    Spec("forebay_tenant_tokens_total", "counter", "Tokens by tenant", ("tenant",), bounded="tenant"),
    Spec("forebay_tenant_shed_total", "counter", "Refused requests by tenant", ("tenant",), bounded="tenant"),
    Spec(
        "forebay_limits_unchecked_total",
        "counter",
        "Requests let pass as the limits' store did not answer",
        ("reason",),
    ),
    Spec("forebay_upstream_errors_total", "counter", "Failed calls to a tier's server", ("tier", "kind")),
    Spec(
        "forebay_dependency_breaker_state",
        "gauge",
        "Breaker of the embedder or a shared store: 0 closed, 1 half-open, 2 open",
        ("dependency",),
        over_workers="max",
    ),
    Spec("forebay_retries_total", "counter", "Further tries of a call before its first content", ("tier",)),
    Spec(
        "forebay_breaker_state",
        "gauge",
        "Breaker of a server: 0 closed, 1 half open, 2 open",
        ("tier", "url"),
        over_workers="max",
    ),
)


class Count:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Add; `amount` is not negative."""
        self.value += amount


class Level:
    """A number that is read where it is, when it is scraped."""

    __slots__ = ("read",)

    def __init__(self) -> None:
        self.read: Callable[[], float] = float


class Spread:
    """How values are spread over buckets; `counts` are per bucket, not cumulative, the last one is above all bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Add one value; a bound belongs to its bucket."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def merge(self, parts: list[float]) -> None:
        """Add the counts of another process, and after them its total."""
        *counts, total = parts
        if len(counts) == len(self.counts):
            self.counts = [mine + int(theirs) for mine, theirs in zip(self.counts, counts, strict=True)]
            self.total += total


Child = TypeVar("Child", Count, Level, Spread)
# By name: label values, and a number, or a histogram's counts and total.
Snapshot = dict[str, list[tuple[list[str], float | list[float]]]]


class Family(Generic[Child]):
    """One row of the table with a child for each combination of label values.

    Values of the bounded label beyond the cap are `other`.
    """

    __slots__ = ("_bounded", "_make", "_values", "children", "spec")

    def __init__(self, spec: Spec, make: Callable[[], Child]) -> None:
        self.spec = spec
        self.children: dict[tuple[str, ...], Child] = {}
        self._make: Callable[[], Child] = make
        self._bounded = spec.labels.index(spec.bounded) if spec.bounded else None
        self._values: set[str] = set()
        if not spec.labels:
            self()

    def __call__(self, *values: str) -> Child:
        """The child with these label values, in the table's order."""
        found = self.children.get(values)
        return self._new(values) if found is None else found

    def drop(self, *values: str) -> None:
        """Forget the child with these label values: what it measured is no more."""
        self.children.pop(values, None)

    def _new(self, values: tuple[str, ...]) -> Child:
        if self._bounded is not None:
            value = values[self._bounded]
            if value not in self._values and value != OTHER:
                if len(self._values) >= MAX_VALUES:
                    return self(*values[: self._bounded], OTHER, *values[self._bounded + 1 :])
                self._values.add(value)
        child = self.children[values] = self._make()
        return child


AnyFamily = Family[Count] | Family[Level] | Family[Spread]


class Metrics:
    """The table as objects. One instance per gateway process, one registry per instance."""

    def __init__(self) -> None:
        self._families: list[AnyFamily] = []
        specs = {spec.name.removeprefix("forebay_"): spec for spec in TABLE}

        def counter(name: str) -> Family[Count]:
            family = Family(specs[name], Count)
            self._families.append(family)
            return family

        def gauge(name: str) -> Family[Level]:
            family = Family(specs[name], Level)
            self._families.append(family)
            return family

        def histogram(name: str) -> Family[Spread]:
            spec = specs[name]
            family = Family(spec, lambda: Spread(spec.buckets))
            self._families.append(family)
            return family

        self.requests = counter("requests_total")
        self.duration = histogram("request_duration_seconds")
        self.first_token = histogram("time_to_first_token_seconds")
        self.per_token = histogram("time_per_output_token_seconds")
        self.overhead = histogram("overhead_seconds")
        self.lookups = counter("cache_lookups_total")
        self.similarity = histogram("cache_similarity")
        self.entries = gauge("cache_entries")
        self.writes_skipped = counter("cache_writes_skipped_total")
        self.judge = counter("cache_judge_total")
        self.shadow = counter("cache_shadow_total")
        self.shadow_skipped = counter("cache_shadow_skipped_total")
        self.saved_tokens = counter("saved_tokens_total")
        self.saved_cost = counter("saved_cost_total")
        self.embed = histogram("embed_seconds")
        self.embed_batch = histogram("embed_batch_size")
        self.decisions = counter("router_decisions_total")
        self.complexity = histogram("router_complexity")
        self.drift = gauge("router_drift")
        self.misrouted = counter("router_misrouted_total")
        self.feedback = counter("feedback_total")
        self.cascade_held = histogram("cascade_held_seconds")
        self.queue_wait = histogram("queue_wait_seconds")
        self.shed = counter("shed_total")
        self.tokens = counter("tokens_total")
        self.prompt_tokens = histogram("prompt_tokens")
        self.tenant_requests = counter("tenant_requests_total")
        self.tenant_tokens = counter("tenant_tokens_total")
        self.tenant_shed = counter("tenant_shed_total")
        self.limits_unchecked = counter("limits_unchecked_total")
        self.upstream_errors = counter("upstream_errors_total")
        self.retries = counter("retries_total")
        self.breaker_state = gauge("breaker_state")
        self.dependency_breaker = gauge("dependency_breaker_state")
        self._levels(gauge)

        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def _levels(self, gauge: Callable[[str], Family[Level]]) -> None:
        """Levels of the tiers, and settings that numbers are judged by."""
        self.queue_depth = gauge("queue_depth")
        self.inflight = gauge("inflight")
        self.queue_limit = gauge("queue_limit")
        self.inflight_limit = gauge("inflight_limit")
        self.replicas_up = gauge("replicas_up")
        self.token_price = gauge("token_price")
        self.cache_threshold = gauge("cache_threshold")
        self.router_threshold = gauge("router_threshold")

    def collect(self) -> Iterator[Metric]:
        """What prometheus_client writes out."""
        for family in self._families:
            yield _written(family)

    def render(self) -> bytes:
        """The exposition text. Takes milliseconds with many label values: call it off the event loop."""
        return generate_latest(self._registry)

    def snapshot(self) -> Snapshot:
        """Every value at this moment, as JSON takes it."""
        return {family.spec.name: _values(family) for family in self._families}

    def absorb(self, snapshot: Snapshot, *, gauges: bool = True) -> None:
        """Add what another process has counted. `gauges` False leaves out what ended with that process."""
        for family in self._families:
            for labels, value in snapshot.get(family.spec.name, ()):
                child: Count | Level | Spread = family(*labels)
                if isinstance(child, Count) and isinstance(value, int | float):
                    child.inc(value)
                elif isinstance(child, Spread) and isinstance(value, list):
                    child.merge(value)
                elif isinstance(child, Level) and gauges and isinstance(value, int | float):
                    both = (child.read(), float(value))
                    child.read = partial(float, max(both) if family.spec.over_workers == "max" else sum(both))


def pooled(snapshots: Iterable[Snapshot]) -> Metrics:
    """The metrics of several processes as those of one."""
    total = Metrics()
    for snapshot in snapshots:
        total.absorb(snapshot)
    return total


def _values(family: AnyFamily) -> list[tuple[list[str], float | list[float]]]:
    # A copy: the loop may add a child meanwhile.
    children: list[tuple[tuple[str, ...], Count | Level | Spread]] = list(family.children.items())
    return [(list(labels), _value(child)) for labels, child in children]


def _value(child: Count | Level | Spread) -> float | list[float]:
    if isinstance(child, Spread):
        return [*child.counts, child.total]
    return child.value if isinstance(child, Count) else child.read()


def _written(family: AnyFamily) -> Metric:
    spec = family.spec
    counter = CounterMetricFamily(spec.name, spec.help, labels=spec.labels)
    gauge = GaugeMetricFamily(spec.name, spec.help, labels=spec.labels)
    histogram = HistogramMetricFamily(spec.name, spec.help, labels=spec.labels)
    # A copy: the loop may add a child meanwhile.
    children: list[tuple[tuple[str, ...], Count | Level | Spread]] = list(family.children.items())
    for labels, child in children:
        if isinstance(child, Count):
            counter.add_metric(labels, child.value)
        elif isinstance(child, Level):
            gauge.add_metric(labels, child.read())
        else:
            histogram.add_metric(labels, _cumulative(child), child.total)
    return {"counter": counter, "gauge": gauge, "histogram": histogram}[spec.kind]


def _cumulative(spread: Spread) -> list[tuple[str, float]]:
    buckets, total = [], 0
    for bound, count in zip((*spread.bounds, inf), list(spread.counts), strict=True):
        total += count
        buckets.append(("+Inf" if bound == inf else str(float(bound)), float(total)))
    return buckets
