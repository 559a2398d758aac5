"""Spans as OTLP 1.x writes them, in protobuf or in JSON (opentelemetry-proto: collector/trace/v1, trace/v1, common/v1).

Written by hand: the messages are few and fixed, and the library that would write them is larger than the gateway.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence

import orjson
from pydantic import JsonValue

from gateway.tracing.span import Attribute, Kind, Span

SCOPE = "forebay.gateway"
_KINDS: dict[Kind, int] = {"internal": 1, "server": 2, "client": 3}
_ERROR = 2
# Wire types of protobuf.
_VARINT, _FIXED64, _LENGTH = 0, 1, 2


def as_protobuf(spans: Sequence[Span], resource: Mapping[str, Attribute]) -> bytes:
    """An ExportTraceServiceRequest."""
    scope = _bytes(1, _text(1, SCOPE)) + b"".join(_bytes(2, _span(span)) for span in spans)
    resource_spans = _bytes(1, _attributes(1, resource)) + _bytes(2, scope)
    return _bytes(1, resource_spans)


def as_json(spans: Sequence[Span], resource: Mapping[str, Attribute]) -> bytes:
    """The same as JSON: ids in hex, 64-bit numbers as strings."""
    rows: list[JsonValue] = [_json_span(span) for span in spans]
    scope: JsonValue = {"scope": {"name": SCOPE}, "spans": rows}
    return orjson.dumps(
        {"resourceSpans": [{"resource": {"attributes": _json_attributes(resource)}, "scopeSpans": [scope]}]}
    )


def _span(span: Span) -> bytes:
    parts = [_bytes(1, span.trace_id), _bytes(2, span.span_id)]
    if span.parent_id is not None:
        parts.append(_bytes(4, span.parent_id))
    parts += [_text(5, span.name), _number(6, _KINDS[span.kind])]
    parts += [_fixed(7, span.start), _fixed(8, span.end), _attributes(9, span.attributes)]
    if span.error is not None:
        parts.append(_bytes(15, _text(2, span.error) + _number(3, _ERROR)))
    return b"".join(parts)


def _attributes(number: int, attributes: Mapping[str, Attribute]) -> bytes:
    return b"".join(_bytes(number, _text(1, name) + _bytes(2, _value(value))) for name, value in attributes.items())


def _value(value: Attribute) -> bytes:
    match value:
        case bool():
            return _number(2, int(value))
        case int():
            return _number(3, value)
        case float():
            return _key(4, _FIXED64) + struct.pack("<d", value)
        case str():
            return _text(1, value)
        case _:
            return _bytes(5, b"".join(_bytes(1, _text(1, item)) for item in value))


def _key(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _number(number: int, value: int) -> bytes:
    return _key(number, _VARINT) + _varint(value)


def _fixed(number: int, value: int) -> bytes:
    return _key(number, _FIXED64) + struct.pack("<Q", value)


def _bytes(number: int, value: bytes) -> bytes:
    return _key(number, _LENGTH) + _varint(len(value)) + value


def _text(number: int, value: str) -> bytes:
    return _bytes(number, value.encode("utf-8", "replace"))


def _varint(value: int) -> bytes:
    # Negative numbers are those of 64 bits in two's complement.
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _json_span(span: Span) -> dict[str, JsonValue]:
    row: dict[str, JsonValue] = {
        "traceId": span.trace_id.hex(),
        "spanId": span.span_id.hex(),
        "name": span.name,
        "kind": _KINDS[span.kind],
        "startTimeUnixNano": str(span.start),
        "endTimeUnixNano": str(span.end),
        "attributes": _json_attributes(span.attributes),
    }
    if span.parent_id is not None:
        row["parentSpanId"] = span.parent_id.hex()
    if span.error is not None:
        row["status"] = {"code": _ERROR, "message": span.error}
    return row


def _json_attributes(attributes: Mapping[str, Attribute]) -> list[JsonValue]:
    return [{"key": name, "value": _json_value(value)} for name, value in attributes.items()]


def _json_value(value: Attribute) -> JsonValue:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
        case _:
            return {"arrayValue": {"values": list(_strings(value))}}


def _strings(values: Iterable[str]) -> Iterable[JsonValue]:
    for value in values:
        yield {"stringValue": value}
