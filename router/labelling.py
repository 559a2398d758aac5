"""A labelled file made by asking both tiers: what is asked, what was done already, and what is written.

Each prompt is asked of the small and the frontier model, the answers are scored, and one row is appended. A run that
ends early goes on where it stopped: rows that are in the file are not asked again.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import orjson
from pydantic import JsonValue

from core.errors import ConfigError, ForebayError, Problem
from router.labels import prompt_of, read_rows
from router.scoring import Scorer, agreement, exact_match, judge_question, judge_verdict

Row = Mapping[str, JsonValue]
# What of a prompt's row is kept beside its labels.
_KEPT = ("task", "subject", "category", "kind", "group", "answer")


@dataclass(frozen=True)
class Answer:
    """What a model said. `logprobs`: of its tokens, None where the server gives none."""

    text: str
    logprobs: tuple[float, ...] | None


class Speaker(Protocol):
    """One model behind a server.

    `say` answers chat messages, with the log-probabilities of its tokens where `logprobs` asks for them and the server
    gives them. Raises ForebayError where the server fails.
    """

    name: str

    async def say(self, messages: JsonValue, *, logprobs: bool) -> Answer: ...


@dataclass(frozen=True)
class Task:
    """One prompt to label. `id` names its messages."""

    id: str
    row: Row
    prompt: str
    messages: JsonValue


@dataclass(frozen=True)
class Plan:
    """How to label. `first`: how many tokens the confidence of an answer's beginning covers."""

    weak: Speaker
    strong: Speaker
    scorer: Scorer
    judge: Speaker | None = None
    first: int = 16
    keep_answers: bool = False


def tasks(path: Path, scorer: Scorer) -> list[Task]:
    """The prompts of a file, each once. Raises ConfigError for rows that cannot be labelled."""
    found: dict[str, Task] = {}
    for number, row in read_rows(path):
        where = f"{path}:{number}"
        prompt = prompt_of(row, where)
        if scorer == "exact" and not isinstance(row.get("answer"), str):
            raise ConfigError([Problem("prompts", f"{where} has no answer, which the scorer exact compares with")])
        given = row.get("messages")
        messages: JsonValue = given if isinstance(given, list) else [{"role": "user", "content": prompt}]
        own = hashlib.sha256(orjson.dumps(messages, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
        found.setdefault(own, Task(own, row, prompt, messages))
    return list(found.values())


def done(path: Path) -> set[str]:
    """The ids of the rows that a file holds. A last line that was cut off is taken away from the file."""
    if not path.exists():
        return set()
    raw = path.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    if len(whole) < len(raw):
        path.write_bytes(whole)
    return {str(row["id"]) for _, row in read_rows(path) if "id" in row} if whole.strip() else set()


async def label(todo: Iterable[Task], plan: Plan, concurrency: int) -> AsyncIterator[Row | ForebayError]:
    """The labelled rows as they are ready, at most `concurrency` prompts at one time; an error for each that failed."""
    waiting = iter(todo)
    running: set[asyncio.Task[Row | ForebayError]] = set()
    try:
        while True:
            while len(running) < concurrency and (task := next(waiting, None)) is not None:
                running.add(asyncio.create_task(_attempt(task, plan)))
            if not running:
                return
            ready, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for one in ready:
                yield one.result()
    finally:
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _attempt(task: Task, plan: Plan) -> Row | ForebayError:
    try:
        return await _labelled(task, plan)
    except ForebayError as error:
        return error


async def _labelled(task: Task, plan: Plan) -> Row:
    weak, strong = await asyncio.gather(
        plan.weak.say(task.messages, logprobs=True), plan.strong.say(task.messages, logprobs=False)
    )
    qualities = await score(task, weak.text, strong.text, plan)
    asked = {"messages": task.messages} if "messages" in task.row else {"prompt": task.prompt}
    row: dict[str, JsonValue] = {
        "id": task.id,
        **asked,
        **{name: task.row[name] for name in _KEPT if name in task.row},
        "weak": qualities[0],
        "strong": qualities[1],
        "weak_model": plan.weak.name,
        "strong_model": plan.strong.name,
        "scorer": plan.scorer,
        "confidence": confidence(weak.logprobs, plan.first),
    }
    if plan.keep_answers:
        row |= {"weak_answer": weak.text, "strong_answer": strong.text}
    return row


async def score(task: Task, weak: str, strong: str, plan: Plan) -> tuple[float, float]:
    """The qualities of both answers, 0..1. Raises ForebayError where a judge does not say."""
    if plan.scorer == "exact":
        right = str(task.row["answer"])
        return exact_match(weak, right), exact_match(strong, right)
    if plan.scorer == "agreement":
        return round(agreement(weak, strong), 4), 1.0
    return await judged(task, weak, strong, plan)


async def judged(task: Task, weak: str, strong: str, plan: Plan) -> tuple[float, float]:
    """A judge's verdict; by the task's id the answers change places, as judges prefer one of the two places."""
    judge = plan.judge or plan.strong
    turned = int(task.id, 16) % 2 == 1
    question = judge_question(task.prompt, *((strong, weak) if turned else (weak, strong)))
    said = await judge.say([{"role": "user", "content": question}], logprobs=False)
    found = judge_verdict(said.text)
    if found is None:
        raise ForebayError(f"the judge {judge.name} gave no verdict on {task.id}")
    return (found[1], found[0]) if turned else found


def confidence(logprobs: tuple[float, ...] | None, first: int) -> JsonValue:
    """The mean log-probability of an answer's first tokens and of all; None where the server gave none."""
    if not logprobs:
        return None
    head = logprobs[:first]
    return {
        "first": round(sum(head) / len(head), 5),
        "all": round(sum(logprobs) / len(logprobs), 5),
        "tokens": len(logprobs),
        "first_tokens": first,
    }


def confidences(path: Path, *, whole: bool) -> list[float]:
    """The confidence in each row of a file that was labelled. Raises ConfigError for a row without one."""
    found = []
    for number, row in read_rows(path):
        value = row.get("confidence")
        own = value.get("all" if whole else "first") if isinstance(value, Mapping) else None
        if not isinstance(own, int | float):
            raise ConfigError([Problem("data", f"{path}:{number} has no confidence: the server gave no logprobs")])
        found.append(float(own))
    return found


def append(path: Path, row: Row) -> None:
    """One row to the end of a file."""
    with path.open("ab") as out:
        out.write(orjson.dumps(row) + b"\n")
