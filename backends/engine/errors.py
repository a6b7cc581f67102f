"""What a client did wrong, or what the engine cannot do now, in OpenAI's error shape."""

from __future__ import annotations


class ApiError(Exception):
    """Becomes one error response; `retry_after_s` becomes a header."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "BadRequestError",
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def body(self) -> dict[str, object]:
        param = None if self.param is None else printable(self.param)
        return {"error": {"message": printable(self.message), "type": self.kind, "param": param, "code": self.status}}


def printable(text: str) -> str:
    """Without lone surrogates, which JSON and msgpack encoders refuse."""
    return text.encode("utf-8", "replace").decode()


def as_api_error(error: Exception) -> ApiError:
    """What the client is told; the class name is all that leaves the engine."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RecursionError):
        return ApiError(400, "the body is nested too deeply")
    return ApiError(500, f"internal error ({type(error).__name__})", "InternalServerError")
