"""All heads of a layer at once: small pictures of the weights, and the scores that each head has alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch

from attnscope.atlas.codec import EXACT, PARTIAL, PARTLY_MASKED, U8LOG, decode, unpack
from attnscope.attention import ALiBi, Bias, Causal, Documents, Padding, Sinks, Softcap, Window
from attnscope.errors import Cancelled
from attnscope.explorer.analysis.layer_scores import layer_scores
from attnscope.explorer.analysis.slicing import slice_layer
from attnscope.heads import SCORES, score_heads
from attnscope.heads.labels import get_label
from attnscope.matrix.pooling import even_edges
from attnscope.matrix.sampling import spaced_rows
from attnscope.recording import Trace, read
from attnscope.recording.call import Call
from attnscope.recording.layers.dense import DenseLayer
from attnscope.recording.layers.recorded import Layer
from attnscope.recording.token_texts import Texts
from tests.explorer.serving import Handle, serving, small_model, small_trace
from tests.explorer.synthetic import Synthetic, random_head, trace_of
from tests.explorer.test_server import IMMUTABLE, Shown, close, dense_of

STEP = 2 ** (32 / 254 / 2)  # half a step of a code


@pytest.fixture(scope="module")
def shown() -> Iterator[Shown]:
    trace = small_trace()
    with serving(trace) as handle:
        yield Shown(handle, trace)


def one_layer(call: Call, ids: torch.Tensor | None = None) -> Trace:
    trace = Trace("a layer")
    trace.layers = {"a": Layer("a", call, cross=False)}
    trace.texts = [] if ids is None else [Texts("", ids)]
    return trace


def pooled(dense: numpy.ndarray, rows: list[int], columns: list[int]) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Mean and maximum of what can be seen between edges."""
    shape = len(rows) - 1, len(columns) - 1
    mean, largest = numpy.full(shape, numpy.nan), numpy.full(shape, numpy.nan)
    for row in range(shape[0]):
        for column in range(shape[1]):
            block = dense[rows[row] : rows[row + 1], columns[column] : columns[column + 1]]
            if (~numpy.isnan(block)).any():
                mean[row, column], largest[row, column] = numpy.nanmean(block), numpy.nanmax(block)
    return mean, largest


def same_codes(codes: numpy.ndarray, wanted: numpy.ndarray) -> None:
    """Hidden where nothing is seen, and elsewhere at most half a step beside."""
    assert numpy.array_equal(codes == 0, numpy.isnan(wanted))
    seen = ~numpy.isnan(wanted) & (wanted > 2**-31)
    ratio = decode(codes)[seen] / wanted[seen]
    assert ratio.min() > 1 / STEP / 1.001
    assert ratio.max() < STEP * 1.001


@pytest.mark.parametrize("channel", ["mean", "max"])
def test_thumbnails_are_all_heads_of_a_layer_pooled(shown: Shown, channel: str) -> None:
    answer = shown.get(f"1/thumbs?ch={channel}")
    assert answer.headers["cache-control"] == IMMUTABLE
    header, codes = unpack(answer.body)
    assert (header.dtype, header.channel) == (U8LOG, ["mean", "max"].index(channel))
    assert (header.rows, header.columns, header.z, header.y, header.x) == (4 * 64, 64, 1, 64, 72)
    assert header.flags == PARTLY_MASKED
    edges = even_edges(72, 64)
    for head in range(4):
        wanted = pooled(dense_of(shown.trace, 1, head).numpy(), edges, edges)[channel == "max"]
        same_codes(codes[64 * head : 64 * head + 64], wanted)


def test_thumbnails_of_a_short_text_are_its_cells(served: Callable[..., Handle]) -> None:
    trace = small_trace("to be or not")
    header, codes = unpack(Shown(served(trace), trace).get("0/thumbs").body)
    assert (header.rows, header.columns, header.y, header.x, header.flags) == (48, 12, 12, 12, PARTLY_MASKED | EXACT)
    same_codes(codes[12:24], dense_of(trace, 0, 1).numpy())


def test_thumbnails_of_a_long_text_are_of_evenly_spread_queries_and_say_so(served: Callable[..., Handle]) -> None:
    heads = [random_head(4096, seed=seed) for seed in range(2)]
    trace = trace_of([heads])
    header, codes = unpack(Shown(served(trace), trace).get("0/thumbs?ch=max").body)
    assert (header.rows, header.columns, header.y, header.x) == (128, 64, 64, 1024)
    assert header.flags & PARTIAL
    picked = [row for start in range(0, 4096, 64) for row in spaced_rows(start, start + 64, 16)]
    for at, head in enumerate(heads):
        some = head.rows(picked[:320])
        wanted = pooled(some, list(range(0, 321, 16)), list(range(0, 4097, 64)))[1]
        same_codes(codes[64 * at : 64 * at + 20], wanted)


