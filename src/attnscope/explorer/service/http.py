"""Request parsing and responses: integers from paths and queries, JSON in and out, cache headers.

In: starlette requests, and response bodies. Out: validated values, or `RequestError`; responses.
Does not know: traces. Memory: one response.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from attnscope.explorer.service.guard import RequestError
from attnscope.extras import import_extra

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

JSON, BYTES = "application/json", "application/octet-stream"
IMMUTABLE = "private, max-age=31536000, immutable"
NOT_FOUND = "Not found."
INTERNAL_ERROR = "Internal error; see the terminal for details."
NUMBER = re.compile(r"[0-9]{1,7}")
MAX_JSON_INTEGER = 2**53 - 1
"""The largest integer that JavaScript holds exactly."""


def respond(
    request: Request,
    body: bytes,
    media: str = JSON,
    *,
    status: int = 200,
    cache: str = IMMUTABLE,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Make a response, or a 304 if the client already has it; "no-store" responses have no etag."""
    response = import_extra("starlette.responses").Response
    all_headers = {"cache-control": cache, **(headers or {})}
    if cache != "no-store":
        all_headers["etag"] = f'"{hashlib.blake2b(body, digest_size=16).hexdigest()}"'
        if request.headers.get("if-none-match") == all_headers["etag"]:
            return response(status_code=304, headers=all_headers)
    return response(body, status_code=status, headers=all_headers, media_type=media)


def respond_json(request: Request, value: object, *, cache: str = IMMUTABLE) -> Response:
    """Make a response of a value as JSON."""
    return respond(request, to_json(value), cache=cache)


def error_response(message: str, status: int) -> Response:
    """Make a JSON response with an error message."""
    response = import_extra("starlette.responses").Response
    return response(to_json({"error": message}), status, headers={"cache-control": "no-store"}, media_type=JSON)


def to_json(value: object) -> bytes:
    r"""Encode as JSON in ASCII; all other characters are escaped.

    >>> to_json(["\u202e", 0.5])
    b'["\\u202e",0.5]'
    """
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")


def path_int(request: Request, name: str, below: int) -> int:
    """Parse an integer of the path, from 0 to `below - 1`; raises a 404 otherwise."""
    text = request.path_params[name]
    if not NUMBER.fullmatch(text) or int(text) >= below:
        raise RequestError(404, f"Expected {name} from 0 to {below - 1:,}, got {text[:20]}.")
    return int(text)


def query_int(request: Request, name: str, minimum: int = 0, maximum: int = 9_999_999) -> int:
    """Parse an integer of the query string; raises a 400 if it is out of range."""
    text = request.query_params.get(name, "")
    if not NUMBER.fullmatch(text) or not minimum <= int(text) <= maximum:
        raise RequestError(400, f"Expected {name} from {minimum:,} to {maximum:,}, got {text[:20]!r}.")
    return int(text)


def query_choice(request: Request, name: str, *choices: str) -> str:
    """Parse one of some choices of the query string; the first is the default."""
    value = request.query_params.get(name, choices[0])
    if value not in choices:
        raise RequestError(400, f"Expected {name} to be one of {', '.join(choices)}, got {value[:20]!r}.")
    return value


async def read_json_object(request: Request) -> dict[str, Any]:
    """Parse the body as a JSON object; raises a 400 otherwise."""
    try:
        found = json.loads(await request.body())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RequestError(400, "Expected a JSON object as body.")
    return found


def json_int(
    body: dict[str, Any],
    name: str,
    default: int | None = None,
    *,
    minimum: int = 0,
    maximum: int = MAX_JSON_INTEGER,
) -> int:
    """Get an integer field in a range; raises a 400 otherwise."""
    return check_int(name, body.get(name, default), minimum=minimum, maximum=maximum)


def check_int(name: str, value: object, *, minimum: int = 0, maximum: int = MAX_JSON_INTEGER) -> int:
    """Return a value of a JSON body if it is an integer in a range; raises a 400 otherwise."""
    if type(value) is not int or not minimum <= value <= maximum:  # a bool is not an integer
        raise RequestError(
            400, f"Expected {name} to be an integer from {minimum:,} to {maximum:,}, got {_shorten(value)}."
        )
    return value


def json_field(body: dict[str, Any], name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
    """Get a field of exactly the given type; raises a 400 otherwise. Integers have a range: see `json_int`."""
    value = body.get(name, default)
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if type(value) not in kinds:
        expected = " or ".join(one.__name__ for one in kinds)
        raise RequestError(400, f"Expected {name} to be {expected}, got {_shorten(value)}.")
    return value


def _shorten(value: object) -> str:
    return repr(str(value)[:20])
