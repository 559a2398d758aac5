"""What goes wrong in a fault run, and what each client must see of it."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from bench.engine.answer import answer as engine_answer
from bench.engine.answer import events as engine_events
from bench.engine.script import Script
from bench.faults.wire import POLITE, Answer, Manners
from bench.faults.world import CONNECT, FIRST_TOKEN, IDLE, KEY, LOST, MAX_BODY, MODEL

CHAT = "/v1/chat/completions"
WORDS = ("plain", "naïve", "3 €", "🦫🦫", "harbour", "日本", "lantern", "ß")
# What a machine that is busy may add to a wait, in seconds.
SLACK = 8.0
Wish = Literal["whole", "status", "broken", "gone"]


@dataclass(frozen=True)
class Ask:
    """One request: what is sent, how the client behaves, and what it must get.

    `wish`: a `whole` answer with this `text`; one of `statuses`; a stream that is `broken` by an error event or an
    error status of `statuses`; nothing, as the client is `gone`. `limit`: seconds within which it must have ended.
    `retry_after`: a refusal must say when to come back.
    """

    case: str
    raw: bytes
    stream: bool
    wish: Wish
    text: str = ""
    statuses: tuple[int, ...] = ()
    limit: float = SLACK
    retry_after: bool = False
    manners: Manners = POLITE
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Maker:
    """Makes requests, each with a prompt of its own."""

    random: random.Random
    number: int = 0

    def text(self, least: int = 4, most: int = 24) -> str:
        """An answer with characters of one to four bytes."""
        return " ".join(self.random.choices(WORDS, k=self.random.randint(least, most)))

    def ask(self, case: str, script: Mapping[str, Any], wish: Wish, **given: Any) -> Ask:
        """A request for an answer as scripted; `stream` is drawn where it is not given."""
        self.number += 1
        stream = given.pop("stream", self.random.random() < 0.6)
        model = given.pop("model", MODEL)
        body = {"model": model, "messages": [{"role": "user", "content": f"{case} {self.number}"}], "stream": stream}
        body |= {"script": dict(script), **given.pop("fields", {})}
        headers = {"authorization": f"Bearer {KEY}", "x-request-id": f"run-{self.number}", **given.pop("headers", {})}
        return Ask(case, orjson.dumps(body), stream, wish, headers=headers, **given)


Make = Callable[[Maker], Ask]


def whole(maker: Maker) -> Ask:
    """Nothing goes wrong; now and then in a time that is felt."""
    text = maker.text()
    script = {"text": text, "itl": maker.random.choice((0.0, 0.0, 0.005, 0.02)), "ttft": maker.random.choice((0, 0.05))}
    return maker.ask("whole", script, "whole", text=text)


def quick(maker: Maker) -> Ask:
    """Nothing goes wrong, and nothing takes time."""
    text = maker.text()
    return maker.ask("quick", {"text": text}, "whole", text=text)


def pieces(maker: Maker) -> Ask:
    """The answer comes in pieces of a few bytes, whatever they cut through."""
    text = maker.text()
    script = {"text": text, "pieces": (maker.random.choice((1, 3, 7, 11)),)}
    return maker.ask("pieces", script, "whole", text=text)


def slow_body(maker: Maker) -> Ask:
    """A body that trickles."""
    text = maker.text(2, 5)
    return maker.ask("slow body", {"text": text, "pieces": (64,), "piece_delay": 0.01}, "whole", text=text)


def framed(maker: Maker) -> Ask:
    """Framed by the end of the connection, or compressed without having been asked."""
    text = maker.text()
    script = {"text": text, "framing": maker.random.choice(("close", "length", "chunked"))}
    return maker.ask("framing", script, "whole", text=text)


def reset_at_once(maker: Maker) -> Ask:
    """The connection is reset before a byte of the body, on every server that is asked."""
    script = {"cut_after_bytes": 0, "cut": "reset"}
    return maker.ask("reset at once", script, "status", statuses=(502,))


def black_hole(maker: Maker) -> Ask:
    """A tier whose only address swallows connections."""
    limit = CONNECT + SLACK
    return maker.ask("black hole", {}, "status", statuses=(502, 503, 504), limit=limit, model=LOST, retry_after=False)


def hang(maker: Maker) -> Ask:
    """The server reads the request and never answers."""
    return maker.ask("hang", {"hang": True}, "status", statuses=(504,), limit=FIRST_TOKEN + SLACK)


def cut(maker: Maker) -> Ask:
    """A stream ends in the middle: FIN, RST, half-open, or silence."""
    text = maker.text(8, 24)
    how = maker.random.choice(("close", "reset", "shut", "stall"))
    script = {"text": text, "cut_after_tokens": maker.random.randint(1, 6), "cut": how, "itl": 0.002}
    statuses = (504, 502) if how in ("stall", "shut") else (502,)
    given = {"stream": True, "text": text, "statuses": statuses, "limit": FIRST_TOKEN + IDLE + SLACK}
    return maker.ask(f"cut: {how}", script, "broken", **given)


def cut_whole(maker: Maker) -> Ask:
    """An answer in one piece ends in the middle."""
    how = maker.random.choice(("close", "reset", "stall"))
    script = {"text": maker.text(), "cut_after_bytes": maker.random.randint(1, 300), "cut": how}
    limit = 3 * (FIRST_TOKEN + IDLE) + SLACK
    return maker.ask(f"cut whole: {how}", script, "status", stream=False, statuses=(502, 504), limit=limit)


def cut_character(maker: Maker) -> Ask:
    """A stream ends in the middle of a character of four bytes."""
    text = "one two " + "🦫 " * 12
    script = {"text": text, "itl": 0.002}
    made = maker.ask("cut in a character", script, "broken", stream=True, text=text, statuses=(502,))
    body = orjson.loads(made.raw)
    place = place_of("🦫", body, f"chatcmpl-{made.headers['x-request-id']}", maker.random.randint(0, 8))
    body["script"] |= {"cut_after_bytes": place + 2, "cut": maker.random.choice(("close", "reset"))}
    return Ask(**{**vars(made), "raw": orjson.dumps(body)})


def place_of(character: str, body: dict[str, Any], request_id: str, skip: int) -> int:
    """Where a character begins in the bytes of the engine's stream; the first `skip` of them are passed over."""
    # The gateway asks for the usage, which changes nothing before the end.
    said = engine_answer("chat", body, Script.model_validate(body["script"]), request_id)
    raw, at = b"".join(event for event, _ in engine_events(said)), -1
    for _ in range(skip + 1):
        at = raw.index(character.encode(), at + 1)
    return at


