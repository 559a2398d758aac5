"""What a pair verifier says, and its seam."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from core.embedder import Vector


@dataclass(frozen=True)
class Verdict:
    """`served`: the stored answer may be served. `said`: what decided, or what finds it out. `score`: probability that
    one answer serves both questions, 0 to 1; None where a rule decided. `unsure`: the score lies so near the cut that a
    judge is worth asking; never where a rule decided.
    """

    served: bool
    said: str | Callable[[], str]
    score: float | None = None
    unsure: bool = False

    @property
    def feature(self) -> str:
        """What decided: a rule or a feature by name, or `identical`. Found out when it is asked for."""
        return self.said if isinstance(self.said, str) else self.said()


@dataclass(slots=True)
class Notes:
    """What a verifier keeps about a stored text, so as not to read it again: its own business, packed to a few hundred
    bytes. None: nothing yet.
    """

    packed: bytes | None = None


@dataclass(frozen=True)
class Side:
    """One question of a pair: its text and its unit vector; of a stored one also the place for notes on it."""

    text: str
    vector: Vector
    notes: Notes | None = None


@dataclass(frozen=True)
class Feature:
    """What a verifier measured of a pair. `worth`: what it added to the log-odds that one answer serves both."""

    name: str
    value: float
    worth: float


class Verifier(Protocol):
    """Decides whether the answer to `stored` answers `asked`, given that their cosine similarity is high enough.

    Quick (well under a millisecond), called on the event loop. Symmetric up to rounding. `features`: what it
    looked at, the weightiest first, for people; empty where a rule decides.
    """

    def verify(self, asked: Side, stored: Side) -> Verdict: ...

    def features(self, asked: Side, stored: Side) -> list[Feature]: ...

    def note(self, text: str) -> bytes | None:
        """What to keep about a text that is stored; it may be a while until it is compared."""


class Foresight(Protocol):
    """Says before a question is embedded whether the answer to a stored one could be served.

    `hopeful(asked, stored, likeness, notes)`: False where it is next to certain that it would not; `likeness` is the
    cosine of the cheap vectors of the two texts, `notes` those on the stored one. `likeness` of the object: below it
    nothing is hopeful. Quick, called on the event loop. A wrong False costs a miss, a wrong True an embedding.
    """

    likeness: float

    def hopeful(self, asked: str, stored: str, likeness: float, notes: Notes | None = None) -> bool: ...
