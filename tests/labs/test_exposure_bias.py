import torch

from attnscope.labs.experiments.exposure_bias import (
    NGRAM,
    PROMPT,
    SOURCE_PROMPT,
    SYMBOLS,
    distance_bins,
    entropy,
    error_of_model,
    generate_rows,
    markov_chain,
    mean_by_bin,
    next_token_log_probabilities,
    repeated_ngrams,
    sample_chain,
    surprise_of_source,
)
from attnscope.models import Decoder, DecoderConfig


def test_a_loop_counts_as_repeated_and_new_tokens_do_not():
    new = torch.arange(PROMPT + 16)
    loop = torch.cat((torch.arange(PROMPT), torch.arange(8), torch.arange(1000, 1008)))
    found = repeated_ngrams(torch.stack((new, loop)))
    assert found.shape == (2, 16)
    assert found[0].sum() == 0
    assert found[1].tolist() == [0.0] * (NGRAM - 1) + [1.0] * (8 - NGRAM + 1) + [0.0] * 8


def test_buckets_cover_every_distance_once():
    assert [distance for bucket in distance_bins(128) for distance in bucket] == list(range(128))


def test_means_by_distance_are_those_of_the_buckets():
    assert mean_by_bin(torch.arange(16.0).expand(3, 16)).tolist() == [[3.5, 11.5]] * 3


def small_model() -> Decoder:
    torch.manual_seed(0)
    config = DecoderConfig(
        vocab_size=SYMBOLS,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    return Decoder(config).eval()


def test_the_entropy_of_generated_rows_is_that_of_reading_them():
    model = small_model()
    prompts = torch.randint(SYMBOLS, (3, 5))
    ids, entropies = generate_rows(model, prompts, 8, temperature=0.5, seed=1)
    assert torch.equal(ids[:, :5], prompts)
    for row, found in zip(ids, entropies, strict=True):
        torch.testing.assert_close(found, entropy(next_token_log_probabilities(model, row, 5)))


def test_the_source_is_surprised_by_its_own_entropy_and_its_error_is_the_divergence():
    chain = markov_chain(0)
    ids = sample_chain(chain, 2_000, SOURCE_PROMPT + 8, torch.Generator().manual_seed(0))
    before = ids[:, SOURCE_PROMPT - 2 : -2], ids[:, SOURCE_PROMPT - 1 : -1]
    expected = entropy(chain[before].log())
    assert abs(float((surprise_of_source(chain, ids) - expected).mean())) < 0.03
    model, row = small_model(), ids[0]
    predicted = next_token_log_probabilities(model, row, SOURCE_PROMPT)
    divergence = torch.nn.functional.kl_div(
        predicted, chain[before[0][0], before[1][0]].log(), log_target=True, reduction="none"
    ).sum(-1)
    torch.testing.assert_close(error_of_model(model, chain, ids[:1])[0], divergence)
