"""Traces over a real socket: what a collector gets, and what the engine is told of the trace."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bench.engine import Script, ScriptedEngine
from core.config.telemetry import Telemetry, telemetry
from tests.integration.collector import Collector, attributes
from tests.integration.served import serving
from tests.integration.stack import SMALL, chat, gateway, tiers, until
from tests.integration.wire import ask

CHAT = "/v1/chat/completions"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with Collector() as running:
        yield running


def to(collector: Collector, **environ: str) -> Telemetry:
    """Every span at once, as JSON."""
    found = telemetry(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json",
            "OTEL_BSP_SCHEDULE_DELAY": "20",
            **environ,
        }
    )
    assert found is not None
    return found


def times(span: dict[str, Any]) -> tuple[int, int]:
    return int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])


async def test_a_request_continues_its_clients_trace_and_the_engine_continues_the_calls(
    engine: ScriptedEngine, collector: Collector
) -> None:
    async with gateway(tiers(engine), telemetry=to(collector)) as stack:
        body = chat("the-prompt", temperature=0.5, max_tokens=50)
        headers = {"traceparent": TRACEPARENT, "tracestate": "vendor=1", "x_request_id": "r-1"}
        answer = await ask(stack.url, CHAT, body, **headers)
        await until(lambda: len(collector.spans) == 2)
    request, call = collector.named("POST /v1/chat/completions"), collector.named("chat ")
    assert request["traceId"] == call["traceId"] == TRACE
    assert request["parentSpanId"] == PARENT
    assert call["parentSpanId"] == request["spanId"]
    seen = engine.requests[-1].headers
    assert seen["traceparent"] == f"00-{TRACE}-{call['spanId']}-01"
    assert seen["tracestate"] == "vendor=1"
    assert (request["kind"], call["kind"], call["name"]) == (2, 3, "chat small")
    assert times(request)[0] <= times(call)[0] <= times(call)[1] <= times(request)[1]
    usage = answer.json["usage"]
    of_call = attributes(call)
    wanted = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "small",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 50,
        "gen_ai.response.model": SMALL,
        "gen_ai.response.id": answer.json["id"],
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
        "server.address": "127.0.0.1",
        "server.port": engine.port,
    }
    assert {name: of_call.get(name) for name in wanted} == wanted
    of_request = attributes(request)
    assert of_request["http.response.status_code"] == 200
    assert of_request["http.route"] == CHAT
    assert (of_request["forebay.tier"], of_request["forebay.cache"]) == ("small", "miss")
    assert of_request["forebay.request_id"] == "r-1"
    assert collector.resources[0]["service.name"] == "forebay"
    text = b"".join(collector.bodies)
    assert b"the-prompt" not in text
    assert answer.json["choices"][0]["message"]["content"].encode() not in text


async def test_a_stream_a_hit_and_a_queue_show_as_what_they_are(engine: ScriptedEngine, collector: Collector) -> None:
    async with gateway(tiers(engine, queue={"max_inflight": 1}), telemetry=to(collector)) as stack:
        engine.defaults = Script(text="a b c d", itl=0.02)
        streams = [asyncio.create_task(ask(stack.url, CHAT, chat(f"q {n}", stream=True))) for n in range(2)]
        await asyncio.gather(*streams)
        await until(lambda: len(collector.spans) == 5)
        queue = collector.named("queue small")
        calls = [span for span in collector.spans if span["name"] == "chat small"]
        waited = next(call for call in calls if call["traceId"] == queue["traceId"])
        assert abs(times(queue)[1] - times(waited)[0]) < 20_000_000
        of_call = attributes(waited)
        assert of_call["gen_ai.request.stream"] is True
        assert of_call["gen_ai.response.finish_reasons"] == ["stop"]
        assert of_call["gen_ai.response.time_to_first_chunk"] > 0
        collector.spans.clear()
        await ask(stack.url, CHAT, chat("q 0", stream=True))
        await until(lambda: len(collector.spans) == 1)
        assert attributes(collector.named("POST"))["forebay.cache"] == "hit-exact"
        assert "parentSpanId" not in collector.named("POST")


async def test_failures_are_errors_and_clients_mistakes_are_not(engine: ScriptedEngine, collector: Collector) -> None:
    async with gateway(tiers(engine), telemetry=to(collector)) as stack:
        engine.next.append(Script(status=500))
        assert (await ask(stack.url, CHAT, chat("a"))).status == 500
        await until(lambda: len(collector.spans) == 2)
        for span in collector.spans:
            assert span["status"]["code"] == 2
            assert attributes(span)["error.type"]
        collector.spans.clear()
        assert (await ask(stack.url, CHAT, {"model": "nobody", "messages": [{"role": "user"}]})).status == 404
        await until(lambda: len(collector.spans) == 1)
        assert "status" not in collector.named("POST")
        assert attributes(collector.named("POST"))["error.type"] == "model_not_found"


@pytest.mark.parametrize(
    ("sampler", "given", "recorded", "flag"),
    [
        ("parentbased_always_on", f"00-{TRACE}-{PARENT}-00", False, "00"),
        ("parentbased_always_off", None, False, "00"),
        ("parentbased_always_off", TRACEPARENT, True, "01"),
        ("always_on", f"00-{TRACE}-{PARENT}-00", True, "01"),
        ("always_on", "00-00000000000000000000000000000000-b7ad6b7169203331-01", True, "01"),
    ],
)
async def test_what_is_recorded_is_for_the_sampler_and_the_trace_goes_on_anyway(
    engine: ScriptedEngine, collector: Collector, sampler: str, given: str | None, recorded: bool, flag: str
) -> None:
    async with gateway(tiers(engine), telemetry=to(collector, OTEL_TRACES_SAMPLER=sampler)) as stack:
        await ask(stack.url, CHAT, chat("a"), **({} if given is None else {"traceparent": given, "tracestate": "v=1"}))
        _, trace, _, found = engine.requests[-1].headers["traceparent"].split("-")
        assert found == flag
        readable = given is not None and TRACE in given
        assert (trace == TRACE) is readable
        # The state of a trace that cannot be read is nobody's.
        assert ("tracestate" in engine.requests[-1].headers) is readable
        await stack.idle()
    assert bool(collector.spans) is recorded


async def test_without_a_collector_the_clients_trace_is_passed_on_as_it_is(engine: ScriptedEngine) -> None:
    async with gateway(tiers(engine)) as stack:
        await ask(stack.url, CHAT, chat("a"), traceparent=TRACEPARENT)
        await ask(stack.url, CHAT, chat("b"))
        first, second = engine.requests
        assert first.headers["traceparent"] == TRACEPARENT
        assert "traceparent" not in second.headers


async def test_a_collector_that_is_away_costs_no_request_anything(
    engine: ScriptedEngine, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.answer = 503
    small = to(collector, OTEL_BSP_MAX_QUEUE_SIZE="6", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="4")
    async with gateway(tiers(engine), telemetry=small) as stack:
        answers = [await ask(stack.url, CHAT, chat(f"q {n}")) for n in range(10)]
        assert {answer.status for answer in answers} == {200}
        await until(lambda: len(collector.bodies) > 2)
        collector.answer = 200
        await until(lambda: len(collector.spans) == 6)
    assert sum("traces cannot be sent" in record.getMessage() for record in caplog.records) == 1


async def test_the_process_is_told_by_the_environment_and_sends_the_last_spans_at_its_end(
    engine: ScriptedEngine, collector: Collector, tmp_path: Path
) -> None:
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json",
        "OTEL_EXPORTER_OTLP_HEADERS": "x-team=a%20b",
        "OTEL_SERVICE_NAME": "edge",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
    }
    async with serving(tmp_path, tiers(engine), **environ) as served:
        assert (await ask(served.url, CHAT, chat("a"))).status == 200
        served.process.send_signal(signal.SIGTERM)
        assert await served.rest() == 0
    assert {span["name"] for span in collector.spans} == {"POST /v1/chat/completions", "chat small"}
    assert "x-team: a b" in collector.heads[0]
    assert collector.heads[0].startswith("post /v1/traces ")
    resource = collector.resources[0]
    assert (resource["service.name"], resource["deployment.environment.name"]) == ("edge", "test")
    assert resource["service.instance.id"]
    assert json.loads(collector.bodies[0])
