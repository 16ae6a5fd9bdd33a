"""Generation of tokens: what a loop over whole passes would write, however the prompts and caches come."""

from __future__ import annotations

import pytest
import torch

from attnscope.attention.rotary import Rotary
from attnscope.errors import ShapeError
from attnscope.models.decoder import Decoder, DecoderConfig
from attnscope.models.generate import generate_tokens
from attnscope.models.sampling import Sampler, Sampling
from tests.models.copied import randomize

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [2, 7], [1], [8, 2, 8, 1, 8]]


@pytest.fixture(params=["learned", Rotary(dim=4, layout="half")], ids=["learned", "rotary"])
def model(request: pytest.FixtureRequest) -> Decoder:
    config = DecoderConfig(
        vocab_size=11,
        hidden_size=16,
        num_layers=2,
        num_heads=4,
        intermediate_size=24,
        max_position_embeddings=64,
        position_encoding=request.param,
        num_kv_heads=2,
    )
    decoder = Decoder(config).double().eval()
    randomize(decoder)
    return decoder


@torch.no_grad()
def by_whole_passes(model: Decoder, prompt: list[int], count: int, sampling: Sampling, row: int = 0) -> list[int]:
    """The obvious loop: no cache, no batch, one whole pass a token; draws from the stream of the given row."""
    text, sampler = list(prompt), Sampler(sampling, rows=row + 1)
    for _ in range(count):
        logits = model(torch.tensor([text]))[:, -1]
        text.append(int(sampler.choose(logits.expand(row + 1, -1))[row]))
    return text[len(prompt) :]


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0), Sampling(temperature=2.0, top_k=6, seed=3)])
@pytest.mark.parametrize("chunk", [1, 12, 400])
@pytest.mark.parametrize("static", [True, False])
def test_a_batch_of_different_lengths_writes_what_each_row_would_alone(
    model: Decoder, sampling: Sampling, chunk: int, static: bool
) -> None:
    cache = None if static else model.new_cache()
    steps = list(generate_tokens(model, PROMPTS, max_new_tokens=20, sampling=sampling, chunk_size=chunk, cache=cache))
    for row, prompt in enumerate(PROMPTS):
        assert [tokens[row] for tokens in steps] == by_whole_passes(model, prompt, 20, sampling, row)


def test_a_row_ends_with_an_end_token_and_the_others_go_on(model: Decoder) -> None:
    sampling = Sampling(temperature=3.0)
    endless = list(generate_tokens(model, PROMPTS, max_new_tokens=30, sampling=sampling))
    steps = list(generate_tokens(model, PROMPTS, max_new_tokens=30, sampling=sampling, eos_token_ids={4, 7}))
    for row in range(len(PROMPTS)):
        wanted = [tokens[row] for tokens in endless]
        stop = next((index for index, token in enumerate(wanted) if token in {4, 7}), 30)
        found = [tokens[row] for tokens in steps]
        assert found[: stop + 1] == wanted[: stop + 1]
        assert all(token is None for token in found[stop + 1 :])
    assert len(steps) < 30, "all rows have ended, so the steps have too"


def test_a_text_is_written_on_with_its_cache(model: Decoder) -> None:
    cache = model.new_cache()
    first = [tokens[0] for tokens in generate_tokens(model, [PROMPTS[0]], max_new_tokens=5, cache=cache)]
    written = [token for token in first if token is not None]
    # The last token was written and never read, so it begins the next prompt.
    second = [tokens[0] for tokens in generate_tokens(model, [[written[-1], 5]], max_new_tokens=5, cache=cache)]
    whole = [*PROMPTS[0], *written, 5]
    assert second == [tokens[0] for tokens in generate_tokens(model, [whole], max_new_tokens=5)]


def test_different_lengths_cannot_be_added_to_a_text(model: Decoder) -> None:
    cache = model.new_cache()
    list(generate_tokens(model, [[1], [2]], max_new_tokens=2, cache=cache))
    with pytest.raises(ShapeError, match="empty cache"):
        list(generate_tokens(model, [[1], [2, 3]], max_new_tokens=2, cache=cache))


@pytest.mark.parametrize("prompts", [[], [[]], [[1], []]])
def test_an_empty_prompt_is_refused(model: Decoder, prompts: list[list[int]]) -> None:
    with pytest.raises(ShapeError, match="at least one token"):
        next(generate_tokens(model, prompts, max_new_tokens=1))


def test_progress_tells_how_much_of_the_prompt_is_read(model: Decoder) -> None:
    reports = []
    next(
        generate_tokens(
            model, PROMPTS, max_new_tokens=1, chunk_size=12, progress=lambda *counts: reports.append(counts)
        )
    )
    assert reports == [(3, 8), (6, 8), (8, 8)]


def test_nothing_is_computed_for_no_tokens(model: Decoder) -> None:
    assert list(generate_tokens(model, PROMPTS, max_new_tokens=0)) == []
