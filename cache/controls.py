"""What a client may say about caching, by header, within what the operator allows."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from core.errors import BadRequest

MODES = ("on", "off", "exact", "refresh")


@dataclass(frozen=True)
class Controls:
    """One request's use of the cache.

    `read`: look answers up. `write`: store the answer. `semantic`: the semantic layer takes part in both. `max_age`:
    oldest acceptable answer in seconds. `threshold`: a similarity the client demands; only a higher one than the
    operator's has an effect.
    """

    read: bool = True
    write: bool = True
    semantic: bool = True
    max_age: float | None = None
    threshold: float | None = None


OFF = Controls(read=False, write=False, semantic=False)


def controls(headers: Mapping[str, str], *, allowed: bool) -> Controls:
    """The controls in the request headers (lower-case names); where several are given, the strictest wins.

    `allowed` False (a key that may not use the cache) is `off`. Raises BadRequest for an illegal value.
    """
    mode = headers.get("x-forebay-cache", "on").strip().lower()
    if mode not in MODES:
        raise BadRequest(f"x-forebay-cache must be one of {', '.join(MODES)}", param="x-forebay-cache")
    directives = _directives(headers.get("cache-control", ""))
    max_age = _max_age(directives)
    threshold = _threshold(headers.get("x-forebay-threshold"))
    retried = _retries(headers.get("x-stainless-retry-count")) > 0
    if not allowed or mode == "off" or "no-store" in directives:
        return OFF
    refresh = mode == "refresh" or retried or "no-cache" in directives
    return Controls(not refresh, write=True, semantic=mode != "exact", max_age=max_age, threshold=threshold)


def _directives(header: str) -> dict[str, str]:
    # Unknown directives are ignored, as RFC 9111 section 5.2 asks.
    pairs = (part.strip().partition("=") for part in header.split(","))
    return {name.strip().lower(): value.strip().strip('"') for name, _, value in pairs if name}


def _max_age(directives: Mapping[str, str]) -> float | None:
    value = directives.get("max-age")
    if value is None:
        return None
    if not (value.isascii() and value.isdigit()):
        raise BadRequest("Cache-Control max-age must be a whole number of seconds", param="Cache-Control")
    return float(value)


def _threshold(value: str | None) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1:
        raise BadRequest("x-forebay-threshold must be a number from 0 to 1", param="x-forebay-threshold")
    return number


def _retries(value: str | None) -> int:
    if value is None:
        return 0
    if not (value.strip().isascii() and value.strip().isdigit()):
        raise BadRequest("x-stainless-retry-count must be a whole number", param="x-stainless-retry-count")
    return int(value)
