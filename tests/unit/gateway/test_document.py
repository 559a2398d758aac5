"""The OpenAPI document is complete and hangs together."""

from collections.abc import Iterator
from typing import Any

from gateway.app import EXPLAIN, HOT
from gateway.document import document


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref":
                yield value
            else:
                yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_every_reference_leads_somewhere() -> None:
    whole = document(["auto", "m"], ["small"])
    for reference in references(whole):
        at: Any = whole
        for part in reference.removeprefix("#/").split("/"):
            at = at[part]


def test_every_route_and_every_status_of_an_error_is_described() -> None:
    whole: Any = document(["auto", "m"], ["small"])
    assert {*HOT, EXPLAIN, "/v1/models", "/v1/models/{id}", "/health", "/ready", "/metrics"} <= whole["paths"].keys()
    for path in HOT:
        responses = whole["paths"][path]["post"]["responses"]
        assert {"200", "400", "401", "404", "413", "429", "500", "502", "503", "504"} <= responses.keys()
        assert {"x-request-id", "x-forebay-cache", "x-forebay-tier"} <= responses["200"]["headers"].keys()
