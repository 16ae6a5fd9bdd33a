"""The form of requests and answers: numbers out of addresses, JSON in and out, what may be kept and for how long.

In: requests of starlette, and what is to be said. Out: values that were checked, or `RequestError`; responses.
Does not know: traces. Memory: an answer.
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
NOT_FOUND = "There is nothing at this address."
INTERNAL_ERROR = "Something went wrong here; the terminal says what."
NUMBER = re.compile(r"[0-9]{1,7}")


def respond(
    request: Request,
    body: bytes,
    media: str = JSON,
    *,
    status: int = 200,
    cache: str = IMMUTABLE,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """An answer, or that the one which the client has is still right; what must not be stored has no name for that."""
    response = import_extra("starlette.responses").Response
    kept = {"cache-control": cache, **(headers or {})}
    if cache != "no-store":
        kept["etag"] = f'"{hashlib.blake2b(body, digest_size=16).hexdigest()}"'
        if request.headers.get("if-none-match") == kept["etag"]:
            return response(status_code=304, headers=kept)
    return response(body, status_code=status, headers=kept, media_type=media)


def error_response(sentence: str, status: int) -> Response:
    """An answer that something cannot be done."""
    response = import_extra("starlette.responses").Response
    return response(to_json({"error": sentence}), status, headers={"cache-control": "no-store"}, media_type=JSON)


def to_json(value: object) -> bytes:
    r"""JSON in ASCII: text of any kind is escaped, so that nothing in it can be taken for anything else.

    >>> to_json(["\u202e", 0.5])
    b'["\\u202e",0.5]'
    """
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")


def path_int(request: Request, name: str, below: int) -> int:
    """A number that is a part of the address, from 0 to less than a limit."""
    text = request.path_params[name]
    if not NUMBER.fullmatch(text) or int(text) >= below:
        raise RequestError(404, f"{name} is {text[:20]} in this address; it is a number from 0 to {below - 1:,}.")
    return int(text)


def query_int(request: Request, name: str, least: int = 0, most: int = 9_999_999) -> int:
    """A number that stands behind the question mark."""
    text = request.query_params.get(name, "")
    if not NUMBER.fullmatch(text) or not least <= int(text) <= most:
        raise RequestError(400, f"{name} is {text[:20]!r}; it is a number from {least:,} to {most:,}.")
    return int(text)


def query_choice(request: Request, name: str, *words: str) -> str:
    """One of some words behind the question mark; the first where there is none."""
    word = request.query_params.get(name, words[0])
    if word not in words:
        raise RequestError(400, f"{name} is {word[:20]!r}; it is one of {', '.join(words)}.")
    return word


async def read_json_object(request: Request) -> dict[str, Any]:
    """The JSON object that was sent."""
    try:
        found = json.loads(await request.body())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RequestError(400, "The body is a JSON object.")
    return found


def json_field(given: dict[str, Any], name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
    """A field of an object, of the right kind: a bool is no number."""
    value = given.get(name, default)
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if type(value) not in kinds:
        raise RequestError(
            400, f"{name} is {str(value)[:20]!r}; it is a {' or a '.join(one.__name__ for one in kinds)}."
        )
    return value
