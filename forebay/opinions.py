"""A judge asked over HTTP, for measuring: the same question to the same kind of server as the gateway asks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx

from cache.judging import judge_body, opinion_in

# Longer than the gateway would wait: here the opinion is measured, not its speed. Seconds.
PATIENCE = 30.0


@contextmanager
def judge_at(url: str, model: str) -> Iterator[Callable[[str, str], bool | None]]:
    """What asks `model` at `url` about two texts, stored and asked; None where it has no opinion or does not answer."""
    address = f"{url.rstrip('/').removesuffix('/v1')}/v1/chat/completions"
    with httpx.Client(timeout=PATIENCE, trust_env=False) as client:

        def ask(stored: str, asked: str) -> bool | None:
            try:
                answer = client.post(address, json=judge_body(model, stored, asked))
                value = answer.json() if answer.status_code == 200 else None
            except (httpx.HTTPError, ValueError):
                return None
            return opinion_in(value) if isinstance(value, dict) else None

        yield ask
