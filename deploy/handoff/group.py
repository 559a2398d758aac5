"""What the decode side needs from around it: prefill replicas, a place for numbers, and its settings."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import JsonValue

Json = Mapping[str, JsonValue]
Kind = Literal["chat", "completion"]
Mode = Literal["remote", "local", "fallback", "error"]


@dataclass(frozen=True)
class Ask:
    """One prefill leg: a body of `kind`, and the client's headers that tracing and priorities need."""

    kind: Kind
    body: Json
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Reply:
    """A prefill replica's answer: HTTP status and JSON body."""

    status: int
    body: Json


class Peer(Protocol):
    """One prefill replica. `name` is the same for the same process, and another one after a restart.

    `ask` returns its answer whatever the status, and raises any Exception where the replica did not answer. Its
    cancellation aborts the prefill there, which frees the blocks; an answer that was there first is returned all the
    same, because its blocks are pinned.
    """

    @property
    def name(self) -> str: ...

    async def ask(self, ask: Ask) -> Reply: ...


class PrefillGroup(Protocol):
    """The prefill replicas of a tier.

    `choose` yields one whose name is not in `avoid`, with room for a request, or None where there is none; it may wait.
    The request is made within the block.
    """

    def choose(self, ask: Ask, avoid: frozenset[str]) -> AbstractAsyncContextManager[Peer | None]: ...


class Meter(Protocol):
    """Where the numbers go: how a prompt was prefilled and why; seconds from the prefill side's answer to the decode
    side's first content; blocks that prefill replicas keep for nobody."""

    def prefilled(self, mode: Mode, reason: str) -> None: ...

    def handed_over(self, seconds: float) -> None: ...

    def orphaned(self, blocks: int) -> None: ...


@dataclass(frozen=True)
class Settings:
    """How the decode side decides. Durations in seconds, sizes in tokens.

    `slots`: sequences the engine runs at one time. `slot_wait`: longest wait for one. `lease`: how long a prefill
    replica keeps blocks. `attempts`: prefill replicas asked for one request, within one `prefill_deadline`.
    """

    min_prompt_tokens: int = 256
    prefill_deadline: float = 5.0
    on_prefill_failure: Literal["decode", "error"] = "decode"
    slots: int = 256
    slot_wait: float = 60.0
    block_size: int = 16
    lease: float = 30.0
    attempts: int = 2
    remembered_blocks: int = 65_536
