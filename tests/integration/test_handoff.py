"""When a prompt is prefilled where it decodes, and what the start-up probe finds."""

import asyncio
import random
from typing import Any

import pytest

from bench.handoff import Fault
from deploy.handoff.probe import Misconfigured, probe
from tests.integration.handoff import CHAT, TEXT, Client, chat, stack, text


async def test_short_prompts_never_reach_the_prefill_group() -> None:
    async with stack() as s:
        for count in (0, 1, 28):
            answer = await s.ask(TEXT, text(count, salt="x"))
            assert answer.headers["x-forebay-prefill"] == "local"
            assert answer.headers["x-forebay-prefill-reason"] == "short"
        assert (await s.ask(TEXT, text(32))).headers["x-forebay-prefill"] == "remote"
        assert len(s.prefill.requests) == 1


async def test_prompts_of_token_ids_are_measured_and_handed_over_like_any_other() -> None:
    ids = random.Random(7).sample(range(1000), 40)
    async with stack() as s:
        first = await s.ask(TEXT, {"model": "m", "prompt": ids})
        short = await s.ask(TEXT, {"model": "m", "prompt": ids[:20]})
        again = await s.ask(TEXT, {"model": "m", "prompt": [*ids, 1, 2]})
        long = await s.ask(TEXT, {"model": "m", "prompt": [5] * 5000})
        assert first.headers["x-forebay-prefill"] == "remote"
        assert [one.headers["x-forebay-prefill-reason"] for one in (short, again, long)] == [
            "short",
            "cached",
            "too_long",
        ]
        assert first.json["usage"]["prompt_tokens"] == 40
        assert long.status == 400
        assert len(s.prefill.requests) == 1


async def test_a_cached_prompt_is_prefilled_where_it_is_cached() -> None:
    async with stack() as s:
        first = await s.ask(TEXT, text(100))
        # A turn later: the same beginning, and few words more.
        again = await s.ask(TEXT, {"model": "m", "prompt": text(100)["prompt"] + " and more"})
        other = await s.ask(TEXT, text(100, cache_salt="another"))
        assert [a.headers["x-forebay-prefill"] for a in (first, again, other)] == ["remote", "local", "remote"]
        assert again.headers["x-forebay-prefill-reason"] == "cached"
        assert s.decode.sources["cached"] >= 96


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        (CHAT, chat(n=2), "choices"),
        (TEXT, text(best_of=2), "choices"),
        (TEXT, {"model": "m", "prompt": [text()["prompt"], text(salt="x")["prompt"]]}, "batch"),
        (CHAT, chat(prompt_logprobs=1), "prompt_logprobs"),
        (TEXT, text(echo=True, logprobs=1), "prompt_logprobs"),
    ],
)
async def test_what_cannot_be_split_is_not(path: str, body: dict[str, Any], reason: str) -> None:
    async with stack() as s:
        answer = await s.ask(path, body)
        assert answer.status == 200
        assert answer.headers["x-forebay-prefill-reason"] == reason
        assert not s.prefill.requests
        assert s.idle


async def test_a_prompt_of_token_ids_is_split() -> None:
    async with stack() as s:
        answer = await s.ask(TEXT, {"model": "m", "prompt": list(range(500, 600))})
        assert answer.headers["x-forebay-prefill"] == "remote"
        assert s.idle


async def test_every_choice_has_a_slot() -> None:
    async with stack(slots=3) as s:
        s.decode.held.add("generating")
        first = asyncio.ensure_future(s.ask(CHAT, chat(n=2)))
        await s.decode.until(lambda: s.decode.slots.running == 1)
        refused = Client(CHAT, chat(n=2, salt="x"))
        second = asyncio.ensure_future(refused.of(s.decoder))
        async with asyncio.timeout(5):
            while s.decoder.waiting != 1:  # noqa: ASYNC110  # a plain counter
                await asyncio.sleep(0)
        refused.leave()
        await second
        s.decode.let_go()
        assert (await first).status == 200
        assert s.decoder.waiting == 0
        assert s.idle


async def test_a_body_that_is_no_json_is_the_engines_to_refuse() -> None:
    async with stack() as s:
        assert (await s.ask(CHAT, b"{")).status == 400
        assert s.numbers.counts == {("local", "invalid"): 1}


async def test_a_prompt_under_a_block_is_not_handed_over() -> None:
    async with stack(min_prompt_tokens=0) as s:
        answer = await s.ask(TEXT, text(10))
        assert answer.headers["x-forebay-prefill-reason"] == "short"
        assert not s.prefill.requests


