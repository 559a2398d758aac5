"""Reads along with an answer on its way to the client, to have the whole of it at the end."""

from cache.answer import Answer, StreamAssembler
from core.request import InferenceRequest, content_text
from gateway.ear import Ear, parsed
from gateway.envelope import Headers
from gateway.patience import Patience
from gateway.relay import is_event_stream
from gateway.sse import EventSplitter, EventTooLarge
from gateway.upstream.base import Reply

# A longer answer is not compared, in bytes.
LONGEST = 1024**2


class Witness:
    """Listens after the ear, where there is one. `text` is what was said, None where the answer is not complete."""

    def __init__(self, request: InferenceRequest, ear: Ear | None) -> None:
        self._request, self._ear = request, ear
        self._copy: Copied | None = None

    def asking(self) -> InferenceRequest:
        """The request as the tier gets it."""
        return self._request if self._ear is None else self._ear.asking()

    async def hear(self, reply: Reply, patience: Patience) -> Reply:
        """The reply to go on with."""
        heard = reply if self._ear is None else await self._ear.hear(reply, patience)
        self._copy = Copied(heard)
        return self._copy

    @property
    def text(self) -> str | None:
        """The text of the first choice."""
        answer = None if self._copy is None else self._copy.answer()
        return None if answer is None else said(answer)


class Copied(Reply):
    """A reply of which everything that is read is kept."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self.status = reply.status
        self.headers: Headers = reply.headers
        self._splitter, self._assembler = EventSplitter(), StreamAssembler(LONGEST)
        self._parts: list[bytes] = []
        self._size = 0
        self._streamed = is_event_stream(reply.headers)
        self._lost = False

    async def read(self) -> bytes:
        """The next piece of the body."""
        piece = await self._reply.read()
        self._size += len(piece)
        if self._lost or self._size > LONGEST:
            self._lost = True
            self._parts.clear()
        elif not self._streamed:
            self._parts.append(piece)
        else:
            self._feed(piece)
        return piece

    def _feed(self, piece: bytes) -> None:
        try:
            for event in self._splitter.feed(piece):
                if event.data is not None:
                    self._assembler.feed(event.data)
        except EventTooLarge:
            self._lost = True

    def answer(self) -> Answer | None:
        """The whole answer; None where it is not complete or too long."""
        if self._lost:
            return None
        if self._streamed:
            return self._assembler.finish(done=False)[0]
        return parsed(b"".join(self._parts))

    async def finish(self, limit: float) -> None:
        """Read the end of the body."""
        await self._reply.finish(limit)

    def close(self) -> None:
        """Drop the connection unless the body was read to its end."""
        self._reply.close()


def said(answer: Answer) -> str | None:
    """The text of an answer's first choice; None where it says nothing in words, or was cut off by its length."""
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict) or choice.get("finish_reason") != "stop":
        return None
    message = choice.get("message")
    text = content_text(message.get("content")) if isinstance(message, dict) else choice.get("text")
    return text if isinstance(text, str) and text.strip() else None
