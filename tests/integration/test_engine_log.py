"""What the scripted engine writes down is when things happened, and not when it had time for them."""

import asyncio
import io
import json
import socket
import time

from bench.engine import ScriptedEngine


async def test_a_log_has_the_time_at_which_the_system_got_a_request_and_not_when_it_was_read() -> None:
    log, loop = io.BytesIO(), asyncio.get_running_loop()
    engine = ScriptedEngine("m")
    engine.log = log
    async with engine:
        with socket.create_connection(("127.0.0.1", engine.port)) as client:
            client.setblocking(False)
            body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            sent = []
            for _ in range(2):
                await asyncio.sleep(0.05)
                # The engine has no turn before much later.
                sent.append(time.monotonic())
                client.send(head + body)
                time.sleep(0.3)  # noqa: ASYNC251  # that is the point
                assert (await loop.sock_recv(client, 65_536)).startswith(b"HTTP/1.1 200 OK")
    arrived = [json.loads(line)["arrived"] for line in log.getvalue().splitlines()]
    assert len(arrived) == 2
    for began, came in zip(sent, arrived, strict=True):
        assert -0.01 < came - began < 0.15
