"""The end of every request: its metrics and its log line, once."""

from typing import NamedTuple

from core.clock import Clock
from core.config.records import Price
from core.memo import Memo
from gateway.account import Account
from gateway.console.watch import Watch
from gateway.journal import Journal
from gateway.metering import Usage
from gateway.metrics import Count, Metrics, Spread

MAX_TALLIES = 1000


class Settlement:
    """Turns accounts into metrics and lines, and shows them to the `watch`.

    `settle` never waits and never raises for what a client did.
    """

    def __init__(self, metrics: Metrics, journal: Journal, clock: Clock, watch: Watch | None = None) -> None:
        self._metrics, self._journal, self._clock, self.watch = metrics, journal, clock, watch
        # The labels of most requests are those of others: their children of the table, found with one look.
        self._tallies: Memo[tuple[str, str, str, int, str], Tally] = Memo(MAX_TALLIES)
        self._counts: Memo[tuple[str, str], tuple[Count, Count, Count, Count, Spread]] = Memo(MAX_TALLIES)

    def settle(self, account: Account) -> None:
        """Count the request and write its line."""
        ended = self._clock.monotonic() if account.left_at is None else account.left_at
        duration = ended - account.arrived
        overhead = duration - account.queue_s - account.upstream_s - account.held_s - account.client_s
        if overhead < 0:
            overhead = 0.0
        labels = (account.route, account.tier, account.cache, account.status, account.tenant)
        tally = self._tallies.get(labels)
        if tally is None:
            tally = self._tally(labels)
        tally.requests.value += 1
        tally.tenant.value += 1
        tally.duration.observe(duration)
        tally.overhead.observe(overhead)
        if account.stream and account.first_at is not None:
            self._metrics.first_token(account.tier, account.cache).observe(account.first_at - account.arrived)
        if account.shed:
            self._metrics.tenant_shed(account.tenant).inc()
        if account.usage is not None and account.tier != "none":
            self._tokens(account, account.usage)
        self._journal.request(account, duration, overhead)
        if self.watch is not None:
            self.watch.settled(account, ended, duration, overhead)

    def _tally(self, labels: tuple[str, str, str, int, str]) -> "Tally":
        route, tier, cache, status, tenant = labels
        metrics = self._metrics
        tally = Tally(
            metrics.requests(route, tier, cache, str(status)),
            metrics.tenant_requests(tenant),
            metrics.duration(tier, cache),
            metrics.overhead(cache),
        )
        return self._tallies.keep(labels, tally)

    def _tokens(self, account: Account, usage: Usage) -> None:
        metrics, tier, tenant = self._metrics, account.tier, account.tenant
        counts = self._counts.get((tier, tenant))
        if counts is None:
            of_tier = (metrics.tokens(tier, "input"), metrics.tokens(tier, "output"), metrics.tokens(tier, "cached"))
            counts = (*of_tier, metrics.tenant_tokens(tenant), metrics.prompt_tokens(tier))
            self._counts.keep((tier, tenant), counts)
        read, written, cached, all_of_tenant, prompts = counts
        read.value += usage.input
        written.value += usage.output
        cached.value += usage.cached
        all_of_tenant.value += usage.input + usage.output
        prompts.observe(usage.input)
        if account.stream and usage.output > 1 and account.first_at is not None and account.last_at is not None:
            metrics.per_token(tier).observe((account.last_at - account.first_at) / (usage.output - 1))


class Tally(NamedTuple):
    """Where the requests of one set of labels are counted."""

    requests: Count
    tenant: Count
    duration: Spread
    overhead: Spread


def cost(price: Price, input_tokens: int, output_tokens: int) -> float:
    """What so many tokens cost on a tier."""
    return (price.input * input_tokens + price.output * output_tokens) / 1e6
