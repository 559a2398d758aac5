import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.config.units import DURATION_PATTERN, SIZE_PATTERN, format_duration, format_size, parse_duration, parse_size

SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12} | {
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}


@given(st.integers(0, 10**6), st.sampled_from(sorted(SECONDS)))
def test_a_duration_is_its_number_times_its_unit(number: int, unit: str) -> None:
    assert parse_duration(f"{number}{unit}") == pytest.approx(number * SECONDS[unit])


@given(st.integers(0, 2**40), st.sampled_from(sorted(BYTES)))
def test_a_size_is_exact_in_bytes(number: int, unit: str) -> None:
    assert parse_size(f"{number}{unit}") == number * BYTES[unit]


@given(st.floats(0, 1e9))
def test_a_written_duration_is_read_as_the_same_time(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=1e-9)


@given(st.integers(0, 2**60))
def test_a_written_size_is_read_as_the_same_number_of_bytes(count: int) -> None:
    assert parse_size(format_size(count)) == count


def test_durations_and_sizes_are_written_as_people_do() -> None:
    written = [format_duration(seconds) for seconds in (0.05, 0.25, 2, 90, 600, 3600, 604800, 0, 0.0001)]
    assert written == ["50ms", "250ms", "2s", "90s", "10m", "1h", "7d", "0.0s", "0.0001s"]
    assert [format_size(count) for count in (4 * 2**20, 1000, 3 * 2**30, 0)] == ["4MiB", "1000B", "3GiB", "0B"]


def test_decimal_units_are_powers_of_1000_and_binary_units_of_1024() -> None:
    assert (parse_size("4MB"), parse_size("4MiB"), parse_size("1.5KiB")) == (4_000_000, 4_194_304, 1536)


@pytest.mark.parametrize("text", ["30", "", "s", "-1s", "1 s", " 1s", "1e3s", "1.s", ".5s", "1sec", "1S", "٣s", "1s\n"])
def test_what_is_no_duration_is_refused_with_the_legal_units(text: str) -> None:
    with pytest.raises(ValueError, match="ms, s, m, h or d"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["4", "", "4M", "4mib", "-4MiB", "4 MiB", "0x4KB", "4MiBs"])
def test_what_is_no_size_is_refused_with_the_legal_units(text: str) -> None:
    with pytest.raises(ValueError, match="KiB, MiB or GiB"):
        parse_size(text)


@given(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.lists(st.text()), st.binary()))
def test_a_value_without_unit_is_refused_whatever_its_type(value: object) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(value)
    with pytest.raises(ValueError, match="not a size"):
        parse_size(value)


@given(st.text(st.sampled_from("0123456789. msdhKMGiB\n٣"), max_size=8))
def test_the_schemas_patterns_accept_what_is_parsed_and_nothing_else(text: str) -> None:
    for pattern, parse in ((DURATION_PATTERN, parse_duration), (SIZE_PATTERN, parse_size)):
        try:
            parse(text)
            parsed = True
        except ValueError:
            parsed = False
        # A JSON Schema pattern is not told about the end of a line: `$` there is the end of the text.
        assert parsed == (re.search(pattern.replace("$", r"\Z"), text) is not None)
