"""The worked example in the documentation is what the code computes."""

from pathlib import Path

from bench.capacity_example import pictures, table
from capacity.batch_plan import ADVICE

PAGE = Path(__file__).resolve().parents[3] / "docs" / "capacity.md"


def test_the_table_of_the_example_is_printed_by_the_bench() -> None:
    assert table() in PAGE.read_text(encoding="utf-8"), "run: python -m bench.capacity_example"


def test_the_pictures_are_there_and_drawn_by_the_bench() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name, drawn in pictures().items():
        assert f"(capacity/{name}.png)" in text
        assert (PAGE.parent / "capacity" / f"{name}.png").read_bytes() == drawn


def test_every_advice_code_is_documented() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [code for code in ADVICE if f"`{code}`" not in text] == []
