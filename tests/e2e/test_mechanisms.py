"""Real vLLM through the gateway, two tiers of the same weights: a plain engine, and one with every mechanism on.

Each mechanism is shown by the engine's own metric, and by answers that are those of the plain engine.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.conftest import Home
from tests.e2e.live import Live
from tests.e2e.test_apart import ADAPTER, BLOCK, CHAT, SOURCES, STEP, TEXT, WHOLE, configuration, said, words
from tests.e2e.tiny import tiny_adapter, tiny_model
from tests.e2e.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

PLAIN, TUNED = "plain", WHOLE


@pytest.fixture(scope="module")
def live(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("mechanisms")
    weights, adapter = tiny_model(folder / "weights"), tiny_adapter(folder / "adapter")
    document: dict[str, Any] = configuration(str(weights), str(adapter))
    small = {name: value for name, value in document["tiers"]["small"].items() if name != "disaggregation"}
    document["tiers"]["small"] = {**small, "model": PLAIN}
    with Live.started(folder, document) as live:
        yield live


def test_two_tiers_answer_alike_and_each_for_itself(live: Live) -> None:
    before = {model: live.metric("vllm_generation_tokens_total", model_name=model) for model in (PLAIN, TUNED)}
    body: dict[str, Any] = {"messages": said("tiers"), "max_tokens": 6, "temperature": 0}
    found = {model: live.ask(CHAT, model, **body) for model in (PLAIN, TUNED)}
    assert {model: answer.headers["x-forebay-tier"] for model, answer in found.items()} == {
        PLAIN: "small",
        TUNED: "frontier",
    }
    assert len({answer.json()["choices"][0]["message"]["content"] for answer in found.values()}) == 1
    for model, count in before.items():
        until(lambda m=model, n=count: live.metric("vllm_generation_tokens_total", model_name=m) == n + 6)  # type: ignore[misc]  # bound


def test_speculation_is_on_and_changes_no_answer(live: Live) -> None:
    drafted = live.metric("vllm_spec_decode_num_draft_tokens_total", model_name=TUNED)
    accepted = live.metric("vllm_spec_decode_num_accepted_tokens_total", model_name=TUNED)
    # Of two tokens only, what comes next has been seen before.
    body = {"prompt": words(20, "drafts"), "max_tokens": 32, "temperature": 0, "allowed_token_ids": [300, 301]}
    texts = {live.ask(TEXT, model, **body, ignore_eos=True).json()["choices"][0]["text"] for model in (TUNED, PLAIN)}
    assert len(texts) == 1
    until(lambda: live.metric("vllm_spec_decode_num_accepted_tokens_total", model_name=TUNED) > accepted)
    assert live.metric("vllm_spec_decode_num_draft_tokens_total", model_name=TUNED) > drafted
    assert live.metric("vllm_spec_decode_num_draft_tokens_total", model_name=PLAIN) == 0


def test_a_prompt_longer_than_a_step_is_computed_in_chunks_and_only_once(live: Live) -> None:
    def computed() -> float:
        return live.metric(SOURCES, model_name=TUNED, source="local_compute")

    def hits() -> float:
        return live.metric("vllm_prefix_cache_hits_total", model_name=TUNED)

    before, hit, prompt = computed(), hits(), words(600, "chunks")
    first = live.ask(TEXT, TUNED, prompt=prompt, max_tokens=4, temperature=0).json()
    count = first["usage"]["prompt_tokens"]
    # An engine whose steps are smaller than its context does not start without chunked prefill.
    assert count > 4 * STEP
    until(lambda: computed() == before + count)
    again = live.ask(TEXT, TUNED, prompt=prompt, max_tokens=4, temperature=0).json()
    assert again["choices"][0]["text"] == first["choices"][0]["text"]
    # At least one token is computed, to have something to go on from.
    known = (count - 1) // BLOCK * BLOCK
    until(lambda: hits() == hit + known)
    until(lambda: computed() == before + count + count - known)


def test_an_adapter_is_a_model_of_its_own_on_the_same_engine(live: Live) -> None:
    body = {"prompt": words(20, "adapter"), "max_tokens": 16, "temperature": 0}
    base = live.ask(TEXT, TUNED, **body).json()["choices"][0]["text"]
    tuned = live.ask(TEXT, ADAPTER, **body).json()
    # The engine says which adapters ran last for two seconds.
    until(lambda: any(s.value for s in live.samples("vllm_lora_requests_info", max_lora="1")), within=5)
    assert tuned["model"] == ADAPTER
    assert tuned["choices"][0]["text"] != base
