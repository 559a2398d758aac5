"""The seam between the cache's policy and the place where answers are kept."""

from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from cache.verdict import Notes
from core.embedder import Vector


@dataclass(frozen=True, eq=False, slots=True)
class Entry:
    """One stored answer. `stored_at`: seconds of this process's monotonic clock. `body`: the completion as JSON bytes.

    `partition`: where the semantic layer may serve it from; None where only the exact layer may.
    """

    id: str
    fingerprint: str
    tenant: str
    tier: str
    body: bytes = field(repr=False)
    stored_at: float
    partition: str | None = None


@dataclass(frozen=True, eq=False)
class Wording:
    """What the semantic layer compares: the text of a question and its unit vector.

    `namespace` names the embedder that made the vector. It follows from the question's id, but for the embedder: the
    answer to a question may be replaced, its wording cannot. `notes` are this process's own.
    """

    namespace: str
    text: str = field(repr=False)
    vector: Vector = field(repr=False)
    notes: Notes = field(default_factory=Notes, repr=False)


@dataclass(frozen=True)
class Sizes:
    """What a store holds. `entries` of all, `vectors` of the semantic layer; what has left since the store began."""

    entries: int
    vectors: int
    bytes: int
    evicted: int
    expired: int


class Store(Protocol):
    """Keeps entries by tenant and id, within the bounds of the configuration, least recently used first out.

    An async context manager. It tells the catalogue that it was made with which wordings there are; an entry without a
    wording has no `partition`.

    `get`: the entry under this tenant and id, None where there is none; `touch` marks it as used.
    `put`: adds or replaces. False where it is too large to keep; the older answer is gone then, too.
    `remove`: by id, of a tenant, or all of them; how many there were.
    `sizes`: after what has expired is gone.
    `fault`: what does not work at the moment, None where everything does.
    All raise DependencyFault where the store does not do its part within its budget. Cancelling one leaves it open
    whether it has happened.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def get(self, tenant: str, key: str, *, touch: bool) -> Entry | None: ...

    async def put(self, entry: Entry, wording: Wording | None) -> bool: ...

    async def remove(self, *, key: str | None = None, tenant: str | None = None) -> int: ...

    async def sizes(self) -> Sizes: ...

    @property
    def fault(self) -> str | None: ...
