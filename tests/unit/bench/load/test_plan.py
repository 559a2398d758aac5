"""Arrivals, lengths and texts of a run."""

from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.load.loop import Users
from bench.load.plan import Arriving, Asking, Plan, plan, read_chats, read_pairs
from bench.load.prompts import FRESH, PARAPHRASE, REPEAT, Prompts, Scale, Synthetic, mixed
from bench.load.words import VOCABULARY
from capacity.workload import Group, PrefixBlocks, Spread
from core.errors import ConfigError

ASKING = Asking("m", [Group("all", 1.0, Spread(40, 8))])


def planned(arriving: Arriving, asking: Asking = ASKING, seed: int = 1, salt: int = 5) -> Plan:
    return plan(arriving, asking, seed=seed, salt=salt, scale=Scale())


def due(arriving: Arriving, seed: int = 1) -> np.ndarray:
    found = planned(arriving, seed=seed).due
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ["poisson", "constant", "gamma"])
def test_an_open_loop_has_the_wanted_rate_and_ends_with_the_duration(kind: str) -> None:
    times = due(Arriving(rate=50.0, kind=kind, cv=0.5, duration_s=60.0))
    assert len(times) == pytest.approx(3000, rel=0.08)
    assert (np.diff(times) >= 0).all()
    assert times[-1] < 60.0


def test_the_same_seed_is_the_same_schedule_and_another_is_not() -> None:
    one, same, other = (due(Arriving(rate=5.0, duration_s=10.0), seed) for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one[:5], other[:5])


def test_a_ramp_goes_from_one_rate_to_the_other() -> None:
    times = due(Arriving(ramp=(10.0, 90.0), duration_s=100.0))
    assert len(times) == pytest.approx(5000, rel=0.06)
    assert ((times < 50).sum() / len(times)) == pytest.approx(0.3, abs=0.03)


