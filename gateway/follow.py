"""The follower's side of a flight: its own wait, deadline, answer and account, out of another request's call."""

import asyncio

from cache.answer import Hit
from cache.controls import Controls
from cache.question import Question, entry_id
from cache.response_cache import SemanticLookup
from core.clock import Clock
from core.errors import Refused, RequestError
from core.request import InferenceRequest
from gateway.account import Account
from gateway.asked import Asked
from gateway.deadline import deadline_of
from gateway.envelope import Headers
from gateway.exchange import Exchange
from gateway.flight import Flight, Flights, Follower, Key, Unshareable
from gateway.headers import EVENT_STREAM, answer_headers, hit_headers
from gateway.interrupt import Interruptible
from gateway.metrics import Metrics
from gateway.stored import StoredAnswers

# How often an error that belongs to the leader's way of asking sends a follower round again.
SECOND_CHANCES = 1


def key_of(asked: Asked, priority: str, *, exact: bool) -> Key | None:
    """The flight that this request may share; None for none. `exact`: the exact layer is on.

    Requests of one priority share: an urgent one must not wait where a less urgent one queues.

    Shared is what the exact layer might have answered a moment later. Not shared are requests that want an answer made
    after they came (`max-age=0`), and streams with running usage, whose every chunk differs from other clients'.
    """
    controls, question = asked.controls, asked.question
    if question is None or not exact or not controls.read or controls.max_age == 0:
        return None
    if asked.request.stream and _running_usage(asked.request):
        return None
    return (*flight_key(asked.tenant, question), priority)


def flight_key(tenant: str, question: Question) -> tuple[str, str]:
    """One tenant's flights are its own, also where all tenants share one cache."""
    return tenant, question.fingerprint


def _running_usage(request: InferenceRequest) -> bool:
    options = request.body.get("stream_options")
    return isinstance(options, dict) and options.get("continuous_usage_stats") is True


class Following:
    """Answers requests whose question is in flight already."""

    def __init__(
        self, flights: Flights, stored: StoredAnswers, metrics: Metrics, clock: Clock, ping: float | None
    ) -> None:
        self._flights, self._stored, self._metrics, self._clock = flights, stored, metrics, clock
        self._ping = ping

    async def answer(
        self, key: Key, asked: Asked, exchange: Exchange, account: Account, block: Interruptible
    ) -> str | None:
        """Follow the flight with this key; the tier that answered, None where the request is to lead one itself.

        Raises what ended the flight, unless that concerns its leader only.
        """
        request, chances = asked.request, SECOND_CHANCES
        while True:
            follower = self._flights.join(key, block, stream=request.stream, usage=request.include_usage)
            if follower is None:
                # What follows measures its own wait.
                account.held_s += account.upstream_s
                account.upstream_s = 0.0
                return None
            exchange.watch(block)
            try:
                await self._wait(follower, exchange, account)
                tier = await self._answer(follower, asked, exchange, account)
            finally:
                follower.leave()
            if tier is not None:
                self._stored.no_semantic()
                return tier
            flight = follower.flight
            if isinstance(flight.outcome, RequestError) and not _leaders_own(flight.outcome):
                if not (chances and (flight.began or isinstance(flight.outcome, Unshareable))):
                    raise self._shared_fault(flight, flight.outcome, account)
                chances -= 1

    async def _wait(self, follower: Follower, exchange: Exchange, account: Account) -> None:
        """Until there is something for this client; while the leader queues, within the client's own deadline."""
        flight, deadline, clock = follower.flight, deadline_of(exchange), self._clock
        since = clock.monotonic()
        ping = self._ping if follower.stream else None
        try:
            while not follower.served:
                left = None if deadline is None or flight.phase != "queued" else deadline - clock.monotonic()
                if left is not None and left <= 0:
                    raise self._late(flight, account)
                try:
                    async with asyncio.timeout(min((t for t in (left, ping) if t is not None), default=None)):
                        await follower.changed()
                except TimeoutError:
                    if ping is not None and (left is None or left > ping):
                        if not exchange.started:
                            # Whether this will be a hit is not known yet; that it was looked up is.
                            await self._start([], exchange, account)
                        await exchange.write(b": ping\n\n")
        finally:
            account.upstream_s += clock.monotonic() - since

    async def _answer(self, follower: Follower, asked: Asked, exchange: Exchange, account: Account) -> str | None:
        """Send what there is; None where there is no answer for this client."""
        flight = follower.flight
        if flight.phase == "streaming":
            return await self._stream(follower, exchange, account)
        outcome = flight.outcome
        if isinstance(outcome, Hit):
            account.cache = "hit-exact"
            await self._stored.replay(outcome, asked.request, exchange, account)
            return outcome.tier
        if isinstance(outcome, SemanticLookup) and outcome.hit is not None and _acceptable(outcome, asked.controls):
            self._stored.show(outcome, account)
            await self._stored.replay(outcome.hit, asked.request, exchange, account)
            return outcome.hit.tier
        return None

    async def _stream(self, follower: Follower, exchange: Exchange, account: Account) -> str:
        """The chunks as they come, from what was missed on."""
        flight, clock = follower.flight, self._clock
        account.cache = "hit-exact"
        if not exchange.started:
            await self._start(hit_headers(0.0, entry_id(flight.key[1])), exchange, account)
        account.first_at = clock.monotonic()
        while True:
            asked_at = clock.monotonic()
            chunk = await follower.take()
            account.last_at = clock.monotonic()
            account.upstream_s += account.last_at - asked_at
            if follower.done:
                break
            await exchange.write(chunk)
            account.client_s += clock.monotonic() - account.last_at
        outcome = flight.outcome
        if isinstance(outcome, RequestError) and not isinstance(outcome, Unshareable):
            if chunk:
                await exchange.write(chunk)
            raise self._shared_fault(flight, outcome, account)
        if isinstance(outcome, Hit):
            self._stored.saved(outcome)
            if account.words is not None:
                account.words.answered(outcome.answer)
        await exchange.end(chunk)
        return flight.tier or "none"

    async def _start(self, known: Headers, exchange: Exchange, account: Account) -> None:
        account.event_stream = True
        await exchange.start(200, answer_headers(exchange, account, self._clock) + known + EVENT_STREAM)

    def _late(self, flight: Flight, account: Account) -> Refused:
        error = Refused(
            "the same question waits in the queue, and the deadline is over", code="deadline", reason="deadline"
        )
        self._shared_fault(flight, error, account)
        return error

    def _shared_fault(self, flight: Flight, error: RequestError, account: Account) -> RequestError:
        """The error, counted as this request's own."""
        if flight.tier is not None:
            account.tier = flight.tier
            if isinstance(error, Refused):
                self._metrics.shed(flight.tier, error.reason or "refused").inc()
        return error.with_traceback(None)


def _leaders_own(error: RequestError) -> bool:
    """Whether an error says nothing about others: the leader's own deadline."""
    return isinstance(error, Refused) and error.reason == "deadline"


def _acceptable(found: SemanticLookup, controls: Controls) -> bool:
    """Whether what the semantic layer found for the leader may be served to one with these controls."""
    if found.hit is None or not controls.semantic:
        return False
    old = controls.max_age is not None and found.hit.age_s > controls.max_age
    return not old and found.hit.similarity >= (controls.threshold or 0.0)
