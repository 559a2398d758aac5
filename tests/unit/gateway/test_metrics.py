"""The table of metrics, its bounds, and one settlement."""

import re

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.account import Account
from gateway.auth import Identity
from gateway.journal import Journal
from gateway.metering import Usage
from gateway.metrics import MAX_VALUES, TABLE, Metrics
from gateway.settle import Settlement
from tests.clock import HandClock


def samples(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            if sample.name == name:
                found[tuple(sample.labels.values())] = sample.value
    return found


def test_every_row_of_the_table_is_registered_under_its_name() -> None:
    text = Metrics().render().decode()
    kinds = dict(re.findall(r"# TYPE (\S+) (\S+)", text))
    for spec in TABLE:
        assert spec.name.startswith("forebay_")
        assert kinds[spec.name] == spec.kind


def test_made_up_label_values_are_bounded() -> None:
    metrics = Metrics()
    for number in range(MAX_VALUES + 50):
        metrics.tenant_requests(f"tenant {number}").inc()
    found = samples(metrics, "forebay_tenant_requests_total")
    assert len(found) == MAX_VALUES + 1
    assert found["other",] == 50
    metrics.tenant_requests("tenant 3").inc()
    assert samples(metrics, "forebay_tenant_requests_total")["tenant 3",] == 2


def test_a_request_is_counted_with_its_waits_taken_out() -> None:
    clock, lines = HandClock(), bytearray()
    metrics = Metrics()
    account = Account("id", "POST", "/v1/chat/completions", clock.monotonic())
    account.identity = Identity("key", "tenant", admin=False, cache=True, priority="normal")
    account.tenant = "tenant"
    account.tier, account.cache, account.status, account.stream = "small", "miss", 200, True
    account.fingerprint = "0123456789abcdef" * 4
    account.queue_s, account.upstream_s, account.client_s = 1.0, 5.0, 0.5
    account.first_at, account.last_at = clock.now + 2, clock.now + 6
    account.usage = Usage(10, 5, 4)
    clock.now += 7
    Settlement(metrics, Journal(clock, lines.extend), clock).settle(account)
    labels = ("/v1/chat/completions", "small", "miss", "200")
    by_name = {
        sample.name: (sample.labels, sample.value)
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }
    assert set(by_name["forebay_requests_total"][0].values()) == set(labels)
    assert by_name["forebay_overhead_seconds_sum"][1] == pytest.approx(0.5)
    assert by_name["forebay_time_to_first_token_seconds_sum"][1] == pytest.approx(2)
    assert by_name["forebay_time_per_output_token_seconds_sum"][1] == pytest.approx(1)
    assert by_name["forebay_tenant_tokens_total"][1] == 15
    assert by_name["forebay_prompt_tokens_sum"][1] == 10
    line = orjson.loads(lines)
    assert (line["tenant"], line["key"], line["status"], line["queue_ms"]) == ("tenant", "key", 200, 1000)
    assert (line["input_tokens"], line["output_tokens"], line["cached_tokens"]) == (10, 5, 4)
    assert line["ts"].endswith("Z")
    assert line["fingerprint"] == "0123456789abcdef" * 2
