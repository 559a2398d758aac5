"""How many tokens a request will take, before its tier has counted them."""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

# A body of JSON has about so many bytes per token, and the chat template adds a few.
BYTES_PER_TOKEN = 4
TEMPLATE = 8
# Tokens of an answer before any was seen, and the weight of the newest in their mean.
FIRST_OUTPUT = 256.0
SMOOTHING = 0.05


@dataclass(frozen=True, slots=True)
class Need:
    """Tokens of a request: `input` estimated, `limit` the most that it lets the tier generate, None for no limit."""

    input: int
    limit: int | None


def need_of(size: int, body: Mapping[str, JsonValue]) -> Need:
    """The need of a request body of so many bytes."""
    limit = _count(body.get("max_completion_tokens")) or _count(body.get("max_tokens"))
    choices = _count(body.get("n")) or 1
    return Need(size // BYTES_PER_TOKEN + TEMPLATE, None if limit is None else limit * choices)


class Forecast:
    """What a tier's answers are like, learned from its usage."""

    def __init__(self) -> None:
        self._output = FIRST_OUTPUT

    def likely(self, need: Need) -> float:
        """Tokens that a request will probably take."""
        return need.input + (self._output if need.limit is None else min(self._output, need.limit))

    def most(self, need: Need) -> int:
        """Tokens that it may take; without a limit of its own, those that it will probably take."""
        return need.input + (round(self._output) if need.limit is None else need.limit)

    def learn(self, output: int) -> None:
        """An answer had so many tokens."""
        self._output += SMOOTHING * (output - self._output)


def _count(value: JsonValue) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
