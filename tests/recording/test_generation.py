"""A generated answer is one matrix a head: the rows of each step stand below those of the steps before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attnscope.errors import UnsupportedError
from attnscope.models import Decoder, DecoderConfig, generate_tokens
from attnscope.recording import Trace, record
from tests.recording.exhibit import IS_OLDER
from tests.recording.zoo import EXHIBITS, Exhibit

NEW = 6
BY_NAME = {exhibit.name: exhibit for exhibit in EXHIBITS}
DECODERS = ("Llama", "Mistral", "Gemma 2", "Gemma 3", "gpt-oss", "Llama 4", "DeepSeek-V3", "GPT-2", "Qwen3", "OPT")
SEQUENCES = ("T5", "BART", "Marian")


def prompt(exhibit: Exhibit, model: Any) -> dict[str, Tensor]:
    """The inputs of an exhibit, padded at the left where it decodes."""
    inputs = exhibit.inputs(model)
    wanted = {"input_ids", "attention_mask", "input_features"}
    inputs = {name: value for name, value in inputs.items() if name in wanted}
    if not model.config.is_encoder_decoder:
        inputs = {name: value.flip(1) for name, value in inputs.items()}
    return inputs


def generated(model: Any, inputs: dict[str, Tensor], **options: Any) -> tuple[Trace, Tensor]:
    with torch.no_grad(), record(model) as trace:
        output = model.generate(
            **inputs, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0, **options
        )
    return trace, output


def plain(model: Any, inputs: dict[str, Tensor], output: Tensor) -> tuple[Trace, Tensor | None]:
    """A pass over the finished text, all but its last token, and which of the tokens are real."""
    inputs, read = dict(inputs), output[:, :-1]
    real = None
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = read
    else:
        mask = inputs["attention_mask"]
        real = torch.cat([mask, mask.new_ones(mask.shape[0], read.shape[1] - mask.shape[1])], 1)
        inputs = {"input_ids": read, "attention_mask": real, "position_ids": (real.cumsum(-1) - 1).clamp(min=0)}
    with torch.no_grad(), record(model) as trace:
        model(**inputs)
    return trace, real


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", [*DECODERS, *SEQUENCES])
def test_rows_of_steps_are_those_of_a_pass_over_the_finished_text(name: str, cache: str):
    if IS_OLDER and (name, cache) == ("OPT", "static"):
        pytest.skip("transformers 5.0 passes OPT other tokens than a static cache holds, which is refused")
    model = BY_NAME[name].build()
    inputs = prompt(BY_NAME[name], model)
    options = {} if cache == "dynamic" else {"cache_implementation": "static"}
    trace, output = generated(model, inputs, **options)
    expected, real = plain(model, inputs, output)
    assert list(trace) == list(expected)
    for layer in trace:
        ours, theirs = trace[layer].to_dense(), expected[layer].to_dense()
        assert ours.shape == theirs.shape
        if real is not None:
            ours, theirs = ours * real[:, None, :, None], theirs * real[:, None, :, None]
        torch.testing.assert_close(ours, theirs, atol=5e-6, rtol=0)
    assert len(trace.tokens() or ()) == output.shape[1] - 1


def test_a_model_of_ours_appends_rows_of_a_ragged_batch():
    torch.manual_seed(0)
    config = DecoderConfig(
        vocab_size=50,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        intermediate_size=48,
        max_position_embeddings=64,
    )
    model = Decoder(config).eval()
    prompts = [[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5]]
    with torch.no_grad(), record(model) as trace:
        answers = list(generate_tokens(model, prompts, max_new_tokens=NEW))
    longest = len(prompts[0])
    for row, text in enumerate(prompts):
        whole = [*text, *(step[row] or 0 for step in answers)][:-1]
        with torch.no_grad(), record(model) as expected:
            model(torch.tensor([whole]))
        padded = longest - len(text)
        for layer in trace:
            ours = trace[layer].batch(row).to_dense()
            assert ours.shape[-1] == longest + NEW - 1
            assert not ours[:, padded:, :padded].any()
            torch.testing.assert_close(
                ours[:, padded:, padded:], expected[layer].batch(0).to_dense(), atol=1e-6, rtol=0
            )


def test_recording_can_begin_in_the_middle_of_a_text():
    model = BY_NAME["Llama"].build()
    ids = torch.randint(3, 99, (1, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        cache = model(ids[:, :8], use_cache=True).past_key_values
        with record(model) as trace:
            model(ids[:, 8:], past_key_values=cache)
        with record(model) as expected:
            model(ids)
    assert trace[0].shape == (1, 4, 4, 12)
    torch.testing.assert_close(trace[1].to_dense(), expected[1].to_dense()[:, :, 8:], atol=1e-6, rtol=0)


def test_a_text_read_in_pieces_is_one_matrix():
    model = BY_NAME["Mistral"].build()
    ids = torch.randint(3, 99, (2, 23), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        with record(model) as trace:
            cache = None
            for start in range(0, 23, 5):
                cache = model(ids[:, start : start + 5], past_key_values=cache, use_cache=True).past_key_values
        with record(model) as expected:
            model(ids)
    for layer in expected:
        torch.testing.assert_close(trace[layer].to_dense(), expected[layer].to_dense(), atol=5e-6, rtol=0)
    assert torch.equal(trace.texts[0].ids, ids)


def test_beams_that_trade_places_are_refused():
    torch.manual_seed(2)
    model = BY_NAME["Llama"].build()
    inputs = prompt(BY_NAME["Llama"], model)
    with pytest.raises(UnsupportedError, match="beam"):
        generated(model, inputs, num_beams=4, num_return_sequences=1, cache_implementation=None)


def test_beams_are_refused_also_where_only_cross_attention_is_kept():
    model: Any = BY_NAME["BART"].build()
    inputs = prompt(BY_NAME["BART"], model)
    with pytest.raises(UnsupportedError, match="beam"), torch.no_grad(), record(model, layers="*.encoder_attn"):
        model.generate(**inputs, max_new_tokens=10, min_new_tokens=10, num_beams=4, do_sample=False)


@pytest.mark.parametrize("name", ["Gemma 3 multimodal", "PaliGemma"])
def test_what_sees_both_ways_in_the_prompt_keeps_doing_so_in_the_rows_of_the_prompt(name: str):
    model: Any = BY_NAME[name].build()
    inputs = BY_NAME[name].inputs(model)
    with torch.no_grad(), record(model, layers="*language_model*") as plain:
        model(**inputs)
    with torch.no_grad(), record(model, layers="*language_model*") as trace:
        model.generate(**inputs, max_new_tokens=4, min_new_tokens=4, do_sample=False, pad_token_id=0)
    assert list(trace) == list(plain)
    for layer in trace:
        expected = plain[layer].to_dense()
        found = trace[layer].to_dense()
        rows, real = expected.shape[2], inputs["attention_mask"][:, None, :, None]
        assert found.shape[2] == rows + 3
        torch.testing.assert_close(found[:, :, :rows, :rows] * real, expected * real, atol=5e-6, rtol=0)
        torch.testing.assert_close(found[0].sum(-1), torch.ones_like(found[0].sum(-1)), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["DiffLlama", "HRM"])
def test_a_layer_that_runs_several_times_a_pass_goes_on_with_each(name: str):
    model: Any = BY_NAME[name].build()
    ids = torch.randint(3, 99, (1, 9), generator=torch.Generator().manual_seed(1))
    trace, output = generated(model, {"input_ids": ids})
    with torch.no_grad(), record(model) as expected:
        model(output[:, :-1])
    assert list(trace) == list(expected)
    for layer in trace:
        torch.testing.assert_close(trace[layer].to_dense(), expected[layer].to_dense(), atol=5e-6, rtol=0)


def test_a_second_text_in_one_record_is_refused():
    model = BY_NAME["Llama"].build()
    with torch.no_grad(), record(model):
        model(torch.tensor([[5, 6, 7]]))
        with pytest.raises(UnsupportedError, match="one record per text"):
            model(torch.tensor([[8, 9, 10]]))


def test_cross_attention_rows_of_chosen_heads_and_nothing_else():
    """What word timestamps of Whisper need: some heads of some layers, for each step of the decoding."""
    exhibit = BY_NAME["Whisper"]
    model: Any = exhibit.build()
    inputs = prompt(exhibit, model)
    chosen = {"model.decoder.layers.1.encoder_attn": [1, 3]}
    with torch.no_grad(), record(model, heads=chosen) as trace:
        output = model.generate(**inputs, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)
    assert list(trace) == list(chosen)
    matrix = trace[0]
    with torch.no_grad(), record(model) as everything:
        model.generate(**inputs, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)
    assert matrix.shape[1] == 2
    assert matrix.shape[2] >= NEW
    assert output.shape[0] == matrix.shape[0]
    theirs = everything["model.decoder.layers.1.encoder_attn"].to_dense()
    torch.testing.assert_close(matrix.to_dense(), theirs[:, [1, 3]])
    frames, dim = matrix.shape[3], model.config.d_model // model.config.decoder_attention_heads
    rows = matrix.shape[2]
    assert trace.nbytes <= 4 * matrix.shape[0] * 2 * ((rows + frames) * dim + rows)  # two heads: queries, keys, lse


@pytest.mark.parametrize("how", ["prompt lookup", "assistant"])
def test_speculative_decoding_is_refused_by_its_name(how: str):
    torch.manual_seed(0)
    model: Any = BY_NAME["Llama"].build()
    ids = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6, 7]])
    other: Any = BY_NAME["Llama"].build()
    for parameter in other.parameters():
        parameter.data.normal_()
    options = {"prompt_lookup_num_tokens": 3} if how == "prompt lookup" else {"assistant_model": other}
    with pytest.raises(UnsupportedError, match="speculative decoding"), torch.no_grad(), record(model):
        model.generate(ids, max_new_tokens=20, do_sample=False, pad_token_id=0, eos_token_id=-1, **options)
