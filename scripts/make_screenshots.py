"""Take the screenshots of the explorer in docs/images/explorer: a real server on SmolLM2, and a real Chromium.

In: .cache/models/smollm2-135m, as scripts/fetch_models.py puts it there, and a text of 9,000 characters or more. The
default is the topics of Python's own help(). The picture of a watched run needs neither: it trains a small model. That
of an image needs the folder that scripts/train_digits_vit.py writes, that of an answer about an image the folder of
scripts/train_digits_captions.py. Out: nine PNG files; docs/explorer.md and the guides say what each of them shows.

Usage: .venv/bin/python scripts/make_screenshots.py [--text FILE] [--vit FOLDER] [--llava FOLDER] [--only NAME ...]
[--out FOLDER]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import torch
from playwright.sync_api import Page, Request, sync_playwright
from transformers import LlamaConfig, LlamaForCausalLM

from attnscope.explorer.launch import Server
from attnscope.explorer.library.library import Library
from attnscope.explorer.library.watched_run import WatchedRunView
from attnscope.explorer.sessions.model_session import ModelSession
from attnscope.images import open_photo
from attnscope.recording import Trace, load, read
from attnscope.recording.photo_reading import read_photo
from attnscope.recording.transformers_images import load_image_processor, load_processor
from attnscope.telemetry import watch

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / ".cache" / "models" / "smollm2-135m"
FOLDER = ROOT / "docs" / "images" / "explorer"
NAME = "SmolLM2-135M"

LONG, SHORT = 9000, 2390  # characters that are read of the text
MARY, JOHN = (
    f"When Mary and John went to the store, {giver} gave a drink to {taker}. Then they went home."
    for giver, taker in (("Mary", "John"), ("John", "Mary"))
)
SENTENCE = "the dog that bit the man fled"
VISITED = """localStorage.setItem("attnscope.tour", "yes");"""  # the page does not offer its tour
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
QUIET, MAX_SECONDS = 3.0, 600.0  # without a request, everything is drawn; heads of long texts take minutes
BASELINE = ".sentence-maps figure:nth-of-type(2) .map[data-state=ready]"
SMALL, LARGE = (1280, 820), (1600, 1000)


class Shot(NamedTuple):
    """One picture: the size of the window, and the address of what it shows."""

    size: tuple[int, int]
    address: str
    """A fragment, in which the names of texts stand in braces."""


SHOTS = {
    "map": Shot(SMALL, "#1/{long}/L17H5/map"),
    "pinned": Shot(SMALL, "#1/{long}/L17H5/map?c=391.5,371.5&z=14&pin=q403,k368"),
    "text": Shot(LARGE, "#1/{short}/L17H3/text?pin=q386"),
    "heads": Shot(LARGE, "#1/{short}/L5H7/heads"),
    "ratio": Shot(LARGE, "#1/{john}/L17H5/map?cmp={mary}:L17H5,ratio&bits=3"),
    "sentence": Shot(SMALL, "#1/-/L13H8/sentence"),
}
WATCH, PICTURE, ANSWER = "watch", "picture", "answer"
ANSWER_HEAD = 0  # of the last layer of the language model
NAMES = (*SHOTS, WATCH, PICTURE, ANSWER)


def main(arguments: Sequence[str] | None = None) -> None:
    """Take all of them, or some."""
    parser = argparse.ArgumentParser(description="Take the screenshots of the explorer again.", allow_abbrev=False)
    parser.add_argument("--text", type=Path, metavar="FILE", help="read this instead of Python's own help()")
    parser.add_argument("--vit", type=Path, metavar="FOLDER", help="the model of the image, and its photo")
    parser.add_argument("--llava", type=Path, metavar="FOLDER", help="the model of the answer, and its photo")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME")
    parser.add_argument("--out", type=Path, default=FOLDER, metavar="FOLDER")
    options = parser.parse_args(arguments)
    if options.text is None:
        title, text = "help()", "\n\n".join(topics[name].strip() for name in ("with", "try", "for", "while", "if"))
    else:
        title, text = options.text.stem, options.text.read_text(encoding="utf-8")
    options.out.mkdir(parents=True, exist_ok=True)
    if PICTURE in options.only and options.vit is not None:
        photo = open_photo(options.vit / "digit.png")
        trace = read_photo(load(options.vit)[0], load_image_processor(options.vit), photo)
        take_picture(trace, "L0H1/picture?pin=q0", options.out / f"{PICTURE}.png")
    if ANSWER in options.only and options.llava is not None:
        take_answer(options.llava, options.out / f"{ANSWER}.png")
    if WATCH in options.only:
        take_watched_run(options.out / f"{WATCH}.png")
    if names := [name for name in options.only if name in SHOTS]:
        take_traces(names, title, text, options.out)


def take_traces(names: Sequence[str], title: str, text: str, out: Path) -> None:
    """Take the pictures of a text."""
    model, tokenizer = load(MODEL)
    library = Library()
    texts = {"long": (title, text[:LONG]), "short": (title, text[:SHORT])}
    texts |= {"john": ("John gave to Mary", JOHN), "mary": ("Mary gave to John", MARY)}
    wanted = {key: given for key, given in texts.items() if any(f"{{{key}}}" in SHOTS[n].address for n in names)}
    traces = {
        key: library.add(read(model, given, tokenizer, progress=False), name=name)
        for key, (name, given) in wanted.items()
    }
    with Server(library, ModelSession(model, tokenizer, NAME)) as server, browsing(server.url) as page:
        for name in names:
            take(page, server.base, SHOTS[name], traces)
            page.screenshot(path=out / f"{name}.png")
            print(out / f"{name}.png")


def take_answer(folder: Path, path: Path) -> None:
    """Take a picture of two digits, with what the query that predicts the name of the first one attends to."""
    photo, processor = open_photo(folder / "digits.png"), load_processor(folder)
    trace = read_photo(load(folder)[0], processor, photo, "Which digits ?", max_new_tokens=4)
    first = next(at for at, name in enumerate(trace) if "language" in name)
    question = max(at for at, token in enumerate(trace.tokens() or ()) if "?" in token)
    take_picture(trace, f"L{first + 1}H{ANSWER_HEAD}/picture?pin=q{question}", path)


def take_picture(trace: Trace, address: str, path: Path) -> None:
    """Take a picture of the Picture view."""
    library = Library()
    name = library.add(trace, name="digits")
    with Server(library) as server, browsing(server.url) as page:
        page.set_viewport_size({"width": SMALL[0], "height": SMALL[1]})
        page.goto("about:blank")
        page.goto(f"{server.base}/#1/{name}/{address}")
        page.wait_for_selector(".picture-main[data-state=ready]")
        page.wait_for_timeout(2000)
        page.screenshot(path=path)
    print(path)


def take_watched_run(path: Path) -> None:
    """Train the model of docs/guides/watch.md for 1,200 steps, and take a picture with the pointer on a cell."""
    with tempfile.TemporaryDirectory() as folder:
        train_watched(Path(folder))
        library = Library()
        library.watched = WatchedRunView(folder, "runs/first")
        with Server(library) as server, browsing(server.url) as page:
            page.set_viewport_size({"width": LARGE[0], "height": LARGE[1]})
            page.wait_for_selector(".watch-side dd", timeout=1000 * MAX_SECONDS)
            page.wait_for_timeout(1000)
            page.hover(".heads-room canvas", position={"x": 600, "y": 60})
            page.wait_for_selector(".heads-card dt:nth-of-type(1)")
            page.wait_for_timeout(1000)
            page.screenshot(path=path)
    print(path)


def train_watched(folder: Path) -> None:
    """Train a small Llama on repeated random tokens, at a rate at which its logits grow."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.012)
    with watch(model, every=4, folder=folder) as watching:
        for _ in range(1200):
            ids = torch.randint(64, (4, 24)).repeat(1, 2)
            model(ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watching.step()


@contextmanager
def browsing(url: str) -> Iterator[Page]:
    """A page that has shown its token to the server."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            page = browser.new_page()
            page.add_init_script(VISITED)
            page.goto(url)
            yield page
        finally:
            browser.close()


def take(page: Page, base: str, shot: Shot, traces: dict[str, str]) -> None:
    """Open what the picture shows, and wait until all of it is drawn."""
    page.set_viewport_size({"width": shot.size[0], "height": shot.size[1]})
    page.goto("about:blank")  # an address that differs in its fragment alone would keep the state of the last one
    page.goto(base + "/" + shot.address.format(**traces))
    if "/sentence" in shot.address:
        page.fill("#sentence-text", SENTENCE)
        settle(page)
        page.check(".sentence input[type=checkbox]")
        page.wait_for_selector(BASELINE, state="attached", timeout=1000 * MAX_SECONDS)
    page.wait_for_selector("html[data-state=ready]", state="attached", timeout=1000 * MAX_SECONDS)
    settle(page)
    page.mouse.move(0, 0)


def settle(page: Page) -> None:
    """Wait until the page has asked for nothing for a while."""
    running: set[Any] = set()
    last = [time.monotonic()]

    def begin(request: Request) -> None:
        running.add(request)

    def end(request: Request) -> None:
        running.discard(request)
        last[0] = time.monotonic()

    page.on("request", begin)
    page.on("requestfinished", end)
    page.on("requestfailed", end)
    start = time.monotonic()
    while running or time.monotonic() - last[0] < QUIET:
        if time.monotonic() - start > MAX_SECONDS:
            raise TimeoutError(f"the page was not quiet within {MAX_SECONDS:g} seconds")
        page.wait_for_timeout(100)
    for event, listener in (("request", begin), ("requestfinished", end), ("requestfailed", end)):
        page.remove_listener(event, listener)


if __name__ == "__main__":
    main()
