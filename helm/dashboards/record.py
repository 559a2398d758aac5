"""What a dashboard is made of, and the PromQL that its panels have in common.

A query is written without a fallback. Grafana gets it with `or on() vector(0)`, so that a panel shows a number also
where nothing has happened yet; whoever checks that a panel works asks the query itself.
"""

from dataclasses import dataclass, field
from typing import Literal

RATE = "[$__rate_interval]"
NAMESPACE = 'namespace=~"$namespace"'


@dataclass(frozen=True)
class Query:
    """One line or number of a panel. `legend` may name labels: `{{tier}}`."""

    expr: str
    legend: str

    @property
    def shown(self) -> str:
        """The query as Grafana asks it."""
        return f"({self.expr}) or on() vector(0)"


@dataclass(frozen=True)
class Limit:
    """Where a panel turns red, and what that means. `side`: which side of `at` is bad."""

    at: float
    side: Literal["above", "below"]
    means: str


@dataclass(frozen=True)
class Panel:
    """One panel. `unit` is one of Grafana's; `width` is in twenty-fourths of the page, `most` the end of its axis."""

    title: str
    about: str
    unit: str
    limit: Limit
    queries: tuple[Query, ...]
    kind: Literal["lines", "stack", "number"] = "lines"
    width: int = 8
    most: float | None = None

    @property
    def description(self) -> str:
        """What it shows, and what its red line means."""
        return f"{self.about} Red {self.limit.side} {self.limit.at:g}: {self.limit.means}"


@dataclass(frozen=True)
class Row:
    """A titled part of a dashboard."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Pick:
    """A variable that a reader of the dashboard may narrow: the values of a label of a metric."""

    name: str
    metric: str
    label: str


@dataclass(frozen=True)
class Board:
    """One dashboard; `name` is its file and the end of its uid."""

    name: str
    title: str
    about: str
    rows: tuple[Row, ...]
    picks: tuple[Pick, ...] = field(default=(Pick("namespace", "forebay_inflight_limit", "namespace"),))

    @property
    def panels(self) -> tuple[Panel, ...]:
        """All panels, in order."""
        return tuple(panel for row in self.rows for panel in row.panels)


def above(at: float, means: str) -> Limit:
    """Bad from `at` on."""
    return Limit(at, "above", means)


def below(at: float, means: str) -> Limit:
    """Bad up to `at`."""
    return Limit(at, "below", means)


def pick(name: str, *matchers: str) -> str:
    """A selector of a gateway's metric in the chosen namespaces."""
    return f"{name}{{{','.join((NAMESPACE, *matchers))}}}"


def engine(name: str, *matchers: str) -> str:
    """A selector of an engine's metric, by vLLM's name or the one that Ray gives it."""
    own = (f'__name__=~"(ray_)?vllm[:_]{name}"', NAMESPACE, 'model_name=~"$model"')
    return f"{{{','.join((*own, *matchers))}}}"


def rate(selector: str) -> str:
    """Per second."""
    return f"rate({selector}{RATE})"


def total(selector: str, by: str = "") -> str:
    """Per second, summed, by labels where given."""
    return f"sum{f' by ({by})' if by else ''} ({rate(selector)})"


def share(part: str, whole: str) -> str:
    """A part of a whole, 0 to 1; nothing where the whole is 0. Both are sums without labels; no part counts as 0."""
    return f"({part} or on() vector(0)) / {whole} >= 0"


def shares(parts: str, whole: str) -> str:
    """Each of several parts of one whole; `whole` has no labels."""
    return f"{parts} / on () group_left () {whole} >= 0"


def shares_by(label: str, part: str, whole: str) -> str:
    """Parts of wholes that have one label in common; no part counts as 0."""
    return f"({part} or 0 * {whole}) / on ({label}) {whole} >= 0"


def quantile(q: float, buckets: str, by: str = "") -> str:
    """A quantile of a histogram, of which `buckets` selects the buckets; nothing where nothing was measured."""
    inside = total(buckets, f"le, {by}" if by else "le")
    return f"histogram_quantile({q}, {inside}) >= 0"


def quantiles(selector: str, legend: str = "", by: str = "") -> tuple[Query, ...]:
    """p50, p95 and p99 of a histogram, of which `selector` selects the buckets."""
    prefix = f"{legend} " if legend else ""
    return tuple(Query(quantile(q, selector, by), f"{prefix}p{round(q * 100)}") for q in (0.5, 0.95, 0.99))


def mean(selector: str, of: str, *, by: str = "") -> str:
    """The mean of a histogram's values; `selector` with a placeholder `{of}` in its name, of which `of` is the stem."""
    parts = [total(selector.replace("{of}", f"{of}_{part}"), by) for part in ("sum", "count")]
    return f"{parts[0]} / {parts[1]} >= 0"


def bands(name: str, edges: tuple[tuple[str, str], ...], count: str) -> tuple[Query, ...]:
    """Shares of a histogram's values per band between its bucket bounds; `edges` are (bound, legend of what is below).

    The last bound is that of the highest band.
    """

    def upto(bound: str) -> str:
        return total(pick(f"{name}_bucket", f'le="{bound}"'))

    found, low = [], None
    for bound, legend in edges:
        part = upto(bound) if low is None else f"({upto(bound)} - {upto(low)})"
        found.append(Query(f"{part} / {count} >= 0", legend))
        low = bound
    return tuple(found)
