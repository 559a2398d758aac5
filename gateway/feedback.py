"""`POST /v1/feedback`: what somebody thinks of an answer, matched to the decision that led to it."""

from collections import OrderedDict
from dataclasses import dataclass

import orjson
from pydantic import JsonValue

from core.clock import Clock
from core.errors import BadRequest, NotFound
from core.request import InferenceRequest
from gateway.account import Account
from gateway.comparing import LabelFile
from gateway.envelope import JSON
from gateway.exchange import Exchange
from gateway.headers import answer_headers
from gateway.interrupt import Interruptible
from gateway.metrics import Metrics
from gateway.siblings import Question, Siblings

# Decisions that can still be judged, and how much of a prompt is kept for the labels, in characters.
REMEMBERED, PROMPT_CHARS = 5_000, 8_000
MAX_BODY, MAX_COMMENT = 64 * 1024, 2_000
# A score from here on is a good one.
GOOD = 0.5


@dataclass(slots=True)
class Remembered:
    """One request: its account, in which the decision stands, and its prompt where labels are kept.

    `judged`: it has had its feedback.
    """

    account: Account
    prompt: str | None
    judged: bool = False


class Decisions:
    """The last REMEMBERED requests by their ids; prompts are kept only where a label file is configured."""

    def __init__(self, *, prompts: bool) -> None:
        self._prompts = prompts
        self._known: OrderedDict[str, Remembered] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def remember(self, account: Account, request: InferenceRequest) -> None:
        """Note a request; of two with one id the later one counts."""
        prompt = request.user_text if self._prompts else None
        kept = prompt if prompt is not None and len(prompt) <= PROMPT_CHARS else None
        known = self._known
        if account.request_id in known:
            del known[account.request_id]
        known[account.request_id] = Remembered(account, kept)
        if len(known) > REMEMBERED:
            known.popitem(last=False)

    def find(self, request_id: str, tenant: str) -> Remembered | None:
        """A tenant's own request."""
        found = self._known.get(request_id)
        return found if found is not None and found.account.tenant == tenant else None


class Feedback:
    """Answers `POST /v1/feedback`."""

    def __init__(
        self, decisions: Decisions, file: LabelFile | None, metrics: Metrics, clock: Clock, siblings: Siblings
    ) -> None:
        self._decisions, self._file, self._metrics, self._clock = decisions, file, metrics, clock
        self._siblings = siblings

    async def answer(self, exchange: Exchange, account: Account, block: Interruptible) -> None:
        """One request inside the pipeline's shell."""
        request_id, score, comment = _parsed(await exchange.body(MAX_BODY, block))
        document = await self._judge(request_id, account.tenant, score, comment)
        if document is None:
            # Another worker may have answered it.
            details: dict[str, JsonValue] = {"id": request_id, "tenant": account.tenant, "score": score}
            others = await self._siblings.ask("feedback", comment=comment, **details)
            document = next((other for other in others.values() if isinstance(other, dict)), None)
        if document is None:
            raise NotFound(
                f"no recent request {request_id[:128]!r}; the last {REMEMBERED} are remembered",
                code="request_not_found",
                param="request_id",
            )
        headers = [*answer_headers(exchange, account, self._clock), JSON]
        await exchange.respond(200, headers, orjson.dumps(document))

    async def answer_sibling(self, question: Question) -> JsonValue:
        """The document for a request that this worker has answered; None where it has not."""
        tenant, comment = str(question["tenant"]), question.get("comment")
        score = float(str(question["score"]))
        return await self._judge(str(question["id"]), tenant, score, None if comment is None else str(comment))

    async def _judge(
        self, request_id: str, tenant: str, score: float, comment: str | None
    ) -> dict[str, JsonValue] | None:
        found = self._decisions.find(request_id, tenant)
        if found is None:
            return None
        verdict, repeated = "good" if score >= GOOD else "bad", found.judged
        if not repeated:
            found.judged = True
            self._metrics.feedback(found.account.tier, verdict).inc()
            if self._file is not None:
                await self._file.append(self._row(request_id, found, score, comment))
        return {"request_id": request_id, "tier": found.account.tier, "verdict": verdict, "repeated": repeated}

    def _row(self, request_id: str, found: Remembered, score: float, comment: str | None) -> dict[str, JsonValue]:
        """A row of the label file.

        On the small tier's answer the score is that tier's quality against a frontier answer taken as right. Feedback
        on any other answer says nothing about the small tier: such a row has no qualities, and training leaves it out.
        """
        row: dict[str, JsonValue] = {
            "source": "feedback",
            "at": round(self._clock.time(), 3),
            "request_id": request_id,
            "tier": found.account.tier,
            "score": score,
            "comment": comment,
            "complexity": found.account.complexity,
            "reason": found.account.route_reason,
        }
        if found.prompt is not None:
            row["prompt"] = found.prompt
            if found.account.tier == "small":
                row |= {"weak": score, "strong": 1.0}
        return row


def _parsed(raw: bytes) -> tuple[str, float, str | None]:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise BadRequest("the body is not valid JSON", code="invalid_json") from None
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object", code="invalid_json")
    request_id, score, comment = body.get("request_id"), body.get("score"), body.get("comment")
    if not isinstance(request_id, str) or not request_id:
        raise BadRequest("request_id must be a non-empty string", param="request_id")
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
        raise BadRequest("score must be a number from 0 to 1", param="score")
    if comment is not None and (not isinstance(comment, str) or len(comment) > MAX_COMMENT):
        raise BadRequest(f"comment must be a text of at most {MAX_COMMENT} characters", param="comment")
    return request_id, float(score), comment