async def test_a_prefill_side_that_keeps_nothing_has_not_failed() -> None:
    # Its blocks are larger than this side believes.
    async with stack(on_prefill_failure="error", block_size=4, min_prompt_tokens=8) as s:
        answer = await s.ask(TEXT, text(12, salt="longer"))
        assert (answer.status, answer.headers["x-forebay-prefill-reason"]) == (200, "no_blocks")
        assert s.idle


async def test_a_refusal_of_the_prefill_side_is_the_clients_where_nothing_falls_back() -> None:
    async with stack(on_prefill_failure="error") as s:
        s.prefill.faults.append(Fault(status=400))
        answer = await s.ask(CHAT, chat())
        assert (answer.status, answer.json["error"]["message"]) == (400, "scripted fault")


async def test_a_broken_decode_side_is_not_asked_for_ever() -> None:
    async with stack(2) as s:
        s.decode.faults += [Fault(status=500)] * 3
        answer = await s.ask(CHAT, chat())
        assert answer.status == 500
        assert len(s.decode.requests) == 3


async def test_an_error_after_the_first_content_is_the_clients() -> None:
    async with stack() as s:
        real = s.decode._answer

        async def breaks(said: Any, seen: Any, send: Any, cached: int, handed: Any) -> None:
            await send(
                {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
            )
            for event in (b'{"choices":[{"delta":{"content":"a"}}]}', b'{"error":{"message":"broke"}}', b"[DONE]"):
                await send({"type": "http.response.body", "body": b"data: " + event + b"\n\n", "more_body": True})
            await send({"type": "http.response.body", "body": b""})

        s.decode._answer = breaks  # type: ignore[method-assign]
        answer = await s.ask(CHAT, chat(stream=True))
        s.decode._answer = real  # type: ignore[method-assign]
        assert answer.events == [{"choices": [{"delta": {"content": "a"}}]}, {"error": {"message": "broke"}}]
        assert len(s.decode.requests) == 1


async def test_events_may_arrive_in_pieces() -> None:
    body = chat(stream=True, stream_options={"include_usage": True})
    async with stack() as s:
        whole = await s.ask(CHAT, body)
    async with stack() as s:
        call = s.decode.__call__

        async def torn(scope: Any, receive: Any, send: Any) -> None:
            async def pieces(message: Any) -> None:
                data = message.get("body", b"")
                if message["type"] == "http.response.start" or not data:
                    await send(message)
                    return
                for at in range(0, len(data), 7):
                    await send({**message, "body": data[at : at + 7], "more_body": True})
                if not message.get("more_body"):
                    await send({"type": "http.response.body", "body": b""})

            await call(scope, receive, pieces)

        s.decoder.engine._app._app = torn
        answer = await s.ask(CHAT, body)
        assert answer.text == whole.text
        assert answer.events[-1]["usage"] == whole.events[-1]["usage"]


@pytest.mark.parametrize("whole", [True, False])
async def test_the_application_may_be_mounted_under_a_prefix(whole: bool) -> None:
    async with stack() as s:
        client = Client(CHAT, chat(), prefix="/small")
        if not whole:
            # Some servers leave the prefix out of the path.
            client.scope["path"] = CHAT
        answer = await client.of(s.decoder)
        assert (answer.status, answer.headers["x-forebay-prefill"]) == (200, "remote")
        assert s.idle


async def probed(s: Any) -> str:
    return await probe(s.decoder, "m", 16, 5.0, random.Random(1))


async def test_p19_both_roles_are_tried_at_the_start() -> None:
    async with stack() as s:
        assert await probed(s) == "works"
        assert s.idle


async def test_p19_a_prefill_side_without_a_connector_is_found() -> None:
    async with stack() as s:
        s.prefill.connector = False
        with pytest.raises(Misconfigured, match=r"prefill side .* without a KV connector"):
            await probed(s)


async def test_p19_a_decode_side_without_a_connector_is_found() -> None:
    async with stack(decode={"connector": False}) as s:
        with pytest.raises(Misconfigured, match=r"decode side .* no KV connector"):
            await probed(s)


async def test_p19_a_decode_side_that_cannot_read_is_found() -> None:
    async with stack() as s:
        s.decode.faults.append(Fault("finish_error"))
        with pytest.raises(Misconfigured, match="cannot read blocks of p0"):
            await probed(s)


async def test_p19_nobody_to_ask_is_no_wrong_configuration() -> None:
    async with stack(0) as s:
        assert await probed(s) == "unreachable"
