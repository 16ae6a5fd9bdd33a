"""Recording from the outside: any model, the fused kernel left on, names, tokens, choices, refusals."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_utils import AttentionInterface

import attnscope
from attnscope import Causal, Softcap, attend
from attnscope.errors import SettingError, UnsupportedError
from attnscope.models import Decoder, DecoderConfig, Seq2Seq, Seq2SeqConfig, load, load_tokenizer
from attnscope.recording import Trace, record
from attnscope.recording.layers.recorded import Layer
from tests.models.smollm2 import FOLDER, transformers_model
from tests.recording.zoo import EXHIBITS

TEXT = "The cat sat on the mat because it was tired, and so was the dog."
LLAMA = next(exhibit for exhibit in EXHIBITS if exhibit.name == "Llama")


def dense(query: Tensor, key: Tensor, allowed: Tensor | None = None, added: Tensor | float = 0.0) -> Tensor:
    """Weights as the textbooks write them."""
    scores = query @ key.mT / query.shape[-1] ** 0.5 + added
    return (scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)).softmax(-1)


class FusedAttention(nn.Module):
    """Attention as small language models are written: one projection, one call."""

    def __init__(self, width: int, heads: int, **options: Any) -> None:
        super().__init__()
        self.project, self.heads, self.options = nn.Linear(width, 3 * width), heads, options
        self.seen: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        parts = self.project(x).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        self.seen = query.detach(), key.detach()
        return F.scaled_dot_product_attention(query, key, value, **self.options).transpose(1, 2).flatten(2)


class SmallGPT(nn.Module):
    """A decoder that knows nothing of any library but PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(50, 16), nn.Embedding(32, 16)
        self.h = nn.ModuleList(FusedAttention(16, 4, is_causal=True) for _ in range(3))

    def forward(self, idx: Tensor) -> Tensor:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = x + block(x)
        return x


def test_a_trained_model_of_transformers_gives_its_own_eager_weights_and_the_same_logits():
    model, tokenizer = transformers_model(torch.float32), load_tokenizer(FOLDER)
    ids = torch.tensor([tokenizer.encode(TEXT)])
    with torch.no_grad():
        plain = model(ids).logits
        with record(model, tokenizer) as trace:
            recorded = model(ids).logits
        implementation = model.config._attn_implementation
        model.set_attn_implementation("eager")
        eager = model(ids, output_attentions=True).attentions
        model.set_attn_implementation(implementation)
    assert torch.equal(recorded, plain)
    assert list(trace) == [f"model.layers.{at}.self_attn" for at in range(30)]
    for at, weights in enumerate(eager):
        torch.testing.assert_close(trace[at].to_dense(), weights, atol=5e-6, rtol=0)
    assert "".join(trace.tokens() or ()) == TEXT
    text, spans = trace.spans() or ("", [])
    assert [text[start:stop] for start, stop in spans] == trace.tokens()


def test_the_same_model_as_one_of_ours_gives_the_same_weights():
    tokenizer = load_tokenizer(FOLDER)
    ids = torch.tensor([tokenizer.encode(TEXT)])
    ours, theirs = load(FOLDER, dtype=torch.float32), transformers_model(torch.float32)
    with torch.no_grad(), record(ours, tokenizer) as first:
        ours(ids)
    with torch.no_grad(), record(theirs, tokenizer) as second:
        theirs(ids)
    assert list(first) == [f"blocks.{at}.attention" for at in range(30)]
    assert first.tokens() == second.tokens()
    for at in range(30):
        torch.testing.assert_close(first[at].to_dense(), second[at].to_dense(), atol=5e-6, rtol=0)


def test_code_that_calls_the_fused_function_is_seen_by_the_name_of_its_module():
    torch.manual_seed(0)
    model = SmallGPT()
    ids = torch.randint(0, 50, (2, 9))
    with record(model) as trace:
        output = model(ids)
    output.sum().backward()
    assert list(trace) == ["h.0", "h.1", "h.2"]
    assert torch.equal(trace.texts[0].ids, ids)
    allowed = torch.ones(9, 9, dtype=torch.bool).tril()
    for name in trace:
        seen = model.get_submodule(name).seen
        assert isinstance(seen, tuple)
        query, key = seen
        torch.testing.assert_close(trace[name].to_dense(), dense(query, key, allowed), atol=1e-6, rtol=0)


