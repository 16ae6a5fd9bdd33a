"""Find the heads that look up a fact in a long document, as a user would: three pictures in docs/images/explorer.

In: .cache/models/smollm2-135m, as scripts/fetch_models.py puts it there. The document is Python's own help() with one
sentence inserted: 8,192 tokens that end with a question about it. Out: find_fact_1.png to find_fact_3.png, and the
ranking that the page shows; the script fails unless it is that of `find_heads`. What it does: runs `attnscope look`,
then in a real Chromium (1) types a link into the Ask box, (2) chooses the first head of the ranking, (3) goes to the
next one.

Usage: .venv/bin/python scripts/find_fact.py [--out FOLDER]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from pydoc_data.topics import topics

from playwright.sync_api import Page

from attnscope.heads import find_heads
from attnscope.recording import load, read
from scripts.make_screenshots import FOLDER, MAX_SECONDS, MODEL, browsing, settle

NUM_TOKENS, FACT_AT = 8192, 2290
FACT = " The password of the harbour office is cobalt. "
QUESTION = "\n\nQuestion: What is the password of the harbour office?\nAnswer: The password of the harbour office is"
LINK = "office is -> cobalt"
SHOWN = 6  # heads of the ranking that are compared


def main(arguments: Sequence[str] | None = None) -> None:
    """Take the pictures, and compare the ranking with `find_heads`."""
    parser = argparse.ArgumentParser(description="Find the heads that look up a fact.", allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=FOLDER, metavar="FOLDER")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    text = make_document()
    ranking = walk(text, options.out)
    expected = rank_heads(text)
    print("head     page  find_heads")
    for (head, value), (name, exact) in zip(ranking, expected, strict=True):
        print(f"{head:6} {value:>6}  {exact:.6f} {name}")
        if head != name or abs(float(value) - exact) > 0.0006:  # the page shows three digits
            raise SystemExit("find_fact: the page and find_heads differ")


def make_document() -> str:
    """The document: 8,192 tokens of SmolLM2, with the fact at token 2,290."""
    _, tokenizer = load(MODEL)
    longest = sorted(topics, key=lambda name: (-len(topics[name]), name))[:3]
    ids = tokenizer.encode("\n\n".join(topics[name].strip() for name in longest))
    end = NUM_TOKENS - len(tokenizer.encode(FACT)) - len(tokenizer.encode(QUESTION))
    text = tokenizer.decode(ids[:FACT_AT]) + FACT + tokenizer.decode(ids[FACT_AT:end]) + QUESTION
    assert len(tokenizer.encode(text)) == NUM_TOKENS
    return text


def rank_heads(text: str) -> list[tuple[str, float]]:
    """The strongest heads of the link, from Python."""
    model, tokenizer = load(MODEL)
    trace = read(model, text, tokenizer, progress=False)
    table = find_heads(trace, LINK)
    places = {name: index for index, name in enumerate(trace.layers)}
    names = [f"L{places[layer]}H{head}" for layer, head in zip(table.layers, table.heads, strict=True)]
    return list(zip(names, table["weight"].tolist(), strict=True))[:SHOWN]


def walk(text: str, out: Path) -> list[tuple[str, str]]:
    """Ask in the browser; return the ranking as the page shows it."""
    with looking(text) as url, browsing(url) as page:
        page.set_viewport_size({"width": 1440, "height": 900})
        page.wait_for_selector("html[data-state=ready]", state="attached", timeout=1000 * MAX_SECONDS)
        settle(page)
        page.screenshot(path=out / "find_fact_1.png")
        page.keyboard.press("Control+k")  # the first action: ask
        page.keyboard.type(LINK)
        page.wait_for_selector("[role=option]")
        page.keyboard.press("Enter")
        page.wait_for_selector(".ranking li:nth-child(6)")
        page.click(".ranking li:nth-child(1) button")  # the second: the first head of the ranking
        settle(page)
        page.wait_for_selector(".says-it", timeout=1000 * MAX_SECONDS)
        page.screenshot(path=out / "find_fact_2.png")
        ranking = read_ranking(page)
        print(page.inner_text(".says-it"))
        page.keyboard.press("]")  # the third: the next head of the ranking
        settle(page)
        page.screenshot(path=out / "find_fact_3.png")
    return ranking


def read_ranking(page: Page) -> list[tuple[str, str]]:
    """Names and values of the first heads."""
    rows = page.locator(".ranking li").all()[:SHOWN]
    words = [row.inner_text().split() for row in rows]
    return [(next(word for word in line if word.startswith("L")), line[-1]) for line in words]


@contextmanager
def looking(text: str) -> Iterator[str]:
    """`attnscope look` on the document, and its address."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "needle.txt").write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "attnscope.cli.main", "look", str(MODEL), "needle.txt", "--no-browser"]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                yield next(word for line in process.stdout for word in line.split() if word.startswith("http"))
            finally:
                process.terminate()


if __name__ == "__main__":
    main()
