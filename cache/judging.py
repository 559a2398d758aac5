"""The second opinion on a pair of questions: one yes or no from a language model, asked and read here, sent elsewhere.

Only pairs come here whose score lies near the guard's cut. What a hard rule has refused stays refused.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping

import orjson
from pydantic import JsonValue

from cache.verdict import Verdict

# Opinions kept; each is a few bytes.
REMEMBERED = 10_000
INSTRUCTION = (
    "You are given two questions to the same assistant, A and B. Decide whether the complete and correct answer to A "
    "is also a complete and correct answer to B. Different people, places, numbers, dates, products, conditions, or a "
    "different direction or negation make it no. In doubt it is no. Reply with yes or no."
)
FEATURE = "judge"


def judge_body(model: str, stored: str, asked: str) -> dict[str, JsonValue]:
    """The chat request that asks `model`: one token, yes or no and nothing else, without sampling.

    `structured_outputs` is vLLM's; thinking is switched off where the model's chat template knows of it.
    """
    pair = orjson.dumps({"A": stored, "B": asked}).decode()
    return {
        "model": model,
        "messages": [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": pair}],
        "max_tokens": 1,
        "temperature": 0,
        "structured_outputs": {"choice": ["yes", "no"]},
        "chat_template_kwargs": {"enable_thinking": False},
    }


def opinion_in(answer: Mapping[str, JsonValue]) -> bool | None:
    """What a completion says: True for yes, False for no, None for anything else."""
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    message = first.get("message") if isinstance(first, Mapping) else None
    content = message.get("content") if isinstance(message, Mapping) else None
    said = content.strip().casefold() if isinstance(content, str) else ""
    # One token may be the beginning of the word only.
    return None if not said else True if "yes".startswith(said) else False if "no".startswith(said) else None


def judged(verdict: Verdict, opinion: bool) -> Verdict:
    """The guard's verdict after the judge has spoken."""
    return Verdict(opinion, FEATURE, verdict.score)


class Opinions:
    """What the judge has said about pairs, the least recently used forgotten first. The order of a pair is nothing."""

    def __init__(self, limit: int = REMEMBERED) -> None:
        self._limit = limit
        self._known: OrderedDict[bytes, bool] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, partition: str, one: str, other: str) -> bool | None:
        """The opinion on two texts of a partition; None where there is none."""
        key = _key(partition, one, other)
        found = self._known.get(key)
        if found is not None:
            self._known.move_to_end(key)
        return found

    def put(self, partition: str, one: str, other: str, *, opinion: bool) -> None:
        """Remember an opinion."""
        key = _key(partition, one, other)
        self._known[key] = opinion
        self._known.move_to_end(key)
        if len(self._known) > self._limit:
            self._known.popitem(last=False)


def _key(partition: str, one: str, other: str) -> bytes:
    # Of the texts themselves nothing is kept.
    return hashlib.blake2b(orjson.dumps([partition, *sorted((one, other))]), digest_size=16).digest()
