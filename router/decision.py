"""Which tier serves a request: a plain function of the request, the tiers and what is known about the conversation.

The order is fixed. An explicit choice wins; with one tier there is no choice; a tier that cannot do what the request
needs is out; a conversation never moves down; the rest is the complexity score against the threshold.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from pydantic import JsonValue

from core.config import TierName
from core.errors import BadRequest
from core.request import InferenceRequest, content_text
from router.classifier import Score

Reason = Literal[
    "override",  # the request names a tier or its model
    "only_tier",  # one tier is configured
    "vision",  # only this tier takes images
    "tools",  # only this tier takes tools
    "json",  # only this tier gives structured output
    "context",  # the request is certainly too long for the other tier
    "sticky",  # the conversation is there already
    "complexity",  # the score against the threshold
    "unfamiliar",  # the same, for an ask that is unlike the training data
    "no_text",  # nothing to score: the frontier tier, as a wrong answer costs more than a long one
]

# Reasons of decisions that could have gone to either tier, and were made by the score.
FREE: tuple[Reason, ...] = ("complexity", "unfamiliar", "no_text")

# Fields by which clients ask for structured output: OpenAI's, then vLLM's own.
_STRUCTURED = frozenset({"structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"})
_SHAPED = _STRUCTURED | {"response_format"}

_APPROVAL = re.compile(
    r"""(?:(?:yes|yeah|yep|yup|ok|okay|k|sure|fine|good|great|perfect|right|correct|exactly|agreed|approved|please|thanks|thank
    |you|do|it|that|this|so|go|ahead|on|for|continue|proceed|next|more|again|confirm|confirmed|sounds|looks|lgtm|both|all
    |keep|going|with|the|first|second|one|y|let'?s|let|us|now|and|then
    |ja|jawohl|gerne|gern|mach|mache|machen|das|weiter|bitte|genau|passt|einverstanden|los|es|so|danke
    |si|sí|vale|claro|hazlo|adelante|sigue|continua|continúa|por|favor|de|acuerdo|gracias|dale
    |oui|d'accord|daccord|accord|vas|y|fais|le|continue|parfait|s'il|te|vous|plait|plaît|merci
    |好|好的|可以|是的|对|行|继续|请继续|没问题|同意|就这样|嗯|请|做吧|开始吧|はい|続けて|네|да|давай|продолжай)[\s,.!;:\-\uff0c\u3002\uff01]*){1,7}""",
    re.VERBOSE | re.IGNORECASE,
)
_LONGEST_APPROVAL = 60
# Characters of a text that are turned into numbers together, and counted together: nobody counts further than the room
# there is, in arrays that stay in the processor's cache.
_PIECE, _STEP = 262_144, 32_768
# Characters that are read for each token of room: of texts in words of this length all the words that are too many.
_READ = 8
_SPACE, _TAB, _CONTROLS = 32, 9, 5


@dataclass(frozen=True)
class TierFacts:
    """What a tier can do. `context`: its context length in tokens, None where it is not known."""

    model: str
    capabilities: frozenset[str]
    context: int | None


class Decision(NamedTuple):
    """The tier, why, and the score and threshold it was decided with (`complexity` None: not scored)."""

    tier: TierName
    reason: Reason
    complexity: float | None
    threshold: float


def decide(
    request: InferenceRequest,
    tiers: Mapping[TierName, TierFacts],
    *,
    forced: TierName | None,
    floor: TierName | None,
    score: Score | None,
    threshold: float,
) -> Decision:
    """The tier for a request.

    `tiers` holds the configured ones, at least one. `forced` is the tier that the model name or a header asks for;
    `floor` the tier that the conversation has reached; `score` the ask's complexity, None where there is no text.
    Raises BadRequest where no tier that may be chosen can do what the request needs.
    """
    complexity = None if score is None else score.complexity

    def chosen(tier: TierName, reason: Reason) -> Decision:
        return Decision(tier, reason, complexity, threshold)

    if forced is not None:
        if forced not in tiers:
            raise BadRequest(f"the tier {forced!r} is not configured here", param="model")
        return named(request, forced, tiers[forced], threshold)
    able, lost = _able(request, tiers)
    if len(able) == 1:
        return chosen(able[0], lost or "only_tier")
    if floor == "frontier" or (floor is not None and is_approval(request.user_text)):
        return chosen(floor, "sticky")
    if score is None:
        return chosen("frontier", "no_text")
    tier: TierName = "frontier" if score.complexity >= threshold else "small"
    return chosen(tier, "complexity" if score.familiar else "unfamiliar")


def named(request: InferenceRequest, tier: TierName, facts: TierFacts, threshold: float) -> Decision:
    """What `decide` says of a request that names its tier. Raises BadRequest where the tier cannot do what it needs."""
    if not (_plain(request) and _fits(request, facts.context)):
        # It says which need the tier does not meet, where it does not.
        _able(request, {tier: facts})
    return Decision(tier, "override", None, threshold)


def ask(request: InferenceRequest) -> str | None:
    """The text to score: what the user asks for in the last turn.

    An approval ("yes, do it") asks for what was proposed before it, so the user's message before that stands in. None
    where the last message is not a user's text.
    """
    text = request.user_text
    if not is_approval(text):
        return text
    for message in list(reversed(request.messages))[1:]:
        earlier = content_text(message.get("content")) if message.get("role") == "user" else None
        if earlier and not is_approval(earlier):
            return earlier
    return text


def is_approval(text: str | None) -> bool:
    """Whether the text only agrees to go on, in one of the languages that are known here."""
    if text is None or len(text) > _LONGEST_APPROVAL:
        return False
    return _APPROVAL.fullmatch(text.strip()) is not None


def _able(
    request: InferenceRequest, tiers: Mapping[TierName, TierFacts]
) -> tuple[list[TierName], Literal["vision", "tools", "json", "context"] | None]:
    """The tiers that can serve the request, and the first need that ruled one out."""
    needs: list[Literal["vision", "tools", "json"]] = []
    if request.has_images:
        needs.append("vision")
    if request.has_tools:
        needs.append("tools")
    if _structured(request):
        needs.append("json")
    able: list[TierName] = list(tiers)
    lost: Literal["vision", "tools", "json", "context"] | None = None
    for need in needs:
        left = [name for name in able if need in tiers[name].capabilities]
        if not left:
            raise BadRequest(
                f"the request needs {need!r}, which is not among the capabilities of {_named(able)}",
                code="unsupported_capability",
            )
        lost = lost or (need if len(left) < len(able) else None)
        able = left
    texts = _texts(request)
    chars = sum(map(len, texts))
    fitting = [name for name in able if _may_fit(request, texts, chars, tiers[name].context)]
    if not fitting:
        raise BadRequest(
            f"the request is longer than the context of {_named(able)}",
            code="context_length_exceeded",
            param="messages",
        )
    return fitting, lost or ("context" if len(fitting) < len(able) else None)


def _plain(request: InferenceRequest) -> bool:
    """Whether it certainly needs nothing but text; most requests are so, and that is seen in one look."""
    return request.only_text and _SHAPED.isdisjoint(request.body)


def _fits(request: InferenceRequest, context: int | None) -> bool:
    if context is None:
        return True
    texts = _texts(request)
    return _may_fit(request, texts, sum(map(len, texts)), context)


def _named(tiers: list[TierName]) -> str:
    return "the tier " + tiers[0] if len(tiers) == 1 else "any tier"


def _structured(request: InferenceRequest) -> bool:
    wanted = request.body.get("response_format")
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind in ("json_object", "json_schema"):
        return True
    body = request.body
    return not _STRUCTURED.isdisjoint(body) and any(body.get(field) is not None for field in _STRUCTURED)


def _may_fit(request: InferenceRequest, texts: Sequence[str], chars: int, context: int | None) -> bool:
    """False only where the request certainly exceeds the context.

    Tokenizers split at white space, so a text has at least as many tokens as words; the engine adds the answer's room.
    """
    if context is None:
        return True
    wanted = request.body.get("max_completion_tokens", request.body.get("max_tokens"))
    room = context - (wanted if isinstance(wanted, int) else 0)
    # A word and the space behind it are two characters: shorter texts need no counting.
    if chars <= 2 * room:
        return True
    for words in _words(_beginning(texts, _READ * (room + 1)) if room >= 0 else ""):
        room -= words
        if room < 0:
            return False
    return room >= 0


def _beginning(texts: Sequence[str], size: int) -> str:
    """The texts, one a line, as far as `size` characters reach."""
    found = []
    for text in texts:
        if size <= 0:
            break
        found.append(text[:size])
        size -= len(text)
    return "\n".join(found)


def _words(text: str) -> Iterator[int]:
    """How many words each part of the text has. A word is what stands between ASCII white space.

    In arrays, which are counted several times as fast as a text is split.
    """
    after_space = True
    for start in range(0, len(text), _PIECE):
        piece = text[start : start + _PIECE]
        if piece.isascii():
            data = np.frombuffer(piece.encode(), dtype=np.uint8)
        else:
            data = np.frombuffer(piece.encode("utf-16-le", "surrogatepass"), dtype="<u2")
        for part in (data[at : at + _STEP] for at in range(0, len(data), _STEP)):
            # Tab to carriage return, and the space; what is below a tab wraps around.
            space = (part == _SPACE) | (part - _TAB < _CONTROLS)
            # A word that goes on from the part before was counted there.
            yield int(np.count_nonzero(space[:-1] > space[1:])) + (after_space and not space[0])
            after_space = bool(space[-1])


def _texts(request: InferenceRequest) -> list[str]:
    contents: list[JsonValue] = [message.get("content") for message in request.messages]
    if request.kind == "completion":
        contents = [request.body.get("prompt")]
    return [text for content in contents if (text := content_text(content)) is not None]
