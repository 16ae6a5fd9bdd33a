"""`attnscope fact` writes a page, prints a verdict, and names mistakes in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attnscope.heads import explain_fact
from attnscope.models import Decoder, save, train_bpe
from attnscope.recording import estimate, load
from tests.cli.running import assert_mistake, run_command
from tests.cli.test_cache import tiny_llama

TEXT = "The old house was lost. The password is cobalt. Anna looked for the key in the garden and in the house. " * 2
ASKED = ("--fact", "cobalt", "--question", "The password is")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fact") / "model"
    tokenizer = train_bpe([TEXT], vocab_size=300)
    torch.manual_seed(0)
    save(Decoder(tiny_llama(tokenizer.vocab_size)), folder)
    tokenizer.save(folder)
    return folder


def test_the_page_and_the_verdict(model: Path, tmp_path: Path) -> None:
    found = run_command("fact", model, TEXT, *ASKED, "--out", tmp_path / "page.html")
    assert found.code == 0, found.errors
    decoder, tokenizer = load(model)
    report = explain_fact(decoder, tokenizer, TEXT, fact="cobalt", question="The password is", progress=False)
    assert found.output.startswith("missed (predicted ")
    assert f"loss {report.loss:.3f}, without the fact {report.loss_without_fact:.3f} nats" in found.output
    page = (tmp_path / "page.html").read_text()
    assert "The password is <mark>cobalt</mark>" in page


def test_long_texts_come_with_an_estimate(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, tokenizer = load(model)
    length = len(tokenizer.encode(TEXT))
    words = f"{estimate(decoder, length)}".split(";")[0].split(",")[0]
    for limit, is_long in ((length, True), (length + 1, False)):
        monkeypatch.setattr("attnscope.cli.fact.MIN_ESTIMATED", limit)
        found = run_command("fact", model, TEXT, *ASKED, "--out", tmp_path / "page.html")
        assert (words in found.errors) is is_long


def test_mistakes_are_one_line(model: Path) -> None:
    assert_mistake(
        run_command("fact", model, TEXT, "--fact", "amber", "--question", "The"), "'amber' is not in the text"
    )
    assert_mistake(run_command("fact", model, TEXT, *ASKED, "--out", "nowhere/page.html"), "does not exist")
