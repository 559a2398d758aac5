"""The events of all workers for everyone who looks: gathered four times a second while somebody does, else not at all.

Each reader has its place in every worker's decisions. An event's id says where that is, so that whoever comes back with
it gets what was missed, as far as it is still kept.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import NamedTuple, Self, cast

import orjson
from pydantic import JsonValue

from core.errors import Unavailable
from gateway.console.totals import Document, Totals, added, state, together, totals
from gateway.console.watch import Row, Watch
from gateway.services import Services
from gateway.siblings import Answering, Question

logger = logging.getLogger("forebay.console")

# Seconds between two events with decisions, and how many of these are between two with everything else.
INTERVAL, EVERY = 0.25, 4
# Readers at one time, and events that wait for one of them until it is left to come back.
MOST_READERS, MOST_WAITING = 32, 16
QUESTION = "console"
# Where in the decisions of each worker's life somebody is: the number of the next one.
Places = Mapping[str, int]


class Gathered(NamedTuple):
    """What came since, in the order of time, and where that leaves the reader. `missed`: how many more, not shown."""

    rows: list[Row]
    places: Places
    missed: int


class Event(NamedTuple):
    """One event on its way to the readers. `first`: the least number of each life in it; `state`: all the rest."""

    gathered: Gathered
    first: Places
    encoded: bytes
    state: bytes | None


class Reader:
    """One open connection; `events` are what waits for it, None the end."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[Event | None] = asyncio.Queue(MOST_WAITING)
        self.left_behind = False

    def offer(self, event: Event | None) -> None:
        """Give it an event; one that does not read fast enough is left behind, and comes back with its place."""
        try:
            self.events.put_nowait(event)
        except asyncio.QueueFull:
            self.left_behind = True
            while not self.events.empty():
                self.events.get_nowait()
            self.events.put_nowait(None)


