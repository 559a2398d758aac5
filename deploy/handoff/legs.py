"""The bodies of the two legs, and which requests are not split at all. Plain functions of a body."""

from collections.abc import Mapping, Sequence
from typing import cast

from pydantic import JsonValue

from deploy.handoff.group import Json, Kind

# What a prefill replica must be told for vLLM's connectors; the peer is not known to it.
_PRODUCE: Json = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
# None of these changes the prompt; each can make an engine refuse a single token, or fail on it.
_OUTPUT_ONLY = (
    *("min_tokens", "stream_options", "best_of", "stop", "stop_token_ids", "ignore_eos", "logit_bias", "bad_words"),
    *("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    *("allowed_token_ids", "logprobs", "top_logprobs", "return_tokens_as_token_ids", "thinking_token_budget"),
)
# What `/tokenize` needs to render a chat as the engine does.
_RENDERED = (
    *("model", "messages", "tools", "chat_template", "chat_template_kwargs", "add_generation_prompt"),
    *("continue_final_message", "add_special_tokens", "mm_processor_kwargs", "prompt"),
)


def prefill_body(kind: Kind, body: Json) -> dict[str, JsonValue]:
    """The client's body for a prefill replica: one token, whole, unconstrained, of the same rendered prompt."""
    leg = {name: value for name, value in body.items() if name not in _OUTPUT_ONLY}
    leg |= {"stream": False, "n": 1, "max_tokens": 1, "return_token_ids": True, "kv_transfer_params": dict(_PRODUCE)}
    if kind == "chat":
        leg["max_completion_tokens"] = 1
    if leg.get("tool_choice") not in (None, "auto", "none"):
        # A forced call is a constraint on the output. The tools stay in the prompt; the caller compares the prompts.
        leg["tool_choice"] = "none"
    return leg


def decode_body(body: Json, handed: Json) -> dict[str, JsonValue]:
    """The client's body with what to read, as the prefill replica said it: connectors add fields with every release."""
    return {**body, "kv_transfer_params": dict(handed)}


def release_body(kind: Kind, body: Json, handed: Json) -> dict[str, JsonValue]:
    """A request that does nothing but read the blocks, which frees them on the prefill side."""
    return {**prefill_body(kind, body), "kv_transfer_params": dict(handed)}


def tokenize_body(body: Json) -> dict[str, JsonValue]:
    """What asks the engine for the tokens of the prompt; of one that is given as token ids, for its limit only."""
    asked = {name: body[name] for name in _RENDERED if name in body}
    return asked if given_ids(body) is None else {**asked, "prompt": "a"}


def given_ids(body: Json) -> list[int] | None:
    """The prompt where the client gave it as token ids: `/tokenize` takes text only."""
    prompt = body.get("prompt")
    if not isinstance(prompt, list) or not prompt:
        return None
    return cast("list[int]", prompt) if all(type(one) is int for one in prompt) else None


def whole_reason(kind: Kind, body: Json) -> str | None:
    """Why this body is never split, or None.

    Blocks can be read once, by one sequence: several choices or prompts would read what another has freed already.
    Log-probabilities of the prompt exist only where it is computed.
    """
    if any(cast("int", body.get(name) or 1) > 1 for name in ("n", "best_of")) or body.get("use_beam_search"):
        return "choices"
    if body.get("prompt_logprobs") is not None or (body.get("echo") and body.get("logprobs") is not None):
        return "prompt_logprobs"
    prompt = body.get("prompt")
    if kind == "completion" and not (isinstance(prompt, str) or _is_tokens(prompt)):
        return "batch"
    return None


def output_limit(body: Json) -> int:
    """Output tokens the client asked for; 1 where it did not say."""
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    return limit if isinstance(limit, int) else 1


def blocks_of(handed: Json) -> int:
    """How many blocks wait on the prefill side; their ids are nested by KV cache group."""
    return _leaves(handed.get("remote_block_ids"))


def prompt_ids(body: Json) -> Sequence[int] | None:
    """The prompt as a prefill replica rendered it, or None where it did not say."""
    ids = body.get("prompt_token_ids")
    choices = body.get("choices")
    if ids is None and isinstance(choices, list) and choices and isinstance(choices[0], dict):
        ids = choices[0].get("prompt_token_ids")
    return cast("Sequence[int]", ids) if _is_tokens(ids) else None


def cached_tokens(body: Json) -> int | None:
    """Prompt tokens that an answer says were cached; None where it does not say, which is not 0."""
    usage = body.get("usage")
    details = usage.get("prompt_tokens_details") if isinstance(usage, Mapping) else None
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    return cached if isinstance(cached, int) else None


def says_error(body: Json) -> bool:
    """Whether an answer or an event is a failure in a 200: an error, or a choice that ended with one."""
    choices = body.get("choices")
    ended = [choice.get("finish_reason") for choice in choices if isinstance(choice, Mapping)] if choices else []  # type: ignore[union-attr]
    return body.get("error") is not None or "error" in ended


def _is_tokens(value: JsonValue) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], int)


def _leaves(value: JsonValue) -> int:
    if isinstance(value, list | tuple):
        return sum(_leaves(item) for item in value)
    return 0 if value is None else 1
