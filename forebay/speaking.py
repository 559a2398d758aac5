"""A model behind an OpenAI-compatible server, for commands that ask it many things."""

import asyncio
from types import TracebackType
from typing import Any, Self

import httpx
from pydantic import JsonValue

from core.errors import ForebayError
from router.labelling import Answer

# Seconds; an answer may take long, a connection may not.
CONNECT, WHOLE = 5.0, 300.0
# Tries of a call that the server was too busy for, and the first pause between them in seconds.
TRIES, PAUSE = 4, 1.0


class ServedModel:
    """An async context manager. Entering it finds the model's name where none was given.

    Raises ForebayError for a server that cannot be reached or refuses.
    """

    def __init__(self, url: str, model: str | None, *, key: str | None, max_tokens: int) -> None:
        self._url = url.rstrip("/").removesuffix("/v1")
        self.name = model or ""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Timeout(WHOLE, connect=CONNECT)
        self._client = httpx.AsyncClient(base_url=self._url, headers=headers, timeout=limits)
        self._max_tokens = max_tokens

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        try:
            if not self.name:
                self.name = str((await self._call("GET", "/v1/models", None))["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise ForebayError(f"{self._url} names no model at /v1/models") from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    async def say(self, messages: JsonValue, *, logprobs: bool) -> Answer:
        """One answer at temperature 0."""
        body: dict[str, JsonValue] = {
            "model": self.name,
            "messages": messages,
            "temperature": 0,
            "max_tokens": self._max_tokens,
        }
        if logprobs:
            body["logprobs"] = True
        answer = await self._call("POST", "/v1/chat/completions", body)
        try:
            choice = answer["choices"][0]
            text = choice["message"].get("content") or ""
            rows = (choice.get("logprobs") or {}).get("content")
            values = tuple(float(row["logprob"]) for row in rows) if rows else None
        except (KeyError, IndexError, TypeError, AttributeError):
            raise ForebayError(f"{self._url} does not answer as a chat server does") from None
        return Answer(str(text), values)

    async def _call(self, method: str, path: str, body: JsonValue) -> Any:
        pause = PAUSE
        for attempt in range(TRIES):
            try:
                answer = await self._client.request(method, path, json=body)
            except httpx.HTTPError as error:
                raise ForebayError(f"{self._url}: {type(error).__name__}: {error}") from None
            if answer.status_code not in (429, 503) or attempt + 1 == TRIES:
                break
            await asyncio.sleep(pause)
            pause *= 2
        try:
            value = answer.json()
        except ValueError:
            value = None
        if answer.status_code != 200 or not isinstance(value, dict):
            raise ForebayError(f"{self._url}{path} answers {answer.status_code}: {answer.text[:200]}")
        return value
