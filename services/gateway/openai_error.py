"""OpenAI error bodies for everything that goes wrong, the server's own 404 and 405 included."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import orjson
from aiohttp import web

from schemas.work import ResponseError
from services.gateway.admission import TooBusy
from services.gateway.intake import is_identifier
from services.runtime.errors import BadRecord, Refused, Transient
from services.runtime.logs import get_logger

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
REQUEST_ID = "x-request-id"
_RETRY_AFTER = "2"
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_log = get_logger("gateway.http")


def error_body(error: ResponseError) -> bytes:
    """The JSON body."""
    inner = {"message": error.message, "type": error.type, "param": None, "code": error.code}
    return orjson.dumps({"error": inner})


def error_event(error: ResponseError) -> bytes:
    """The same as the last event of a stream that had begun."""
    return b"data: " + error_body(error) + b"\n\n"


def error_response(error: ResponseError, headers: dict[str, str] | None = None) -> web.Response:
    """The HTTP answer. What is no HTTP error status becomes 502."""
    status = error.status if 400 <= error.status <= 599 else 502
    extra = dict(headers or {})
    if status in (429, 503):
        extra.setdefault("Retry-After", _RETRY_AFTER)
    if status == 401:
        extra["WWW-Authenticate"] = "Bearer"
    return web.Response(status=status, body=error_body(error), content_type="application/json", headers=extra)


def of_refusal(refused: Refused) -> ResponseError:
    """An error as a client sees it."""
    kind = refused.type if refused.type != "invalid_request_error" else _TYPES.get(refused.status, refused.type)
    return ResponseError(status=refused.status, type=kind, message=str(refused), code=refused.code)


@web.middleware
async def openai_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn whatever a handler raises into an OpenAI error. After a stream has begun nothing can be turned."""
    response = await _answered(request, handler)
    stated = request.headers.get(REQUEST_ID, "")
    if not response.prepared and REQUEST_ID not in response.headers and is_identifier(stated):
        response.headers[REQUEST_ID] = stated
    return response


async def _answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except TooBusy as error:
        return error_response(of_refusal(error), {"Retry-After": str(error.retry_after)})
    except Refused as error:
        return error_response(of_refusal(error))
    except Transient as error:
        _log.warning("request not accepted", error=str(error))
        message = "the request could not be put into the queue: try again later"
        return error_response(
            ResponseError(status=503, type="service_unavailable_error", message=message, code="queue_unavailable")
        )
    except BadRecord as error:
        return error_response(
            ResponseError(status=413, type="invalid_request_error", message=str(error), code=error.code)
        )
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return error_response(_of_http(request, error), _kept_headers(error))
    except ConnectionError:
        raise  # the client has gone
    except Exception:
        _log.exception("request failed", path=request.path)
        return error_response(
            ResponseError(status=500, type="server_error", message="the gateway failed", code="gateway_error")
        )


def _of_http(request: web.Request, error: web.HTTPException) -> ResponseError:
    known = {
        404: ("not_found", f"there is nothing at {request.path[:200]}"),
        405: ("method_not_allowed", f"{request.method} is not allowed at {request.path[:200]}"),
        413: ("body_too_large", "the body is too large"),
    }
    code, message = known.get(error.status, ("http_error", error.reason or "the request can't be served"))
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return ResponseError(status=error.status, type=kind, message=message, code=code)


def _kept_headers(error: web.HTTPException) -> dict[str, str]:
    return {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
