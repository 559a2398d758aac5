"""A configuration that changes under a running gateway: taken over whole or not at all, and no stream notices."""

import asyncio
import hashlib
import json
import logging
import signal
from pathlib import Path
from typing import Any

import pytest

from bench.engine import Script, ScriptedEngine
from core.config import Config, validate
from tests.integration.served import serving
from tests.integration.stack import Document, Stack, chat, completed, gateway, tiers, until
from tests.integration.wire import ask

CHAT = "/v1/chat/completions"


class Source:
    """The configuration file of a test."""

    def __init__(self, document: Document) -> None:
        self.document = document

    def __call__(self) -> Config:
        return validate(completed(self.document))


def keyed(*secrets: str) -> Document:
    rows = [
        {"name": secret, "tenant": "t", "sha256": hashlib.sha256(secret.encode()).hexdigest()} for secret in secrets
    ]
    return {"auth": {"keys": rows}}


async def status(stack: Stack, body: dict[str, Any], key: str | None = None, **headers: str) -> int:
    bearer = {} if key is None else {"authorization": f"Bearer {key}"}
    return (await ask(stack.url, CHAT, body, **bearer, **headers)).status


async def test_keys_urls_and_limits_change_under_a_running_stream(
    engine: ScriptedEngine, second: ScriptedEngine
) -> None:
    source = Source({**tiers(engine, queue={"max_inflight": 1}), **keyed("old")})
    engine.defaults = Script(text="word " * 40, itl=0.02)
    async with gateway(source.document, read=source) as stack:
        streams = [
            asyncio.create_task(ask(stack.url, CHAT, chat(f"s {n}", stream=True), authorization="Bearer old"))
            for n in range(2)
        ]
        admission = stack.process.services.tiers["small"].admission
        await until(lambda: (engine.running, admission.waiting) == (1, 1))
        source.document = {**tiers(second, queue={"max_inflight": 5}), **keyed("new")}
        assert await stack.process.reload.again()
        # The one that waited finds room, and the server that is there.
        await until(lambda: len(second.requests) == 1)
        assert await status(stack, chat("q"), "old") == 401
        assert await status(stack, chat("q"), "new") == 200
        assert len(second.requests) == 2
        answers = await asyncio.gather(*streams)
        assert [answer.events[-1] for answer in answers] == [b"[DONE]"] * 2
        await stack.idle()
        replicas = stack.process.services.tiers["small"].replicas
        assert [replica.url for replica in replicas.all] == [second.url]


async def test_every_request_from_the_reload_on_keeps_the_new_bounds(engine: ScriptedEngine) -> None:
    source = Source(tiers(engine))
    async with gateway(source.document, read=source) as stack:
        long = chat("long " * 300)
        assert await status(stack, long) == 200
        engine.defaults = Script(hang=True)
        small = {"timeout": {"first_token": "100ms"}}
        source.document = {**tiers(engine, **small), "gateway": {"max_body_size": "1KiB"}}
        assert await stack.process.reload.again()
        assert await status(stack, long) == 413
        assert await status(stack, chat("short")) == 504


async def test_a_bad_file_changes_nothing_and_is_said_once(
    engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source({**tiers(engine), **keyed("old")})
    async with gateway(source.document, read=source) as stack:
        config, keyring = stack.process.services.config, stack.process.services.keyring
        for document, path in (
            ({**tiers(engine, queue={"max_inflight": 0}), **keyed("new")}, "tiers.small.queue.max_inflight"),
            ({**tiers(engine, api_key="${NOT_SET_ANYWHERE}"), **keyed("new")}, "tiers.small.api_key"),
            ({**tiers(engine), "auth": {"keys": [{"name": "k", "tenant": "t", "file": "nowhere"}]}}, "auth.keys[0]"),
            ({**tiers(), **keyed("new")}, "tiers.small.urls"),
        ):
            source.document = document
            caplog.clear()
            with caplog.at_level(logging.INFO, "forebay.reload"):
                assert not await stack.process.reload.again()
            (record,) = caplog.records
            assert record.levelname == "ERROR"
            assert path in record.getMessage()
            assert stack.process.services.config is config
            assert stack.process.services.keyring is keyring
        assert await status(stack, chat("q"), "old") == 200


async def test_keys_of_the_configuration_that_need_a_restart_are_named(
    engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source(tiers(engine))
    async with gateway(source.document, read=source) as stack:
        source.document = {**tiers(engine), "gateway": {"port": 1}, "router": {"threshold": 0.7}}
        with caplog.at_level(logging.INFO, "forebay.reload"):
            assert await stack.process.reload.again()
        said = [record.getMessage() for record in caplog.records]
        assert said == [
            "configuration reloaded: router.threshold",
            "these keys need a restart, their old values stay: gateway.port",
        ]


async def test_a_key_file_is_followed_by_itself(engine: ScriptedEngine, tmp_path: Path) -> None:
    client, tier = tmp_path / "client", tmp_path / "tier"
    client.write_text("first")
    tier.write_text("engine-first")
    engine.api_key = "engine-first"
    auth = {"keys": [{"name": "k", "tenant": "t", "file": str(client)}]}
    async with gateway({**tiers(engine, api_key=f"file:{tier}"), "auth": auth}) as stack:
        assert await status(stack, chat("a"), "first") == 200
        client.write_text("the second")
        tier.write_text("engine-second")
        engine.api_key = "engine-second"
        await stack.process.reload.look()
        assert await status(stack, chat("b"), "first") == 401
        assert await status(stack, chat("c"), "the second") == 200
        # A file that is gone for a moment, as in the middle of its replacement, takes no key away.
        client.unlink()
        await stack.process.reload.look()
        assert await status(stack, chat("d"), "the second") == 200
        client.write_text("third")
        await stack.process.reload.look()
        assert await status(stack, chat("e"), "third") == 200


async def test_sighup_reads_the_file_again(engine: ScriptedEngine, second: ScriptedEngine, tmp_path: Path) -> None:
    async with serving(tmp_path, tiers(engine)) as served:
        assert (await ask(served.url, CHAT, chat("a"))).status == 200
        config = tmp_path / "forebay.yaml"
        document = json.loads(config.read_text())
        config.write_text("tiers: {small: {model: m, urls: [nowhere]}}")
        served.process.send_signal(signal.SIGHUP)
        assert "tiers.small.urls[0]" in await served.line("not reloaded")
        config.write_text(json.dumps({**document, **tiers(second)}))
        served.process.send_signal(signal.SIGHUP)
        assert "tiers.small.urls" in await served.line("configuration reloaded")
        assert (await ask(served.url, CHAT, chat("b"))).status == 200
        assert (len(engine.requests), len(second.requests)) == (1, 1)
