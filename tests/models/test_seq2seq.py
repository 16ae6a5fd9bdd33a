"""The encoder-decoder, against torch's nn.Transformer with copied weights."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from attnscope.attention import Padding
from attnscope.attention.positions import sinusoidal
from attnscope.models.generate import generate_tokens
from attnscope.models.seq2seq import Seq2Seq, Seq2SeqConfig
from tests.models.copied import randomize, seq2seq_of

CONFIG = Seq2SeqConfig(vocab_size=30, hidden_size=12, num_layers=2, num_heads=3, intermediate_size=20, final_norm=True)
SOURCE, TARGET = torch.arange(2 * 9).view(2, 9), torch.arange(10, 10 + 2 * 5).view(2, 5)
LENGTHS = [9, 6]


def embedded(model: Seq2Seq, tokens: Tensor) -> Tensor:
    return model.embedding(tokens) * math.sqrt(12) + sinusoidal(tokens.shape[1], 12, dtype=torch.float64)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")  # torch says why it takes its plain path
@pytest.mark.parametrize("norm_first", [False, True])
@torch.no_grad()
def test_it_is_the_transformer_of_torch(norm_first) -> None:
    theirs = nn.Transformer(12, 3, 2, 2, 20, 0.0, batch_first=True, norm_first=norm_first, dtype=torch.float64)
    theirs.eval()
    randomize(theirs)
    ours = seq2seq_of(theirs, Seq2SeqConfig(**{**vars(CONFIG), "norm_first": norm_first}))
    dropped = torch.arange(9) >= torch.tensor(LENGTHS)[:, None]
    features = theirs(
        embedded(ours, SOURCE),
        embedded(ours, TARGET),
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.bool),
        src_key_padding_mask=dropped,
        memory_key_padding_mask=dropped,
    )
    found = ours(SOURCE, TARGET, mask=Padding(LENGTHS))
    torch.testing.assert_close(found, features @ ours.embedding.weight.T)


@torch.no_grad()
def test_decoding_with_a_cache_is_the_whole_pass() -> None:
    model = Seq2Seq(CONFIG).double().eval()
    wanted = model(SOURCE, TARGET, mask=Padding(LENGTHS))
    memory = model.project_memory(model.encode(SOURCE, mask=Padding(LENGTHS)))
    cache = model.condition_on(SOURCE).new_cache()
    steps = [
        model.decode(TARGET[:, step : step + 1], memory, memory_mask=Padding(LENGTHS), cache=cache) for step in range(5)
    ]
    torch.testing.assert_close(model.logits(torch.cat(steps, dim=1)), wanted)


@torch.no_grad()
def test_it_writes_like_a_decoder_once_it_is_conditioned_on_a_source() -> None:
    model = Seq2Seq(CONFIG).double().eval()
    randomize(model)
    found = list(generate_tokens(model.condition_on(SOURCE, mask=Padding(LENGTHS)), [[1], [1]], max_new_tokens=6))
    for row in range(2):
        target = [1]
        for _ in range(6):
            logits = model(SOURCE[row : row + 1, : LENGTHS[row]], torch.tensor([target]))
            target.append(int(logits[0, -1].argmax()))
        assert [tokens[row] for tokens in found] == target[1:]


@torch.no_grad()
def test_without_positions_the_order_of_the_source_changes_nothing() -> None:
    model = Seq2Seq(Seq2SeqConfig(**{**vars(CONFIG), "position_encoding": "none"})).double().eval()
    torch.testing.assert_close(model(SOURCE.flip(1), TARGET), model(SOURCE, TARGET))
    placed = Seq2Seq(CONFIG).double().eval()
    assert (placed(SOURCE.flip(1), TARGET) - placed(SOURCE, TARGET)).abs().max() > 1e-3


def test_a_size_below_one_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"Seq2SeqConfig.num_heads must be at least 1, got 0"):
        Seq2SeqConfig(**{**vars(CONFIG), "num_heads": 0})
