"""A run under `evicted` equals one whose KV cache has really lost the pairs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from attnscope.cache import KeptPairs, evicted, score_pairs
from attnscope.errors import ShapeError, UnsupportedError
from attnscope.models import Decoder, DecoderConfig
from attnscope.recording import read, record
from attnscope.recording.chunks import cached_run

VOCABULARY, CONTEXT, LATER = 99, 70, 12
IDS = torch.randint(VOCABULARY, (1, CONTEXT + LATER), generator=torch.Generator().manual_seed(0))


def own() -> Decoder:
    torch.manual_seed(0)
    return Decoder(
        DecoderConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_layers=3,
            num_heads=4,
            num_kv_heads=2,
            intermediate_size=48,
            max_position_embeddings=128,
        )
    ).eval()


def llama() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


def gpt2() -> Any:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=3, n_head=4, initializer_range=0.3)
    return GPT2LMHeadModel(config).eval()


def kept_pairs(model: Any, share: float = 0.25, by: str = "received") -> KeptPairs:
    trace = read(model, IDS[:, :CONTEXT], progress=False)
    return score_pairs(trace, by, progress=False).keep(share)


@torch.no_grad()
def after_removal(model: Any, kept: KeptPairs) -> Tensor:
    """The logits of the later tokens, one step at a time, from a KV cache that holds the kept pairs alone."""
    full, short = DynamicCache(config=model.config), DynamicCache(config=model.config)
    model(IDS[:, :CONTEXT], past_key_values=full)
    for layer, keep in enumerate(kept.keep.values()):
        tensors = (getattr(full.layers[layer], name)[keep].view(1, keep.shape[1], -1, 8) for name in ("keys", "values"))
        short.update(*tensors, layer)
    logits = []
    for position in range(CONTEXT, CONTEXT + LATER):
        output = model(IDS[:, position : position + 1], past_key_values=short, position_ids=torch.tensor([[position]]))
        logits.append(output.logits)
    return torch.cat(logits, 1)


@pytest.mark.parametrize("build", [llama, gpt2])
@pytest.mark.parametrize("by", ["received", "random"])
def test_masks_equal_a_cache_without_the_pairs(build: Any, by: str) -> None:
    model = build()
    kept = kept_pairs(model, by=by)
    removed = after_removal(model, kept)
    with torch.no_grad(), evicted(model, kept):
        masked = model(IDS).logits[:, CONTEXT:]  # context and later tokens in one pass
    torch.testing.assert_close(masked, removed, rtol=2e-5, atol=2e-5)
    with torch.no_grad():
        assert (model(IDS).logits[:, CONTEXT:] - removed).abs().max() > 0.01, "eviction changes something"


@torch.no_grad()
def test_masks_equal_a_cache_of_our_own_without_the_pairs() -> None:
    model = own()
    for parameter in model.parameters():
        parameter.mul_(8.0)
    kept = kept_pairs(model)
    full, short = model.new_cache(), model.new_cache()
    model.features(IDS[:, :CONTEXT], cache=full)
    for layer, keep in enumerate(kept.keep.values()):
        empty = torch.empty(1, 2, 0, 8)
        tensors = (tensor[keep].view(1, 2, -1, 8) for tensor in full[layer].extend(empty, empty))
        short[layer].extend(*tensors)
    removed = model(IDS[:, CONTEXT:], cache=short, position_ids=torch.arange(CONTEXT, CONTEXT + LATER))
    with evicted(model, kept):
        masked = model(IDS[:, CONTEXT:], cache=full)
    torch.testing.assert_close(masked, removed, rtol=2e-5, atol=2e-5)


def test_generation_equals_steps_from_a_cache_without_the_pairs() -> None:
    model = llama()
    kept = kept_pairs(model, 0.1)
    with evicted(model, kept):
        generated = model.generate(
            IDS[:, :CONTEXT], max_new_tokens=LATER, do_sample=False, output_logits=True, return_dict_in_generate=True
        )
    full: Any = DynamicCache(config=model.config)
    short = DynamicCache(config=model.config)
    with torch.no_grad():
        token = model(IDS[:, :CONTEXT], past_key_values=full).logits[:, -1:].argmax(-1)
        for layer, keep in enumerate(kept.keep.values()):
            keys, values = full.layers[layer].keys, full.layers[layer].values
            short.update(keys[keep].view(1, 2, -1, 8), values[keep].view(1, 2, -1, 8), layer)
        for step in range(1, LATER):
            assert int(generated.sequences[0, CONTEXT + step - 1]) == int(token)
            logits = model(token, past_key_values=short, position_ids=torch.tensor([[CONTEXT + step - 1]])).logits
            torch.testing.assert_close(generated.logits[step], logits[:, -1], rtol=2e-5, atol=2e-5)
            token = logits[:, -1:].argmax(-1)


@torch.no_grad()
def test_everything_kept_changes_nothing_and_the_context_is_left_alone() -> None:
    model = llama()
    before = model(IDS).logits
    with evicted(model, kept_pairs(model, 1.0)):
        torch.testing.assert_close(model(IDS).logits, before, rtol=2e-5, atol=2e-5)
    with evicted(model, kept_pairs(model, 0.1)):
        assert torch.equal(model(IDS[:, :CONTEXT]).logits, model(IDS[:, :CONTEXT]).logits)
        torch.testing.assert_close(model(IDS).logits[:, :CONTEXT], before[:, :CONTEXT], rtol=2e-5, atol=2e-5)
    assert torch.equal(model(IDS).logits, before), "the model is restored"


@torch.no_grad()
def test_a_branch_of_a_cache_can_be_read_again() -> None:
    model = llama()
    kept, run = kept_pairs(model), cached_run(model)
    assert run is not None
    run(IDS[:, :CONTEXT], logits=False)
    found = []
    with evicted(model, kept):
        for _ in range(2):
            with run.branch():
                found.append(run(IDS[:, CONTEXT:], logits=True).logits)
    assert torch.equal(*found)
    torch.testing.assert_close(found[0], after_removal(model, kept), rtol=2e-5, atol=2e-5)


@torch.no_grad()
def test_what_would_be_wrong_is_refused() -> None:
    model = llama()
    kept = kept_pairs(model)
    with pytest.raises(UnsupportedError, match="recording inside the block"), evicted(model, kept), record(model):
        model(IDS)
    cache = DynamicCache(config=model.config)
    model(IDS[:, :30], past_key_values=cache)
    with pytest.raises(UnsupportedError, match="start at position 30"), evicted(model, kept):
        model(IDS[:, 30:35], past_key_values=cache)
    with pytest.raises(UnsupportedError, match="static"), evicted(model, kept):
        model.generate(IDS[:, :CONTEXT], max_new_tokens=30, cache_implementation="static")
    two = IDS.repeat(2, 1)
    with evicted(model, kept):
        torch.testing.assert_close(model(two).logits[:1], model(two).logits[1:])
    trace = read(model, two[:, :CONTEXT], progress=False)
    pair = score_pairs(trace, progress=False).keep(0.5)
    with pytest.raises(ShapeError, match="expected pairs of"), evicted(model, pair):
        model(IDS.repeat(3, 1))
