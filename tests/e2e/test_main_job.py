"""Caches, guard, classifier and explanations in front of real engines, asked as a user asks.

What is counted here is timed by `python -m bench.main_job`.
"""

import httpx
import pytest

from bench.main_job import MainJob, exact_hit, routing, semantic
from bench.questions import EASY_AND_HARD, PARAPHRASES, TRAPS
from tests.e2e.conftest import Running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]


def test_the_same_question_again_is_an_exact_hit_with_the_same_text(running: Running) -> None:
    found = exact_hit(MainJob(running.url), [stored for stored, _ in PARAPHRASES[:5]])
    assert found["complete"] == found["hit_exact"] == found["same_text"] == 5


def test_a_streamed_answer_is_stored_and_replayed_as_a_stream(running: Running) -> None:
    job = MainJob(running.url)
    first, again = (job.stream("What do bees make from nectar?", "small") for _ in range(2))
    assert (first.cache, first.tier, first.finish_reason) == ("miss", "small", "stop")
    assert (again.cache, again.tier, again.finish_reason) == ("hit-exact", "none", "stop")
    assert again.text == first.text
    assert again.completion_tokens == first.completion_tokens


def test_paraphrases_are_semantic_hits_and_one_word_traps_are_not(running: Running) -> None:
    paraphrases = semantic(MainJob(running.url), PARAPHRASES[:20])
    assert paraphrases["hit_semantic"] >= 10
    traps = semantic(MainJob(running.url), TRAPS[:20])
    assert traps["complete"] >= 18, "a trap whose first question was not stored proves nothing"
    assert traps["hits"] == []


def test_easy_and_hard_prompts_go_to_their_tiers(running: Running) -> None:
    found = routing(MainJob(running.url), EASY_AND_HARD[:20])
    assert found["right"] >= 0.85 * found["asked"], found["wrong"]


@pytest.mark.parametrize(("easy", "hard"), EASY_AND_HARD[:3])
def test_explain_says_what_then_happens(running: Running, easy: str, hard: str) -> None:
    for prompt in (easy, hard):
        body = {"model": "auto", "messages": [{"role": "user", "content": prompt}], "max_tokens": 1}
        explained = httpx.post(f"{running.url}/v1/explain", json=body, timeout=60).json()
        answer = httpx.post(f"{running.url}/v1/chat/completions", json=body, timeout=300)
        assert explained["cache"]["exact"] == "miss"
        assert explained["router"]["tier"] == answer.headers["x-forebay-tier"]
        assert explained["router"]["reason"]


def test_explain_names_the_stored_entry_and_the_guards_verdict(running: Running) -> None:
    question, trap = "How do I enable two-factor authentication?", "How do I disable two-factor authentication?"
    url = running.url
    asked = httpx.post(f"{url}/v1/chat/completions", json=_chat(question), timeout=300)
    assert asked.status_code == 200
    again = httpx.post(f"{url}/v1/chat/completions", json=_chat(question), timeout=300)
    explained = httpx.post(f"{url}/v1/explain", json=_chat(trap), timeout=60).json()["cache"]["semantic"]
    assert explained["nearest_id"] == again.headers["x-forebay-cache-id"]
    assert explained["similarity"] > explained["threshold"]
    assert explained["guard"]["served"] is False
    assert explained["guard"]["feature"]
    assert explained["verdict"] == "guarded"


def test_the_command_line_explains_through_the_running_gateway(running: Running) -> None:
    said = running.home.forebay("explain", "--url", running.url, "What is the capital of Portugal?")
    assert said.returncode == 0, said.stderr
    assert "tier" in said.stdout
    assert "no gateway answers" not in said.stderr


def _chat(text: str) -> dict[str, object]:
    return {"model": "auto", "messages": [{"role": "user", "content": text}], "temperature": 0}
