"""What is asked: the body of each request, a plain function of its number, its turn and what was said before."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from bench.load.words import SIZE, digits, words
from capacity.workload import PrefixBlocks

if TYPE_CHECKING:
    # Slow to import, and each process of the generator would.
    from pydantic import JsonValue

Message = Mapping[str, "JsonValue"]
Counts = NDArray[np.int32]

# Words that tell a prompt from every other: of the request, of the run.
_OWN, _SALT = 3, 4
FRESH, REPEAT, PARAPHRASE = "fresh", "repeat", "paraphrase"


class Texts(Protocol):
    """A supply of questions. `len` is how many there are; a question's number lies below it."""

    def __len__(self) -> int: ...

    def say(self, index: int, turn: int) -> "Said":
        """What the user says in this turn of this conversation."""
        ...

    def kind(self, index: int) -> str:
        """`fresh`, or what it has to do with an earlier question: `repeat`, `paraphrase`."""
        ...


@dataclass(frozen=True)
class Said:
    """The messages that a turn adds (mostly one), and the wanted lengths in tokens; None where nobody wants one.

    `exact`: the answer is to have its wanted length; else that is only its limit.
    """

    messages: Sequence[Message]
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    exact: bool = False


@dataclass(frozen=True)
class Prompts:
    """Makes request bodies. `turns` per conversation, `think_s` between an answer and the next turn.

    `exact`: servers like vLLM are asked to go on to the wanted length (`ignore_eos`). `extra` is added to every body.
    """

    model: str
    texts: Texts
    kind: str = "chat"
    stream: bool = True
    exact: bool = True
    turns: int = 1
    think_s: float = 0.0
    extra: "Mapping[str, JsonValue]" = field(default_factory=dict)

    def body(self, index: int, turn: int = 0, history: Sequence[Message] = ()) -> bytes:
        """The JSON of a request; `history` are the turns before it."""
        said = self.texts.say(index, turn)
        body: dict[str, JsonValue] = {"model": self.model}
        messages: list[JsonValue] = [dict(one) for one in (*history, *said.messages)]
        if self.kind == "chat":
            body["messages"] = messages
        else:
            body["prompt"] = "\n".join(str(one["content"]) for one in (*history, *said.messages))
        if said.output_tokens is not None:
            body["max_tokens"] = said.output_tokens
            if self.exact and said.exact:
                body["ignore_eos"] = True
        if self.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return orjson.dumps(body | dict(self.extra))

    def continued(self, index: int, turn: int, history: Sequence[Message], answer: str) -> tuple[Message, ...]:
        """The history after a turn was answered."""
        said = self.texts.say(index, turn)
        return (*history, *said.messages, {"role": "assistant", "content": answer})


@dataclass(frozen=True)
class Scale:
    """How a server counts: a prompt of `w` words of ours has `overhead + slope * w` tokens."""

    overhead: float = 0.0
    slope: float = 1.0

    def words(self, tokens: float) -> int:
        """Words for so many tokens, at least one."""
        return max(round((tokens - self.overhead) / self.slope), 1)