def test_thumbnails_of_a_longer_text_have_bins_of_two_widths(served: Callable[..., Handle]) -> None:
    head = random_head(901)
    header, codes = unpack(Shown(served(head.trace()), head.trace()).get("0/thumbs").body)
    assert (header.rows, header.columns, header.y, header.x, header.flags) == (64, 64, 64, 901, PARTLY_MASKED)
    edges = [15 * at if at < 5 else 75 + 14 * (at - 5) for at in range(65)]
    same_codes(codes, pooled(head.rows(range(901)), edges, edges)[0])


def test_thumbnails_of_two_texts_and_of_weights_that_are_there(served: Callable[..., Handle]) -> None:
    head = random_head(9, 130, causal=False)
    header, codes = unpack(Shown(served(head.trace()), head.trace()).get("0/thumbs").body)
    assert (header.rows, header.columns, header.flags) == (9, 64, 0)
    same_codes(codes, pooled(head.rows(range(9)), list(range(10)), even_edges(130, 64))[0])
    weights = torch.rand(1, 2, 5, 5).softmax(-1).tril()
    trace = Trace.from_attentions([weights])
    _, codes = unpack(Shown(served(trace), trace).get("0/thumbs").body)
    same_codes(codes, weights[0].masked_fill(weights[0] == 0, torch.nan).flatten(0, 1).double().numpy())


@pytest.mark.parametrize("length", [72, 900])
def test_a_preview_is_the_thumbnail_of_its_head(served: Callable[..., Handle], length: int) -> None:
    trace = small_trace() if length == 72 else long_trace(length)
    shown = Shown(served(trace), trace)
    for channel in ("mean", "max"):
        whole, every = unpack(shown.get(f"0/thumbs?ch={channel}").body)
        for head in (0, 1):
            header, codes = unpack(shown.get(f"0/{head}/preview?ch={channel}").body)
            assert (header.rows, header.columns, header.z, header.y, header.x) == (64, 64, 0, 64, whole.x)
            assert header.flags == whole.flags
            assert numpy.abs(codes.astype(int) - every[64 * head : 64 * head + 64]).max() <= 1
            assert numpy.array_equal(codes == 0, every[64 * head : 64 * head + 64] == 0)


def broken_trace() -> Trace:
    """Three heads, of which the second is no numbers."""
    heads = [random_head(20, seed=seed) for seed in range(3)]
    heads[1] = Synthetic(torch.full_like(heads[1].query, torch.nan), heads[1].key)
    return trace_of([heads])


def test_a_head_that_is_no_numbers_is_hidden_and_has_no_scores_and_the_others_are_as_ever(
    served: Callable[..., Handle],
) -> None:
    broken, sound = broken_trace(), trace_of([[random_head(20, seed=seed) for seed in (0, 2)]])
    shown, wanted = Shown(served(broken), broken), Shown(served(sound), sound)
    _, codes = unpack(shown.get("0/thumbs").body)
    assert not codes[20:40].any()
    _, others = unpack(wanted.get("0/thumbs").body)
    assert numpy.array_equal(numpy.delete(codes, range(20, 40), 0), others)
    found = shown.get("0/heads").json["heads"]
    assert found[1] == {"labels": [], "scores": {}}
    assert [found[0], found[2]] == wanted.get("0/heads").json["heads"]


def test_scores_of_a_layer_are_those_of_the_table_of_all_heads(shown: Shown) -> None:
    answer = shown.get("1/heads")
    assert answer.headers["cache-control"] == "no-cache"
    found, table = answer.json, score_heads(shown.trace, progress=False)
    assert (found["scored_queries"], found["num_queries"], found["pending"], len(found["heads"])) == (72, 72, False, 4)
    assert table.labels is not None
    for head, one in enumerate(found["heads"]):
        assert one["labels"] == list(table.labels[4 + head])
        known = {name: column[4 + head] for name, column in table.columns.items() if not column[4 + head].isnan()}
        assert list(one["scores"]) == list(known)
        close(list(one["scores"].values()), list(known.values()))
    labels = {label for one in found["heads"] for label in one["labels"]}
    assert {name: words for name, words in found["meanings"].items() if name != "mixed"} == {
        name: get_label(name).meaning for name in labels - {"mixed"}
    }
    assert ("mixed" in labels) == ("mixed" in found["meanings"])
    assert found["measures"] == {name: SCORES[name] for name in found["measures"]}
    assert set(found["measures"]) == {name for one in found["heads"] for name in one["scores"]}


def long_trace(length: int, **options: Any) -> Trace:
    chance = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 2, length, 8, generator=chance).unbind()
    ids = torch.randint(0, 50, (1, length), generator=chance)
    return one_layer(
        Call(**{"query": query, "key": key, "value": None, "mask": Causal(), "scale": None, **options}), ids
    )


