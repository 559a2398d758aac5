"""A memo never outgrows its bound, and holds what was kept last."""

from hypothesis import given
from hypothesis import strategies as st

from core.memo import Memo


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 9), st.integers())))
def test_it_is_bounded_and_never_wrong(most: int, kept: list[tuple[int, int]]) -> None:
    memo, last = Memo[int, int](most), dict[int, int]()
    for key, value in kept:
        assert memo.keep(key, value) == value
        last[key] = value
        assert memo[key] == value
        assert len(memo) <= most
        assert memo.items() <= last.items()


def test_a_key_that_is_there_takes_no_room() -> None:
    memo = Memo[str, int](2)
    memo.keep("a", 1)
    memo.keep("b", 2)
    memo.keep("b", 3)
    assert memo == {"a": 1, "b": 3}
