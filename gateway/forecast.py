"""How many tokens a request will take, before its tier has counted them."""

from collections.abc import Mapping
from typing import NamedTuple

from pydantic import JsonValue

# A body of JSON has about so many bytes per token, until the tier has said how many it counts.
BYTES_PER_TOKEN = 4.0
# Tokens of an answer before any was seen.
FIRST_OUTPUT = 256.0
# Least weight of the newest answer in a mean.
SMOOTHING = 0.05
# Chat completions, text completions and messages, responses.
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


class Need(NamedTuple):
    """What a request says about its tokens: `size` of its body in bytes, `limit` of its answers in tokens, if any."""

    size: int
    limit: int | None


def need_of(size: int, body: Mapping[str, JsonValue]) -> Need:
    """The need of a request body of so many bytes."""
    for name in _LIMITS:
        limit = body.get(name)
        if limit is not None and (found := _count(limit)) is not None:
            return Need(size, found * (_count(body.get("n")) or 1))
    return Need(size, None)


class Forecast:
    """What a tier's requests are like, learned from its usage."""

    def __init__(self) -> None:
        self._per_byte = 1 / BYTES_PER_TOKEN
        self._output = FIRST_OUTPUT
        self._seen = 0

    @property
    def usual(self) -> float:
        """Tokens of a request of which nothing is known."""
        return 1 + self._output

    def input(self, need: Need) -> int:
        """Tokens of its prompt."""
        return int(need.size * self._per_byte + 0.5) or 1

    def likely(self, need: Need) -> float:
        """Tokens that a request will probably take."""
        limit, usual = need.limit, self._output
        return self.input(need) + (usual if limit is None or usual <= limit else limit)

    def most_output(self, need: Need) -> int:
        """Tokens that its answer may have; without a limit of its own, those that it will probably have."""
        return round(self._output) if need.limit is None else need.limit

    def learn(self, need: Need, prompt: int, output: int) -> None:
        """A request of this need took so many tokens."""
        self._seen += 1
        weight = max(1 / self._seen, SMOOTHING)
        self._output += weight * (output - self._output)
        if need.size > 0 and prompt > 0:
            self._per_byte += weight * (prompt / need.size - self._per_byte)


def _count(value: JsonValue) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
