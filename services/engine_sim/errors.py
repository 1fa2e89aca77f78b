"""Errors as vLLM's HTTP server words them."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """An answer that is not the one asked for. Knows its JSON body."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> dict[str, Any]:
        """The error object of the response."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}}


def bad_request(message: str, param: str | None = None) -> ApiError:
    """400, the client's fault."""
    return ApiError(400, message, "BadRequestError", param)


def not_found(message: str, param: str | None = None) -> ApiError:
    """404, no such model."""
    return ApiError(404, message, "NotFoundError", param)


def unprocessable(message: str, param: str | None = None) -> ApiError:
    """422, a URL that can't be fetched for good."""
    return ApiError(422, message, "UnprocessableEntityError", param)


def internal(message: str = "Internal server error") -> ApiError:
    """500."""
    return ApiError(500, message, "InternalServerError")
