"""Every error in one shape, whoever made it."""

import orjson
import pytest

from core.errors import Refused, Unauthorized
from gateway import envelope
from gateway.envelope import EngineFault, normalised, status_of

WHOLE = b'{"error":{"message":"m","type":"BadRequestError","param":null,"code":400}}'


@pytest.mark.parametrize(
    ("raw", "message", "code"),
    [
        (b'{"error": {"message": "m", "type": "T"}}', "m", 418),
        (b'{"object":"error","message":"m","type":"T","param":null,"code":40303}', "m", 40303),
        (b'{"detail":"Not Found"}', "Not Found", 418),
        (b'{"detail":[{"loc":["body"],"msg":"x"}]}', '[{"loc":["body"],"msg":"x"}]', 418),
        (b'{"error":"Unauthorized"}', "Unauthorized", 418),
        (b'["odd"]', "['odd']", 418),
        (b"plain text", "plain text", 418),
        (b"", "the engine answered 418", 418),
        (b"\xff\xfe", "\ufffd\ufffd", 418),
    ],
)
def test_any_error_body_becomes_an_envelope(raw: bytes, message: str, code: int) -> None:
    error = orjson.loads(normalised(418, raw))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["message"], error["code"]) == (message, code)
    assert isinstance(error["type"], str)


def test_an_envelope_is_kept_byte_for_byte() -> None:
    assert normalised(400, WHOLE) is WHOLE
    listed = b'{"error":{"message":"m","type":["a"],"param":null,"code":400}}'
    assert isinstance(orjson.loads(normalised(400, listed))["error"]["type"], str)


def test_the_engines_status_is_shown_unless_it_is_about_our_key() -> None:
    assert EngineFault(429, WHOLE).status == 429
    assert EngineFault(429, WHOLE).retryable
    assert not EngineFault(400, WHOLE).retryable
    hidden = EngineFault(401, b'{"error":"Unauthorized"}')
    assert hidden.status == 502
    assert b"Unauthorized" not in envelope.body(hidden)
    assert EngineFault(302, b"").status == 502


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ({"error": {"code": 503}}, 503),
        ({"error": {"code": "400"}}, 400),
        ({"object": "error", "code": 404}, 404),
        ({"error": {"code": "bad"}}, 502),
        ({"error": {"code": 200}}, 502),
        ({"error": "x"}, 502),
    ],
)
def test_the_status_inside_an_error_object(value: dict[str, object], status: int) -> None:
    assert status_of(value) == status  # type: ignore[arg-type]  # plain JSON


def test_retry_after_is_whole_seconds_and_at_least_one() -> None:
    found = dict(envelope.headers(Refused("m", reason="queue_full", retry_after=0.2)))
    assert found == {b"retry-after": b"1", b"x-forebay-reason": b"queue_full"}
    assert dict(envelope.headers(Refused("m", retry_after=2.6)))[b"retry-after"] == b"3"
    assert envelope.headers(Unauthorized("m")) == [(b"www-authenticate", b"Bearer")]
