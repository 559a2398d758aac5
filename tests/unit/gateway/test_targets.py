"""What a model name and the tier header mean together."""

import pytest

from core.config.records import Tier, Tiers
from core.errors import BadRequest, NotFound
from gateway.targets import Targets

BOTH = Targets(Tiers(small=Tier(model="org/small"), frontier=Tier(model="org/big")))
ONE = Targets(Tiers(small=Tier(model="org/small")))


@pytest.mark.parametrize(
    ("model", "header", "tier"),
    [
        ("auto", None, None),
        ("auto", "small", "small"),
        ("auto", "frontier", "frontier"),
        ("small", None, "small"),
        ("org/big", None, "frontier"),
        ("org/big", "frontier", "frontier"),
        ("small", "small", "small"),
    ],
)
def test_the_tier_of_a_request(model: str, header: str | None, tier: str | None) -> None:
    assert BOTH.resolve(model, header).tier == tier


def test_every_way_to_name_a_tier_is_the_same_question() -> None:
    ways = [("small", None), ("org/small", None), ("auto", "small"), ("org/small", "small")]
    assert len({BOTH.resolve(model, header).question for model, header in ways}) == 1
    assert BOTH.resolve("auto", None).question != BOTH.resolve("small", None).question


def test_auto_changes_with_either_model() -> None:
    other = Targets(Tiers(small=Tier(model="org/small"), frontier=Tier(model="org/bigger")))
    assert BOTH.resolve("auto", None).question != other.resolve("auto", None).question


def test_with_one_tier_auto_is_that_tier() -> None:
    assert ONE.resolve("auto", None) == ONE.resolve("small", None)
    assert ONE.only is not None
    assert BOTH.only is None


def test_an_unknown_model_is_not_found() -> None:
    for targets, model in ((BOTH, "gpt-9"), (ONE, "frontier"), (BOTH, "")):
        with pytest.raises(NotFound) as caught:
            targets.resolve(model, None)
        assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("targets", "model", "header"),
    [(BOTH, "small", "frontier"), (BOTH, "org/big", "small"), (BOTH, "auto", "medium"), (ONE, "auto", "frontier")],
)
def test_an_impossible_tier_is_a_bad_request(targets: Targets, model: str, header: str) -> None:
    with pytest.raises(BadRequest) as caught:
        targets.resolve(model, header)
    assert caught.value.param == "x-forebay-tier"
