"""What a running gateway takes over of a changed configuration."""

from typing import Any

import pytest

from core.config import Config, validate
from core.config.live import LIVE, is_live, renewal
from core.errors import ConfigError

SMALL: dict[str, Any] = {"model": "m", "urls": ["http://127.0.0.1:1"]}


def config(**sections: Any) -> Config:
    return validate({"tiers": {"small": SMALL}, **sections})


def test_live_keys_change_and_the_others_keep_their_old_values() -> None:
    old = config(gateway={"port": 1, "drain": "700ms"}, router={"threshold": 0.4})
    new = config(
        gateway={"port": 2, "drain": "5s"},
        router={"threshold": 0.6, "classifier": "other.json"},
        auth={"keys": [{"name": "a", "tenant": "t", "env": "A"}]},
        tiers={"small": {**SMALL, "urls": ["http://127.0.0.1:2"], "queue": {"max_inflight": 7}, "engine": {"seed": 1}}},
    )
    found = renewal(old, new)
    assert set(found.changed) == {
        "gateway.drain",
        "router.threshold",
        "auth.keys",
        "tiers.small.urls",
        "tiers.small.queue.max_inflight",
    }
    assert set(found.kept) == {"gateway.port", "router.classifier", "tiers.small.engine"}
    assert found.config.gateway.port == 1
    assert found.config.gateway.drain == 5
    assert found.config.tiers.small is not None
    assert found.config.tiers.small.urls == ("http://127.0.0.1:2",)
    assert found.config.router.classifier == "default"


def test_the_same_configuration_changes_nothing() -> None:
    same = config(gateway={"drain": "0.7s"})
    found = renewal(same, config(gateway={"drain": "0.7s"}))
    assert (found.changed, found.kept, found.config) == ((), (), same)


def test_a_tier_is_not_added_while_the_gateway_runs() -> None:
    both = config(tiers={"small": SMALL, "frontier": {**SMALL, "model": "other"}})
    assert renewal(config(), both).kept == ("tiers.frontier",)


def test_live_keys_that_need_a_restart_of_others_are_refused_whole() -> None:
    both = {"small": SMALL, "frontier": {**SMALL, "model": "other"}}
    with pytest.raises(ConfigError, match=r"restart, for: tiers\.frontier"):
        renewal(config(), config(tiers=both, router={"cascade": {"enabled": True}}))


def test_every_pattern_names_a_key() -> None:
    full = config(tiers={"small": SMALL, "frontier": {**SMALL, "model": "other"}})

    def leaves(value: Any, path: str) -> list[str]:
        if isinstance(value, dict) and value:
            return [leaf for name, below in value.items() for leaf in leaves(below, f"{path}.{name}".lstrip("."))]
        return [path]

    live = [path for path in leaves(full.model_dump(), "") if is_live(path)]
    assert len({pattern for pattern in LIVE if any(is_live(path) for path in live)}) == len(LIVE)
    assert "gateway.port" not in live
    assert "tiers.small.timeout.idle" in live
