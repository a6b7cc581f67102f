"""The one error tree.

WarmrouteError
├── ConfigError                 the operator's: the config file or the command line
└── RequestFailed               one request's: carries an HTTP status and a stable code
    ├── ClientError             whose fault: the client's (4xx); never counts against a backend
    ├── GatewayError            the gateway's own state (no backend, shutting down)
    └── UpstreamError           a backend's
        ├── UpstreamConnectError        no connection could be made (refused, unreachable, TLS)
        ├── UpstreamConnectTimeout
        ├── UpstreamFirstByteTimeout    connected and sent, but no response head in time
        ├── UpstreamIdleTimeout         the response stopped in the middle for too long
        ├── UpstreamReset               the connection died before a response head
        ├── UpstreamTruncated           the connection died inside a response body
        ├── UpstreamProtocolError       what came back is not HTTP/1.1
        └── LocalResourceError          the gateway itself lacked a file descriptor or port to reach it

Texts never hold prompts, keys, session ids or addresses.
"""

from __future__ import annotations

from typing import ClassVar


class WarmrouteError(Exception):
    """Root of all errors that this project raises on purpose."""


class ConfigError(WarmrouteError):
    """The operator's input is wrong; the text names the place and the knob."""


class RequestFailed(WarmrouteError):
    """One request cannot be served. `status`, `code` and `kind` are what the client sees."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    kind: ClassVar[str] = "server_error"
    """OpenAI's `error.type`."""
    retryable: ClassVar[bool] = False
    """Another backend may be tried, as long as no byte went to the client."""
    retry_after_s: float | None = None
    """Told to the client where waiting helps."""

    def __init__(self, message: str = "", *, param: str | None = None) -> None:
        super().__init__(message or type(self).__name__)
        self.param = param


class ClientError(RequestFailed):
    """The request itself is wrong. Leaves set their own status and code."""

    status = 400
    code = "bad_request"
    kind = "invalid_request_error"


class BadHttp(ClientError):
    """The bytes are no HTTP/1.1, or could be read in two ways."""

    code = "bad_http"


class InvalidJson(ClientError):
    code = "invalid_json"


class InvalidBody(ClientError):
    """Valid JSON, but not what the endpoint takes (not an object, a model that is no string)."""

    code = "invalid_body"


class NoSuchPath(ClientError):
    status = 404
    code = "not_found"


class MethodNotAllowed(ClientError):
    status = 405
    code = "method_not_allowed"


class ModelMissing(ClientError):
    code = "model_missing"


class ModelNotFound(ClientError):
    status = 404
    code = "model_not_found"


class ResponseNotFound(ClientError):
    """An answer of the Responses API that nobody keeps for this client."""

    status = 404
    code = "response_not_found"


class UnsupportedContentType(ClientError):
    status = 415
    code = "unsupported_content_type"


class BodyTooLarge(ClientError):
    status = 413
    code = "body_too_large"


class HeadTooLarge(ClientError):
    status = 431
    code = "headers_too_large"


class UnsupportedCoding(ClientError):
    """RFC 9112 section 6.1."""

    status = 501
    code = "transfer_coding_not_supported"


class RequestTimeout(ClientError):
    """The client took too long to send its request."""

    status = 408
    code = "request_timeout"


class FieldNotAllowed(ClientError):
    """A body field that speaks to the engine's internals, from a client that is not trusted with them."""

    code = "field_not_allowed"


class Unauthenticated(ClientError):
    """No credential, or one that nobody knows: the answer is the same for both."""

    status = 401
    code = "invalid_api_key"
    kind = "authentication_error"


class ModelNotAllowed(ClientError):
    status = 403
    code = "model_not_allowed"
    kind = "permission_error"


class QuotaExceeded(ClientError):
    """A limit of the tenant's; `code` names which."""

    status = 429
    code = "tenant_limit"
    kind = "rate_limit_error"

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TooManyRequests(QuotaExceeded):
    code = "tenant_concurrency_limit"


class RateExceeded(QuotaExceeded):
    code = "tenant_rate_limit"


class GatewayError(RequestFailed):
    """The gateway has no way to serve the request now."""

    status = 503
    code = "unavailable"
    retry_after_s: float | None = 1.0


class TooManyConnections(GatewayError):
    code = "too_many_connections"


class RequestBufferFull(GatewayError):
    """The request bodies in memory have reached their bound."""

    code = "request_buffer_full"


class NoBackendAvailable(GatewayError):
    """Every backend that serves the model is down, ejected or draining."""

    code = "no_backend_available"


class UpstreamError(RequestFailed):
    status = 502
    code = "upstream_error"
    kind = "upstream_error"
    retryable = True
    reason: ClassVar[str] = "error"
    """Value of the `kind` label of `warmroute_upstream_errors_total`."""


class UpstreamConnectError(UpstreamError):
    code = "upstream_connect_failed"
    reason = "connect"


class UpstreamConnectTimeout(UpstreamConnectError):
    status = 504
    code = "upstream_connect_timeout"
    reason = "connect_timeout"


class UpstreamFirstByteTimeout(UpstreamError):
    status = 504
    code = "upstream_first_byte_timeout"
    reason = "first_byte_timeout"
    retryable = False  # the engine may still be computing: a second copy would double the load


class UpstreamIdleTimeout(UpstreamError):
    status = 504
    code = "upstream_idle_timeout"
    reason = "idle_timeout"
    retryable = False


class UpstreamReset(UpstreamError):
    code = "upstream_reset"
    reason = "reset"


class UpstreamTruncated(UpstreamError):
    code = "upstream_truncated"
    reason = "truncated"
    retryable = False


class UpstreamProtocolError(UpstreamError):
    code = "upstream_protocol_error"
    reason = "protocol"
    retryable = False


class LocalResourceError(UpstreamError):
    """Never counts against the backend, and another one could not be reached either (O63)."""

    status = 503
    code = "out_of_file_descriptors"
    kind = "server_error"
    reason = "local"
    retryable = False
    retry_after_s = 1.0
