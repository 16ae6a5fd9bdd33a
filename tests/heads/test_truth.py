"""Labels are true: on a trained model, heads that are switched off are missed for what their label says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from attnscope.heads import HeadTable, ablate, compare_with_random_heads, read_repeated_tokens, score_heads
from attnscope.heads.repeated_tokens import LENGTH, ids_for_model
from attnscope.models import Decoder, Tokenizer
from attnscope.recording import read
from tests.models.smollm2 import own_model

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data"
MANY = 5


@pytest.fixture(scope="module")
def smollm2() -> tuple[Decoder, Tokenizer]:
    return own_model()


@pytest.fixture(scope="module")
def table(smollm2: tuple[Decoder, Tokenizer]) -> HeadTable:
    """All heads on the standard probe."""
    return score_heads(read_repeated_tokens(*smollm2))


@pytest.mark.slow
def test_without_induction_heads_nothing_that_comes_again_is_expected(smollm2, table: HeadTable) -> None:
    """The heads are found on one draw of random tokens, and are missed on another."""
    ids = ids_for_model(*smollm2, seed=1)
    found = table.top("induction", MANY)
    assert all("induction" in labels for labels in found.labels or ())
    compared = compare_with_random_heads(smollm2[0], ids, found, table, num_draws=10, progress=False)
    first, second = slice(0, LENGTH - 1), slice(LENGTH, None)
    assert compared.loss[first].mean() > 5 * compared.loss[second].mean()  # the model does repeat
    others = compared.random_changes.mean(0)
    assert compared.change[second].mean() > 5 * others[second].mean()
    assert compared.change[second].mean() > 5.0  # nats of surprise at each token
    assert compared.change[first].mean() < 5 * others[first].mean()
    assert compared.change[first].mean() < 0.05 * compared.change[second].mean()


def test_without_previous_token_heads_there_is_no_induction(smollm2, table: HeadTable) -> None:
    model, tokenizer = smollm2
    with ablate(model, table.top("previous", 3).heads_by_layer):
        without = score_heads(read_repeated_tokens(model, tokenizer))
    before = table.top("induction", MANY)
    after = before.join(HeadTable(without.layers, without.heads, {"after": without["induction"]}))["after"]
    assert after.mean() < 0.2 * before["induction"].mean()
    assert (after < before["induction"]).all()


def test_the_sink_label_is_the_weight_on_the_first_token(smollm2) -> None:
    model, tokenizer = smollm2
    trace = read(model, tokenizer.encode((ROOT / "docs" / "matrix.md").read_text())[:400], tokenizer)
    scored = score_heads(trace)
    on_first = torch.cat([trace[name].batch(0)[:, 1:, 0].double().mean(-1) for name in trace])  # row 0 has no choice
    torch.testing.assert_close(scored["sink"], on_first, rtol=0, atol=1e-6)
    labelled = torch.tensor(["sink" in labels for labels in scored.labels or ()])
    assert torch.equal(labelled, on_first >= 0.5)
    assert 0 < labelled.sum() < len(labelled)


@pytest.mark.slow
def test_heads_are_sinks_in_the_same_order_on_prose_and_on_code(smollm2) -> None:
    prose, code = (sinks(smollm2, ROOT / place) for place in ("docs/models.md", "src/attnscope/matrix/matrix.py"))
    assert rank_correlation(prose, code) >= 0.9


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs wikitext2-valid.txt and tinyshakespeare.txt")
def test_heads_are_sinks_in_the_same_order_in_an_encyclopedia_and_in_plays(smollm2) -> None:
    articles, plays = (sinks(smollm2, SHARED / name) for name in ("wikitext2-valid.txt", "tinyshakespeare.txt"))
    assert rank_correlation(articles, plays) >= 0.9


def sinks(smollm2: tuple[Decoder, Tokenizer], file: Path) -> Tensor:
    """The sink score of all heads on the beginning of a file."""
    model, tokenizer = smollm2
    ids = tokenizer.encode(file.read_text(encoding="utf-8")[:20_000])[:1024]
    assert len(ids) == 1024
    return score_heads(read(model, ids, tokenizer))["sink"]


def rank_correlation(one: Tensor, other: Tensor) -> float:
    ranks = [scores.argsort().argsort().double() for scores in (one, other)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])
