"""Readings as bytes, for this process: unpacking takes a tenth of the time that reading the text anew does."""

import marshal
from dataclasses import fields

from cache.guard.reading import Reading

_FIELDS = tuple(entry.name for entry in fields(Reading))


def pack(reading: Reading) -> bytes:
    """A reading as bytes."""
    return marshal.dumps(tuple([getattr(reading, name) for name in _FIELDS]))


def unpack(packed: bytes) -> Reading:
    """What `pack` has packed."""
    return Reading(*marshal.loads(packed))  # noqa: S302  # bytes of this process only