def error_event(maker: Maker) -> Ask:
    """The engine says in the stream that it failed."""
    text = maker.text(8, 24)
    script = {"text": text, "error_event_after": maker.random.choice((0, 0, 3))}
    return maker.ask("error event", script, "broken", stream=True, text=text, statuses=(500,))


def no_end(maker: Maker) -> Ask:
    """The stream ends without saying so."""
    text = maker.text(8, 16)
    return maker.ask("no end", {"text": text, "end": "no_finish"}, "broken", stream=True, text=text, statuses=(502,))


def storm(maker: Maker) -> Ask:
    """Every server says that it is full."""
    status = maker.random.choice((429, 429, 503))
    script = {"status": status, "headers": {"retry-after": maker.random.choice(("1", "3"))}}
    return maker.ask("storm", script, "status", statuses=(status,), retry_after=True, limit=4 + SLACK)


def server_error(maker: Maker) -> Ask:
    """500, 502, or 503 without a time."""
    status = maker.random.choice((500, 502, 503))
    return maker.ask("server error", {"status": status}, "status", statuses=(status,))


def refused_by_engine(maker: Maker) -> Ask:
    """What the client asked wrong, as the engine says."""
    status = maker.random.choice((400, 404, 422))
    return maker.ask("client error", {"status": status}, "status", statuses=(status,))