class Hub:
    """An async context manager; leaving it ends every stream. Belongs to the event loop.

    `watch` None: the console is off.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._readers: set[Reader] = set()
        self._task: asyncio.Task[None] | None = None
        self._places: dict[str, int] = {}
        # Of workers that do not answer, what they last said stays: sums must not fall.
        self._totals: dict[int, Totals] = {}
        self._states: dict[int, Document] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def readers(self) -> int:
        """Open streams."""
        return len(self._readers)

    def answers(self) -> Mapping[str, Answering]:
        """What other workers ask here."""
        return {QUESTION: self._answer}

    async def stream(self, places: Places | None) -> AsyncIterator[bytes]:
        """The events from `places` on, each as server-sent events; from the last ones on where that is None.

        Ends when the gateway ends, or where the reader is too slow. Raises Unavailable where there are too many.
        """
        if len(self._readers) >= MOST_READERS:
            raise Unavailable(f"{MOST_READERS} readers of the console already", code="console_full", retry_after=5.0)
        reader = Reader()
        self._readers.add(reader)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="console events")
        try:
            yield b"retry: 1000\n\n"
            # Those who join are in line for events before they look back: nothing falls between.
            found = await self._gather(places)
            here = dict(found.places)
            yield encoded(found)
            yield await self._state()
            while (event := await reader.events.get()) is not None:
                yield _unseen(event, here)
                here.update(event.gathered.places)
        finally:
            self._readers.discard(reader)

    async def _run(self) -> None:
        """Gather for the readers until the last one has left."""
        turn = 0
        try:
            self._places = dict((await self._gather(None)).places)
            while self._readers:
                await asyncio.sleep(INTERVAL)
                turn += 1
                found = await self._gather(self._places)
                self._places = dict(found.places)
                told = await self._state() if turn % EVERY == 0 else None
                if found.rows or found.missed or told is not None:
                    first = _least(found)
                    event = Event(found, first, encoded(found), told)
                    for reader in self._readers:
                        reader.offer(event)
                load = self._services.load
                if load.draining and load.running == 0:
                    self._end()
                    return
        except Exception:  # a boundary: readers come back, and the next one finds it started again
            logger.exception("the console's events broke off")
            self._end()
        finally:
            self._task = None

    def _end(self) -> None:
        for reader in self._readers:
            reader.offer(None)

    async def _gather(self, places: Places | None) -> Gathered:
        """The decisions of all workers from `places` on, at most as many as the history."""
        watch = self._watch()
        limit = watch.history
        asked: JsonValue = None if places is None else dict(places)
        siblings = self._services.siblings
        others = await siblings.ask(QUESTION, places=asked, limit=limit) if siblings.count > 1 else {}
        rows: list[Row] = []
        at: dict[str, int] = {}
        missed = 0
        for number, (boot, count, found, lost) in [(siblings.number, view(watch, places, limit)), *_views(others)]:
            rows += [{"worker": number, "life": boot, **row} for row in found]
            at[boot] = count
            missed += lost
        if others:
            rows.sort(key=_time)
        if len(rows) > limit:
            missed += len(rows) - limit
            rows = rows[-limit:]
        return Gathered(rows, at, missed)

    async def _state(self) -> bytes:
        """Totals and states of all workers as an event."""
        services = self._services
        siblings = services.siblings
        mine = await state(services)
        others = await siblings.ask(QUESTION, state=True) if siblings.count > 1 else {}
        self._totals[siblings.number], self._states[siblings.number] = totals(services.metrics), mine
        for number, answer in others.items():
            if isinstance(answer, dict):
                self._totals[number] = cast("Totals", answer["totals"])
                self._states[number] = cast("Document", answer["state"])
        elsewhere = [document for number, document in self._states.items() if number in others]
        document: Document = {
            "time": round(services.clock.time(), 3),
            "totals": cast("JsonValue", added(self._totals.values())),
            "answered": 1 + len(elsewhere),
            **together(mine, elsewhere, shared_cache=services.config.cache.store != "memory"),
        }
        return b"event: state\ndata: " + orjson.dumps(document) + b"\n\n"

    async def _answer(self, question: Question) -> JsonValue:
        if question.get("state"):
            found = cast("JsonValue", totals(self._services.metrics))
            return {"totals": found, "state": await state(self._services)}
        places, limit = question.get("places"), question.get("limit")
        boot, count, rows, lost = view(
            self._watch(), cast("Places | None", places), limit if isinstance(limit, int) else 1
        )
        return [boot, count, cast("list[JsonValue]", rows), lost]

    def _watch(self) -> Watch:
        watch = self._services.watch
        if watch is None:
            raise Unavailable("the console is off", code="console_off")
        return watch


def view(watch: Watch, places: Places | None, limit: int) -> tuple[str, int, list[Row], int]:
    """The life of one worker, the number of its next decision, those to be shown, and how many more there were.

    A life that `places` does not know is shown from its beginning; without places, from its last decisions.
    """
    since = 0 if places is None else places.get(watch.boot, 0)
    rows = watch.rows(since, limit)
    # What was there before somebody came to look is not missed.
    lost = 0 if places is None else watch.count - min(since, watch.count) - len(rows)
    return watch.boot, watch.count, rows, lost


def _views(others: Mapping[int, JsonValue]) -> list[tuple[int, tuple[str, int, list[Row], int]]]:
    return [(number, cast("tuple[str, int, list[Row], int]", answer)) for number, answer in others.items() if answer]


def encoded(found: Gathered) -> bytes:
    """An event with decisions."""
    data = orjson.dumps({"decisions": found.rows, "missed": found.missed})
    return b"event: decisions\nid: %b\ndata: %b\n\n" % (written(found.places), data)


def written(places: Places) -> bytes:
    """Places as the id of an event."""
    return "~".join(f"{boot}.{number}" for boot, number in places.items()).encode()


def read(text: str) -> Places | None:
    """The places that an id stands for; None where it is not one of ours."""
    places = {}
    for part in text.split("~"):
        boot, _, number = part.partition(".")
        if not (boot and number.isascii() and number.isdigit()) or len(number) > 18:
            return None
        places[boot] = int(number)
    return places


def _least(found: Gathered) -> Places:
    first: dict[str, int] = {}
    for row in found.rows:
        boot, number = cast("str", row["life"]), cast("int", row["number"])
        first[boot] = min(first.get(boot, number), number)
    return first


def _unseen(event: Event, here: Places) -> bytes:
    """The event without what a reader at this place has seen: as a rule, the event as it is."""
    found = event.gathered
    told = event.state or b""
    if not found.rows and not found.missed:
        return told
    if all(number >= here.get(boot, 0) for boot, number in event.first.items()):
        return event.encoded + told
    rows = [row for row in found.rows if cast("int", row["number"]) >= here.get(cast("str", row["life"]), 0)]
    return (encoded(found._replace(rows=rows)) if rows else b"") + told


def _time(row: Row) -> float:
    return cast("float", row["time"])
