"""Request lines reach stderr in batches, none is lost at the end, and a closed stderr ends nothing."""

import asyncio
from types import SimpleNamespace

import pytest

from gateway.journal import BATCH, Stderr


class Buffer:
    """What is under a text stream; it remembers its writes."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.broken = False
        self.written = asyncio.Event()

    def write(self, data: bytes) -> None:
        if self.broken:
            raise BrokenPipeError
        self.writes.append(data)
        self.written.set()

    def flush(self) -> None:
        pass


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch) -> Buffer:
    buffer = Buffer()
    monkeypatch.setattr("gateway.journal.sys", SimpleNamespace(stderr=SimpleNamespace(buffer=buffer)))
    return buffer


async def test_lines_that_come_together_are_written_together(stderr: Buffer) -> None:
    log = Stderr(0.001)
    log(b"one\n")
    log(b"two\n")
    assert stderr.writes == []
    await stderr.written.wait()
    assert stderr.writes == [b"one\ntwo\n"]


async def test_a_full_batch_is_not_waited_for(stderr: Buffer) -> None:
    log = Stderr(60.0)
    for number in range(BATCH):
        log(b"%d\n" % number)
    assert b"".join(stderr.writes).count(b"\n") == BATCH


async def test_what_waits_is_written_at_the_end(stderr: Buffer) -> None:
    log = Stderr(60.0)
    log(b"last\n")
    log.flush()
    assert stderr.writes == [b"last\n"]


async def test_nobody_reading_ends_no_request(stderr: Buffer) -> None:
    log = Stderr(60.0)
    stderr.broken = True
    log(b"lost\n")
    log.flush()
    stderr.broken = False
    log(b"kept\n")
    log.flush()
    assert stderr.writes == [b"kept\n"]


async def test_a_line_is_made_when_it_is_written_and_keeps_its_place(stderr: Buffer) -> None:
    log = Stderr(60.0)
    made: list[str] = []

    def line() -> bytes:
        made.append("now")
        return b"two\n"

    log(b"one\n")
    log(line)
    log(b"three\n")
    assert made == []
    log.flush()
    assert stderr.writes == [b"one\ntwo\nthree\n"]
    assert made == ["now"]