def masks(queries: int, keys: int) -> dict[str, tuple[dict[str, Any], Tensor | None, Tensor | float]]:
    """Options of F.scaled_dot_product_attention, and what they mean: booleans, and numbers to add."""
    generator = torch.Generator().manual_seed(1)
    scattered = torch.rand(2, 1, queries, keys, generator=generator) > 0.4
    scattered[..., 0] = True
    padding = torch.ones(2, 1, 1, keys, dtype=torch.bool)
    padding[1, ..., -2:] = False
    bias = torch.randn(1, 4, queries, keys, generator=generator)
    slope = -0.1 * (torch.arange(queries)[:, None] - torch.arange(keys)).abs() * torch.ones(1, 4, 1, 1)
    triangle = torch.ones(queries, keys, dtype=torch.bool).tril()
    infinite = torch.zeros(queries, keys).masked_fill(~triangle, -torch.inf)
    mixed = bias.masked_fill(~triangle, torch.finfo(torch.float32).min)
    return {
        "none": ({}, None, 0.0),
        "causal": ({"is_causal": True}, triangle, 0.0),
        "scattered": ({"attn_mask": scattered}, scattered, 0.0),
        "padding": ({"attn_mask": padding}, padding, 0.0),
        "triangle": ({"attn_mask": triangle}, triangle, 0.0),
        "additive triangle": ({"attn_mask": infinite}, triangle, 0.0),
        "bias": ({"attn_mask": bias}, None, bias),
        "by distance": ({"attn_mask": slope}, None, slope),
        "bias and triangle": ({"attn_mask": mixed}, triangle, bias),
    }


@pytest.mark.parametrize("name", masks(6, 6))
@pytest.mark.parametrize("keys", [6, 9, 4])
def test_every_mask_of_the_fused_function_is_understood(name: str, keys: int):
    torch.manual_seed(0)
    query, key = torch.randn(2, 4, 6, 8), torch.randn(2, 4, keys, 8)
    options, allowed, added = masks(6, keys)[name]

    class Model(nn.Module):
        def forward(self) -> Tensor:
            return F.scaled_dot_product_attention(query, key, key, **options)

    model = Model()
    with record(model, verify=True) as trace:
        output = model()
    found = trace[""].to_dense()
    torch.testing.assert_close(found, dense(query, key, allowed, added), atol=1e-6, rtol=0)
    torch.testing.assert_close(found @ key, output, atol=1e-5, rtol=0)
    assert trace.errors[""] < 1e-6


def test_masks_of_odd_shapes_and_large_numbers_are_understood():
    torch.manual_seed(0)
    query, key = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    triangle = torch.ones(5, 5, dtype=torch.bool).tril()
    far = torch.arange(5)[:, None] - torch.arange(5)
    last = torch.tensor([0.0, 0.0, 0.0, 0.0, -1e4])
    cases = [
        (torch.zeros(1, 1, 5, 5).masked_fill(~triangle, -1e9), triangle, 0.0),
        (last.view(1, 1, 1, 5), last.expand(5, 5) == 0, 0.0),
        (torch.randn(1, 2, 1, 5), None, None),
        (torch.randn(1, 2, 5, 1), None, None),
        (-0.3 * far.abs().view(1, 1, 5, 5), None, None),
        (torch.randn(5, 5), None, None),
    ]
    for given, allowed, added in cases:
        model = Single(lambda given=given: F.scaled_dot_product_attention(query, key, key, attn_mask=given))
        with record(model, verify=True) as trace:
            model()
        expected = dense(query, key, allowed, given if added is None else added)
        torch.testing.assert_close(trace[0].to_dense(), expected, atol=1e-6, rtol=0)
        assert max(trace.errors.values()) < 1e-6


