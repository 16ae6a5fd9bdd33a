"""The losses of a report are those of runs under `evicted`, and everything kept loses nothing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from attnscope.cache import EvictionReport, evicted, measure_eviction, score_pairs
from attnscope.errors import SettingError, UnsupportedError
from attnscope.heads.needles import insert_needles, word_needles
from attnscope.models import CharacterTokenizer, Decoder, DecoderConfig, Encoder, EncoderConfig
from attnscope.recording import read
from tests.cache.test_eviction import IDS, llama

TOKENIZER = CharacterTokenizer("\n abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


@pytest.fixture(scope="module")
def report() -> EvictionReport:
    return measure_eviction(llama(), IDS, keep=(1.0, 0.2), by=("received", "norm"), continuation=12, progress=False)


def test_losses_and_divergence_are_those_of_a_run_under_eviction(report: EvictionReport) -> None:
    model = llama()
    trace = read(model, IDS[:, :70], progress=False)
    kept = score_pairs(trace, "norm", progress=False).keep(0.2)
    with torch.no_grad():
        before = model(IDS).logits.double().log_softmax(-1)[0, 70:]
        with evicted(model, kept):
            after = model(IDS).logits.double().log_softmax(-1)[0, 70:]
    result = report.results[3]
    assert (result.kept.policy, result.kept.num_pairs) == ("norm", kept.num_pairs)
    losses, base = (F.nll_loss(one[:-1], IDS[0, 71:], reduction="none").float() for one in (after, before))
    torch.testing.assert_close(result.losses, losses, rtol=0, atol=1e-4)
    torch.testing.assert_close(report.losses, base, rtol=0, atol=1e-4)
    kl = (before.exp() * (before - after)).sum(-1).float()
    torch.testing.assert_close(result.kl, kl, rtol=1e-3, atol=1e-4)
    assert result.kl.mean() > 0.01


def test_everything_kept_loses_nothing(report: EvictionReport) -> None:
    for result in (report.results[0], report.results[2]):
        torch.testing.assert_close(result.losses, report.losses, rtol=0, atol=1e-4)
        assert result.kl.abs().max() < 1e-4
        assert result.lost["lost"].max() == 0
    assert report.results[1].lost["lost"].max() > 0.1
    assert report.context == 70
    assert len(report.found) == 0


def test_needles_are_asked_for_after_the_context() -> None:
    torch.manual_seed(0)
    model = Decoder(
        DecoderConfig(
            vocab_size=TOKENIZER.vocab_size,
            hidden_size=16,
            num_layers=1,
            num_heads=2,
            intermediate_size=16,
            max_position_embeddings=2048,
        )
    ).eval()
    text = TOKENIZER.encode("the quick brown fox " * 20)
    found = measure_eviction(
        model, text, TOKENIZER, keep=(0.5,), by=("recent",), continuation=50, needles=3, progress=False
    )
    drawn = word_needles(TOKENIZER, 3)
    document = insert_needles(text[:-50], {(at + 0.5) / 3: needle for at, needle in enumerate(drawn)})
    assert found.context == document.start == 350 + sum(len(cue + answer) for cue, answer in drawn)
    assert found.found.tolist() == found.results[0].found.tolist() == [False] * 3


def test_mistakes_are_named() -> None:
    model = llama()
    with pytest.raises(SettingError, match="unknown policy 'h2o'"):
        measure_eviction(model, IDS, by=("h2o",))
    with pytest.raises(SettingError, match="shares above 0"):
        measure_eviction(model, IDS, keep=(2.0,))
    with pytest.raises(SettingError, match="continuation=500"):
        measure_eviction(model, IDS, continuation=500)
    with pytest.raises(SettingError, match="needles need a tokenizer"):
        measure_eviction(model, IDS, continuation=9, needles=2)
    with pytest.raises(SettingError, match="training mode"):
        measure_eviction(llama().train(), IDS, continuation=9)
    encoder = Encoder(
        EncoderConfig(
            vocab_size=99,
            hidden_size=16,
            num_layers=1,
            num_heads=2,
            intermediate_size=16,
            max_position_embeddings=99,
        )
    )
    with pytest.raises(UnsupportedError, match="not a decoder"):
        measure_eviction(encoder.eval(), IDS, continuation=9)
