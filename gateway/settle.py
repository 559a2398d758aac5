"""The end of every request: its metrics and its log line, once."""

from core.clock import Clock
from core.config.records import Price
from gateway.account import Account
from gateway.journal import Journal
from gateway.metrics import Metrics


class Settlement:
    """Turns accounts into metrics and lines. `settle` never waits and never raises for what a client did."""

    def __init__(self, metrics: Metrics, journal: Journal, clock: Clock) -> None:
        self._metrics, self._journal, self._clock = metrics, journal, clock

    def settle(self, account: Account) -> None:
        """Count the request and write its line."""
        metrics = self._metrics
        ended = self._clock.monotonic() if account.left_at is None else account.left_at
        duration = ended - account.arrived
        overhead = max(0.0, duration - account.queue_s - account.upstream_s - account.held_s - account.client_s)
        tier, cache = account.tier, account.cache
        metrics.requests(account.route, tier, cache, str(account.status)).inc()
        metrics.duration(tier, cache).observe(duration)
        metrics.overhead(cache).observe(overhead)
        metrics.tenant_requests(account.tenant).inc()
        if account.stream and account.first_at is not None:
            metrics.first_token(tier, cache).observe(account.first_at - account.arrived)
        if account.shed:
            metrics.tenant_shed(account.tenant).inc()
        if tier != "none":
            self._tokens(account)
        self._journal.request(account, duration, overhead)

    def _tokens(self, account: Account) -> None:
        usage, metrics = account.usage, self._metrics
        if usage is None:
            return
        metrics.tokens(account.tier, "input").inc(usage.input)
        metrics.tokens(account.tier, "output").inc(usage.output)
        metrics.tokens(account.tier, "cached").inc(usage.cached)
        metrics.tenant_tokens(account.tenant).inc(usage.input + usage.output)
        if account.stream and usage.output > 1 and account.first_at is not None and account.last_at is not None:
            metrics.per_token(account.tier).observe((account.last_at - account.first_at) / (usage.output - 1))


def cost(price: Price, input_tokens: int, output_tokens: int) -> float:
    """What so many tokens cost on a tier."""
    return (price.input * input_tokens + price.output * output_tokens) / 1e6
