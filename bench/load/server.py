"""What a server says of itself: models, version, engine limits, how it counts tokens, and its counters."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx
import numpy as np

from bench.load.prompts import Scale, Synthetic
from bench.load.target import Target
from core.errors import ForebayError

# Counters whose growth over a run says what the load did to the engine.
COUNTERS = (
    "vllm:num_preemptions_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:request_success_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
)
_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+([0-9.eE+-]+|NaN)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# Lengths in words at which a tokenizer is asked, to see how it counts.
_ASKED = (64, 512)


@dataclass(frozen=True)
class About:
    """What could be read; empty where the server does not say. `exact`: it goes on to a wanted length when asked to."""

    models: tuple[str, ...] = ()
    limits: Mapping[str, object] = field(default_factory=dict)
    exact: bool = False


class Server:
    """Asks a server about itself, one short question at a time. A server that does not answer is only less known."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._client = httpx.Client(headers=dict(target.headers), timeout=5.0, verify=target.verify)

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def about(self, model: str | None) -> About:
        """Models and limits. Raises ForebayError where nothing answers at all."""
        limits: dict[str, object] = {}
        found = self._models()
        rows = [row for row in found if model is None or row.get("id") == model] or found
        if rows and isinstance(rows[0].get("max_model_len"), int):
            limits["max_model_len"] = rows[0]["max_model_len"]
        owner = str(rows[0].get("owned_by")) if rows else ""
        version = self._json("/version")
        if isinstance(version.get("version"), str):
            limits["version"] = version["version"]
        for name, labels, _ in self._metrics():
            if name == "vllm:cache_config_info":
                wanted = ("block_size", "num_gpu_blocks", "num_cpu_blocks", "enable_prefix_caching", "cache_dtype")
                limits |= {key: _value(labels[key]) for key in wanted if labels.get(key) not in (None, "None")}
        names = tuple(str(row["id"]) for row in found if "id" in row)
        return About(names, limits, owner in ("vllm", "forebay") or "version" in limits)

    def counters(self) -> dict[str, float]:
        """The engine's counters, summed over their labels; empty where there are none."""
        found: dict[str, float] = {}
        for name, _, value in self._metrics():
            if name in COUNTERS:
                found[name] = found.get(name, 0.0) + value
        return found

    def scale(self, model: str, salt: int) -> Scale | None:
        """How many tokens a prompt of our words has, where the server has vLLM's `/tokenize`."""
        counts = []
        for asked in _ASKED:
            said = Synthetic(np.array([asked], "i4"), np.array([1], "i4"), salt).say(0, 0)
            body: dict[str, object] = {"model": model}
            if self._target.kind == "chat":
                body["messages"] = [dict(one) for one in said.messages]
            else:
                body["prompt"] = said.messages[0]["content"]
            count = self._json("/tokenize", body).get("count")
            if not isinstance(count, int):
                return None
            counts.append(count)
        slope = (counts[1] - counts[0]) / (_ASKED[1] - _ASKED[0])
        return Scale(counts[0] - slope * _ASKED[0], slope) if slope > 0 else None

    def _models(self) -> list[dict[str, object]]:
        try:
            answer = self._client.get(f"{self._target.base}/models")
            rows = answer.json().get("data") if answer.status_code == 200 else None
        except httpx.TransportError as error:
            raise ForebayError(f"{self._target.base} does not answer: {type(error).__name__}: {error}") from None
        except (ValueError, AttributeError):
            return []
        return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []

    def _json(self, path: str, body: object | None = None) -> dict[str, object]:
        try:
            url = self._target.root + path
            answer = self._client.get(url) if body is None else self._client.post(url, json=body)
            found = answer.json() if answer.status_code == 200 else None
        except (httpx.HTTPError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _metrics(self) -> list[tuple[str, dict[str, str], float]]:
        try:
            answer = self._client.get(self._target.root + "/metrics")
        except httpx.HTTPError:
            return []
        if answer.status_code != 200:
            return []
        rows = (_LINE.match(line) for line in answer.text.splitlines())
        return [(row[1], dict(_LABEL.findall(row[2] or "")), float(row[3])) for row in rows if row is not None]


def _value(text: str) -> object:
    return int(text) if text.isdigit() else {"True": True, "False": False}.get(text, text)
