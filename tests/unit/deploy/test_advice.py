"""Notes on what is legal and will hardly pay."""

from typing import Any

import pytest

from core.config import validate
from deploy.advice import advice
from tests.golden.layouts import document


def notes(device: Any = "gpu", tier: Any = None, **apart: Any) -> list[str]:
    pays = {"prefill": {"replicas": {"max": 2}}, "decode": {"replicas": {"max": 2}}, **apart}
    given = {"tiers": {"small": {"model": "m", "disaggregation": pays, **(tier or {})}}}
    return [note.path for note in advice(validate(given), device)]


def test_what_can_pay_and_what_is_not_apart_has_no_notes() -> None:
    assert notes() == []
    assert notes(tier={"disaggregation": None, "engine": {"enable_chunked_prefill": False}}) == []
    assert notes("cpu", {"urls": ["http://127.0.0.1:1"]}) == []
    assert advice(validate(document("apart")), "gpu") == []


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"tier": {"engine": {"enable_chunked_prefill": False}}}, "engine.enable_chunked_prefill"),
        ({"decode": {"replicas": {"max": 2}, "engine": {"max_num_seqs": 4}}}, "engine.max_num_seqs"),
        ({"tier": {"engine": {"max_model_len": 256}}}, "disaggregation.min_prompt_tokens"),
        ({"tier": {"context": 200}}, "disaggregation.min_prompt_tokens"),
        ({"prefill": {}, "decode": {}}, "disaggregation.prefill.replicas"),
        ({"device": "cpu"}, "disaggregation"),
    ],
)
def test_what_cannot_pay_is_named_with_its_key(given: dict[str, Any], path: str) -> None:
    assert notes(**given) == [f"tiers.small.{path}"]


def test_the_cheaper_remedy_comes_first() -> None:
    engine = {"enable_chunked_prefill": False, "max_num_seqs": 2}
    order = [path.rpartition(".")[2] for path in notes("cpu", {"engine": engine}, prefill={}, decode={})]
    assert order == ["enable_chunked_prefill", "max_num_seqs", "replicas", "disaggregation"]