class Single(nn.Module):
    """One call, inside of a module."""

    def __init__(self, function: Callable[[], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self) -> Tensor:
        return self.function()


def test_tensors_with_fewer_axes_or_one_for_all_are_spread():
    torch.manual_seed(0)
    one, many = torch.randn(1, 1, 5, 8), torch.randn(3, 2, 6, 8)
    flat, booleans = torch.randn(2, 5, 8), torch.ones(2, 5, 5, dtype=torch.bool).tril()
    cases = [
        (lambda: F.scaled_dot_product_attention(one, many, many), (3, 2, 5, 6)),
        (lambda: F.scaled_dot_product_attention(flat, flat, flat, attn_mask=booleans), (2, 1, 5, 5)),
        (lambda: attend(flat, flat, flat), (1, 2, 5, 5)),
        (lambda: attend(flat[0], flat[0], flat[0]), (1, 1, 5, 5)),
    ]
    for function, shape in cases:
        model = Single(function)
        with record(model, verify=True) as trace:
            model()
        assert trace[0].shape == shape
        assert trace.errors[""] < 5e-6


def test_numbers_of_positions_are_not_taken_for_tokens_and_columns_of_texts_are_turned():
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(10, 16), nn.Embedding(32, 16)
            self.layer = nn.TransformerEncoderLayer(16, 2, 32)

        def forward(self, ids: Tensor) -> Tensor:  # positions first, as nn.TransformerEncoderLayer has it
            return self.layer(self.tokens(ids) + self.places(torch.arange(len(ids)))[:, None])

    model = Small().eval()
    ids = torch.tensor([[7, 1], [4, 4], [9, 0]])  # three positions of two texts
    with torch.no_grad(), record(model) as trace:
        model(ids)
    assert trace.tokens(0) == ["7", "4", "9"]
    assert trace.labels(0, 1) == (["1", "4", "0"], ["1", "4", "0"])
    with torch.no_grad(), record(model) as trace:
        model(ids[:, :1])
    assert trace.tokens() == ["7", "4", "9"]  # of one text, too
    square = torch.tensor([[7, 1], [4, 4]])  # nobody can tell
    with torch.no_grad(), record(model) as trace, pytest.warns(UserWarning, match="2 sequences of 2 tokens"):
        model(square)
    assert trace.tokens() is None


class CachedBlock(nn.Module):
    """A decoder of one layer that keeps its keys, and whose argument is not called input_ids."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.batch_first, self.embedding, self.kept = batch_first, nn.Embedding(50, 8), torch.empty(0)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words if self.batch_first else words.T)[:, None]
        self.kept = torch.cat([self.kept, x], 2) if self.kept.numel() else x
        causal = torch.ones(x.shape[2], self.kept.shape[2], dtype=torch.bool).tril(self.kept.shape[2] - x.shape[2])
        return F.scaled_dot_product_attention(x, self.kept, self.kept, attn_mask=causal)


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_square_chunk_is_read_as_the_chunks_before_it(batch_first: bool):
    ids, model = torch.randint(50, (2, 12)), CachedBlock(batch_first=batch_first)
    with torch.no_grad(), record(model) as trace, warnings.catch_warnings():
        warnings.simplefilter("error")
        for some in ids.split(5, dim=1):  # the last one is 2 x 2
            model(some if batch_first else some.T)
    assert trace[0].shape[-1] == 12
    for row in (0, 1):
        assert trace.tokens(row) == [str(number) for number in ids[row].tolist()]


def test_tokens_that_follow_an_ambiguous_chunk_are_left_out_with_it():
    ids, model = torch.randint(50, (2, 5)), CachedBlock(batch_first=True)
    with torch.no_grad(), record(model) as trace:
        with pytest.warns(UserWarning, match="2 sequences of 2 tokens"):
            model(ids[:, :2])
        model(ids[:, 2:])
    assert trace.tokens() is None


def test_booleans_for_eager_attention_are_refused_because_it_adds_them():
    model: Any = next(one for one in EXHIBITS if one.name == "Llama").build()
    model.set_attn_implementation("eager")
    mask = torch.ones(1, 1, 4, 4, dtype=torch.bool).tril()
    with torch.no_grad(), pytest.raises(UnsupportedError, match="0 and 1"), record(model):
        model(torch.tensor([[5, 6, 7, 8]]), attention_mask=mask)


def test_a_mask_of_pytorch_says_true_for_what_is_left_out_and_multihead_attention_agrees():
    torch.manual_seed(0)
    for batch_first in (True, False):
        attention = nn.MultiheadAttention(16, 4, batch_first=batch_first)
        text, memory = torch.randn(2, 7, 16), torch.randn(2, 5, 16)
        if not batch_first:
            text, memory = text.transpose(0, 1), memory.transpose(0, 1)
        padding = torch.zeros(2, 5, dtype=torch.bool)
        padding[1, 3:] = True
        with record(nn.ModuleDict({"cross": attention}), verify=True) as trace:
            _, weights = attention(text, memory, memory, key_padding_mask=padding, average_attn_weights=False)
        torch.testing.assert_close(trace["cross"].to_dense(), weights, atol=1e-6, rtol=0)
        assert trace.layer("cross").cross
        assert trace.errors["cross"] < 1e-6


def test_multihead_attention_with_widths_of_its_own_and_without_a_batch():
    attention = nn.MultiheadAttention(16, 4, kdim=6, vdim=5)
    text, key, value = torch.randn(7, 16), torch.randn(5, 6), torch.randn(5, 5)
    with record(attention) as trace:
        _, weights = attention(text, key, value, average_attn_weights=False)
    torch.testing.assert_close(trace[0].batch(0).to_dense(), weights, atol=1e-6, rtol=0)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_fast_path_of_pytorch_is_not_taken_and_nothing_is_lost():
    torch.manual_seed(0)
    model = nn.Transformer(16, 2, 2, 2, 32, batch_first=True).eval()
    source, target = torch.randn(2, 6, 16), torch.randn(2, 4, 16)
    padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    options = {"tgt_mask": nn.Transformer.generate_square_subsequent_mask(4), "src_key_padding_mask": padding}
    with torch.no_grad():
        plain = model(source, target, memory_key_padding_mask=padding, **options)
        with record(model) as trace:
            recorded = model(source, target, memory_key_padding_mask=padding, **options)
    torch.testing.assert_close(recorded, plain, atol=1e-5, rtol=1e-4)
    kinds = [("cross" if layer.cross else "self", layer.shape[2:]) for layer in trace.layers.values()]
    assert kinds == [("self", (6, 6))] * 2 + [("self", (4, 4)), ("cross", (4, 6))] * 2
    assert not trace["encoder.layers.0.self_attn"].batch(1)[..., 4:].any()
    assert not trace["decoder.layers.0.self_attn"].head(0).batch(0)[0, 1:].any()


def test_a_sequence_to_sequence_model_of_ours_is_seen_with_both_texts():
    torch.manual_seed(0)
    config = Seq2SeqConfig(vocab_size=40, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32)
    model = Seq2Seq(config).eval()
    source, target = torch.randint(0, 40, (1, 6)), torch.randint(0, 40, (1, 4))
    with torch.no_grad(), record(model) as trace:
        model(source, target)
    assert [layer.shape[2:] for layer in trace.layers.values()] == [(6, 6), (4, 4), (4, 6)]
    assert [layer.cross for layer in trace.layers.values()] == [False, False, True]
    sources, targets = ([str(number) for number in text[0].tolist()] for text in (source, target))
    labels = [trace.labels(name) for name in trace]
    assert labels == [(sources, sources), (targets, targets), (targets, sources)]


@pytest.mark.parametrize("name", ["T5", "BART", "Llama", "BERT", "CLIP", "Whisper"])
def test_queries_and_keys_have_the_labels_of_the_text_they_come_from(name: str):
    exhibit = next(one for one in EXHIBITS if one.name == name)
    model = exhibit.build()
    inputs = exhibit.inputs(model)
    with torch.no_grad(), record(model) as trace:
        model(**inputs)
    texts = {key: [str(number) for number in inputs[key][0].tolist()] for key in inputs if key.endswith("input_ids")}
    for layer in trace:
        rows, columns = trace.labels(layer)
        decodes, looks = "decoder" in layer, trace.layer(layer).cross
        pictures = "vision" in layer or (name == "Whisper" and not decodes)
        own = None if pictures else texts.get("decoder_input_ids" if decodes and len(texts) > 1 else "input_ids")
        own = texts.get("decoder_input_ids") if name == "Whisper" and decodes else own
        assert rows == own
        assert columns == (texts.get("input_ids") if looks else own)


def test_our_own_attend_is_seen_wherever_it_is_called():
    query = torch.randn(1, 4, 6, 8)

    class Model(nn.Module):
        def forward(self) -> Tensor:
            return attend(query, query[:, :2], query[:, :2], mask=Causal(), score_mod=Softcap(2.0), scale=0.3)

    model = Model()
    with record(model) as trace:
        model()
    scores = (2.0 * torch.tanh(0.3 * query @ query[:, [0, 0, 1, 1]].mT / 2.0)).masked_fill(
        ~torch.ones(6, 6, dtype=torch.bool).tril(), -torch.inf
    )
    torch.testing.assert_close(trace[""].to_dense(), scores.softmax(-1), atol=1e-6, rtol=0)


def test_calls_outside_of_the_model_are_none_of_its_business():
    model, other = SmallGPT(), FusedAttention(16, 2)
    with record(model) as trace:
        model(torch.tensor([[1, 2, 3]]))
        other(torch.randn(1, 4, 16))
    assert list(trace) == ["h.0", "h.1", "h.2"]


def test_layers_are_chosen_by_number_name_or_pattern_and_heads_for_all_or_each():
    model = LLAMA.build()
    ids = torch.tensor([[5, 6, 7, 8]])

    def names(**options: Any) -> Trace:
        with torch.no_grad(), record(model, **options) as trace:
            model(ids)
        return trace

    everything = names()
    assert list(names(layers=1)) == ["model.layers.1.self_attn"]
    assert list(names(layers=["*.0.*"])) == ["model.layers.0.self_attn"]
    some = names(heads=[3, 1])
    assert torch.equal(some[1].to_dense(), everything[1].to_dense()[:, [3, 1]])
    one = names(heads={1: [2]})
    assert list(one) == ["model.layers.1.self_attn"]
    assert torch.equal(one[0].to_dense(), everything[1].to_dense()[:, [2]])
    with pytest.raises(SettingError, match="no module of the model matches layer 7"):
        names(layers=7)
    with pytest.raises(SettingError, match=r"expected heads 0 to 3 of .*, got head 4"):
        names(heads=[4])


def test_half_the_bits_are_half_the_memory_and_values_are_kept_on_demand():
    model = LLAMA.build()
    ids = torch.randint(3, 99, (1, 64))
    sizes = {}
    for dtype in (None, torch.bfloat16):
        with torch.no_grad(), record(model, dtype=dtype) as trace:
            model(ids)
        calls = [layer.merge_calls() for layer in trace.layers.values() if isinstance(layer, Layer)]
        sizes[dtype] = sum(call.query.nbytes + call.key.nbytes for call in calls)
    assert sizes[torch.bfloat16] * 2 == sizes[None]
    torch.testing.assert_close(trace[0].to_dense().sum(-1), torch.ones(1, 4, 64), atol=1e-5, rtol=0)
    with torch.no_grad(), record(model, values=True) as trace:
        model(ids)
    assert trace[0].value_weighted()[..., 0:2, 0:2].shape == (1, 4, 2, 2)


def test_a_trace_on_disk_holds_the_same_numbers(tmp_path):
    model = LLAMA.build()
    ids = torch.randint(3, 99, (1, 64))
    with torch.no_grad():
        with record(model) as expected:
            model(ids)
        with record(model, spill=tmp_path) as trace:
            model(ids[:, :40], use_cache=True)
    assert not list(tmp_path.iterdir())
    torch.testing.assert_close(trace[1].to_dense(), expected[1].to_dense()[:, :, :40, :40], atol=1e-6, rtol=0)
    with pytest.raises(SettingError, match="not a folder"), record(model, spill=tmp_path / "missing"):
        pass


def test_a_layer_that_is_called_again_has_a_number():
    exhibit = next(one for one in EXHIBITS if one.name == "ALBERT")
    model = exhibit.build()
    with torch.no_grad(), record(model) as trace:
        model(**exhibit.inputs(model))
    first, *others = trace
    assert others == [f"{first}#{at}" for at in range(2, 2 + len(others))]


def test_what_was_asked_for_and_cannot_be_is_said():
    model = LLAMA.build()
    with pytest.raises(SettingError, match=r"expected a torch\.nn\.Module, got str"), record("gpt2"):  # pyright: ignore[reportArgumentType]
        pass
    with pytest.raises(SettingError, match="got 'all'"), record(model, keep="all"):  # pyright: ignore[reportArgumentType]
        pass
    with pytest.raises(UnsupportedError, match="inside the with block"), record(model):
        pass
    with torch.no_grad(), record(model) as trace:
        model(torch.tensor([[5, 6]]))
    with pytest.raises(KeyError, match="'nothing' is not in this trace"):
        trace["nothing"]
    with pytest.raises(IndexError, match="layer index 99 is out of range: this trace has 2 layers"):
        trace.get(99)  # type: ignore[call-overload]
    with pytest.raises(KeyError, match="expected the name or the index of a layer, got None"):
        trace.layer(None)  # type: ignore[arg-type]
    with pytest.raises(IndexError, match="2 layers"):
        trace[2]
    with pytest.raises(SettingError, match="for each layer, but '0' is NoneType"):
        Trace.from_attentions((None, None))
    with pytest.raises(SettingError, match="1 tokens were given"):
        Trace.from_attentions([torch.eye(3)[None, None]], tokens=["so"])
    assert "model.layers.0.self_attn" in trace
    assert "nothing" not in trace
    assert 0 not in trace  # an index is a short form for [] alone; the keys are names
    assert trace.get("nothing") is None


def test_the_package_can_be_called_by_its_name():
    model = LLAMA.build()
    with torch.no_grad(), attnscope.record(model) as trace:
        model(torch.tensor([[5, 6, 7]]))
    assert isinstance(trace, attnscope.Trace)
    assert "2 layers, 8 heads, up to 3 keys" in repr(trace)


def test_our_decoder_under_inference_mode_is_recorded():
    config = DecoderConfig(
        vocab_size=50, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=64, max_position_embeddings=32
    )
    model = Decoder(config).eval()
    with torch.inference_mode(), record(model) as trace:
        model(torch.tensor([[3, 1, 4, 1, 5]]))
    assert trace[0].entropy().shape == (1, 4, 5)


def test_a_score_that_the_models_own_kernel_ignores_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older versions of transformers run Gemma 2 with an SDPA that drops the softcap."""

    def sdpa(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any) -> Any:
        raise AssertionError

    model = next(exhibit for exhibit in EXHIBITS if exhibit.name == "Gemma 2").build()
    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", sdpa)
    model.config._attn_implementation_internal = "sdpa"
    with pytest.raises(UnsupportedError, match=r"softcap.*eager"), record(model), torch.no_grad():
        model(torch.tensor([[5, 9, 4]]))


@pytest.mark.parametrize("name", ["Llama", "GPT-2", "BERT", "T5", "BART", "ViT"])
def test_an_eager_model_returns_the_weights_that_it_is_asked_for(name: str):
    exhibit = next(one for one in EXHIBITS if one.name == name)
    model: Any = exhibit.build()
    model.set_attn_implementation("eager")
    inputs = exhibit.inputs(model)
    with torch.no_grad():
        plain = model(**inputs, output_attentions=True)
        with record(model) as trace:
            recorded = model(**inputs, output_attentions=True)
    fields = [field for field in plain if field.endswith("attentions") and plain[field]]
    assert fields
    for field in fields:
        assert len(recorded[field]) == len(plain[field])
        for ours, theirs in zip(recorded[field], plain[field], strict=True):
            torch.testing.assert_close(ours, theirs)
    assert len(trace) == sum(len(plain[field]) for field in fields)


def test_an_sdpa_model_returns_no_weights_recorded_or_not():
    model = LLAMA.build()
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        plain = model(ids, output_attentions=True).attentions
        with record(model):
            assert model(ids, output_attentions=True).attentions == plain


def test_a_record_is_for_one_with_block():
    model, text = SmallGPT(), torch.tensor([[1, 2, 3]])
    for context in (record(model), attnscope.ablate(model, {0: [0]})):
        with torch.no_grad(), context:
            model(text)
        with pytest.raises(SettingError, match=r"(record|ablate)\(\.\.\.\) again"), context:
            model(text)


def test_a_text_is_not_taken_for_a_tokenizer():
    with pytest.raises(SettingError, match=r"attnscope\.read"), record(SmallGPT(), "some text"):
        pass


def test_one_key_head_for_several_value_heads_is_spread():
    query, key, value = torch.randn(1, 2, 5, 8), torch.randn(1, 1, 5, 8), torch.randn(1, 2, 5, 8)
    model = Single(lambda: F.scaled_dot_product_attention(query, key, value))
    with record(model, verify=True, values=True) as trace:
        model()
    torch.testing.assert_close(trace[0].to_dense(), dense(query, key))
    assert trace.errors[""] < 5e-6


def test_the_meta_device_is_refused():
    model: Any = LLAMA.build()
    model.to("meta")
    with torch.no_grad(), pytest.raises(UnsupportedError, match="meta device"), record(model):
        model(torch.tensor([[5, 6, 7]], device="meta"))
    x = torch.randn(1, 2, 5, 8, device="meta")
    other = Single(lambda: F.scaled_dot_product_attention(x, x, x))
    with pytest.raises(UnsupportedError, match="meta device"), record(other):
        other()


def test_an_attention_without_tokens_is_recorded_as_such():
    empty = torch.randn(1, 2, 0, 8)
    model = Single(lambda: F.scaled_dot_product_attention(empty, empty, empty))
    with record(model) as trace:
        model()
    assert trace[0].shape == (1, 2, 0, 0)
