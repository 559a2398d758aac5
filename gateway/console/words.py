"""What was asked and answered, kept beside a decision where `console.show_prompts` allows it."""

from collections.abc import Mapping

from pydantic import JsonValue

from core.request import InferenceRequest, content_text

# Of each text so much is kept, in characters.
LONGEST = 2000


class Words:
    """The prompt of one request, and its answer once there is one."""

    __slots__ = ("answer", "prompt")

    def __init__(self, request: InferenceRequest) -> None:
        self.prompt = shortened(request.user_text if request.kind == "chat" else content_text(_prompt(request)))
        self.answer: str | None = None

    def answered(self, answer: Mapping[str, JsonValue]) -> None:
        """The whole answer, as a chat or text completion."""
        choices = answer.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(first, Mapping):
            return
        message = first.get("message")
        text = message.get("content") if isinstance(message, Mapping) else first.get("text")
        self.answer = shortened(text if isinstance(text, str) else None)


def shortened(text: str | None) -> str | None:
    """The beginning of a text."""
    return text if text is None or len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _prompt(request: InferenceRequest) -> JsonValue:
    return request.body.get("prompt")
