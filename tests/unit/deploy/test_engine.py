"""Engine arguments are checked by name, type and legal value, with their place in the document."""

from typing import Any

import pytest

from core.config import validate
from deploy.engine import OWNED, check_engine, check_engines
from deploy.engine_arguments import describe, render

AT = "tiers.small.engine"


def faults(**engine: Any) -> dict[str, str]:
    return {problem.path: problem.message for problem in check_engine(engine, AT)}


def test_arguments_of_vllm_with_values_of_their_type_pass() -> None:
    engine = {
        "max_num_seqs": 8,
        "max_model_len": 4096,
        "dtype": "bfloat16",
        "enforce_eager": True,
        "gpu_memory_utilization": 1,
        "kv_cache_memory_bytes": None,
        "quantization": "fp8",
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
        "logits_processors": ["a.module:Class"],
        # Of the HTTP application that the engine brings.
        "enable_auto_tool_choice": True,
        "tool_call_parser": "hermes",
        "default_chat_template_kwargs": {"enable_thinking": False},
    }
    assert faults(**engine) == {}


@pytest.mark.parametrize(
    ("wrong", "right"), [("max_num_seq", "max_num_seqs"), ("max-model-len", "max_model_len"), ("dtyp", "dtype")]
)
def test_a_misspelt_argument_is_named_with_the_nearest_right_one(wrong: str, right: str) -> None:
    message = faults(**{wrong: 1})[f"{AT}.{wrong}"]
    assert "unknown engine argument of vLLM" in message
    assert f"did you mean {right!r}?" in message


def test_a_name_like_no_argument_is_refused_without_a_guess() -> None:
    assert "did you mean" not in faults(zzzzzz=1)[f"{AT}.zzzzzz"]


@pytest.mark.parametrize(
    ("name", "value", "legal"),
    [
        ("max_num_seqs", "8", "int"),
        ("max_num_seqs", True, "int"),
        ("max_num_seqs", 1.5, "int"),
        ("enforce_eager", "yes", "bool"),
        ("enforce_eager", 1, "bool"),
        ("gpu_memory_utilization", "0.9", "float"),
        ("speculative_config", "ngram", "dict"),
        ("dtype", "bf16", "bfloat16"),
    ],
)
def test_a_value_of_another_type_is_refused_and_the_legal_one_named(name: str, value: Any, legal: str) -> None:
    message = faults(**{name: value})[f"{AT}.{name}"]
    assert legal in message
    assert repr(value) in message


@pytest.mark.parametrize("name", ["model", "served_model_name", "kv_transfer_config", "port", "hf_token"])
def test_arguments_that_follow_from_the_rest_of_the_document_are_refused_with_the_reason(name: str) -> None:
    assert faults(**{name: "x"})[f"{AT}.{name}"] == f"not set here: {OWNED[name]}"


def test_every_owned_argument_exists() -> None:
    from deploy.engine import _arguments

    assert set(OWNED) <= set(_arguments())


def test_only_tiers_that_run_here_are_checked() -> None:
    document = {
        "tiers": {
            "small": {"model": "a", "engine": {"wrong_a": 1}},
            "frontier": {"model": "b", "urls": ["http://127.0.0.1:1"], "engine": {"wrong_b": 1}},
        }
    }
    assert [problem.path for problem in check_engines(validate(document), "gpu")] == ["tiers.small.engine.wrong_a"]


@pytest.mark.parametrize(
    ("annotation", "kinds"),
    [
        (int, {"types": ["int"]}),
        (str | list[str] | None, {"types": ["list", "null", "str"]}),
        (dict[str, Any], {"types": ["dict"]}),
        (Any, {"types": ["any"]}),
    ],
)
def test_a_python_annotation_is_described_in_terms_of_json(annotation: object, kinds: dict[str, Any]) -> None:
    assert describe(annotation) == kinds


def test_the_file_has_one_line_per_argument() -> None:
    found = {"vllm": "1.2", "arguments": {"a": {"types": ["int"]}, "b": {"types": ["str"], "choices": ["x"]}}}
    assert render(found).splitlines()[3:5] == [
        '  "a": {"types": ["int"]},',
        '  "b": {"types": ["str"], "choices": ["x"]}',
    ]
