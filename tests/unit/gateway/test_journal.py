"""Request lines reach stderr in batches, none is lost at the end, and a closed stderr ends nothing."""

import asyncio
import io
import sys

import pytest

from gateway.journal import BATCH, Stderr


class Bytes(io.RawIOBase):
    """A stderr that counts its writes."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.broken = False

    @property
    def buffer(self) -> "Bytes":
        return self

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        if self.broken:
            raise BrokenPipeError
        self.writes.append(data)
        return len(data)


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch) -> Bytes:
    out = Bytes()
    monkeypatch.setattr(sys, "stderr", out)
    return out


async def test_lines_that_come_together_are_written_together(stderr: Bytes) -> None:
    log = Stderr(0.001)
    log(b"one\n")
    log(b"two\n")
    assert stderr.writes == []
    while not stderr.writes:
        await asyncio.sleep(0.001)
    assert stderr.writes == [b"one\ntwo\n"]


async def test_a_full_batch_is_not_waited_for(stderr: Bytes) -> None:
    log = Stderr(60.0)
    for number in range(BATCH):
        log(b"%d\n" % number)
    assert b"".join(stderr.writes).count(b"\n") == BATCH


async def test_what_waits_is_written_at_the_end(stderr: Bytes) -> None:
    log = Stderr(60.0)
    log(b"last\n")
    log.flush()
    assert stderr.writes == [b"last\n"]


async def test_nobody_reading_ends_no_request(stderr: Bytes) -> None:
    log = Stderr(60.0)
    stderr.broken = True
    log(b"lost\n")
    log.flush()
    stderr.broken = False
    log(b"kept\n")
    log.flush()
    assert stderr.writes == [b"kept\n"]
