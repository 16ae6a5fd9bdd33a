"""Losses are those of an obvious whole pass, with and without a change, and a change is any context manager."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnscope.errors import SettingError, UnsupportedError
from attnscope.heads import Effect, Predictions, ablate, measure_effect, patch, predict
from attnscope.heads.effects import predicts_next_token
from attnscope.models import Decoder, DecoderConfig, Encoder, EncoderConfig, Seq2Seq, Seq2SeqConfig
from attnscope.recording import load, record
from tests.models.smollm2 import FOLDER, own_model, transformers_model
from tests.recording.zoo import EXHIBITS

MINILM = FOLDER.parent / "minilm-l6"
TINY = DecoderConfig(
    vocab_size=30,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    intermediate_size=48,
    max_position_embeddings=64,
)
BOTH = Seq2SeqConfig(vocab_size=30, hidden_size=32, num_layers=2, num_heads=4, intermediate_size=48)
IDS = torch.randint(3, 30, (2, 12), generator=torch.Generator().manual_seed(0))
TARGET = torch.randint(3, 30, (2, 7), generator=torch.Generator().manual_seed(1))
TEXT = "When Mary and John went to the store, John gave a drink to"


def tiny() -> Decoder:
    """A decoder whose heads are loud enough for their absence to show."""
    torch.manual_seed(0)
    model = Decoder(TINY).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
    return model


def zoo(name: str) -> Any:
    return next(exhibit for exhibit in EXHIBITS if exhibit.name == name).build()


def obvious(logits: Tensor, ids: Tensor) -> Predictions:
    """Surprise at each token after the first, and what comes after the last, by the definition."""
    chances = logits.double().log_softmax(-1)
    losses = [[-float(chances[row, at, ids[row, at + 1]]) for at in range(ids.shape[1] - 1)] for row in range(len(ids))]
    return Predictions(torch.tensor(losses), chances[:, -1].exp().float())


def assert_same(found: Predictions, wanted: Predictions) -> None:
    """Equal up to the rounding of float32, which is what models run in here."""
    torch.testing.assert_close(found.losses, wanted.losses, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.next_token_probs, wanted.next_token_probs, rtol=1e-4, atol=1e-6)


@contextmanager
def nothing_from(module: nn.Module) -> Iterator[None]:
    """A change that has nothing to do with AttnScope."""

    def silence(module: nn.Module, given: object, output: Tensor) -> Tensor:
        return torch.zeros_like(output)

    hook = module.register_forward_hook(silence)
    yield
    hook.remove()


@pytest.mark.parametrize("chunk_size", [1, 5, 6, 11, 12, 2048])
def test_losses_of_a_decoder_are_the_cross_entropy_of_a_whole_pass_in_pieces_too(chunk_size: int) -> None:
    model = tiny()
    with torch.no_grad():
        wanted = obvious(model(IDS), IDS)
    found = predict(model, IDS, chunk_size=chunk_size)
    assert found.losses.shape == (2, 11)
    assert found.next_token_probs.shape == (2, 30)
    assert_same(found, wanted)


@pytest.mark.parametrize("chunk_size", [5, 2048])
@pytest.mark.parametrize("name", ["Llama", "GPT-2"])
def test_losses_of_a_model_of_transformers_are_those_of_a_whole_pass(name: str, chunk_size: int) -> None:
    model = zoo(name)
    with torch.no_grad():
        wanted = obvious(model(input_ids=IDS).logits, IDS)
    assert_same(predict(model, IDS, chunk_size=chunk_size), wanted)


def test_losses_of_a_trained_model_are_those_that_transformers_computes() -> None:
    model, tokenizer = own_model()
    ids = torch.tensor([tokenizer.encode(TEXT)])
    with torch.no_grad():
        theirs = transformers_model(torch.float32)(ids, labels=ids)
    found = predict(model, ids)
    torch.testing.assert_close(found.losses.mean(), theirs.loss, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.next_token_probs, theirs.logits[:, -1].softmax(-1), rtol=1e-3, atol=1e-5)


def test_nothing_is_kept_for_gradients() -> None:
    found = predict(tiny(), IDS)
    assert not found.losses.requires_grad
    assert not found.next_token_probs.requires_grad


@pytest.mark.parametrize("name", ["ours", "BART"])
def test_an_encoder_decoder_is_asked_about_the_target_that_it_writes(name: str) -> None:
    torch.manual_seed(0)
    model = Seq2Seq(BOTH).eval() if name == "ours" else zoo(name)
    layer = "decoder.0.cross_attention" if name == "ours" else "model.decoder.layers.0.encoder_attn"

    def logits() -> Tensor:
        with torch.no_grad():
            return model(IDS, TARGET) if name == "ours" else model(input_ids=IDS, decoder_input_ids=TARGET).logits

    before = obvious(logits(), TARGET)
    with ablate(model, {layer: [0, 1]}):
        after = obvious(logits(), TARGET)
    found = measure_effect(model, IDS, ablate(model, {layer: [0, 1]}), target=TARGET)
    assert found.ids is TARGET
    assert_same(found.before, before)
    assert_same(found.after, after)
    assert found.loss_change.abs().max() > 0


def test_a_model_that_predicts_no_next_token_is_refused_with_what_to_do() -> None:
    encoder, tokenizer = load(MINILM)
    with pytest.raises(UnsupportedError, match=r"Encoder does not predict the next token of a text.* inside `with abl"):
        measure_effect(encoder, TEXT, nullcontext(), tokenizer)
    for model in (Seq2Seq(BOTH), zoo("BART"), zoo("BERT")):
        with pytest.raises(UnsupportedError, match="Give target= for an encoder-decoder"):
            predict(model, IDS)


def test_a_target_for_a_model_that_writes_none_is_refused() -> None:
    for model in (tiny(), zoo("Llama")):
        with pytest.raises(SettingError, match="leave out target="):
            predict(model, IDS, target=TARGET)


def test_decoders_predict_the_next_token_and_others_do_not() -> None:
    encoder = Encoder(
        EncoderConfig(
            vocab_size=30, hidden_size=32, num_layers=1, num_heads=4, intermediate_size=48, max_position_embeddings=64
        )
    )
    assert predicts_next_token(tiny())
    assert all(predicts_next_token(zoo(name)) for name in ("Llama", "GPT-2"))
    others = (None, encoder, Seq2Seq(BOTH), nn.Linear(2, 2), zoo("BERT"), zoo("BART"))
    assert not any(predicts_next_token(model) for model in others)


def test_a_text_of_one_token_has_nothing_to_predict() -> None:
    with pytest.raises(SettingError, match="at least 2 tokens, got 1"):
        predict(tiny(), IDS[:, :1])
    with pytest.raises(SettingError, match="at least 2 tokens, got 1"):
        predict(Seq2Seq(BOTH), IDS, target=TARGET[:, :1])


def test_a_text_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(SettingError, match="a text needs a tokenizer"):
        measure_effect(tiny(), "to be", nullcontext())


CHANGES = {
    "zero": lambda model: ablate(model, {0: [1]}),
    "mean": lambda model: ablate(model, {1: [0, 2]}, "mean"),
    "half": lambda model: ablate(model, {1: [3]}, 0.5),
    "patch": lambda model: patch(model, {0: [1, 2]}, donor(model)),
    "of one's own": lambda model: nothing_from(model.get_submodule("blocks.0.attention.output")),
}


def donor(model: nn.Module) -> Any:
    with torch.no_grad(), record(model, values=True) as trace:
        model(IDS.flip(1))
    return trace


@pytest.mark.parametrize("name", CHANGES)
def test_an_effect_is_two_passes_without_and_with_the_change(name: str) -> None:
    model = tiny()
    with torch.no_grad():
        before = obvious(model(IDS), IDS)
        with CHANGES[name](model):
            after = obvious(model(IDS), IDS)
    found = measure_effect(model, IDS, CHANGES[name](model))
    assert_same(found.before, before)
    assert_same(found.after, after)
    assert found.loss_change.abs().max() > 1e-3
    assert torch.equal(found.loss_change, found.after.losses - found.before.losses)
    assert_same(predict(model, IDS), before)


def test_heads_are_missing_from_every_piece() -> None:
    model = tiny()
    whole = measure_effect(model, IDS, ablate(model, {0: [1], 1: [2]}))
    pieces = measure_effect(model, IDS, ablate(model, {0: [1], 1: [2]}), chunk_size=5)
    assert_same(pieces.after, whole.after)


def test_the_mean_and_a_patch_ask_for_one_pass() -> None:
    model = tiny()
    for name in ("mean", "patch"):
        with pytest.raises(SettingError):
            measure_effect(model, IDS, CHANGES[name](model), chunk_size=5)


def test_a_row_of_ids_a_list_and_a_batch_are_all_texts() -> None:
    model = tiny()
    batch = measure_effect(model, IDS, nullcontext())
    for one in (IDS[0], IDS[0].tolist()):
        assert_same(
            measure_effect(model, one, nullcontext()).before,
            Predictions(batch.before.losses[:1], batch.before.next_token_probs[:1]),
        )


def test_tokens_come_sorted_by_how_much_their_probability_has_changed() -> None:
    model = tiny()
    found = measure_effect(model, IDS, ablate(model, {0: [1, 2]}))
    for batch in (0, 1):
        tokens = found.next_tokens(30, batch=batch)
        changes = [abs(after - before) for _, before, after in tokens]
        assert changes == sorted(changes, reverse=True)
        assert changes[0] > changes[-1]
        assert sorted(token for token, _, _ in tokens) == list(range(30))
        for token, before, after in tokens:
            assert before == float(found.before.next_token_probs[batch, token])
            assert after == float(found.after.next_token_probs[batch, token])
        assert found.next_tokens(3, batch=batch) == tokens[:3]
    assert len(found.next_tokens()) == 5
    assert len(found.next_tokens(1000)) == 30


def by_hand(before: list[float], after: list[float], tokenizer: Any = None) -> Effect:
    """An effect on the text 3 4 5 6 with these losses."""
    chances = torch.tensor([[0.0, 0.75, 0.25]]), torch.tensor([[0.125, 0.25, 0.625]])
    first, second = (
        Predictions(torch.tensor([losses]), following)
        for losses, following in zip((before, after), chances, strict=True)
    )
    return Effect(torch.tensor([[3, 4, 5, 6]]), first, second, tokenizer)


def test_without_a_tokenizer_an_effect_is_told_in_numbers() -> None:
    assert [re.sub(" +", " ", line) for line in str(by_hand([1.0, 2.0, 3.0], [1.5, 5.0, 3.25])).splitlines()] == [
        "loss 2.000 -> 3.250 nats per token (+1.250)",
        "harder to predict:",
        " 2.00 -> 5.00 5 at 2",
        " 1.00 -> 1.50 4 at 1",
        " 3.00 -> 3.25 6 at 3",
        "probability of the next token:",
        " 0.750 -> 0.250 1",
        " 0.250 -> 0.625 2",
        " 0.000 -> 0.125 0",
    ]


def test_tokens_that_became_no_harder_are_not_called_harder() -> None:
    text = str(by_hand([1.0, 2.0, 3.0], [0.5, 4.0, 3.0]))
    assert re.findall(r"at (\d)", text) == ["2"]


def test_with_a_tokenizer_an_effect_is_told_in_words() -> None:
    model, tokenizer = own_model()
    heads = {17: [3, 4], 18: [6, 7], 20: [6], 23: [2]}  # those that look at what came after the same token before
    text = "The zebra Quixley sang. The zebra Quix"
    found = measure_effect(model, text, ablate(model, heads), tokenizer)
    lines = str(found).splitlines()
    assert re.fullmatch(r"loss \d\.\d{3} -> \d\.\d{3} nats per token \(\+\d\.\d{3}\)", lines[0])
    assert re.fullmatch(r" +\d\.\d\d -> \d\.\d\d  ' Qu' +at 9", lines[2])
    assert re.fullmatch(r" +\d\.\d{3} -> \d\.\d{3}  'ley'", lines[-5]), "the repetition is what changes most"
    assert found.next_tokens(1)[0].after < found.next_tokens(1)[0].before
    assert all(len(line) <= 80 for line in lines)


def test_a_model_in_training_is_refused() -> None:
    model, _ = own_model()
    model.train()
    try:
        with pytest.raises(SettingError, match=r"model\.eval\(\)"):
            predict(model, torch.tensor([[5, 6, 7]]))
    finally:
        model.eval()