def test_a_long_text_is_scored_on_its_first_tokens_first_which_have_the_same_weights() -> None:
    trace = long_trace(3000)
    layer = trace.layer(0)
    assert isinstance(layer, Layer)
    call = layer.merge_calls()
    first = Call(query=call.query[:, :, :2048], key=call.key[:, :, :2048], value=None, mask=Causal(), scale=None)
    table = score_heads(one_layer(first, trace.texts[0].ids[:, :2048]), progress=False)
    found = layer_scores(trace, 0, causal=True)
    assert (found["scored_queries"], found["num_queries"], found["complete"]) == (2048, 3000, False)
    for head in range(2):
        scores = found["heads"][head]["scores"]
        assert {"induction", "duplicate", "previous"} <= set(scores)
        close([scores[name] for name in scores], [table.columns[name][head] for name in scores])


MASKS: dict[str, Any] = {
    "window": {"mask": Causal() & Window(before=5)},
    "documents": {"mask": Causal() & Documents(torch.arange(30) // 7)},
    "padding": {"mask": Causal() & Padding(keep=torch.arange(30)[None] > 2)},
    "either": {"mask": Causal() | Window(before=3)},
    "slopes": {"score_mod": ALiBi(2)},
    "table": {"score_mod": Bias(torch.randn(1, 2, 30, 30)) + Softcap(3.0)},
    "distances": {"score_mod": Bias.by_distance(torch.randn(2, 61), first=-30)},
    "sinks": {"score_mod": Sinks(torch.tensor([0.5, 2.0]))},
}


@pytest.mark.parametrize("options", MASKS.values(), ids=list(MASKS))
def test_the_first_queries_have_the_weights_that_they_have_in_the_whole_text(options: dict[str, Any]) -> None:
    trace = long_trace(30, **options)
    part, whole = slice_layer(trace, 0, queries=12)["a"], trace["a"]
    assert part.shape == (1, 2, 12, 12)
    close(part[:], whole[..., :12, :12])
    close(slice_layer(trace, 0, queries=12, heads=[1])["a"][:], whole[..., :12, :12][:, 1:])
    assert torch.equal(slice_layer(trace, 0, queries=12).texts[0].ids, trace.texts[0].ids[:, :12])


def test_fewer_queries_than_keys_keep_what_they_see() -> None:
    chance = torch.Generator().manual_seed(0)
    query, key = torch.randn(1, 2, 20, 4, generator=chance), torch.randn(1, 1, 26, 4, generator=chance)
    trace = one_layer(Call(query=query, key=key, value=None, mask=Causal(), scale=None))
    part = slice_layer(trace, 0, queries=5)["a"]
    assert part.shape == (1, 2, 5, 11)
    close(part[:], trace["a"][..., :5, :11])
    held = Trace.from_attentions([trace["a"][:]])
    layer = slice_layer(held, 0, queries=5).layer(0)
    assert isinstance(layer, DenseLayer)
    assert torch.equal(layer.weights, trace["a"][..., :5, :][..., :11])


def test_scores_of_a_batch_are_those_of_its_first_text() -> None:
    query, key = torch.randn(2, 2, 3, 40, 8).unbind()
    both = one_layer(Call(query=query, key=key, value=None, mask=Causal(), scale=None), torch.randint(0, 9, (2, 40)))
    alone = one_layer(Call(query=query[:1], key=key[:1], value=None, mask=Causal(), scale=None), both.texts[0].ids[:1])
    assert layer_scores(both, 0, causal=True) == layer_scores(alone, 0, causal=True)


def test_scores_that_take_long_are_said_to_come_later(served: Callable[..., Handle]) -> None:
    trace = small_trace()
    shown = Shown(served(trace), trace)
    entry = shown.handle.server.library.entry(shown.name)
    assert entry is not None
    with entry.scores._computing:
        answer = shown.get("0/heads")
        assert (answer.status, answer.headers["cache-control"]) == (200, "no-store")
        assert (answer.json["pending"], answer.json["heads"]) == (True, [])
    while (found := shown.get("0/heads").json)["pending"]:
        pass
    assert len(found["heads"]) == 4


def test_scoring_a_layer_stops_when_it_is_told_to() -> None:
    with pytest.raises(Cancelled):
        layer_scores(small_trace(), 0, causal=True, cancelled=lambda: True)


def test_chosen_heads_are_scored_in_their_order() -> None:
    model, tokenizer = small_model()
    some = read(model, "Is the day so young?", tokenizer, heads=[3, 1], progress=False)
    everything = read(model, "Is the day so young?", tokenizer, progress=False)
    found, wanted = (layer_scores(trace, 1, causal=True)["heads"] for trace in (some, everything))
    numbers = some.layer(1).heads
    assert sorted(numbers) == [1, 3]
    for at, number in enumerate(numbers):
        assert found[at]["labels"] == wanted[number]["labels"]
        close(list(found[at]["scores"].values()), list(wanted[number]["scores"].values()))


@pytest.mark.parametrize("path", ["2/thumbs", "-1/thumbs", "2/heads", "x/heads", "0/thumbs/0", "0/0/heads"])
def test_overviews_that_are_not_there_are_not_found(shown: Shown, path: str) -> None:
    assert shown.get(path).status == 404


def test_a_channel_that_is_not_there_is_refused(shown: Shown) -> None:
    assert shown.get("0/thumbs?ch=sum").status == 400
