"""The explorer opens on the most distinctive head, and labels come from the whole text in the end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from attnscope.attention import Full
from attnscope.errors import Cancelled
from attnscope.explorer.analysis.opening import FAR, Choice, ScoredHead, choose_opening
from attnscope.explorer.analysis.sampled_links import HeadLinks, Link, sample_links, sample_rows, strongest_link
from attnscope.explorer.library import trace_scores
from attnscope.explorer.library.library import Library
from attnscope.heads import score_heads
from attnscope.matrix import AttentionMatrix
from attnscope.recording import Trace, load, read
from tests.explorer.serving import serving, small_trace
from tests.explorer.synthetic import planted_head, trace_of
from tests.explorer.test_overview import long_trace
from tests.explorer.test_server import Shown, close

SMOLLM2 = Path(__file__).resolve().parents[2] / ".cache" / "models" / "smollm2-135m"
NOTHING = HeadLinks(None, None)


def scored(layer: int, head: int, label: str, links: HeadLinks = NOTHING, **scores: float) -> ScoredHead:
    return ScoredHead(layer, head, [label], scores, links)


def test_the_opening_is_the_most_distinctive_head_without_the_share_of_the_first_token() -> None:
    heads = [
        scored(0, 0, "broad", evenness=0.95, sink=0.0),
        scored(1, 0, "sink", sink=0.99),
        scored(1, 1, "previous", previous=0.9, sink=0.0),
        scored(1, 2, "previous", previous=0.95, sink=0.3),
        scored(2, 0, "induction", induction=0.7, sink=0.6),
        scored(2, 1, "induction", induction=0.6, sink=0.1),
    ]
    opening, cards = choose_opening(heads)
    assert opening == Choice(2, 0, "induction", 0.7, None, 0.7)
    assert [(card.label, card.layer, card.head) for card in cards] == [
        ("induction", 2, 0),
        ("previous", 1, 1),
        ("sink", 1, 0),
        ("broad", 0, 0),
    ]
    assert choose_opening(reversed(heads)) == (opening, cards)


def test_a_far_link_needs_no_label_and_a_head_without_labels_is_still_better_than_none() -> None:
    far, near = Link(900, 100, 0.7, 0.65), Link(9, 7, 0.4, 0.2)
    heads = [
        scored(0, 0, "mixed", HeadLinks(near, None)),
        scored(0, 1, "mixed", HeadLinks(far, far)),
        scored(0, 2, "sink", HeadLinks(near, near), sink=0.9),
    ]
    opening, cards = choose_opening(heads)
    assert opening is not None
    assert (opening.layer, opening.head, opening.label, opening.link) == (0, 1, FAR, far)
    assert [card.label for card in cards] == [FAR, "sink"]
    opening, cards = choose_opening(heads[:1])
    assert opening is not None
    assert (opening.label, opening.link, cards) == ("mixed", near, [])
    assert choose_opening([]) == (None, [])


def test_links_are_found_that_few_rows_have() -> None:
    """All rows attend to key 5, and one row to key 40 in addition."""
    weights = torch.full((1, 300, 300), 1e-3).tril()
    weights[0, 5:, 5] = 0.6
    weights[0, 290, 40] = 0.3
    weights[0, :, 0] = 0.8
    matrix = AttentionMatrix.from_dense(weights / weights.sum(-1, keepdim=True))
    (found,) = sample_links(matrix)
    assert found.far is not None
    assert found.any == found.far
    assert (found.far.query, found.far.key) == (290, 40)
    assert found.far.weight == pytest.approx(float(matrix[0, 290, 40]))
    assert 290 in sample_rows(300, 64)


def test_the_strongest_link_is_neither_to_itself_nor_to_the_first_token() -> None:
    torch.manual_seed(0)
    weights = torch.rand(50, 50).pow(8).tril()
    weights.diagonal().fill_(3)
    weights[:, 0] = 3
    weights /= weights.sum(-1, keepdim=True)
    others = weights.clone()
    others.diagonal().zero_()
    others[:, 0] = 0
    others[:3] = 0
    found = strongest_link(AttentionMatrix.from_dense(weights))
    assert found is not None
    assert (found.query, found.key) == divmod(int(others.argmax()), 50)
    found = strongest_link(AttentionMatrix.from_dense(weights), "sink")
    assert found == Link(49, 0, float(weights[49, 0]), float(weights[49, 0]))


@pytest.mark.parametrize(("label", "key"), [("previous", 5), ("duplicate", 2), ("induction", 3), ("broad", 4)])
def test_a_link_shows_the_label(label: str, key: int) -> None:
    ids = torch.tensor([1, 2, 3, 4, 5, 6, 3])
    weights = torch.zeros(7, 7)
    weights[6, :2] = 0.1
    weights[6, key] = 0.3
    weights[6, 4] = 0.5
    found = strongest_link(AttentionMatrix.from_dense(weights), label, ids)
    assert found is not None
    assert (found.query, found.key) == (6, key)


def wait(shown: Shown, path: str, done: Any) -> dict[str, Any]:
    until = time.monotonic() + 120
    while not done(found := shown.get(path).json):
        assert time.monotonic() < until
        time.sleep(0.05)
    return found


@pytest.mark.parametrize("options", [{}, {"mask": Full()}], ids=["causal", "bidirectional"])
def test_labels_come_from_the_whole_text_in_the_end(options: dict[str, Any]) -> None:
    trace = long_trace(2200, **options)
    table = score_heads(trace, progress=False)
    with serving(trace) as handle:
        shown = Shown(handle, trace)
        first = wait(shown, "0/heads", lambda found: not found["pending"])
        if options:
            assert first["complete"]
        else:
            assert first["scored_queries"] in (2048, 2200)
        found = wait(shown, "0/heads", lambda found: found["complete"])
        assert (found["scored_queries"], found["num_queries"]) == (2200, 2200)
        for head in range(2):
            scores = found["heads"][head]["scores"]
            close([scores[name] for name in scores], [table.columns[name][head] for name in scores])
        opening = wait(shown, "opening", lambda found: not found["pending"])
        assert (opening["scored_queries"], opening["num_queries"]) == (2200, 2200)
        assert shown.get("opening").headers["cache-control"] == "no-store"


def test_a_text_that_is_too_long_keeps_the_labels_of_its_first_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_scores, "MAX_WHOLE_CELLS", 2 * 2100**2)
    for options, status in (({}, 200), ({"mask": Full()}, 400)):
        trace = long_trace(2200, **options)
        with serving(trace) as handle:
            shown = Shown(handle, trace)
            wait(shown, "opening", lambda found: not found["pending"])
            answer = shown.get("0/heads")
            assert answer.status == status
            if status == 200:
                assert (answer.json["complete"], answer.json["scored_queries"]) == (False, 2048)
            else:
                assert "too many to score" in answer.json["error"]


@pytest.mark.parametrize("length", [600, 2200])
def test_a_planted_link_is_where_the_explorer_opens(length: int) -> None:
    quiet, _ = planted_head(length, 1, strength=1.0)
    head, _ = planted_head(length, 1, strength=1.0)
    query = length - 5
    head.query[query] = head.key[100] * 13.5 * 64**0.5
    trace = trace_of([[quiet, quiet], [quiet, head]])
    with serving(trace) as handle:
        shown = Shown(handle, trace)
        first = wait(shown, "opening", lambda found: found["opening"] is not None)
        found = wait(shown, "opening", lambda found: not found["pending"])
    opening = found["opening"]
    assert first["opening"] == opening  # it stays where it is
    assert (opening["layer"], opening["head"], opening["query"], opening["key"]) == (1, 1, query, 100)
    assert opening["weight"] == pytest.approx(head.rows([query])[0, 100], rel=1e-4)
    assert (opening["label"], found["cards"][0]) == (FAR, opening)
    assert "retrieves" in opening["meaning"]


def test_scoring_ends_with_the_library_and_with_a_dropped_trace() -> None:
    library = Library()
    entry = library.entry(library.add(long_trace(6000), name="long"))
    assert entry is not None
    scores = library.start_scoring(entry)
    library.close()
    assert scores._job.finished.is_set()
    assert not scores.opening()["pending"]
    with pytest.raises(Cancelled):
        library.start_scoring(entry)


def test_a_live_trace_that_is_dropped_is_no_longer_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnscope.explorer.library import library as module

    monkeypatch.setattr(module, "MAX_LIVE", 1)
    library = Library()
    entry = library.entry(library.add(long_trace(6000), name="long", live=True))
    assert entry is not None
    scores = library.start_scoring(entry)
    library.add(small_trace(), name="newer", live=True)
    assert scores._job.finished.is_set()
    with pytest.raises(Cancelled):
        library.start_scoring(entry)
    library.close()


@pytest.mark.skipif(not SMOLLM2.exists(), reason="needs SmolLM2-135M")
def test_smollm2_opens_on_what_is_in_the_text() -> None:
    model, tokenizer = load(SMOLLM2)
    words = "My words are river seven candle green lamp river seven candle green lamp"
    trace = read(model, words, tokenizer, progress=False)
    found = [scores_of(trace), scores_of(trace)]
    assert found[0] == found[1]
    opening, labels = found[0]["opening"], [card["label"] for card in found[0]["cards"]]
    assert opening["label"] == "induction"
    tokens = trace.tokens()
    assert tokens is not None
    assert tokens[opening["key"] - 1] == tokens[opening["query"]]
    assert {"induction", "previous", "sink"} <= set(labels)
    assert opening["key"] not in (0, opening["query"])
    assert opening["weight"] > 0.5


def scores_of(trace: Trace) -> dict[str, Any]:
    with serving(trace) as handle:
        return wait(Shown(handle, trace), "opening", lambda found: not found["pending"])
