import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.controls import OFF, Controls, controls
from core.errors import BadRequest


def test_without_headers_everything_is_on() -> None:
    assert controls({}, allowed=True) == Controls(True, True, True, None, None)


@pytest.mark.parametrize("headers", [{}, {"x-forebay-cache": "on"}, {"cache-control": "max-age=5"}])
def test_a_key_without_cache_is_off_whatever_it_asks(headers: dict[str, str]) -> None:
    assert controls(headers, allowed=False) == OFF


@pytest.mark.parametrize(
    ("headers", "read", "write", "semantic"),
    [
        ({"cache-control": "no-cache"}, False, True, True),
        ({"cache-control": "No-Cache"}, False, True, True),
        ({"cache-control": "no-store"}, False, False, False),
        ({"cache-control": "no-cache, no-store"}, False, False, False),
        ({"cache-control": "max-stale=9, only-if-cached"}, True, True, True),
        ({"x-forebay-cache": "off"}, False, False, False),
        ({"x-forebay-cache": "exact"}, True, True, False),
        ({"x-forebay-cache": "refresh"}, False, True, True),
        ({"x-forebay-cache": "exact", "cache-control": "no-cache"}, False, True, False),
        ({"x-forebay-cache": "on", "cache-control": "no-store"}, False, False, False),
        ({"x-stainless-retry-count": "0"}, True, True, True),
        ({"x-stainless-retry-count": "2"}, False, True, True),
        ({"x-stainless-retry-count": "1", "x-forebay-cache": "off"}, False, False, False),
    ],
)
def test_the_strictest_header_wins(headers: dict[str, str], read: bool, write: bool, semantic: bool) -> None:
    found = controls(headers, allowed=True)
    assert (found.read, found.write, found.semantic) == (read, write, semantic)


def test_limits_are_read() -> None:
    found = controls({"cache-control": 'max-age="60"', "x-forebay-threshold": "0.97"}, allowed=True)
    assert found.max_age == 60.0
    assert found.threshold == 0.97


@pytest.mark.parametrize(
    "headers",
    [
        {"x-forebay-cache": "maybe"},
        {"x-forebay-cache": ""},
        {"x-forebay-threshold": "high"},
        {"x-forebay-threshold": "nan"},
        {"x-forebay-threshold": "1.01"},
        {"x-forebay-threshold": "-0.1"},
        {"cache-control": "max-age=soon"},
        {"cache-control": "max-age=-1"},
        {"cache-control": "max-age"},
        {"x-stainless-retry-count": "many"},
    ],
)
@pytest.mark.parametrize("allowed", [True, False])
def test_illegal_values_are_refused(headers: dict[str, str], allowed: bool) -> None:
    with pytest.raises(BadRequest) as caught:
        controls(headers, allowed=allowed)
    assert caught.value.param


@given(st.text(max_size=40))
def test_no_cache_control_header_is_an_internal_error(value: str) -> None:
    try:
        found = controls({"cache-control": value}, allowed=True)
    except BadRequest:
        return
    assert found.max_age is None or found.max_age >= 0