def nonsense(maker: Maker) -> Ask:
    """Bodies and keys that are no good."""
    kind = maker.random.choice(("json", "model", "large", "key", "messages"))
    made = maker.ask(f"nonsense: {kind}", {}, "status")
    body, headers, statuses = made.raw, dict(made.headers), (400,)
    if kind == "json":
        body = body[: len(body) // 2]
    elif kind == "model":
        body, statuses = body.replace(b'"scripted"', b'"unknown"'), (404,)
    elif kind == "large":
        body, statuses = body[:-1] + b" " * MAX_BODY + b"}", (413,)
    elif kind == "key":
        headers["authorization"], statuses = "Bearer nobody", (401,)
    else:
        body = body.replace(b'"role":"user",', b"")
    return Ask(**{**vars(made), "raw": body, "headers": headers, "statuses": statuses})


def slow_reader(maker: Maker) -> Ask:
    """A client that takes its answer in sips: it gets all of it, and nobody else waits."""
    text = maker.text(300, 500)
    return maker.ask("slow reader", {"text": text}, "whole", stream=True, text=text, manners=Manners(slow=True))


def leaver(maker: Maker) -> Ask:
    """A client that goes: before the answer, in the middle of it, in the middle of its own request."""
    kind = maker.random.choice(("before", "middle", "sending"))
    reset = maker.random.random() < 0.5
    script = {"text": maker.text(40, 60), "itl": 0.05, "ttft": 0.4}
    if kind == "middle":
        manners = Manners(leaves=maker.random.randint(1, 1500), reset=reset)
        return maker.ask("leaves: middle", script, "gone", stream=True, manners=manners)
    manners = Manners(half=True, reset=reset)
    if kind == "before":
        manners = Manners(leaves=0, after=maker.random.choice((0.0, 0.02, 0.2)), reset=reset)
    return maker.ask(f"leaves: {kind}", script, "gone", manners=manners)


# How often each comes; half of all is well.
MIX: tuple[tuple[Make, int], ...] = (
    (whole, 34), (pieces, 6), (slow_body, 4), (framed, 4), (slow_reader, 4), (reset_at_once, 4), (black_hole, 3),
    (hang, 3), (cut, 8), (cut_whole, 4), (cut_character, 4), (error_event, 4), (no_end, 2), (storm, 6),
    (server_error, 3), (refused_by_engine, 2), (nonsense, 5), (leaver, 10),
)  # fmt: skip


def draw(maker: Maker, mix: tuple[tuple[Make, int], ...] = MIX) -> Ask:
    """The next request of a mix."""
    makes, weights = zip(*mix, strict=True)
    make: Make = maker.random.choices(makes, weights)[0]
    return make(maker)


def wrong(ask: Ask, got: Answer, *, killed: bool = False) -> str | None:
    """What is wrong with what a client got; None where nothing is.

    `killed`: a server was killed while it waited, so that an answer may break off that is whole otherwise.
    """
    if got.seconds > ask.limit + (SLACK if ask.wish == "whole" else 0.0):
        return f"took {got.seconds:.1f} s"
    if ask.wish == "gone":
        return None if got.ended in ("left", "complete", "cut") else f"ended {got.ended}"
    if got.ended != "complete":
        return f"{got.ended} after status {got.status} and {len(got.body)} bytes"
    if ask.wish == "status" or got.status != 200:
        if killed and got.status in (502, 503, 504):
            return _bad_error(got.json)
        return _bad_status(ask, got)
    if killed and ask.wish == "whole" and ask.stream and got.events and got.events[-1] != b"[DONE]":
        return _bad_break(ask, got)
    if ask.wish == "broken":
        return _bad_break(ask, got)
    return _bad_whole(ask, got)


def _bad_status(ask: Ask, got: Answer) -> str | None:
    if got.status not in ask.statuses:
        return f"status {got.status} instead of {' or '.join(map(str, ask.statuses)) or '200'}: {got.body[:200]!r}"
    if ask.retry_after and not got.headers.get("retry-after", "").isdigit():
        return f"status {got.status} without Retry-After"
    return _bad_error(got.json)


def _bad_error(body: Any) -> str | None:
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str) or "code" not in error:
        return f"no error envelope: {body!r}"
    return None


def _bad_whole(ask: Ask, got: Answer) -> str | None:
    if not ask.stream:
        text = got.json["choices"][0]["message"]["content"]
        return None if text == ask.text else f"another text: {text!r}"
    events = got.events
    if not events or events[-1] != b"[DONE]":
        return f"a stream without an end: {events[-1:]!r}"
    text, reasons = _streamed(events[:-1])
    if text != ask.text:
        return f"another text: {text!r}"
    return None if reasons == ["stop"] else f"finish reasons {reasons!r}"


def _bad_break(ask: Ask, got: Answer) -> str | None:
    """A stream that broke: what came is the beginning of the text, and one error event is the last of it."""
    events = got.events
    if not events or b'"error"' not in events[-1]:
        return f"a broken stream without an error event: {events[-1:]!r}"
    text, reasons = _streamed(events[:-1])
    if not ask.text.startswith(text):
        return f"another text: {text!r}"
    return f"finish reasons {reasons!r} of a broken stream" if reasons else _bad_error(orjson.loads(events[-1]))


def _streamed(events: list[bytes]) -> tuple[str, list[str]]:
    """Text and finish reasons of chat chunks. Raises ValueError for half a character."""
    chunks = [orjson.loads(event) for event in events]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return text, [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
