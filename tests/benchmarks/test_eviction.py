"""The benchmarks of eviction run at their small size, and their arithmetic is right."""

from __future__ import annotations

import torch

from attnscope.bench import Size
from benchmarks import eviction, eviction_scores
from tests.models.smollm2 import FOLDER


def test_rank_correlation_and_errors() -> None:
    x = torch.tensor([1.0, 4.0, 2.0, 9.0])
    assert eviction.spearman(x, x**3) == 1
    assert eviction.spearman(x, -x) == -1
    assert eviction.with_error(torch.tensor([1.0, 3.0]), "+") == "+2.000 ± 1.000"


def test_every_policy_and_budget_has_a_row() -> None:
    quality, correlations = eviction.tables(Size.SMALL, lambda _: None, model=str(FOLDER))
    assert len(quality.rows) == 1 + 6 * 3
    assert [row[1] for row in quality.rows[1:4]] == ["50%", "25%", "10%"]
    assert all(len(row) == len(quality.columns) for row in quality.rows)
    assert correlations.rows[0][:2] == ("everything", "36")


def test_scores_are_compared_pair_by_pair() -> None:
    kept, scores = torch.tensor([[[0, 2], [1, 3]]]), torch.rand(1, 2, 4)
    other = scores.clone()
    other[0, 1, 3] += 0.25
    theirs, ours = {"scores": scores, "kept": kept}, {"scores": other, "kept": torch.tensor([[[0, 2], [0, 3]]])}
    length, pairs, difference, _, same = eviction_scores.compare(4, theirs, ours)
    assert (length, pairs, difference, same) == ("4", "8", "2.5e-01", "3 of 4")
