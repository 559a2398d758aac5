"""What is known about one request. Filled in as it goes through the pipeline, settled once."""

from dataclasses import dataclass

from cache.verdict import Verdict
from gateway.auth import Identity, Priority
from gateway.console.words import Words
from gateway.forecast import Need
from gateway.limits.base import Taken
from gateway.metering import Usage
from gateway.tracing.span import Trace

NOBODY = "-"


@dataclass(slots=True)
class Account:
    """One request. Times are monotonic seconds, durations seconds.

    `tenant`: who pays; `-` before that is known. `fingerprint`: of its question, where the cache sees it. `tier` and
    `cache` are the values of the response headers.
    `confidence`: mean log-probability of the small tier's first tokens, where the cascade listened. `semantic`: how the
    lookup by meaning ended. `truncated`: of a long ask only head and tail were looked at. `left_at`: when the client
    left, where its call went on for others. `upstream_s`: time spent waiting for the tier; `held_s`: for a tier whose
    answer was given up, and for the judge; `client_s`: for the client to take its stream. `status`: as sent, but 499
    where the client left, 502 or 504 where a stream broke after its 200. `shed`: refused by us before any work. `need`:
    what it says about its tokens, once its body has been read; `taken`: what it holds of its key's limits.
    `called_at`: when its tier was called, and `trace`: its place there, where requests are traced.
    `event_stream`: what was sent so far is a stream of OpenAI's events. `words`: what was asked and answered, where the
    console may show it.
    """

    request_id: str
    method: str
    route: str
    arrived: float
    identity: Identity | None = None
    tenant: str = NOBODY
    priority: Priority = "normal"
    need: Need | None = None
    taken: Taken | None = None
    model: str | None = None
    fingerprint: str | None = None
    stream: bool = False
    event_stream: bool = False
    tier: str = "none"
    cache: str = "bypass"
    status: int = 0
    reason: str | None = None
    shed: bool = False
    semantic: str | None = None
    similarity: float | None = None
    verdict: Verdict | None = None
    complexity: float | None = None
    truncated: bool = False
    route_reason: str | None = None
    confidence: float | None = None
    queue_s: float = 0.0
    upstream_s: float = 0.0
    held_s: float = 0.0
    client_s: float = 0.0
    first_at: float | None = None
    last_at: float | None = None
    left_at: float | None = None
    usage: Usage | None = None
    retries: int = 0
    url: str | None = None
    called_at: float | None = None
    trace: Trace | None = None
    words: Words | None = None

    @property
    def guard(self) -> str | None:
        """What the guard said, and why."""
        verdict = self.verdict
        return None if verdict is None else f"{'served' if verdict.served else 'refused'}:{verdict.feature}"

    @property
    def served(self) -> float | None:
        """Tokens that the tier spent on it as far as that is known: none where nothing came of it."""
        if self.usage is not None:
            return self.usage.input + self.usage.output
        return 0.0 if self.first_at is None else None
