"""What is written for a collector is what OpenTelemetry's own classes read, and the environment is read as they do."""

import math

import orjson
import pytest

from core.config.telemetry import telemetry
from core.errors import ConfigError
from gateway.tracing.otlp import as_json, as_protobuf
from gateway.tracing.span import Span, fresh_id, parent_in

SPAN = Span(
    name="chat naïve 🦫",
    kind="client",
    trace_id=bytes(range(1, 17)),
    span_id=bytes(range(8)),
    parent_id=bytes(range(1, 9)),
    start=1_790_000_000_123_456_789,
    end=1_790_000_001_123_456_789,
    attributes={"s": "x", "b": True, "i": -5, "big": 1 << 40, "f": 0.25, "l": ["stop", "length"]},
    error="timeout",
)
BARE = Span("GET", "server", bytes(15) + b"\1", bytes(7) + b"\1", None, 0, 1, {})
PLAIN = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/"}


def test_protobuf_is_read_back_by_opentelemetrys_own_messages() -> None:
    service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    found = service.ExportTraceServiceRequest()
    found.ParseFromString(as_protobuf([SPAN, BARE], {"service.name": "forebay"}))
    (resource,) = found.resource_spans
    assert [(a.key, a.value.string_value) for a in resource.resource.attributes] == [("service.name", "forebay")]
    (scope,) = resource.scope_spans
    span, bare = scope.spans
    assert (span.trace_id, span.span_id, span.parent_span_id) == (SPAN.trace_id, SPAN.span_id, SPAN.parent_id)
    assert (span.name, span.kind) == (SPAN.name, 3)
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (SPAN.start, SPAN.end)
    assert (span.status.code, span.status.message) == (2, "timeout")
    values = {a.key: a.value for a in span.attributes}
    assert values["s"].string_value == "x"
    assert values["b"].bool_value is True
    assert (values["i"].int_value, values["big"].int_value) == (-5, 1 << 40)
    assert math.isclose(values["f"].double_value, 0.25)
    assert [item.string_value for item in values["l"].array_value.values] == ["stop", "length"]
    assert (bare.parent_span_id, bare.kind, bare.status.code) == (b"", 2, 0)


def test_json_is_the_same_request() -> None:
    json_format = pytest.importorskip("google.protobuf.json_format")
    found = orjson.loads(as_json([SPAN], {"service.name": "forebay"}))
    (span,) = found["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert span["traceId"] == SPAN.trace_id.hex()
    assert {row["key"]: row["value"] for row in span["attributes"]}["i"] == {"intValue": "-5"}
    service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    # Ids are hex there and base64 in protobuf's own JSON; everything else is the same.
    for name in ("traceId", "spanId", "parentSpanId"):
        del span[name]
    read = json_format.Parse(orjson.dumps(found), service.ExportTraceServiceRequest())
    binary = service.ExportTraceServiceRequest()
    binary.ParseFromString(as_protobuf([SPAN], {"service.name": "forebay"}))
    (wanted,) = binary.resource_spans[0].scope_spans[0].spans
    for field in ("trace_id", "span_id", "parent_span_id"):
        wanted.ClearField(field)
    assert read == binary


@pytest.mark.parametrize(
    ("header", "known"),
    [
        (b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", True),
        (b"cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-follows", True),
        (b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-follows", False),
        (b"ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", False),
        (b"00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", False),
        (b"00-00000000000000000000000000000000-b7ad6b7169203331-01", False),
        (b"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", False),
        (b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331", False),
        (b"", False),
        (None, False),
    ],
)
def test_only_a_traceparent_of_the_standard_is_one(header: bytes | None, known: bool) -> None:
    assert (parent_in(header) is not None) is known


def test_ids_have_their_size() -> None:
    assert {len(fresh_id(8)) for _ in range(50)} == {8}


def test_nothing_is_traced_unless_a_collector_is_named() -> None:
    assert telemetry({}) is None
    assert telemetry({"OTEL_SERVICE_NAME": "x", "OTEL_TRACES_SAMPLER": "nonsense"}) is None
    assert telemetry({**PLAIN, "OTEL_SDK_DISABLED": "true"}) is None
    assert telemetry({**PLAIN, "OTEL_TRACES_EXPORTER": "none"}) is None


def test_the_variables_mean_what_they_mean_elsewhere() -> None:
    found = telemetry(PLAIN)
    assert found is not None
    assert (found.endpoint, found.protocol) == ("http://collector:4318/v1/traces", "http/protobuf")
    assert (found.sampler, found.timeout, found.delay, found.batch, found.queue) == (
        "parentbased_always_on", 10, 5, 512, 2048,
    )  # fmt: skip
    own = telemetry({**PLAIN, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://other/path"})
    assert own is not None
    assert own.endpoint == "https://other/path"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "secret-without-a-name"),
        ("OTEL_TRACES_SAMPLER", "sometimes"),
        ("OTEL_TRACES_SAMPLER_ARG", "2"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
    ],
)
def test_what_cannot_be_meant_is_named_and_secrets_are_not(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        telemetry({**PLAIN, name: value})
    (problem,) = caught.value.problems
    assert problem.path == name
    assert "secret" not in problem.message
