"""The live check agrees with a stack of scripted engines, cascade off and on, and finds a difference."""

import argparse
import json
from pathlib import Path

import pytest

from bench import router_live
from bench.engine import ScriptedEngine
from core.config import load
from tests.integration.stack import FRONTIER, SMALL, gateway, tiers, until


@pytest.mark.parametrize("cascade", [False, True])
async def test_client_metrics_and_log_agree(cascade: bool, tmp_path: Path) -> None:
    async with ScriptedEngine(SMALL) as engine, ScriptedEngine(FRONTIER) as frontier:
        document = tiers(engine, frontier=frontier)
        for name, price in (("small", 1.0), ("frontier", 5.0)):
            document["tiers"][name]["price"] = {"input": price, "output": 2 * price}
        if cascade:
            document["router"] = {"cascade": {"enabled": True, "threshold": -0.57}}
        config = tmp_path / "forebay.yaml"
        config.write_text(json.dumps(document), encoding="utf-8")
        async with gateway(document) as stack:
            asked = argparse.Namespace(url=stack.url, key=None, requests=40, concurrency=4, max_tokens=24)
            answers, grown = await router_live.measure(asked)
            await until(lambda: {one.request_id for one in answers} <= {line["request_id"] for line in stack.lines()})
            log = tmp_path / "log"
            log.write_bytes(b"not JSON\n" + bytes(stack.log))
        found = router_live.checks(answers, grown, load(config), log)
        assert [one for one in found if not one.agrees] == []
        assert {one.tier for one in answers} == {"small", "frontier"}
        assert any(one.what == "saved cost" and one.client > 0 for one in found)
        assert len(answers) == 40
    if cascade:
        result, more = router_live.cascade(answers, grown)
        assert result["judged"] > 0
        assert result["mean_logprob_escalated"] < result["mean_logprob_kept"]
        assert more[-1].agrees


async def test_another_client_in_between_is_a_difference() -> None:
    seen = router_live.Seen("r", 200, "small", "complexity", None, 3, 4, None, 0.1)
    name = "forebay_router_decisions_total"
    labels = frozenset({("tier", "small"), ("reason", "complexity")})
    found = router_live.checks([seen], {(name, labels): 2.0}, None, None)
    assert any(not one.agrees for one in found)
