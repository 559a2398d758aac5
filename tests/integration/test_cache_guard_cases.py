"""Response cache, C22, C23: near in the embedder's eyes, another question in the reader's. With the real model."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from bench.engine import ScriptedEngine
from core.config import validate
from core.config.records import Embedder
from core.embedder import Encoder
from gateway.server import Process, listen, serving
from tests.integration.stack import SMALL, chat, tiers, until
from tests.integration.wire import ask

pytestmark = pytest.mark.embedder
CHAT = "/v1/chat/completions"

TRAPS = [
    ("How do I turn on dark mode?", "How do I turn off dark mode?"),
    ("Is port 6379 open?", "Is port 6379 closed?"),
    ("What is the weather in Paris?", "What is the weather in London?"),
    ("Can I get a refund in 30 days?", "Can I get a refund in 60 days?"),
    ("Is it safe to take this medicine?", "Is it unsafe to take this medicine?"),
    ("How do I enable two-factor authentication?", "How do I disable two-factor authentication?"),
    ("What does the function read_all() do?", "What does the function write_all() do?"),
    ("Which countries are members of the EU?", "Which countries are not members of the EU?"),
    ('How do I print "hello" in Python?', 'How do I print "goodbye" in Python?'),
    ("Who was the first president of France?", "Who was the last president of France?"),
    ("Convert 5 miles to kilometers.", "Convert 5 kilometers to miles."),
    ("What is 17 plus 25?", "What is 17 times 25?"),
]
PARAPHRASES = [
    ("How do I reset my password?", "How can I reset my password?"),
    ("What is the capital of France?", "What's the capital city of France?"),
    ("How do I cancel my subscription?", "How can I cancel my subscription?"),
    ("What is the boiling point of water?", "At what temperature does water boil?"),
]


class Loop:
    """A gateway with the shipped semantic settings and the real embedder, on a loop that all tests here share."""

    def __init__(self, runner: asyncio.Runner, process: Process) -> None:
        self._runner, self._url, self._services = runner, process.url, process.services
        self._system = 0

    def pair(self, first: str, second: str) -> list[str | None]:
        """What the cache said to one question and then to another, in a partition of their own."""
        self._system += 1
        return [self._runner.run(self._ask(text)) for text in (first, second)]

    async def _ask(self, text: str) -> str | None:
        body = chat(text)
        body["messages"].insert(0, {"role": "system", "content": f"Pair {self._system}."})
        answer = await ask(self._url, CHAT, body)
        assert answer.status == 200
        # Vectors are made when the answer is out: without that of the first question every second one is a miss.
        await until(lambda: self._services.late.waiting == 0)
        await self._services.cache.catalogue.settled()
        return answer.header("x-forebay-cache")


@pytest.fixture(scope="module")
def loop(minilm: Encoder) -> Iterator[Loop]:
    def make(_: Embedder) -> Encoder:
        return minilm

    with asyncio.Runner() as runner:
        engine = ScriptedEngine(SMALL)
        runner.run(engine.__aenter__())
        document: dict[str, Any] = {**tiers(engine), "gateway": {"port": 0}, "cache": {"semantic": {"deadline": "30s"}}}
        config = validate(document)
        running = serving(config, listen(config), write=len, make_encoder=make)
        process, _ = runner.run(running.__aenter__())
        runner.run(process.services.embedder.settled())
        yield Loop(runner, process)
        runner.run(running.__aexit__(None, None, None))
        runner.run(engine.__aexit__(None, None, None))


@pytest.mark.parametrize(("first", "second"), TRAPS)
def test_c22_c23_an_opposite_or_another_thing_is_a_miss(loop: Loop, first: str, second: str) -> None:
    """C22, C23: in both directions."""
    assert loop.pair(first, second) == ["miss", "miss"]
    assert loop.pair(second, first) == ["miss", "miss"]


def test_most_paraphrases_are_served_all_the_same(loop: Loop) -> None:
    """A guard that refuses everything would pass the traps."""
    found = [loop.pair(first, second)[1] for first, second in PARAPHRASES]
    assert found.count("hit-semantic") >= 2
