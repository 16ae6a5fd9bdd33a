"""A trace without its causal mask: exact, or None."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attnscope.attention import Padding, Prefix, Window, from_bool
from attnscope.attention.algebra import Mask
from attnscope.explorer.library.unmasked import remove_causal_mask
from attnscope.explorer.sessions.model_session import ModelSession
from attnscope.recording import Trace, load, read, record
from attnscope.recording.call import Call
from attnscope.recording.layers.recorded import Layer
from attnscope.recording.layers.step_masks import StackedMask, Step
from tests.explorer.model_sessions import CHARACTERS, TEXT, ZOO, make_session, small, written
from tests.models.smollm2 import FOLDER


def test_without_a_mask_queries_see_what_is_ahead_and_no_more_of_the_past():
    trace = make_session(small(sliding_windows=(None, 5, None))).run(TEXT)
    ahead = remove_causal_mask(trace)
    assert ahead is not None
    assert list(ahead) == list(trace)
    assert ahead.tokens() == trace.tokens()
    for name in trace:
        layer, unmasked = trace.layer(name), ahead.layer(name)
        assert isinstance(layer, Layer)
        assert isinstance(unmasked, Layer)
        assert unmasked.merge_calls().key is layer.merge_calls().key
        query, key = layer.merge_calls().query, layer.merge_calls().key.repeat_interleave(2, 1)
        scores = query @ key.mT / query.shape[-1] ** 0.5
        before = 4 if "5" in str(layer.merge_calls().mask) else 99
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).tril(-before - 1), -torch.inf)
        weights = scores.softmax(-1)
        torch.testing.assert_close(ahead[name].to_dense(), weights, atol=1e-12, rtol=0)
        assert not torch.equal(trace[name].to_dense(), weights)


def test_a_text_that_was_written_on_has_the_same_unmasked_trace_as_one_that_was_read():
    model = small(sliding_windows=(None, 5, None))
    done = written(make_session(model))[-1]
    one, other = (
        remove_causal_mask(done["trace"]),
        remove_causal_mask(read(model, CHARACTERS.encode(done["text"]), progress=False)),
    )
    assert one is not None
    assert other is not None
    for name in other:
        torch.testing.assert_close(one[name].to_dense(), other[name].to_dense(), atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["Llama", "Gemma 3", "GPT-2"])
def test_padding_of_transformers_stays_hidden(name: str):
    model = ZOO[name].build()
    keep = torch.ones(2, 12, dtype=torch.long)
    keep[1, :4] = 0
    with torch.no_grad(), record(model) as trace:
        model(input_ids=torch.randint(3, 99, (2, 12)), attention_mask=keep)
    ahead = remove_causal_mask(trace)
    assert ahead is not None
    weights = ahead[0].to_dense()
    assert not weights[1, :, :, :4].any()
    seen = torch.ones(12, 12, dtype=torch.bool).triu(-3 if name == "Gemma 3" else -12)  # which has a window of 4
    assert torch.equal(weights[0] > 0, seen.expand_as(weights[0]))
    assert torch.equal(weights[1, :, 4:, 4:] > 0, seen[4:, 4:].expand_as(weights[1, :, 4:, 4:]))


@pytest.mark.parametrize("hides", [Padding([6, 9]), ~Prefix([3, 0]), Padding([6, 9]) & ~Prefix([3, 0])], ids=str)
def test_padding_of_ours_stays_hidden(hides: Mask):
    model = small()
    with torch.no_grad(), record(model) as trace:
        model.features(torch.randint(56, (2, 9)), mask=hides)
    ahead = remove_causal_mask(trace)
    assert ahead is not None
    expected = torch.tensor([[key < 6 or "Padding" not in str(hides) for key in range(9)], [True] * 9])
    if "Prefix" in str(hides):
        expected[0, :3] = False
    assert torch.equal(ahead[0].to_dense() > 0, expected[:, None, None].expand(2, 4, 9, 9))


def test_where_nothing_hides_what_lies_ahead_there_is_no_unmasked_trace():
    session = ModelSession(*load(FOLDER.parent / "minilm-l6"), "MiniLM")
    assert remove_causal_mask(session.run("The cat sat.")) is None


def test_where_the_answer_would_not_be_exact_there_is_none():
    model = small()
    ids = torch.randint(56, (1, 9))
    assert remove_causal_mask(Trace.from_attentions([torch.eye(3)[None, None]])) is None
    assert remove_causal_mask(read(model, ids, keep="statistics", progress=False)) is None
    for mask in (from_bool(attend=torch.rand(9, 9).tril() > 0.1), ~Window(3)):
        with torch.no_grad(), record(model) as trace:
            model.features(ids, mask=mask)
        assert remove_causal_mask(trace) is None


@pytest.mark.parametrize("added", [0.0, 1.0])
def test_numbers_that_are_added_to_scores_are_not_known_where_a_key_was_hidden(added: float):
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    hidden = torch.full((6, 6), -torch.inf).triu(1) + torch.rand(6, 6).tril() * added
    text = torch.randn(1, 6, 8)
    with torch.no_grad(), record(nn.ModuleDict({"first": attention})) as trace:
        attention(text, text, text, attn_mask=hidden, need_weights=False)
    assert (remove_causal_mask(trace) is None) == bool(added)


def test_windows_that_were_read_in_steps_of_their_own_are_not_guessed_at():
    mask = StackedMask((Step(Window(3), 0, 4, 0, 4), Step(Window(5), 4, 9, 0, 9)))
    query, key = torch.randn(2, 1, 2, 9, 4).unbind()
    trace = Trace("model")
    trace.layers = {"a": Layer("a", Call(query=query, key=key, value=None, mask=mask, scale=None), cross=False)}
    assert remove_causal_mask(trace) is None
