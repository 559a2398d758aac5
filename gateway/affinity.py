"""Which requests should reach the same replica of a tier: those that begin alike, for its prefix cache.

Ray Serve, like other routers in front of engines, sends requests of one session to one replica. The session of a chat
is what all of its turns have in common: the messages up to the first user's. Text completions have none.
"""

import hashlib

from core.request import InferenceRequest, content_text

# The header by which Ray Serve knows a session.
HEADER = "x-session-id"
# Characters of a message that are looked at, and messages before the first user's: bounded work whatever the prompt.
_HEAD = 2000
_MESSAGES = 8


def session(tenant: str, request: InferenceRequest) -> str | None:
    """A name for the session of a chat request, the same for each of its turns; None for a text completion.

    It tells nothing of the texts, and tenants never have one in common.
    """
    if request.kind != "chat":
        return None
    digest = hashlib.blake2b(tenant.encode(), digest_size=12)
    for message in request.messages[:_MESSAGES]:
        role = message.get("role")
        head = (content_text(message.get("content")) or "")[:_HEAD]
        digest.update(f"\0{role}\0{head}".encode("utf-8", "replace"))
        if role == "user":
            break
    return digest.hexdigest()
