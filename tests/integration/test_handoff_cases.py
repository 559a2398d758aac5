"""Prefill/decode hand-off: what users of comparable systems ran into (P1 to P21), against the conformance engine."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from bench.handoff import Fault
from tests.integration.handoff import CHAT, TEXT, Client, Stack, chat, stack, text

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
SHAPES = [(CHAT, chat), (TEXT, text)]


async def alone(path: str, body: dict[str, Any]) -> Any:
    """The same request on one engine that does everything."""
    async with stack(min_prompt_tokens=10_000) as one:
        return await one.ask(path, body)


@pytest.mark.parametrize(("path", "make"), SHAPES)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_long_prompt_is_computed_elsewhere_and_read_here(path: str, make: Any, stream: bool) -> None:
    body = make(stream=stream, max_tokens=20)
    async with stack() as s:
        answer = await s.ask(path, body)
        assert answer.status == 200
        assert answer.headers["x-forebay-prefill"] == "remote"
        assert s.decode.sources["computed"] == 0
        assert s.decode.sources["external"] == s.prefill.sources["computed"] > 100 - 1
        assert answer.text == (await alone(path, body)).text
        assert s.numbers.counts == {("remote", "long"): 1}
        assert len(s.numbers.seconds) == stream
        assert s.idle


@pytest.mark.parametrize("limits", [{"max_completion_tokens": 500}, {"max_tokens": 500}, {}])
async def test_p1_the_prefill_leg_generates_one_token(limits: dict[str, int]) -> None:
    async with stack() as s:
        await s.ask(CHAT, chat(**limits, stream=True, stream_options={"include_usage": True}))
        (leg,) = s.prefill.requests
        assert (leg.body["max_tokens"], leg.body["max_completion_tokens"], leg.generated) == (1, 1, 1)
        assert {name: s.decode.requests[0].body.get(name) for name in limits} == limits
        assert s.idle


async def test_p2_min_tokens_stay_on_the_decode_leg() -> None:
    async with stack() as s:
        answer = await s.ask(CHAT, chat(min_tokens=10, max_tokens=20))
        assert (answer.status, answer.headers["x-forebay-prefill"]) == (200, "remote")
        assert "min_tokens" not in s.prefill.requests[0].body
        assert s.decode.requests[0].body["min_tokens"] == 10
        assert s.idle


@pytest.mark.parametrize(
    "constraint",
    [
        {"tools": [TOOL], "tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "look"}}},
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"json": {}}},
        {"stop": ["w"], "logprobs": True, "top_logprobs": 2},
    ],
)
async def test_p3_output_constraints_stay_on_the_decode_leg_and_the_prompt_is_the_same(constraint: Any) -> None:
    async with stack() as s:
        answer = await s.ask(CHAT, chat(**constraint))
        assert (answer.status, answer.headers["x-forebay-prefill"]) == (200, "remote")
        assert {name: s.decode.requests[0].body[name] for name in constraint} == constraint
        assert s.prefill.requests[0].body.get("tools") == constraint.get("tools")
        # Both sides had the same tokens, or the engine would have noticed.
        assert s.idle


async def test_p3_blocks_of_another_prompt_are_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    # A template that says something else without a forced call.
    monkeypatch.setattr("deploy.handoff.legs._OUTPUT_ONLY", ("chat_template_kwargs", "tool_choice"))
    async with stack() as s:
        answer = await s.ask(CHAT, chat(chat_template_kwargs={"thinking": True}))
        assert answer.headers["x-forebay-prefill"] == "fallback"
        assert answer.headers["x-forebay-prefill-reason"] == "prompt_differs"
        await s.decoder.settled()
        assert s.idle


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("warm", [False, True])
async def test_p4_cached_tokens_are_those_of_the_prefill_side(stream: bool, warm: bool) -> None:
    body = chat(stream=stream, **({"stream_options": {"include_usage": True}} if stream else {}))
    async with stack() as s:
        if warm:
            # Its prefix cache knows the prompt; the decode side's does not.
            s.prefill._remember(_tokens(body))
        answer = await s.ask(CHAT, body)
        usage = answer.events[-1]["usage"] if stream else answer.json["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == (len(_tokens(body)) // 16 * 16 if warm else 0)
        assert usage["prompt_tokens"] == len(_tokens(body))
        assert usage["completion_tokens"] == s.decode.requests[0].generated


@pytest.mark.parametrize("stream", [False, True])
async def test_p4_a_missing_count_is_not_zero(stream: bool) -> None:
    body = chat(stream=stream, **({"stream_options": {"include_usage": True}} if stream else {}))
    async with stack() as s:
        s.prefill.reports_cached = False
        answer = await s.ask(CHAT, body)
        usage = answer.events[-1]["usage"] if stream else answer.json["usage"]
        assert usage["prompt_tokens_details"] is None


@pytest.mark.parametrize("status", [400, 404, 429])
async def test_p6_an_error_of_the_decode_side_is_the_clients_to_see(status: int) -> None:
    async with stack() as s:
        s.decode.faults.append(Fault(status=status))
        answer = await s.ask(CHAT, chat())
        assert answer.status == status
        assert answer.json["error"]["message"] == "scripted fault"
        # The blocks that were prefilled for it are read by nobody else: they are given back.
        await s.decoder.settled()
        assert s.idle


@pytest.mark.parametrize("fault", [Fault(status=500), Fault("raise"), Fault("finish_error"), Fault(status=429)])
async def test_p7_a_failed_prefill_is_computed_here_where_the_policy_says_so(fault: Fault) -> None:
    async with stack() as s:
        s.prefill.faults.append(fault)
        answer = await s.ask(CHAT, chat())
        assert (answer.status, answer.headers["x-forebay-prefill"]) == (200, "fallback")
        assert answer.text == (await alone(CHAT, chat())).text
        assert [mode for mode, _ in s.numbers.counts] == ["fallback"]
        assert s.idle


@pytest.mark.parametrize("fault", [Fault(status=500), Fault("raise"), Fault("finish_error")])
async def test_p7_another_prefill_replica_comes_first(fault: Fault) -> None:
    async with stack(2) as s:
        s.prefill.faults.append(fault)
        answer = await s.ask(CHAT, chat())
        assert answer.headers["x-forebay-prefill"] == "remote"
        assert len(s.prefills[1].requests) == 1
        assert s.idle


@pytest.mark.parametrize(("fault", "reason"), [(Fault(status=500), "error"), (Fault("raise"), "unreachable")])
async def test_p7_p15_with_policy_error_the_client_gets_an_envelope_and_no_inside(fault: Fault, reason: str) -> None:
    async with stack(on_prefill_failure="error") as s:
        s.prefill.faults.append(fault)
        answer = await s.ask(CHAT, chat(stream=True))
        assert answer.status == 502
        assert answer.json["error"] == {
            "message": "the prompt could not be prefilled",
            "type": "server_error",
            "param": None,
            "code": reason,
        }
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-forebay-prefill"] == "error"
        assert s.numbers.counts == {("error", reason): 1}
        assert not s.decode.requests


async def test_p7_with_policy_error_and_nobody_there_the_client_may_come_back() -> None:
    async with stack(0, on_prefill_failure="error") as s:
        answer = await s.ask(CHAT, chat())
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")


@pytest.mark.parametrize("policy", ["decode", "error"])
async def test_a_prefill_replica_that_hangs_costs_the_deadline_and_no_more(policy: Any) -> None:
    async with stack(prefill_deadline=0.05, on_prefill_failure=policy) as s:
        s.prefill.faults.append(Fault("hang"))
        answer = await s.ask(CHAT, chat())
        assert answer.status == (200 if policy == "decode" else 502)
        assert answer.headers["x-forebay-prefill-reason"] == "deadline"
        # The leg was aborted there.
        assert s.prefill.requests[0].phase == "aborted"
        assert s.idle


async def test_p10_waiting_for_a_replacement_costs_the_deadline_and_no_more() -> None:
    async with stack(prefill_deadline=0.05) as s:
        s.group.never = True
        answer = await s.ask(CHAT, chat())
        assert (answer.status, answer.headers["x-forebay-prefill-reason"]) == (200, "no_replica")
        s.group.never = False
        assert (await s.ask(CHAT, chat(salt="x"))).headers["x-forebay-prefill"] == "remote"


async def test_while_there_is_no_prefill_replica_one_request_at_a_time_waits_for_it() -> None:
    async with stack(prefill_deadline=0.05) as s:
        s.group.never = True
        for salt in "abc":
            assert (await s.ask(CHAT, chat(salt=salt))).headers["x-forebay-prefill-reason"] == "no_replica"
        # Nobody waits any more, although the deadline is far away.
        s.decoder.settings = replace(s.decoder.settings, prefill_deadline=3600.0)
        assert (await s.ask(CHAT, chat(salt="d"))).headers["x-forebay-prefill-reason"] == "no_replica"
        s.clock.now += 5
        s.group.asked.clear()
        trial = asyncio.ensure_future(s.ask(CHAT, chat(salt="e")))
        await s.group.asked.wait()
        assert (await s.ask(CHAT, chat(salt="f"))).headers["x-forebay-prefill-reason"] == "no_replica"
        s.group.back()
        assert (await trial).headers["x-forebay-prefill"] == "remote"
        assert (await s.ask(CHAT, chat(salt="g"))).headers["x-forebay-prefill"] == "remote"
        assert s.idle


async def test_a_group_that_cannot_even_be_asked_is_one_without_replicas() -> None:
    async with stack() as s:
        s.group.fault = RuntimeError("the deployment has failed")
        for salt in "abcd":
            answer = await s.ask(CHAT, chat(salt=salt))
            assert (answer.status, answer.headers["x-forebay-prefill-reason"]) == (200, "no_replica")
        s.group.fault = None
        s.clock.now += 5
        assert (await s.ask(CHAT, chat(salt="e"))).headers["x-forebay-prefill"] == "remote"


async def test_a_deadline_that_others_have_used_up_is_not_held_against_a_replica() -> None:
    async with stack(prefill_deadline=7200.0) as s:
        # Far less is left than a replica has where nobody was asked before it.
        s.decoder.settings = replace(s.decoder.settings, prefill_deadline=0.05)
        for salt in "abcd":
            s.prefill.faults.append(Fault("hang"))
            answer = await s.ask(CHAT, chat(salt=salt))
            assert answer.headers["x-forebay-prefill-reason"] == "deadline"
        s.decoder.settings = replace(s.decoder.settings, prefill_deadline=7200.0)
        assert (await s.ask(CHAT, chat(salt="e"))).headers["x-forebay-prefill"] == "remote"


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/v1/embeddings"])
async def test_p9_p17_other_routes_are_the_decode_sides_and_counted(path: str) -> None:
    async with stack() as s:
        answer = await s.ask(path, chat())
        assert answer.json == {"object": "echo", "path": path}
        assert (answer.headers["x-forebay-prefill"], answer.headers["x-forebay-prefill-reason"]) == ("local", "route")
        assert s.numbers.counts == {("local", "route"): 1}


async def test_p11_what_the_engine_would_refuse_is_never_prefilled() -> None:
    async with stack() as s:
        answer = await s.ask(CHAT, chat(100, max_tokens=5000))
        assert answer.status == 400
        assert "maximum context length" in answer.json["error"]["message"]
        assert not s.prefill.requests
        assert s.numbers.counts == {("local", "too_long"): 1}


async def leaving(s: Stack, when: Any, body: dict[str, Any], turns: int) -> Client:
    """`turns` of the event loop lie between the client's leaving and the engines' going on."""
    client = Client(CHAT, body)
    task = asyncio.ensure_future(client.of(s.decoder))
    await when()
    client.leave()
    for _ in range(turns):
        await asyncio.sleep(0)
    s.prefill.let_go()
    s.decode.let_go()
    await task
    await s.decoder.settled()
    return client


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["rendering", "computing", "generating"])
@pytest.mark.parametrize("side", ["prefill", "decode"])
@pytest.mark.parametrize("turns", [0, 20])
async def test_p11_a_client_that_leaves_on_either_leg_leaves_no_block_behind(
    turns: int, side: str, phase: Any, stream: bool
) -> None:
    async with stack() as s:
        engine = s.prefill if side == "prefill" else s.decode
        engine.held.add(phase)

        async def there() -> None:
            await engine.until(lambda: bool(engine.requests) and engine.requests[0].phase == phase)

        await leaving(s, there, chat(stream=stream), turns)
        assert s.idle
        if side == "prefill":
            assert not s.decode.requests or s.decode.requests[0].body["max_tokens"] == 1


async def test_p11_blocks_that_cannot_be_given_back_are_counted_until_their_lease_ends() -> None:
    async with stack(2) as s:
        s.decode.faults += [Fault("finish_error"), Fault("finish_error")]
        answer = await s.ask(CHAT, chat())
        assert answer.headers["x-forebay-prefill-reason"] == "handoff"
        pinned = s.prefills[0].blocks.pinned + s.prefills[1].blocks.pinned
        assert s.decoder.orphaned_blocks == s.numbers.orphans[-1] == pinned > 10
        s.clock.now += 31
        assert s.decoder.orphaned_blocks == 0
        assert sum(engine.blocks.orphaned for engine in s.prefills) == pinned


async def test_p12_nothing_is_prefilled_before_there_is_room_to_decode_it() -> None:
    async with stack(slots=1, decode={"max_num_seqs": 1}) as s:
        s.decode.held.add("generating")
        first = asyncio.ensure_future(s.ask(CHAT, chat(10)))
        await s.decode.until(lambda: s.decode.slots.running == 1)
        second = asyncio.ensure_future(s.ask(CHAT, chat(100)))
        await _line(s, 1)
        assert not s.prefill.requests
        # Longer than any lease.
        s.clock.now += 100
        s.decode.let_go()
        assert (await first).headers["x-forebay-prefill"] == "local"
        assert (await second).headers["x-forebay-prefill"] == "remote"
        assert s.idle


async def test_p12_a_wait_for_room_has_a_limit() -> None:
    async with stack(slots=1, slot_wait=0.01) as s:
        s.decode.held.add("generating")
        first = asyncio.ensure_future(s.ask(CHAT, chat(10)))
        await s.decode.until(lambda: s.decode.slots.running == 1)
        refused = await s.ask(CHAT, chat(100))
        assert (refused.status, refused.json["error"]["code"], refused.headers["retry-after"]) == (503, "no_slot", "1")
        s.decode.let_go()
        assert (await first).status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_p13_a_stale_peer_is_a_failure_before_the_first_content(stream: bool) -> None:
    async with stack(2) as s:
        await s.ask(CHAT, chat(salt="a"))
        s.prefill.restart()
        answer = await s.ask(CHAT, chat(salt="b", stream=stream))
        # The first replica answered 200, its blocks could not be read, and the other one was asked.
        assert answer.headers["x-forebay-prefill"] == "remote"
        assert answer.text == (await alone(CHAT, chat(salt="b"))).text
        assert [len(engine.requests) for engine in s.prefills] == [2, 1]
        assert "stale peer" in s.decode.violations[0]


async def test_p13_a_pair_that_fails_is_left_alone_and_tried_again_later() -> None:
    async with stack() as s:
        await s.ask(CHAT, chat(salt="a"))
        s.prefill.restart()
        for number in range(3):
            answer = await s.ask(CHAT, chat(salt=f"b{number}"))
            assert answer.headers["x-forebay-prefill-reason"] == "handoff"
        asked = len(s.prefill.requests)
        answer = await s.ask(CHAT, chat(salt="c"))
        assert answer.headers["x-forebay-prefill-reason"] == "breaker"
        assert len(s.prefill.requests) == asked
        s.clock.now += 6
        s.decode.forget_peers()
        assert (await s.ask(CHAT, chat(salt="d"))).headers["x-forebay-prefill"] == "remote"


@pytest.mark.parametrize("stream", [False, True])
async def test_p16_a_stream_is_announced_as_one(stream: bool) -> None:
    async with stack() as s:
        for body in (chat(10, stream=stream), chat(100, stream=stream)):
            kind = (await s.ask(CHAT, body)).headers["content-type"]
            assert kind.startswith("text/event-stream" if stream else "application/json")


async def test_p21_what_only_engines_say_to_each_other_is_refused_from_a_client() -> None:
    async with stack() as s:
        answer = await s.ask(CHAT, chat(kv_transfer_params={"do_remote_prefill": True}))
        assert (answer.status, answer.json["error"]["param"]) == (400, "kv_transfer_params")
        await s.ask(CHAT, chat(), {"x-prefiller-host-port": "10.0.0.1:80", "X-Request-Id": "r"})
        assert "x-prefiller-host-port" not in s.decode.requests[0].headers
        assert s.prefill.requests[0].headers["x-request-id"] == "r"
        assert "x-prefiller-host-port" not in s.prefill.requests[0].headers


def _tokens(body: dict[str, Any]) -> tuple[int, ...]:
    from bench.handoff.rules import render

    return render("chat", body)


async def _line(s: Stack, count: int) -> None:
    async with asyncio.timeout(5):
        while s.decoder.waiting != count:  # noqa: ASYNC110  # a plain counter
            await asyncio.sleep(0)
