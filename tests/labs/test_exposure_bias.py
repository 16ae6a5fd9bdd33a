import torch

from attnscope.labs.experiments.exposure_bias import NGRAM, PROMPT, distance_bins, mean_by_distance, repeated_ngrams


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
    assert mean_by_distance(torch.arange(16.0).expand(3, 16)) == [3.5, 11.5]
