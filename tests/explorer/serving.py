"""A real server on a free port, and a client that speaks to it as a browser would."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from attnscope.explorer.launch import Server
from attnscope.explorer.library.library import Library
from attnscope.explorer.sessions.lazy_session import LazySession
from attnscope.explorer.sessions.model_session import ModelSession
from attnscope.models import Decoder, DecoderConfig
from attnscope.models.text.character_tokenizer import CharacterTokenizer
from attnscope.recording import Trace, read

TEXT = "= Verona =\n\nROMEO:\nIs the day so young?\n\nBENVOLIO:\nBut new struck nine.\n"
PAGE = {"index.html": b"<!doctype html><title>page</title>", "explorer.js": b"// script", "explorer.css": b"/* */"}


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, as what it says."""
        return json.loads(self.body)


class Handle:
    """A server, and a client that has its token."""

    def __init__(self, server: Server) -> None:
        self.server, self.base, self.url = server, server.base, server.url
        self.host = self.base.removeprefix("http://")
        self.authorization = f"Bearer {server.settings.token}"

    def request(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes | Iterator[bytes] | None = None
    ) -> Answer:
        """Any request; the token goes along unless `headers` has another. A body in pieces is sent in chunks."""
        connection = http.client.HTTPConnection(self.host, timeout=60)
        try:
            connection.request(method, path, body, {"authorization": self.authorization, **(headers or {})})
            found = connection.getresponse()
            named = {name.lower(): value for name, value in found.getheaders()}
            return Answer(found.status, named, found.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        """A GET with the token."""
        return self.request("GET", path, {name.replace("_", "-"): value for name, value in headers.items()})

    def post(self, path: str, value: object, **headers: str) -> Answer:
        """A POST as the page sends it; None leaves a header out."""
        usual = {"content-type": "application/json"}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {name: told for name, told in {**usual, **named}.items() if told}
        return self.request("POST", path, sent, value if isinstance(value, bytes) else json.dumps(value).encode())


@contextmanager
def serving(
    shown: Trace | Library, session: ModelSession | LazySession | None = None, *, page: bool = False, **options: Any
) -> Iterator[Handle]:
    """A server of a trace or a library until the end of the block; with `page`, of the page as it is built."""
    library = shown if isinstance(shown, Library) else Library()
    if isinstance(shown, Trace):
        library.add(shown, name="shown")
    with Server(library, session, assets=None if page else PAGE, **options) as server:
        yield Handle(server)


def run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in another thread: the event loop of an open browser may run in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


def small_model(text: str = TEXT, *, depth: int = 2) -> tuple[Decoder, CharacterTokenizer]:
    """A model with random weights, and a tokenizer of the characters of a text."""
    tokenizer = CharacterTokenizer.from_text(text)
    torch.manual_seed(0)
    config = DecoderConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        num_layers=depth,
        num_heads=4,
        intermediate_size=48,
        max_position_embeddings=len(text) + 64,
    )
    model = Decoder(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)  # or all heads look at everything alike
    return model, tokenizer


def small_trace(text: str = TEXT, **options: Any) -> Trace:
    """What such a model attends to in the text."""
    model, tokenizer = small_model(text, **options)
    return read(model, text, tokenizer, progress=False)
