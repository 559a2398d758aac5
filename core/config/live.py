"""Which keys a running gateway can take over, and the configuration that comes of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeVar

from pydantic import ValidationError

from core.config.records import Config, Record
from core.errors import ConfigError, Problem

Section = TypeVar("Section", bound=Record)

# Every other key is read once, when the process starts.
LIVE = (
    "auth.keys",
    "cache.semantic.deadline",
    "cache.semantic.shadow_rate",
    "cache.semantic.threshold",
    "gateway.drain",
    "gateway.max_body_size",
    "gateway.sse_ping",
    "router.cascade.*",
    "router.sticky",
    "router.threshold",
    "tiers.*.api_key",
    "tiers.*.capabilities",
    "tiers.*.context",
    "tiers.*.fallback",
    "tiers.*.price.*",
    "tiers.*.queue.*",
    "tiers.*.timeout.*",
    "tiers.*.urls",
)


@dataclass(frozen=True)
class Renewal:
    """The configuration to go on with. `changed`: key paths that are taken over; `kept`: those that need a restart."""

    config: Config
    changed: tuple[str, ...]
    kept: tuple[str, ...]


def renewal(old: Config, new: Config) -> Renewal:
    """`old` with every key of `new` that a running gateway can take over.

    Raises ConfigError where those keys need others that cannot be taken over.
    """
    changed: list[str] = []
    kept: list[str] = []
    merged: Config = _merged(old, new, "", changed, kept)
    try:
        # The rules that span several keys hold for the mixture as well.
        Config.model_validate(merged.model_dump(mode="json"))
    except ValidationError as error:
        first = error.errors()[0]["msg"].removeprefix("Value error, ")
        problem = f"{first}; this needs a restart, for: {', '.join(kept)}"
        raise ConfigError([Problem(".".join(map(str, error.errors()[0]["loc"])), problem)]) from None
    return Renewal(merged, tuple(changed), tuple(kept))


def is_live(path: str) -> bool:
    """Whether a running gateway can take this key over."""
    return any(fnmatchcase(path, pattern) for pattern in LIVE)


def _merged(old: Section, new: Section, path: str, changed: list[str], kept: list[str]) -> Section:
    updates: dict[str, object] = {}
    for name, before, after in _differing(old, new):
        at = f"{path}.{name}".lstrip(".")
        if isinstance(before, Record) and isinstance(after, Record):
            updates[name] = _merged(before, after, at, changed, kept)
        elif is_live(at):
            updates[name] = after
            changed.append(at)
        else:
            kept.append(at)
    return old.model_copy(update=updates)


def _differing(old: Record, new: Record) -> Iterator[tuple[str, object, object]]:
    for name in type(old).model_fields:
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            yield name, before, after
