"""The judge of a fault run is not easily pleased: what each client must see, and what is held against the gateway."""

import random
from collections.abc import Callable
from dataclasses import replace

import orjson
import pytest

from bench.faults import cases
from bench.faults.cases import Ask, Maker, wrong
from bench.faults.drain import missed as drain_missed
from bench.faults.wire import Answer
from bench.leaks import STOPS, WARM, Stop, missed, slope

ERROR = {"error": {"message": "m", "type": "t", "param": None, "code": "c"}}


def made(make: Callable[[Maker], Ask], stream: bool | None = None) -> Ask:
    """A request of a case; of this kind where that is asked for."""
    maker = Maker(random.Random(3))
    while True:
        found = make(maker)
        if stream is None or found.stream is stream:
            return found


def events(*datas: object, done: bool = False) -> bytes:
    raw = b"".join(b"data: " + orjson.dumps(data) + b"\n\n" for data in datas)
    return raw + (b"data: [DONE]\n\n" if done else b"")


def chunk(text: str, reason: str | None = None) -> dict[str, object]:
    return {"choices": [{"delta": {"content": text}, "finish_reason": reason}]}


def answer(status: int, body: bytes, ended: str = "complete", **headers: str) -> Answer:
    found = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(ended, status, found, body)  # type: ignore[arg-type]  # the cases below


def error(status: int, **headers: str) -> Answer:
    return answer(status, orjson.dumps(ERROR), **headers)


def test_a_whole_stream_is_exact_complete_and_ends_once() -> None:
    ask = made(cases.whole, stream=True)
    good = events(chunk(ask.text), chunk("", "stop"), done=True)
    assert wrong(ask, answer(200, good)) is None
    for body in (
        events(chunk(ask.text), chunk("", "stop")),
        events(chunk(ask.text[:-1]), chunk("", "stop"), done=True),
        events(chunk(ask.text), done=True),
        events(chunk(ask.text), ERROR),
        b"",
    ):
        assert wrong(ask, answer(200, body)) is not None
    assert wrong(ask, answer(200, good, ended="cut")) is not None
    assert wrong(ask, error(502)) is not None
    late = answer(200, good)
    late.seconds = 100.0
    assert wrong(ask, late) is not None


def test_a_whole_answer_in_one_piece_is_exact() -> None:
    ask = made(cases.whole, stream=False)
    said = orjson.dumps({"choices": [{"message": {"content": ask.text}}]})
    assert wrong(ask, answer(200, said)) is None
    assert wrong(ask, answer(200, said.replace(ask.text.encode(), b"another"))) is not None


def test_only_a_killed_server_excuses_a_break() -> None:
    ask = made(cases.whole, stream=True)
    broken = answer(200, events(chunk(ask.text[:3]), ERROR))
    assert wrong(ask, broken) is not None
    assert wrong(ask, broken, killed=True) is None
    assert wrong(ask, error(502), killed=True) is None
    assert wrong(ask, error(500), killed=True) is not None
    assert wrong(ask, answer(200, events(chunk("never said"), ERROR)), killed=True) is not None
    assert wrong(ask, answer(200, events(chunk(ask.text[:3]))), killed=True) is not None


def test_a_broken_stream_ends_in_one_error_event_after_the_exact_beginning() -> None:
    ask = made(cases.cut)
    assert wrong(ask, answer(200, events(chunk(ask.text[:5]), ERROR))) is None
    assert wrong(ask, error(ask.statuses[0])) is None
    for body in (
        events(chunk(ask.text[:5]), chunk("", "stop"), done=True),
        events(chunk(ask.text[:5])),
        events(chunk(ask.text[:5], "stop"), ERROR),
        events(chunk(ask.text[:5]), ERROR, done=True),
        events(chunk("never said"), ERROR),
    ):
        assert wrong(ask, answer(200, body)) is not None


def test_half_a_character_is_not_an_answer() -> None:
    ask = made(cases.cut_character)
    half = b'data: {"choices":[{"delta":{"content":"\xf0\x9f"}}]}\n\n' + events(ERROR)
    with pytest.raises(ValueError, match=r"utf-8|UTF-8|surrogate|str is not valid"):
        wrong(ask, answer(200, half))


def test_the_cut_falls_into_the_middle_of_a_character() -> None:
    maker = Maker(random.Random(5))
    for _ in range(20):
        ask = cases.cut_character(maker)
        script = orjson.loads(ask.raw)["script"]
        whole = orjson.loads(ask.raw) | {"script": {"text": ask.text, "itl": 0.002}}
        request_id = f"chatcmpl-{ask.headers['x-request-id']}"
        places = [cases.place_of("🦫", whole, request_id, skip) for skip in range(9)]
        assert script["cut_after_bytes"] - 2 in places


def test_refusals_have_their_status_an_envelope_and_a_time() -> None:
    ask = made(cases.storm)
    assert wrong(ask, error(ask.statuses[0], retry_after="1")) is None
    assert wrong(ask, error(ask.statuses[0])) is not None
    assert wrong(ask, answer(ask.statuses[0], b"busy", retry_after="1")) is not None
    assert wrong(ask, error(500, retry_after="1")) is not None
    assert wrong(made(cases.nonsense), answer(200, b"{}")) is not None


def test_a_drain_is_clean_or_says_what_was_not() -> None:
    good = {
        "streams": 3, "broken": 0, "running_when_ready_fell": 3, "ready_fell_s": 0.1, "health_while_draining": 200,
        "late_request": [503, "draining"], "exit_code": 0,
    }  # fmt: skip
    assert drain_missed(good) == []
    bad = {
        "broken": 1, "running_when_ready_fell": 2, "ready_fell_s": None, "health_while_draining": 503,
        "late_request": [200, None], "exit_code": 1,
    }  # fmt: skip
    for name, value in bad.items():
        assert len(drain_missed({**good, name: value})) == 1


def stops(per_request: float, tasks: int = 0, descriptors: int = 0) -> list[Stop]:
    return [
        Stop(1000 * n, 10 + tasks * n, 20 + descriptors * n, 1e8 + per_request * 1000 * n + (5e7 if n >= WARM else 0))
        for n in range(STOPS)
    ]


def test_growth_after_the_warm_up_is_found_and_the_warm_up_itself_is_not() -> None:
    assert missed(stops(10.0)) == []
    assert slope(stops(250.0)[WARM:]) == pytest.approx(250.0)
    assert missed(stops(250.0)) == ["memory grows by 250 bytes per request"]
    assert missed(stops(0.0, tasks=2)) == ["tasks grow"]
    assert missed(stops(0.0, descriptors=2)) == ["descriptors grow"]
    # How many connections to engines were left for the next request says nothing: at one stop more, at another fewer.
    left = [replace(stop, descriptors=18 + 5 * n % 11) for n, stop in enumerate(stops(0.0))]
    assert missed(left) == []
