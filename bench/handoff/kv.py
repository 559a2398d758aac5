"""KV blocks of one engine: in use, pinned for a decode side until a lease ends, or free."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from core.clock import Clock


class KvLost(Exception):
    """The blocks that were promised are not there: expired, read before, of another prompt, or of a dead engine."""


@dataclass(frozen=True)
class Pin:
    """Blocks that wait to be read. `prompt` is what was computed, `params` what the reader must bring, unchanged."""

    blocks: tuple[int, ...]
    prompt: tuple[int, ...]
    params: Mapping[str, JsonValue]
    expires: float


class Blocks:
    """`total` blocks of `size` tokens. `lease`: seconds that a pin holds; what nobody read by then is orphaned."""

    def __init__(self, total: int, size: int, lease: float, clock: Clock) -> None:
        self.total, self.size, self.lease = total, size, lease
        self._orphaned = 0
        self._clock = clock
        self._free = list(range(total))
        self._pins: dict[str, Pin] = {}

    @property
    def orphaned(self) -> int:
        """Blocks whose lease ran out before anybody read or released them, over the engine's life."""
        self._expire()
        return self._orphaned

    @property
    def used(self) -> int:
        """Blocks that are not free, pinned ones included."""
        self._expire()
        return self.total - len(self._free)

    @property
    def pinned(self) -> int:
        """Blocks that wait for a decode side."""
        self._expire()
        return sum(len(pin.blocks) for pin in self._pins.values())

    def take(self, tokens: int) -> tuple[int, ...]:
        """Blocks for so many tokens. Raises RuntimeError where they do not fit."""
        self._expire()
        count = -(-tokens // self.size)
        if count > len(self._free):
            raise RuntimeError(f"{count} blocks are wanted and {len(self._free)} are free")
        taken, self._free = tuple(self._free[:count]), self._free[count:]
        return taken

    def give(self, blocks: Sequence[int]) -> None:
        """Blocks are free again."""
        assert not set(blocks) & set(self._free), "a block was freed twice"  # noqa: S101  # the engine's own invariant
        self._free += blocks

    def pin(
        self, request: str, blocks: tuple[int, ...], prompt: tuple[int, ...], params: Mapping[str, JsonValue]
    ) -> None:
        """Blocks in use are pinned for a reader."""
        self._pins[request] = Pin(blocks, prompt, params, self._clock.monotonic() + self.lease)

    def read(self, request: str, prompt: tuple[int, ...], params: Mapping[str, JsonValue]) -> int:
        """A decode side reads what was pinned, which frees it; the number of blocks. Raises KvLost."""
        self._expire()
        pin = self._pins.get(request)
        if pin is None:
            raise KvLost(f"the blocks of {request} are gone: expired or read before")
        if params != pin.params:
            raise KvLost(f"the parameters of {request} were changed on the way")
        if prompt != pin.prompt:
            raise KvLost(f"the prompt of {request} was rendered differently on both sides")
        self.release(request)
        return len(pin.blocks)

    def release(self, request: str) -> None:
        """The decode side does not want them: freed."""
        pin = self._pins.pop(request, None)
        if pin is not None:
            self.give(pin.blocks)

    def drop_all(self) -> None:
        """The process died: nothing is left."""
        self._pins.clear()
        self._free = list(range(self.total))

    def _expire(self) -> None:
        now = self._clock.monotonic()
        for request in [name for name, pin in self._pins.items() if pin.expires <= now]:
            self._orphaned += len(self._pins[request].blocks)
            self.release(request)
