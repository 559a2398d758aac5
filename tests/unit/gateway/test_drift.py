"""Drift is 0 for the training's own mix, large for another one, and bounded in memory."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.request import InferenceRequest
from gateway.account import Account
from gateway.drift import LEAST_DECISIONS, LEAST_SCORES, WINDOW, Drift
from gateway.feedback import REMEMBERED, Decisions

DECILES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]


def watched() -> Drift:
    return Drift(DECILES, ["small", "frontier"])


def test_the_training_samples_own_mix_has_not_drifted() -> None:
    drift = watched()
    for n in range(WINDOW):
        drift.scored((n % 100) / 100)
    assert drift.psi() < 0.01


def test_another_mix_has() -> None:
    drift = watched()
    for n in range(WINDOW):
        drift.scored(0.8 + (n % 20) / 100)
    assert drift.psi() > 0.25


def test_few_scores_say_nothing() -> None:
    drift = watched()
    for _ in range(LEAST_SCORES - 1):
        drift.scored(0.99)
    assert drift.psi() == 0
    drift.scored(0.99)
    assert drift.psi() > 0.25


@given(st.lists(st.floats(0, 1), min_size=LEAST_SCORES, max_size=300))
def test_the_index_is_never_negative(scores: list[float]) -> None:
    drift = watched()
    for score in scores:
        drift.scored(score)
    assert drift.psi() >= 0


def test_only_the_last_scores_count() -> None:
    drift = watched()
    for _ in range(3 * WINDOW):
        drift.scored(0.95)
    for n in range(WINDOW):
        drift.scored((n % 100) / 100)
    assert drift.psi() < 0.01


def test_a_tier_that_is_never_chosen_is_a_warning_once(caplog: pytest.LogCaptureFixture) -> None:
    drift = watched()
    with caplog.at_level(logging.WARNING, logger="forebay.router"):
        for _ in range(LEAST_DECISIONS + 50):
            drift.chose("small")
        assert "frontier" in str(drift.warning())
        assert len(caplog.records) == 1
        drift.chose("frontier")
        assert drift.warning() is None
        for _ in range(WINDOW):
            drift.chose("small")
        assert len(caplog.records) == 2


def test_with_one_tier_there_is_no_choice_to_warn_of() -> None:
    drift = Drift(DECILES, ["small"])
    for _ in range(WINDOW):
        drift.chose("small")
    assert drift.warning() is None


def test_feedback_remembers_a_bounded_number_of_requests() -> None:
    memory = Decisions(prompts=True)
    request = InferenceRequest("chat", {"model": "auto", "messages": [{"role": "user", "content": "hi"}]})
    for n in range(REMEMBERED + 10):
        memory.remember(Account(f"r{n}", "POST", "/v1/chat/completions", 0.0), request)
    assert len(memory) == REMEMBERED
    assert memory.find("r0", "-") is None
    found = memory.find(f"r{REMEMBERED + 9}", "-")
    assert found is not None
    assert found.prompt == "hi"
    assert memory.find(f"r{REMEMBERED + 9}", "somebody else") is None
