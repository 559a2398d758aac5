"""What counts as the same question: the exact fingerprint, and the partition inside which wording may differ.

Fingerprint: SHA-256 of canonical JSON over tenant, target, kind and every body field but those in `NOT_ASKED`. Object
keys are sorted, array order is kept, an absent field is not its default, and equal numbers are one value (1 and 1.0).
Partition: the same with the last user text left out, and the embedder's namespace put in; so tenant, model, system
prompt, history, response format and sampling are equal before any vector is compared.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import cast

import orjson
from pydantic import JsonValue

from core.request import InferenceRequest

# How the answer travels and who the end user is do not change the answer; `model` is in the target.
NOT_ASKED = frozenset({"model", "stream", "stream_options", "user"})
# The answer depends on what the server remembers.
STATEFUL = ("previous_response_id", "conversation", "store")
# The answer gives the prompt back, or comes from outside the model: another wording's answer would show.
VERBATIM = ("echo", "prompt_logprobs", "return_token_ids", "web_search_options", "audio")
TEXT_PARTS = (None, "text", "input_text")


@dataclass(frozen=True, slots=True)
class Place:
    """Where and with what the semantic layer searches; both None where it takes no part, and `bypass` says why."""

    partition: str | None
    text: str | None
    bypass: str | None


@dataclass(eq=False, slots=True)
class Question:
    """One request as the cache sees it.

    `fingerprint`: hex digest, the key of the exact layer. `tenant`: whose entries may answer it. `namespace`: of the
    embedder. `place`: of the semantic layer, or what works it out when it is first asked for: an exact hit never does.
    """

    fingerprint: str
    tenant: str
    namespace: str
    place: Place | Callable[[], Place]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Question):
            return NotImplemented
        mine = (self.fingerprint, self.tenant, self.namespace, self._found())
        return mine == (other.fingerprint, other.tenant, other.namespace, other._found())

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @property
    def id(self) -> str:
        """The entry's public identity."""
        return entry_id(self.fingerprint)

    @property
    def partition(self) -> str | None:
        """Where the semantic layer searches; None where it takes no part."""
        return self._found().partition

    @property
    def text(self) -> str | None:
        """What the semantic layer compares; None where it takes no part."""
        return self._found().text

    @property
    def bypass(self) -> str | None:
        """Why the semantic layer takes no part, or None."""
        return self._found().bypass

    def _found(self) -> Place:
        if not isinstance(self.place, Place):
            # What worked it out holds the whole request, which need not live as long as the question.
            self.place = self.place()
        return self.place


def entry_id(fingerprint: str) -> str:
    """The public identity of the answer to a question: 128 bits of its fingerprint."""
    return fingerprint[:32]


def namespace(embedder: str, revision: str, dim: int) -> str:
    """Vectors of different embedders never meet: model, revision and dimension are part of a partition."""
    return f"{embedder}@{revision}#{dim}"


def question(request: InferenceRequest, *, tenant: str, target: str, namespace: str) -> Question:
    """The question in `request`.

    `tenant` is `*` under the global scope; `target` names the resolved model or models; `namespace` the embedder.
    """
    asked = {name: value for name, value in request.body.items() if name not in NOT_ASKED}
    identity: dict[str, JsonValue] = {"tenant": tenant, "target": target, "kind": request.kind, "body": asked}
    fingerprint = _digest(identity)
    return Question(fingerprint, tenant, namespace, partial(_place, request, identity, namespace))


def _place(request: InferenceRequest, identity: Mapping[str, JsonValue], namespace: str) -> Place:
    reason = _bypass(request)
    if reason is not None:
        return Place(None, None, reason)
    last = dict(request.messages[-1])
    last["content"] = _shape(last.get("content"))
    rest: list[JsonValue] = [*map(dict, request.messages[:-1]), last]
    asked = cast("dict[str, JsonValue]", identity["body"])
    partition = _digest({**identity, "body": asked | {"messages": rest}, "namespace": namespace})
    return Place(partition, request.user_text, None)


def _bypass(request: InferenceRequest) -> str | None:
    """Why this request has no semantic layer, or None."""
    body, messages = request.body, request.messages
    if request.kind != "chat":
        return "completion"
    if request.has_tools or body.get("tool_choice"):
        return "tools"
    if any(body.get(name) for name in STATEFUL):
        return "stateful"
    if any(body.get(name) for name in VERBATIM):
        return "verbatim"
    if any(not _only_text(message.get("content")) for message in messages):
        return "parts"
    if messages[-1].get("role") != "user":
        return "not_user"
    return None if (request.user_text or "").strip() else "empty"


def _only_text(content: JsonValue) -> bool:
    if not isinstance(content, list):
        return content is None or isinstance(content, str)
    return all(
        isinstance(part, str) or (isinstance(part, dict) and part.get("type") in TEXT_PARTS and "text" in part)
        for part in content
    )


def _shape(content: JsonValue) -> JsonValue:
    """The content without its text: one text part is the same as a plain string; other shapes are kept."""
    if not isinstance(content, list):
        return None
    shape: list[JsonValue] = [
        {name: value for name, value in part.items() if name != "text"} if isinstance(part, dict) else None
        for part in content
    ]
    return None if shape in ([{"type": "text"}], [None]) else shape


def _digest(value: JsonValue) -> str:
    data = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    # Only a float that is a whole number can be written in two ways, and orjson ends it in `.0`.
    if b".0" in data:
        data = orjson.dumps(_whole(value), option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(data).hexdigest()


def _whole(value: JsonValue) -> JsonValue:
    """The value with every float that is a whole number as an integer."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _whole(item) for name, item in value.items()}
    return value
