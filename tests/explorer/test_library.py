"""A library knows its traces by what is in them, and makes nothing twice."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
import torch

from attnscope.attention import Causal, Full, Mask, Prefix, Window
from attnscope.attention.algebra import Sizes
from attnscope.errors import Cancelled, SettingError, UnsupportedError
from attnscope.explorer.analysis.inspection import head_scores
from attnscope.explorer.library import library as module
from attnscope.explorer.library import trace_scores
from attnscope.explorer.library.library import MAX_HEADS, MAX_LIVE, Entry, Library, TokenAxis
from attnscope.explorer.library.trace_id import compute_trace_id, derive_id
from attnscope.explorer.library.unmasked import NOTE
from attnscope.matrix import AttentionMatrix
from attnscope.recording import Trace, open_trace, read
from attnscope.recording.call import Call
from attnscope.recording.layers.recorded import Layer
from tests.explorer.serving import TEXT, small_model, small_trace


def held(seed: int = 0, heads: int = 2, tokens: int = 6) -> Trace:
    torch.manual_seed(seed)
    return Trace.from_attentions([torch.rand(1, heads, tokens, tokens).tril().softmax(-1).tril()])


def test_a_fingerprint_follows_from_the_content_alone() -> None:
    first = compute_trace_id(small_trace())
    assert re.fullmatch(r"[0-9a-f]{32}", first)
    assert compute_trace_id(small_trace()) == first
    others = {
        compute_trace_id(small_trace(TEXT.replace("nine", "nono"))),
        compute_trace_id(small_trace(depth=1)),
        first,
    }
    assert len(others) == 3


def test_a_single_number_changes_a_fingerprint() -> None:
    weights = torch.rand(1, 2, 6, 6)
    before = compute_trace_id(Trace.from_attentions([weights]))
    weights[0, 1, 5, 2] += 0.01
    assert compute_trace_id(Trace.from_attentions([weights])) != before


@pytest.mark.parametrize("mask", [Full(), Window(2), Prefix(2)])
def test_a_mask_changes_a_fingerprint(mask: Mask) -> None:
    query, key = torch.randn(1, 2, 6, 4), torch.randn(1, 2, 6, 4)
    found = set()
    for one in (Causal(), mask):
        trace = Trace("model")
        trace.layers = {"a": Layer("a", Call(query=query, key=key, value=None, mask=one, scale=None), cross=False)}
        found.add(compute_trace_id(trace))
    assert len(found) == 2


def test_a_saved_trace_keeps_its_name(tmp_path: Path) -> None:
    small_trace().save(tmp_path)
    name = compute_trace_id(small_trace())
    assert re.fullmatch(r"[0-9a-f]{32}", name)
    assert compute_trace_id(open_trace(tmp_path)) == name


class Odd(Mask):
    """A mask of somebody's own."""

    def __init__(self, every: int) -> None:
        self.every = every

    def allows(self, query: torch.Tensor, key: torch.Tensor, sizes: Sizes) -> torch.Tensor:
        return (query - key) % self.every == 0

    def to_regions(self, sizes: Sizes) -> None:
        return None


def recorded(query: torch.Tensor, key: torch.Tensor, mask: Mask) -> Trace:
    trace = Trace("model")
    trace.layers = {"a": Layer("a", Call(query=query, key=key, value=None, mask=mask, scale=None), cross=False)}
    return trace


