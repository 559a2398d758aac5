"""At the start of a decode replica: are both roles set up to hand blocks over?"""

import asyncio
import random
from typing import Literal

import orjson

from core.errors import ForebayError
from deploy.disconnect import Message
from deploy.handoff.decoder import Decoder
from deploy.handoff.inside import post
from deploy.handoff.legs import cached_tokens, decode_body, says_error
from deploy.handoff.prefill import Failed
from deploy.handoff.request import Request

Outcome = Literal["works", "unreachable"]
# Token ids that every vocabulary has; the first hundreds are special ones in some.
_IDS = (500, 1000)

_PREFILL = {
    "no_kv": "its answer has no kv_transfer_params, it was started without a KV connector",
    "no_blocks": "it kept no blocks of a prompt of two blocks, the block sizes of both sides differ",
    "refused": "it refuses a prompt of token ids",
    "prompt_differs": "it renders a prompt differently",
}


class Misconfigured(ForebayError):
    """A role was started in a way that cannot hand blocks over; the message says which and why."""


async def probe(decoder: Decoder, model: str, block_size: int, within: float, pick: random.Random) -> Outcome:
    """Hand one unique prompt of two blocks over, in at most `within` seconds. Raises Misconfigured.

    `unreachable`: no prefill replica answered, which a restart or a scale-up may be the reason of.
    """
    prompt = [pick.randrange(*_IDS) for _ in range(2 * block_size + 1)]
    body = orjson.dumps({"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0})
    scope = post("/v1/completions", {})
    request = Request(scope, "completion", body, _nowhere, tokens=prompt)
    until = asyncio.get_running_loop().time() + within
    leg = await decoder.prefilling.leg(request, set(), until)
    if isinstance(leg, Failed):
        if leg.reason in ("no_kv", "no_blocks", "refused", "prompt_differs"):
            raise Misconfigured(f"the prefill side does not hand over: {_PREFILL.get(leg.reason, leg.reason)}")
        return "unreachable"
    reply = await decoder.engine.ask(scope, "/v1/completions", decode_body(request.body or {}, leg.params))
    if reply.status != 200 or says_error(reply.body):
        leg.breaker.failed("probe")
        raise Misconfigured(f"the decode side cannot read blocks of {leg.peer}: status {reply.status}")
    leg.breaker.succeeded()
    cached = cached_tokens(reply.body)
    if cached is not None and cached < block_size:
        raise Misconfigured("the decode side computed a prompt that was handed to it: it has no KV connector")
    return "works"


async def _nowhere(message: Message) -> None:
    """Nobody waits for the probe's answer."""
    del message
