"""Every architecture of the zoo: recorded weights are the model's own eager weights, and the docs say which it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attnscope.errors import UnsupportedError
from attnscope.recording import Trace, record
from tests.recording import exhibit as exhibits
from tests.recording import support
from tests.recording.zoo import BYPASS, EXHIBITS, HYBRID, PARTIAL, SPARSE, Exhibit, eager_weights, real_tokens

OWN_CODE = {"Falcon", "WavLM", "SAM", "SigLIP"}  # call PyTorch's attention themselves, and are seen there
TOLERANCE = 3e-7  # of weights from the same queries and keys, for scores of 1; fp32 has 6e-8
THROUGH_LAYERS = 1e-4  # of weights after the layers before have differed in their last digits


def by_name(*exhibits: Exhibit) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("exhibit", exhibits, ids=lambda exhibit: exhibit.name)


def calls_of(trace: Trace) -> dict[str, list[Tensor]]:
    """Dense weights by module, in the order of its calls."""
    found: dict[str, list[Tensor]] = {}
    for name in trace:
        found.setdefault(name.partition("#")[0], []).append(trace[name].to_dense())
    return found


def largest_difference(exhibit: Exhibit, trace: Trace, inputs: dict) -> float:
    """Between recorded and eager weights, over all real queries of all calls."""
    theirs, ours = eager_weights(exhibit), calls_of(trace)
    assert theirs.keys() <= ours.keys()  # attention that bypasses the interface may be seen beside it
    worst = 0.0
    for name, matrices in theirs.items():
        assert len(matrices) == len(ours[name])
        for eager, recorded in zip(matrices, ours[name], strict=True):
            assert eager.shape == recorded.shape
            if "sinks after weights" in exhibit.features:  # their weights are those before the sinks take their share
                recorded = recorded / recorded.sum(-1, keepdim=True)
            real = real_tokens(inputs, eager.shape[0], eager.shape[2])[:, None, :, None]
            sees = recorded.sum(-1, keepdim=True) > 0  # where a row sees nothing, eager code takes the mean of all
            worst = max(worst, float((eager - recorded).masked_fill(~(real & sees), 0.0).abs().max()))
    return worst


def check_errors(trace: Trace) -> None:
    """What the model's own code computes from the same queries and keys: a score's last digit is that of its size."""
    assert trace.errors.keys() == {name.partition("#")[0] for name in trace}
    for name, error in trace.errors.items():
        sizes = [trace[call].lse for call in trace if call.partition("#")[0] == name]
        size = max(float(lse[lse.isfinite()].abs().max()) for lse in sizes)
        assert error < TOLERANCE * (10 + size)


@by_name(*EXHIBITS, *HYBRID)
def test_recorded_weights_are_the_eager_ones_and_the_docs_say_so(exhibit: Exhibit):
    trace, inputs = support.recorded(exhibit, verify=True)
    assert largest_difference(exhibit, trace, inputs) < THROUGH_LAYERS
    if "sinks after weights" not in exhibit.features:
        check_errors(trace)
    assert support.row_of(exhibit, trace) in support.lines_of_page()


@by_name(*(exhibit for exhibit in EXHIBITS if exhibit.name in ("Llama", "T5", "gpt-oss", "ViT", "Whisper", "Gemma 2")))
def test_the_comparison_fails_when_the_scale_of_what_is_recorded_is_wrong(exhibit: Exhibit, monkeypatch):
    """The control: the same comparison, of queries that were recorded half as long."""
    from attnscope.recording import recorder

    honest = recorder.copy_call

    def wrong(call, *args, **kwargs):
        kept = honest(call, *args, **kwargs)
        return replace(kept, query=kept.query / 2, lse=None)

    monkeypatch.setattr(recorder, "copy_call", wrong)
    trace, inputs = support.recorded(exhibit)
    assert largest_difference(exhibit, trace, inputs) > 100 * THROUGH_LAYERS


@by_name(*(exhibit for exhibit in EXHIBITS if exhibit.name in ("Llama", "Mistral", "BERT", "T5")))
def test_verification_finds_a_mask_that_is_wrong(exhibit: Exhibit, monkeypatch):
    from attnscope.attention import Full
    from attnscope.recording.hooks.transformers_masks import LazyMask

    monkeypatch.setattr(LazyMask, "slice", lambda self, rows, columns: Full())
    trace, _ = support.recorded(exhibit, verify=True)
    assert max(trace.errors.values()) > 1e-2


@by_name(*(exhibit for exhibit in BYPASS if exhibit.name not in OWN_CODE))
def test_attention_by_code_of_their_own_is_refused_by_name_and_count(exhibit: Exhibit):
    with pytest.raises(UnsupportedError, match=rf"0 of {exhibit.attention_layers} attention layers .*from_attentions"):
        support.recorded(exhibit)
    assert support.row_of(exhibit, None) in support.lines_of_page()


@by_name(*(exhibit for exhibit in (*BYPASS, *PARTIAL) if exhibit.name in OWN_CODE))
def test_attention_by_calls_to_pytorch_is_seen_there(exhibit: Exhibit):
    trace, _ = support.recorded(exhibit, verify=True)
    assert len(trace) == exhibit.attention_layers
    check_errors(trace)
    assert support.row_of(exhibit, trace) in support.lines_of_page()


@by_name(*(one for one in (*EXHIBITS, *PARTIAL) if not exhibits.is_in_interface(one.model_type)))
def test_models_that_an_older_transformers_computes_in_their_own_code_raise(exhibit: Exhibit, monkeypatch):
    """Runs with versions below those of INTERFACE_SINCE."""
    monkeypatch.setattr(exhibits, "INTERFACE_SINCE", {})  # which skips all other tests of these models
    with pytest.raises(UnsupportedError, match=r"0 of \d+ attention layers .*from_attentions"):
        support.recorded(exhibit)


@by_name(*SPARSE)
def test_keys_that_are_left_out_by_an_index_are_refused(exhibit: Exhibit):
    with pytest.raises(UnsupportedError, match="indices"):
        support.recorded(exhibit)


@by_name(*(exhibit for exhibit in PARTIAL if exhibit.name not in OWN_CODE))
def test_a_model_that_is_seen_in_part_is_refused_with_the_count(exhibit: Exhibit):
    with pytest.raises(UnsupportedError, match=r"\d+ of \d+ attention layers"):
        support.recorded(exhibit)


def test_the_docs_list_no_model_that_was_not_run():
    assert len(support.lines_of_page()) == len(support.ALL) + 2


def test_what_is_refused_can_come_in_as_weights():
    exhibit = next(one for one in BYPASS if one.name == "GPT-J")
    model = exhibit.build()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = model(**exhibit.inputs(model), output_attentions=True).attentions
    trace = Trace.from_attentions(attentions)
    assert len(trace) == exhibit.attention_layers
    torch.testing.assert_close(trace[1].to_dense(), attentions[1])


def test_a_refused_model_is_left_as_it_was():
    exhibit = next(one for one in BYPASS if one.name == "BLOOM")
    model = exhibit.build()
    before = model(**exhibit.inputs(model)).logits
    with pytest.raises(UnsupportedError), record(model):
        model(**exhibit.inputs(model))
    assert torch.equal(model(**exhibit.inputs(model)).logits, before)
