"""What is foreseen of the guard before there is a vector."""

import importlib.resources
from typing import Any

import numpy as np
import orjson
import pytest

from cache.guard.model import GuardFileError, checksum
from cache.guard.outlook import FILE, Foreseeing, foresight_for, parse_outlook
from cache.guard.verifier import Guard, IdenticalOnly, packaged_model
from cache.verdict import Side

ASKED, STORED = "how do I reset my password", "how can I reset my password"
VECTOR = np.eye(1, 384, dtype=np.float32)[0]


@pytest.fixture(scope="module")
def guard() -> Guard:
    return Guard(packaged_model())


def foreseeing(guard: Guard, *, judge: bool = False) -> Foreseeing:
    found = foresight_for(guard, 0.8, judge=judge)
    assert isinstance(found, Foreseeing)
    return found


def test_what_a_hard_rule_refuses_is_hopeless_with_and_without_a_judge(guard: Guard) -> None:
    for judge in (False, True):
        foresight = foreseeing(guard, judge=judge)
        assert not foresight.hopeful("open the account", "close the account", 1.0)
        assert not foresight.hopeful("pay 20 dollars", "pay 30 dollars", 1.0)
        assert not foresight.hopeful("wie geht es dir", "wie geht es ihnen", 1.0)


def test_what_is_served_at_once_is_hopeful(guard: Guard) -> None:
    foresight = foreseeing(guard)
    assert foresight.hopeful(ASKED, ASKED.upper(), 0.0)
    assert guard.verify(Side(ASKED, VECTOR), Side(STORED, VECTOR)).served
    assert foresight.hopeful(ASKED, STORED, 0.95)


def test_texts_that_share_nothing_but_a_neighbourhood_are_hopeless_unless_a_judge_decides(guard: Guard) -> None:
    pair = ("how do I reset my password", "where can I buy a sturdy umbrella")
    assert not foreseeing(guard).hopeful(*pair, 0.6)
    assert foreseeing(guard, judge=True).hopeful(*pair, 0.6)


def test_a_nearer_pair_is_never_less_hopeful(guard: Guard) -> None:
    foresight = foreseeing(guard)
    # Below `likeness` nobody is asked.
    near = [at / 100 for at in range(round(foresight.likeness * 100), 101, 5)]
    hopes = [foresight.hopeful("what is the best phone", "best phones to buy", at) for at in near]
    assert set(hopes) == {False, True}
    assert hopes == sorted(hopes)


def test_a_higher_threshold_asks_for_no_less(guard: Guard) -> None:
    found = [foresight_for(guard, at, judge=False) for at in (0.75, 0.8, 0.85, 0.9, 0.95)]
    likeness = [one.likeness for one in found if one is not None]
    assert len(likeness) == 5
    assert likeness == sorted(likeness)


@pytest.mark.parametrize("verifier", [None, IdenticalOnly()])
def test_without_the_guard_nothing_is_foreseen(verifier: Any) -> None:
    assert foresight_for(verifier, 0.8, judge=False) is None


def test_below_every_measured_threshold_nothing_is_foreseen(guard: Guard) -> None:
    assert foresight_for(guard, 0.5, judge=False) is None


def test_a_damaged_file_is_refused() -> None:
    data = importlib.resources.files("cache.guard").joinpath(FILE).read_bytes()
    assert parse_outlook(data, FILE).least
    document = orjson.loads(data)
    document["weights"][0] += 1
    with pytest.raises(GuardFileError, match="damaged"):
        parse_outlook(orjson.dumps(document), FILE)
    document["features"] = ["another"]
    document["checksum"] = checksum(document)
    with pytest.raises(GuardFileError, match="other features"):
        parse_outlook(orjson.dumps(document), FILE)
    with pytest.raises(GuardFileError, match="not an outlook file"):
        parse_outlook(b"[]", FILE)
