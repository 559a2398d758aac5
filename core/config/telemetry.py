"""Where traces go, as OpenTelemetry's environment variables say it: the same names as for every other program."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast, get_args
from urllib.parse import unquote, urlsplit

from core.errors import ConfigError, Problem

Protocol = Literal["http/protobuf", "http/json"]
Sampler = Literal[
    "always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off",
    "parentbased_traceidratio",
]  # fmt: skip


@dataclass(frozen=True)
class Telemetry:
    """Where traces go and which.

    `endpoint`: the whole address; `timeout`: of one export, `delay`: between two, in seconds; `batch`: most spans in
    one, `queue`: most that wait. `sampler` and `ratio` decide which traces are recorded.
    """

    endpoint: str
    protocol: Protocol
    headers: Mapping[str, str]
    resource: Mapping[str, str]
    sampler: Sampler
    ratio: float
    timeout: float
    delay: float
    batch: int
    queue: int


def telemetry(environ: Mapping[str, str]) -> Telemetry | None:
    """None where no endpoint is set, or traces are switched off. Raises ConfigError that names the variable."""
    off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none"
    own, common = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if off or not (own or common):
        return None
    endpoint = own or f"{str(common).rstrip('/')}/v1/traces"
    if urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).hostname:
        raise _wrong("OTEL_EXPORTER_OTLP_ENDPOINT", "legal is an http or https address")
    resource = {"service.name": "forebay", **_pairs(environ, "OTEL_RESOURCE_ATTRIBUTES")}
    if name := environ.get("OTEL_SERVICE_NAME"):
        resource["service.name"] = name
    exporter = "OTEL_EXPORTER_OTLP_TRACES_" if own else "OTEL_EXPORTER_OTLP_"
    headers = f"{exporter}HEADERS" if f"{exporter}HEADERS" in environ else "OTEL_EXPORTER_OTLP_HEADERS"
    sampler = _one_of(environ, "OTEL_TRACES_SAMPLER", "parentbased_always_on", get_args(Sampler))
    protocol = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    found = {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol} if protocol else {}
    chosen = _one_of(found, "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", get_args(Protocol))
    return Telemetry(
        endpoint=endpoint,
        protocol=cast("Protocol", chosen),
        headers=_pairs(environ, headers),
        resource=resource,
        sampler=cast("Sampler", sampler),
        ratio=_number(environ, "OTEL_TRACES_SAMPLER_ARG", 1.0, most=1.0),
        timeout=_number(environ, "OTEL_EXPORTER_OTLP_TIMEOUT", 10_000) / 1000,
        delay=_number(environ, "OTEL_BSP_SCHEDULE_DELAY", 5_000) / 1000,
        batch=int(_number(environ, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512, least=1)),
        queue=int(_number(environ, "OTEL_BSP_MAX_QUEUE_SIZE", 2048, least=1)),
    )


def _one_of(environ: Mapping[str, str], name: str, default: str, legal: tuple[str, ...]) -> str:
    value = environ.get(name) or default
    if value not in legal:
        raise _wrong(name, f"{value!r} is not legal; legal: {', '.join(legal)}")
    return value


def _number(
    environ: Mapping[str, str], name: str, default: float, least: float = 0.0, most: float = float("inf")
) -> float:
    text = environ.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise _wrong(name, f"{text!r} is not a number from {least:g} to {most:g}")
    return value


def _pairs(environ: Mapping[str, str], name: str) -> dict[str, str]:
    """`key=value,key=value`, percent-encoded."""
    found = {}
    for part in filter(None, environ.get(name, "").split(",")):
        key, sign, value = part.partition("=")
        if not sign or not key.strip():
            # What was given may be a secret.
            raise _wrong(name, "legal is key=value,key=value")
        found[unquote(key.strip())] = unquote(value.strip())
    return found


def _wrong(name: str, message: str) -> ConfigError:
    return ConfigError([Problem(name, message)])
