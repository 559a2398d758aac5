"""Speculative decoding: what a draft gains, and when it gains nothing (Leviathan, Kalman, Matias, 2023)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Speculation:
    """A draft proposes `tokens` at a time, each accepted with probability `acceptance`, each for `cost` of a step.

    Holds while verifying `tokens` + 1 positions costs as much as decoding one, which is where decode is memory-bound;
    in a batch that is compute-bound every drafted token is paid for and the gain goes.
    """

    acceptance: float
    tokens: int
    cost: float

    def __post_init__(self) -> None:
        if not 0 <= self.acceptance <= 1 or self.tokens < 1 or self.cost < 0:
            raise ValueError("acceptance lies between 0 and 1, tokens from 1, and a cost is not below 0")

    @property
    def tokens_per_step(self) -> float:
        """E = (1 - a^(g+1)) / (1 - a)."""
        return sum(self.acceptance**power for power in range(self.tokens + 1))

    @property
    def speedup(self) -> float:
        """E / (g · c + 1); below 1 speculation is slower than none."""
        return self.tokens_per_step / (self.tokens * self.cost + 1)


def pays(acceptance: float, cost: float) -> bool:
    """Whether some number of drafted tokens helps: if and only if a > c."""
    return acceptance > cost


def best_tokens(acceptance: float, cost: float, most: int = 64) -> int:
    """The number of drafted tokens with the largest speed-up; 0 where none helps."""
    best = max(range(1, most + 1), key=lambda tokens: Speculation(acceptance, tokens, cost).speedup)
    return best if Speculation(acceptance, best, cost).speedup > 1 else 0


def break_even_acceptance(tokens: int, cost: float) -> float:
    """The acceptance at which `tokens` drafted at a time neither help nor hurt; 1 where no acceptance is enough."""
    low, high = 0.0, 1.0
    if Speculation(high, tokens, cost).speedup <= 1:
        return 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if Speculation(middle, tokens, cost).speedup > 1 else (middle, high)
    return high
