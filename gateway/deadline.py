"""The client's deadline for its first byte."""

from core.errors import BadRequest
from gateway.exchange import Exchange


def deadline_of(exchange: Exchange) -> float | None:
    """The monotonic second by which the first byte is due, from `x-forebay-deadline-ms`; None where none is set.

    Raises BadRequest for anything but a positive whole number.
    """
    raw = exchange.headers.get(b"x-forebay-deadline-ms")
    if raw is None:
        return None
    given = raw.decode("latin-1")
    if not (given.isascii() and given.isdigit() and int(given) > 0):
        raise BadRequest(
            "x-forebay-deadline-ms must be a positive whole number of milliseconds", param="x-forebay-deadline-ms"
        )
    return exchange.arrived + int(given) / 1000
