"""Server-sent events by the standard, on any chunk boundary."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import sse
from gateway.sse import EventSplitter, EventTooLarge, data_of

ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
FIELDS = st.sampled_from(
    [b"data: x", b"data:y", b"data", b": ping", b"event: e", b"id: 1", b"data:  z", b"", "data: 🦫".encode()]
)


def split(stream: bytes, sizes: list[int]) -> tuple[list[bytes | None], bytes, bytes]:
    """The data of all events, their raw bytes joined, and the rest, for a stream that comes in such pieces."""
    splitter, datas, raws, at, turn = EventSplitter(), [], b"", 0, 0
    while at < len(stream):
        size = sizes[turn % len(sizes)]
        for event in splitter.feed(stream[at : at + size]):
            datas.append(event.data)
            raws += event.raw
        at, turn = at + size, turn + 1
    return [data for data in datas if data is not None], raws, splitter.rest


def reference(stream: bytes) -> list[bytes]:
    """The data of all events, straight from the standard's algorithm, line by line."""
    lines = stream.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    found: list[bytes] = []
    held: list[bytes] = []
    for line in lines[:-1]:
        if not line:
            if held:
                found.append(b"\n".join(held))
            held = []
        else:
            name, colon, value = line.partition(b":")
            if name == b"data":
                held.append(value.removeprefix(b" ") if colon else b"")
    return found


@settings(max_examples=60)
@given(
    st.lists(st.tuples(FIELDS, ENDS), max_size=30),
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
    st.booleans(),
)
def test_any_line_ends_on_any_boundary_give_the_standards_events(
    lines: list[tuple[bytes, bytes]], sizes: list[int], mark: bool
) -> None:
    stream = (b"\xef\xbb\xbf" if mark else b"") + b"".join(field + end for field, end in lines)
    datas, raws, rest = split(stream, sizes)
    assert raws + rest == stream
    assert datas == reference(stream)


def test_a_crlf_cut_in_two_is_one_line_end() -> None:
    assert split(b"data: a\r\n\r\ndata: b\r\n\r\n", [8, 1])[0] == [b"a", b"b"]
    splitter = EventSplitter()
    assert [event.data for event in splitter.feed(b"data: a\r\n\r")] == [b"a"]
    assert [event.data for event in splitter.feed(b"\ndata: b\n\n")] == [b"b"]


def test_a_character_cut_in_two_is_whole_again() -> None:
    stream = "data: naïve 🦫\n\n".encode()
    for at in range(1, len(stream)):
        splitter = EventSplitter()
        events = splitter.feed(stream[:at]) + splitter.feed(stream[at:])
        assert [event.data for event in events] == ["naïve 🦫".encode()]


def test_data_lines_are_joined_and_other_fields_left_out() -> None:
    assert data_of(b"event: x\ndata: a\n: note\ndata:b\nid: 7\n\n") == b"a\nb"
    assert data_of(b": only a comment\n\n") is None
    assert data_of(b"data\n\n") == b""


def test_an_event_without_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT", 100)
    splitter = EventSplitter()
    splitter.feed(b"data: " + b"x" * 90)
    with pytest.raises(EventTooLarge):
        splitter.feed(b"x" * 90)