def test_masks_of_somebodys_own_are_never_taken_for_the_same() -> None:
    query, key = torch.randn(1, 2, 6, 4), torch.randn(1, 2, 6, 4)
    assert compute_trace_id(recorded(query, key, Odd(2))) != compute_trace_id(recorded(query, key, Odd(3)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("width", [64, 63])
def test_a_single_number_of_a_huge_tensor_changes_its_name(dtype: torch.dtype, width: int) -> None:
    query, key = torch.randn(2, 1, 4, 8192, width).to(dtype).unbind()
    before = compute_trace_id(recorded(query, key, Causal()))
    apart = query.transpose(1, 2).contiguous().transpose(1, 2)
    assert compute_trace_id(recorded(apart, key, Causal())) == before
    key[0, 3, 4097, 5] += 0.1  # a position that is not looked at whole
    assert compute_trace_id(recorded(query, key, Causal())) != before


def test_what_is_derived_has_another_name_each_time() -> None:
    assert len({derive_id("a", "x"), derive_id("a", "y"), derive_id("b", "x")}) == 3


def test_the_same_trace_is_there_once() -> None:
    library = Library()
    assert library.add(small_trace(), name="a") == library.add(small_trace(), name="b")
    assert [summary["name"] for summary in library.summaries()] == ["a"]


def test_a_summary_and_a_description_say_what_the_trace_has() -> None:
    library, trace = Library(), small_trace()
    name = library.add(trace, name="a text")
    assert library.summaries() == [{"trace": name, "name": "a text", "tokens": 72, "layers": 2, "heads": 8}]
    entry = library.entry(name)
    assert entry is not None
    meta = entry.meta()
    assert (meta["trace"], meta["name"], meta["model"], meta["note"], meta["origin"]) == (
        name, "a text", "Decoder", None, None)  # fmt: skip
    assert meta["layers"][1] == {
        "name": "blocks.1.attention", "heads": 4, "numbers": [0, 1, 2, 3], "queries": 72, "keys": 72, "causal": True,
        "offset": 0, "window": None, "cross": False, "zeros_masked": False, "has_texts": True,
    }  # fmt: skip


def test_a_trace_without_its_causal_mask_is_a_trace_of_its_own_with_a_note() -> None:
    library, trace = Library(), small_trace()
    name = library.add(trace, name="a")
    entry = library.entry(name)
    assert entry is not None
    other = library.entry(entry.meta()["unmasked"])
    assert other is not None
    meta = other.meta()
    assert (meta["note"], meta["origin"], meta["unmasked"]) == (NOTE, name, None)
    assert not any(layer["causal"] for layer in meta["layers"])
    layer = trace.layer(0)
    assert isinstance(layer, Layer)
    call = layer.merge_calls()
    wanted = (call.query[0, 1].double() @ call.key[0, 1].double().mT * call.query.shape[-1] ** -0.5).softmax(-1)
    torch.testing.assert_close(library.head(other, 0, 1).matrix[:].double(), wanted, rtol=1e-5, atol=1e-7)
    library.close()


@pytest.mark.parametrize(
    ("mask", "window"),
    [(Causal(), None), (Full(), None), (Window(5), 5), (Window(5) & Causal(), 5), (Window(99), None)],
)
def test_a_layer_names_its_sliding_window(mask: Mask, window: int | None) -> None:
    query, key = torch.randn(2, 1, 2, 40, 8)
    trace = Trace()
    trace.layers = {"a": Layer("a", Call(query=query, key=key, value=None, mask=mask, scale=None), cross=False)}
    assert Entry(trace, "a", "a").meta()["layers"][0]["window"] == window


def test_imported_weights_have_no_unmasked_trace() -> None:
    library = Library()
    entry = library.entry(library.add(held(), name="a"))
    assert entry is not None
    assert entry.meta()["unmasked"] is None
    assert entry.meta()["layers"][0]["causal"]
    assert not entry.meta()["layers"][0]["has_texts"]


@pytest.mark.parametrize(("ahead", "causal"), [(0.0, True), (0.1, False)])
def test_held_weights_are_causal_if_nothing_lies_ahead(ahead: float, causal: bool) -> None:
    weights = torch.rand(1, 1, 5, 7).tril(2)
    weights[0, 0, 1, 4] = ahead
    assert Entry(Trace.from_attentions([weights]), "a", "a").is_causal(0) == causal


def test_the_oldest_live_traces_are_forgotten_and_others_are_not() -> None:
    library = Library()
    kept = library.add(held(1000), name="kept")
    names = [library.add(held(seed), name=str(seed), live=True) for seed in range(MAX_LIVE)]
    library.add(held(0), name="0", live=True)  # again: now it is the newest
    last = library.add(held(MAX_LIVE), name="last", live=True)
    assert library.entry(names[1]) is None
    assert all(library.entry(name) is not None for name in (kept, names[0], *names[2:], last))
    assert len(library.summaries()) == 1 + MAX_LIVE


def test_a_trace_that_was_opened_is_not_forgotten_for_being_typed_too() -> None:
    library = Library()
    kept = library.add(held(1000), name="kept")
    library.add(held(1000), name="typed", live=True)
    for seed in range(MAX_LIVE + 1):
        library.add(held(seed), name=str(seed), live=True)
    assert library.entry(kept) is not None


def test_a_head_is_made_once_however_many_ask_at_once() -> None:
    library = Library()
    entry = library.entry(library.add(small_trace(), name="a"))
    assert entry is not None
    found, start = [], threading.Barrier(8)

    def take_head() -> None:
        start.wait()
        found.append(library.head(entry, 1, 2))

    threads = [threading.Thread(target=take_head) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(head) for head in found}) == 1
    library.close()


def test_few_heads_are_kept() -> None:
    library = Library()
    entry = library.entry(library.add(held(heads=MAX_HEADS + 2), name="a"))
    assert entry is not None
    heads = [library.head(entry, 0, head) for head in range(MAX_HEADS + 1)]
    assert library.head(entry, 0, MAX_HEADS) is heads[-1]
    assert library.head(entry, 0, 0) is not heads[0]
    library.close()


def test_a_head_is_that_of_the_first_text() -> None:
    weights = torch.rand(2, 3, 5, 5)
    library = Library()
    entry = library.entry(library.add(Trace.from_attentions([weights]), name="a"))
    assert entry is not None
    matrix = library.head(entry, 0, 2).matrix
    assert isinstance(matrix, AttentionMatrix)
    assert torch.equal(matrix[:], weights[0, 2])
    library.close()


def test_heads_of_a_small_layer_are_scored_together(monkeypatch: pytest.MonkeyPatch) -> None:
    library, trace = Library(), small_trace()
    entry = library.entry(library.add(trace, name="a"))
    assert entry is not None
    alone = [head_scores(trace, 0, head) for head in range(trace.layer(0).shape[1])]
    with monkeypatch.context() as patch:
        patch.delattr(module, "head_scores")
        together = [library.scores(entry, 0, head) for head in range(len(alone))]
        patch.delattr(trace_scores, "layer_scores")
        assert [library.scores(entry, 0, head) for head in range(len(alone))] == together
        layer = library.score_first(entry, 0)
        assert layer is not None
        assert [head["scores"] for head in layer["heads"]] == [scores for _, scores in together]
    for (labels, scores), (own_labels, own_scores) in zip(together, alone, strict=True):
        assert labels == own_labels
        assert scores == pytest.approx(own_scores, rel=1e-5)
    library.close()


def test_a_head_of_a_large_layer_is_scored_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    library, trace = Library(), small_trace()
    entry = library.entry(library.add(trace, name="a"))
    assert entry is not None
    _, heads, queries, keys = trace.layer(0).shape
    monkeypatch.setattr(trace_scores, "MAX_SMALL_CELLS", heads * queries * keys - 1)
    monkeypatch.delattr(trace_scores, "layer_scores")
    assert library.scores(entry, 0, 1) == head_scores(trace, 0, 1)
    library.close()


def test_a_library_that_closes_stops_what_it_computes() -> None:
    library = Library()
    entry = library.entry(library.add(small_trace(), name="a"))
    assert entry is not None
    matrix = library.head(entry, 0, 0).matrix
    library.close()
    with pytest.raises(Cancelled):
        library.head(entry, 0, 0)
    with pytest.raises(Cancelled):
        matrix.received()


def test_tokens_are_decoded_once_for_all_layers() -> None:
    library, trace = Library(), small_trace()
    entry = library.entry(library.add(trace, name="a"))
    assert entry is not None
    axis = entry.axis(0, "query")
    assert axis is not None
    assert axis.texts == list(TEXT)
    assert entry.axis(1, "key") is axis


def test_statistics_alone_and_nothing_at_all_are_refused(tmp_path: Path) -> None:
    model, tokenizer = small_model()
    with pytest.raises(UnsupportedError, match="keep='statistics'"):
        Library().add(read(model, TEXT, tokenizer, keep="statistics", progress=False), name="a")
    with pytest.raises(SettingError, match="empty"):
        Library().add(Trace(), name="a")


def test_a_trace_from_a_folder_is_the_same_to_look_at(tmp_path: Path) -> None:
    trace = small_trace()
    trace.save(tmp_path)
    library = Library()
    entry = library.entry(library.add(open_trace(tmp_path), name="a"))
    assert entry is not None
    assert torch.equal(library.head(entry, 1, 3).matrix[:], trace["blocks.1.attention"].batch(0).head(3)[:])
    axis = entry.axis(0, "key")
    assert axis is not None
    assert axis.texts == list(TEXT)
    library.close()


WORDS = ["The", " cat", " and", " the", " ca", "ther", "ine", " CAT", "", "s"]


@pytest.mark.parametrize(
    ("text", "after", "backward", "wanted"),
    [
        ("cat", 0, False, (1, 3, 0)),
        ("cat", 2, False, (4, 3, 1)),
        ("cat", 4, False, (4, 3, 1)),
        ("cat", 5, False, (7, 3, 2)),
        ("cat", 8, False, (None, 3, -1)),
        ("cat", 6, True, (4, 3, 1)),
        ("cat", 0, True, (None, 3, -1)),
        ("  The ", 1, False, (3, 3, 1)),
        ("catherine", 0, False, (4, 1, 0)),
        ("cats", 0, False, (7, 1, 0)),
        ("the cat", 1, False, (3, 2, 1)),
        (".", 0, False, (None, 0, -1)),
        ("s", 0, False, (9, 1, 0)),
    ],
)
def test_a_text_is_found_within_and_across_tokens(text: str, after: int, backward: bool, wanted: tuple) -> None:
    found = TokenAxis(WORDS).find(text, after, backward=backward)
    assert (found["position"], found["count"], found["index"]) == wanted


def test_a_text_that_comes_twice_in_a_token_counts_once() -> None:
    assert TokenAxis(["aaaa", "b"]).find("a", 0, backward=False) == {"position": 0, "count": 1, "index": 0}
