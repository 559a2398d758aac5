"""What a pair verifier says, and its seam."""

from dataclasses import dataclass
from typing import Protocol

from core.embedder import Vector


@dataclass(frozen=True)
class Verdict:
    """`served`: the stored answer may be served. `feature`: what decided. `score`: probability that one answer serves
    both questions, 0 to 1; None where a rule decided. `unsure`: the score lies so near the cut that a judge is worth
    asking; never where a rule decided.
    """

    served: bool
    feature: str
    score: float | None = None
    unsure: bool = False


@dataclass(frozen=True)
class Side:
    """One question of a pair: its text and its unit vector."""

    text: str
    vector: Vector


@dataclass(frozen=True)
class Feature:
    """What a verifier measured of a pair. `worth`: what it added to the log-odds that one answer serves both."""

    name: str
    value: float
    worth: float


class Verifier(Protocol):
    """Decides whether the answer to `stored` answers `asked`, given that their cosine similarity is high enough.

    Pure and quick (well under a millisecond), called on the event loop. Symmetric up to rounding. `features`: what it
    looked at, the weightiest first, for people; empty where a rule decides.
    """

    def verify(self, asked: Side, stored: Side) -> Verdict: ...

    def features(self, asked: Side, stored: Side) -> list[Feature]: ...


class Foresight(Protocol):
    """Says before a question is embedded whether the answer to a stored one could be served.

    `hopeful(asked, stored, likeness)`: False where it is next to certain that it would not; `likeness` is the cosine of
    the cheap vectors of the two texts. `likeness` of the object: below it nothing is hopeful. Pure and quick, called on
    the event loop. A wrong False costs a miss, a wrong True an embedding.
    """

    likeness: float

    def hopeful(self, asked: str, stored: str, likeness: float) -> bool: ...
