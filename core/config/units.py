"""Durations and sizes as people write them in the configuration."""

import re
from decimal import Decimal

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)(B|KB|MB|GB|TB|KiB|MiB|GiB|TiB)")
_BYTES = {"B": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("KMGT", start=1)
    for suffix, base in (("B", 1000), ("iB", 1024))
}

DURATION_PATTERN = rf"^{_DURATION.pattern}$"
SIZE_PATTERN = rf"^{_SIZE.pattern}$"


def parse_duration(text: object) -> float:
    """Seconds of a duration such as `250ms`, `30s`, `10m`, `1h`, `7d`.

    Raises ValueError for anything else: a bare number has no unit and is refused.
    """
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"not a duration: {text!r}; legal is a number with ms, s, m, h or d, such as 250ms or 30s")
    return float(match[1]) * _SECONDS[match[2]]


def format_duration(seconds: float) -> str:
    """The duration in the largest unit that takes it as a whole number, else in seconds; `parse_duration` reads it."""
    for unit in ("d", "h", "m", "s", "ms"):
        count = seconds / _SECONDS[unit]
        if seconds and abs(count - round(count)) < 1e-9 * count:
            return f"{round(count)}{unit}"
    return f"{Decimal(repr(float(seconds))):f}s"


def format_size(count: int) -> str:
    """The size in the largest binary unit that takes it as a whole number; `parse_size` reads it."""
    fitting = [unit for unit in ("TiB", "GiB", "MiB", "KiB") if count and count % _BYTES[unit] == 0]
    unit = fitting[0] if fitting else "B"
    return f"{count // _BYTES[unit]}{unit}"


def parse_size(text: object) -> int:
    """Bytes of a size such as `4MiB` (powers of 1,024) or `640GB` (powers of 1,000).

    Raises ValueError for anything else: a bare number has no unit and is refused.
    """
    match = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"not a size: {text!r}; legal is a number with B, KB, MB, GB, KiB, MiB or GiB, such as 4MiB")
    return int(Decimal(match[1]) * _BYTES[match[2]])