@dataclass(frozen=True)
class Synthetic:
    """Made-up text of wanted lengths; no two prompts are alike, nor like one of a run with another `salt`.

    `shared`: tokens of a beginning that is one of `distinct` ones. `prefix`: beginnings as a trace has them, as ids of
    blocks; equal ids are equal text.
    """

    prompt: Counts
    output: Counts
    salt: int
    scale: Scale = field(default_factory=Scale)
    shared: int = 0
    distinct: int = 1
    prefix: PrefixBlocks | None = None
    role: str = "user"

    def __len__(self) -> int:
        return len(self.prompt)

    def say(self, index: int, turn: int) -> Said:
        """A text of the wanted length."""
        prompt, output = int(self.prompt[index]), int(self.output[index])
        own = turn * len(self.prompt) + index
        wanted = self.scale.words(prompt)
        head = self._head(index, wanted) if turn == 0 else ""
        left = wanted - head.count(" ") - 1 if head else wanted
        text = head if left <= 0 else f"{head} {self._tail(own, left)}".strip()
        return Said([{"role": self.role, "content": text}], prompt, output, exact=True)

    def kind(self, index: int) -> str:  # noqa: ARG002 - every one is new
        """Always fresh."""
        return FRESH

    def _head(self, index: int, wanted: int) -> str:
        """The shared beginning, at most `wanted` words of it."""
        if self.prefix is not None:
            ids = self.prefix.ids[self.prefix.offsets[index] : self.prefix.offsets[index + 1]]
            size = max(round(self.prefix.tokens / self.scale.slope), 1)
            parts = [_block(self.salt, int(one), size) for one in ids[: -(-wanted // size)]]
        elif self.shared:
            parts = [_block(self.salt, index % self.distinct, max(round(self.shared / self.scale.slope), 1))]
        else:
            return ""
        found = " ".join(parts).split(" ")[:wanted]
        return " ".join(found)

    def _tail(self, own: int, count: int) -> str:
        rng = np.random.default_rng((self.salt, own))
        ids = rng.integers(0, SIZE, count)
        marks = [*digits(own, _OWN), *digits(self.salt, _SALT)][:count]
        ids[: len(marks)] = marks
        return words(ids)


@lru_cache(maxsize=4096)
def _block(salt: int, number: int, size: int) -> str:
    """A piece of shared beginning."""
    ids = np.random.default_rng((salt, number, 1)).integers(0, SIZE, size)
    marks = [*digits(salt, _SALT), *digits(number, _OWN)][:size]
    ids[: len(marks)] = marks
    return words(ids)


@dataclass(frozen=True)
class Chats:
    """Conversations from a file, in order, again from the start where there are more requests; answers capped."""

    rows: Sequence[Said]
    count: int
    output_tokens: int | None = None

    def __len__(self) -> int:
        return self.count

    def say(self, index: int, turn: int) -> Said:
        """The row's messages in the first turn; each further turn asks on."""
        row = self.rows[(index + turn) % len(self.rows)]
        return Said(row.messages, row.prompt_tokens, row.output_tokens or self.output_tokens)

    def kind(self, index: int) -> str:
        """A row that was asked before is a repeat."""
        return FRESH if index < len(self.rows) else REPEAT


@dataclass(frozen=True)
class Mixed:
    """New questions, repeats and paraphrases in wanted shares, for caches.

    `pairs`: a question and the same in other words; question i of the run is `source[i]`, in its own words or, where
    `reworded[i]`, in the others. `kinds` names what each is. A question that all pairs together cannot provide gets a
    number as its subject.
    """

    pairs: Sequence[tuple[str, str]]
    source: NDArray[np.int64]
    kinds: Sequence[str]
    output_tokens: int | None = None

    def __len__(self) -> int:
        return len(self.source)

    def say(self, index: int, turn: int) -> Said:  # noqa: ARG002 - one turn each
        """The question."""
        number = int(self.source[index])
        asked, other = self.pairs[number % len(self.pairs)]
        again = number // len(self.pairs)
        text = other if self.kinds[index] == PARAPHRASE else asked
        subject = f" (case {again})" if again else ""
        return Said([{"role": "user", "content": text + subject}], None, self.output_tokens)

    def kind(self, index: int) -> str:
        """What the question has to do with the earlier ones."""
        return self.kinds[index]


def mixed(
    pairs: Sequence[tuple[str, str]],
    count: int,
    shares: tuple[float, float],
    rng: np.random.Generator,
    output_tokens: int | None = None,
) -> Mixed:
    """`count` questions, of which these shares are repeats and paraphrases of one asked before."""
    draws = rng.random(count)
    source, kinds, fresh = np.zeros(count, dtype=np.int64), [], 0
    for at in range(count):
        kind = FRESH
        if fresh and draws[at] < shares[0]:
            kind = REPEAT
        elif fresh and draws[at] < shares[0] + shares[1]:
            kind = PARAPHRASE
        source[at] = fresh if kind == FRESH else rng.integers(0, fresh)
        fresh += kind == FRESH
        kinds.append(kind)
    return Mixed(pairs, source, kinds, output_tokens)
