"""The error tree.

ForebayError
├── ConfigError            the configuration is wrong; the command line exits with 2
├── DependencyFault        a store or model that a request can do without did not do its part
└── RequestError           a request cannot be served; carries an HTTP status and an OpenAI error body
    ├── BadRequest         400
    ├── Unauthorized       401
    ├── Forbidden          403
    ├── NotFound           404
    ├── MethodNotAllowed   405
    ├── PayloadTooLarge    413
    ├── Refused            429  queue full, waited too long, deadline; with Retry-After
    ├── UpstreamError      502  the tier's server broke before the first content byte
    ├── Unavailable        503  no replica, draining; with Retry-After
    └── UpstreamTimeout    504
"""

from dataclasses import dataclass
from typing import Literal


class ForebayError(Exception):
    """Anything Forebay raises on purpose."""


@dataclass(frozen=True)
class Problem:
    """One fault of the configuration: the dotted key path, and what is wrong and legal there."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(ForebayError):
    """The configuration is wrong. `problems` names every fault, each with its key path."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, problems)))


class DependencyFault(ForebayError):
    """Something that a request can do without did not do its part; the request goes on.

    `kind`: `timeout` (not within its budget), `error` (broken, unreachable or refusing), `open` (left alone by its
    breaker).
    """

    def __init__(self, message: str, kind: Literal["timeout", "error", "open"]) -> None:
        super().__init__(message)
        self.kind = kind


class RequestError(ForebayError):
    """A request that cannot be served, as the client will see it.

    `message`, `type`, `param` and `code` fill the OpenAI error envelope; `retry_after` is in seconds; `reason` becomes
    the `x-forebay-reason` header; `retryable` says whether another replica may be tried.
    """

    status = 500
    type = "server_error"
    code: str | None = None
    retryable = False

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        reason: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.code
        self.param = param
        self.reason = reason
        self.retry_after = retry_after


class BadRequest(RequestError):
    """The body or a header is not acceptable."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_request"


class Unauthorized(RequestError):
    """No key, or one that is not known."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class Forbidden(RequestError):
    """The key is known but not allowed to do this."""

    status = 403
    type = "permission_error"
    code = "forbidden"


class NotFound(RequestError):
    """Unknown model or path."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class MethodNotAllowed(RequestError):
    """The path exists, but not for this method. `allow`: the methods that it takes."""

    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"

    def __init__(self, message: str, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class PayloadTooLarge(RequestError):
    """The body is larger than `gateway.max_body_size`."""

    status = 413
    type = "invalid_request_error"
    code = "body_too_large"


class Refused(RequestError):
    """Shed before any work was done; `retry_after` says when to come back."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limited"


class UpstreamError(RequestError):
    """The tier's server could not be reached, or broke before its first content byte."""

    status = 502
    type = "upstream_error"
    code = "upstream_error"
    retryable = True


class Unavailable(RequestError):
    """No replica can take the request, or the gateway is draining."""

    status = 503
    type = "upstream_error"
    code = "unavailable"


class UpstreamTimeout(RequestError):
    """The tier did not answer within its configured time."""

    status = 504
    type = "upstream_error"
    code = "upstream_timeout"
