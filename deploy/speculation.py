"""Speculative decoding in a tier's engine arguments: what goes together and what does not.

The rules are of vllm/config/speculative.py (SpeculativeConfig), and of vllm/engine/arg_utils.py where it meets LoRA.
Left to the engine: what stands in a draft model's own configuration, and which models it fits.
"""

from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from deploy.device import Device
from deploy.engine_arguments import document, nearest

Engine = Mapping[str, JsonValue]
Fault = tuple[str, str]

_AT = "speculative_config"
_LOOKUP = ("ngram", "ngram_gpu")
# Methods that need a model beside the target's, and those that need a number of tokens whatever that model says.
_WITH_MODEL = ("draft_model", "eagle", "eagle3", "medusa", "mlp_speculator", "dflash", "dspark")
_COUNTED = (*_LOOKUP, "draft_model", "eagle", "eagle3")
# The same settings as arguments of their own.
_SHORT = {"method": "spec_method", "model": "spec_model", "num_speculative_tokens": "spec_tokens"}


def speculation(engine: Engine, device: Device) -> Iterator[Fault]:
    """Every fault of the speculation that `engine` asks for, as key and message."""
    given = engine.get(_AT)
    config = dict(given) if isinstance(given, dict) else {}
    for name, short in _SHORT.items():
        if engine.get(short) is not None:
            if name in config:
                yield short, f"is given in {_AT}.{name} too; legal: one of the two"
            config[name] = engine[short]
    if not config:
        if given is not None:
            yield _AT, "is empty; legal: null, or a mapping with method and num_speculative_tokens"
        return
    unknown = sorted(set(config) - set(document()["speculative"]))
    for name in unknown:
        close = nearest(name, document()["speculative"])
        yield f"{_AT}.{name}", f"unknown key; {close}legal: {', '.join(document()['speculative'])}"
    if not unknown:
        yield from _method(config, device)
        yield from _sizes(config, engine)


def _method(config: Engine, device: Device) -> Iterator[Fault]:
    method, model = config.get("method"), config.get("model")
    legal = document()["speculative"]["method"]["choices"]
    if method is None and model is None:
        yield f"{_AT}.method", f"missing, and there is no model to tell it; legal: {', '.join(legal)}"
    elif method is not None and method not in legal:
        yield f"{_AT}.method", f"{method!r} is not legal; {nearest(str(method), legal)}legal: {', '.join(legal)}"
    elif method in _WITH_MODEL and model is None:
        yield f"{_AT}.model", f"missing; {method} drafts with a model: give its hub id or path"
    if method == "ngram_gpu" and device == "cpu":
        yield f"{_AT}.method", "ngram_gpu needs a GPU; legal on a CPU: ngram"
    if method not in _LOOKUP:
        for name in ("prompt_lookup_min", "prompt_lookup_max"):
            if config.get(name) is not None:
                yield f"{_AT}.{name}", f"has no effect with method {method}; legal with {' and '.join(_LOOKUP)}"
        return
    low, high = config.get("prompt_lookup_min"), config.get("prompt_lookup_max")
    if isinstance(low, int) and isinstance(high, int) and low > high:
        yield f"{_AT}.prompt_lookup_min", f"{low} is above prompt_lookup_max; legal: 1 to {high}"


def _sizes(config: Engine, engine: Engine) -> Iterator[Fault]:
    tokens = config.get("num_speculative_tokens")
    if tokens is None:
        if config.get("method") in _COUNTED:
            yield f"{_AT}.num_speculative_tokens", "missing; legal: 1 and more (3 to 5 are usual)"
    elif not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        yield f"{_AT}.num_speculative_tokens", f"{tokens!r} is not legal; legal: 1 and more"
    for name in ("prompt_lookup_min", "prompt_lookup_max", "max_model_len"):
        value = config.get(name)
        if isinstance(value, int) and value < 1:
            yield f"{_AT}.{name}", f"{value} is not legal; legal: 1 and more"
    if config.get("tensor_parallel_size") is not None:
        yield f"{_AT}.tensor_parallel_size", "is the target's; set draft_tensor_parallel_size instead"
    parallel, own = engine.get("tensor_parallel_size", 1), config.get("draft_tensor_parallel_size")
    if own is not None and own not in (1, parallel):
        legal = f"1 or {parallel}" if parallel != 1 else "1"
        yield f"{_AT}.draft_tensor_parallel_size", f"{own} is neither 1 nor tensor_parallel_size; legal: {legal}"
    budget, sequences = engine.get("max_num_batched_tokens"), engine.get("max_num_seqs")
    counts = (budget, sequences, tokens)
    if engine.get("enable_lora") is True and all(isinstance(count, int) and count > 0 for count in counts):
        assert isinstance(budget, int) and isinstance(sequences, int) and isinstance(tokens, int)  # noqa: S101, PT018
        least = sequences * (tokens + 1)
        if budget < least:
            yield "max_num_batched_tokens", f"{budget} is too low for speculation with adapters; legal: from {least}"