def test_a_trace_is_replayed_faster(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("arrived_s,prompt_tokens,output_tokens\n0,10,2\n4,20,3\n8,30,4\n")
    found = planned(Arriving(trace=file, rate_scale=2.0))
    assert found.due is not None
    assert found.due.tolist() == [0.0, 2.0, 4.0]
    assert found.wanted.prompt.tolist() == [10, 20, 30]
    assert found.wanted.output.tolist() == [2, 3, 4]


def test_a_trace_can_be_brought_to_a_mean_rate(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("arrived_s,prompt_tokens,output_tokens\n0,10,2\n4,20,3\n8,30,4\n")
    assert due(Arriving(trace=file, rate=1.0)).tolist() == [0.0, 1.0, 2.0]


def test_a_closed_loop_has_users_and_no_schedule() -> None:
    found = planned(Arriving(users=3, requests=7, think_s=0.5, duration_s=9.0, stagger_s=0.1))
    assert found.due is None
    assert found.users == Users(3, 0.5, 9.0, 0.1)
    assert len(found.prompts.texts) == 7


@pytest.mark.parametrize(
    "arriving", [Arriving(rate=-1.0, requests=1), Arriving(rate=1.0), Arriving(ramp=(1.0, 2.0), requests=5)]
)
def test_what_does_not_make_a_load_is_refused(arriving: Arriving) -> None:
    with pytest.raises(ConfigError):
        planned(arriving)


@given(st.integers(1, 700), st.integers(0, 2**30), st.integers(0, 5000))
def test_a_synthetic_prompt_has_the_wanted_words(tokens: int, salt: int, extra: int) -> None:
    texts = Synthetic(np.array([tokens, tokens], "i4"), np.array([4, 4], "i4"), salt)
    one, other = (str(texts.say(index, 0).messages[0]["content"]) for index in (0, 1))
    assert len(one.split(" ")) == tokens
    assert one != other
    assert set(one.split(" ")) <= set(VOCABULARY)
    again = Synthetic(np.array([tokens, tokens], "i4"), np.array([4, 4], "i4"), salt + 1 + extra)
    # The salt takes the words after the request's own three.
    assert tokens < 4 or one != again.say(0, 0).messages[0]["content"]


def test_a_servers_way_of_counting_is_taken_into_account() -> None:
    texts = Synthetic(np.array([110], "i4"), np.array([4], "i4"), 1, Scale(overhead=10.0, slope=2.0))
    assert len(str(texts.say(0, 0).messages[0]["content"]).split(" ")) == 50


def test_shared_beginnings_are_shared_by_those_of_the_same_number_only() -> None:
    texts = Synthetic(np.full(4, 30, "i4"), np.full(4, 4, "i4"), 9, shared=20, distinct=2)
    words = [str(texts.say(index, 0).messages[0]["content"]).split(" ") for index in range(4)]
    assert words[0][:20] == words[2][:20] != words[1][:20]
    assert words[0][20:] != words[2][20:]
    assert {len(one) for one in words} == {30}


def test_blocks_of_a_trace_are_shared_as_their_ids_are() -> None:
    prefix = PrefixBlocks(np.array([0, 2, 4, 5]), np.array([0, 1, 0, 2, 3], "i4"), 8, 4)
    texts = Synthetic(np.full(3, 16, "i4"), np.full(3, 4, "i4"), 9, prefix=prefix)
    words = [str(texts.say(index, 0).messages[0]["content"]).split(" ") for index in range(3)]
    assert words[0][:8] == words[1][:8] != words[2][:8]
    assert words[0][8:] != words[1][8:]


def test_a_body_asks_for_a_stream_with_usage_and_an_exact_length() -> None:
    body = orjson.loads(planned(Arriving(rate=1.0, requests=1)).prompts.body(0))
    assert body["stream_options"] == {"include_usage": True}
    assert (body["model"], body["max_tokens"], body["ignore_eos"]) == ("m", 8, True)


def test_further_turns_carry_the_history() -> None:
    prompts = Prompts("m", Synthetic(np.array([5], "i4"), np.array([4], "i4"), 1), turns=2)
    history = prompts.continued(0, 0, (), "the answer")
    messages = orjson.loads(prompts.body(0, 1, history))["messages"]
    assert [one["role"] for one in messages] == ["user", "assistant", "user"]
    assert messages[1]["content"] == "the answer"
    assert messages[0]["content"] != messages[2]["content"]


def test_a_mix_repeats_and_rewords_what_was_asked_before() -> None:
    pairs = [("a one", "one a"), ("b two", "two b")]
    texts = mixed(pairs, 2000, (0.3, 0.2), np.random.default_rng(0))
    kinds = [texts.kind(index) for index in range(len(texts))]
    shares = {kind: kinds.count(kind) / len(kinds) for kind in (FRESH, REPEAT, PARAPHRASE)}
    assert shares == pytest.approx({FRESH: 0.5, REPEAT: 0.3, PARAPHRASE: 0.2}, abs=0.04)
    asked = set()
    for index, kind in enumerate(kinds):
        text = str(texts.say(index, 0).messages[0]["content"])
        assert (text in asked) >= (kind == REPEAT)
        assert kind != FRESH or text not in asked
        asked.add(text)


def test_chats_are_read_and_faults_name_their_line(tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl"
    file.write_text('{"prompt": "hi"}\n{"messages": [{"role": "user", "content": "yo"}], "max_tokens": 5}\n')
    rows = read_chats(file)
    assert [row.output_tokens for row in rows] == [None, 5]
    file.write_text('{"prompt": "hi"}\n{"messages": []}\n')
    with pytest.raises(ConfigError, match=":2:"):
        read_chats(file)


def test_pairs_that_differ_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"a": "x", "b": "y", "same": 1}\n{"a": "x", "b": "z", "same": 0}\n')
    assert read_pairs(file) == [("x", "y")]
