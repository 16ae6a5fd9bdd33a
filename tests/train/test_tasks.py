"""Reversing needs positions; going on with what repeats needs induction heads, and they can be watched as they grow."""

from __future__ import annotations

import json
import math
from itertools import permutations
from pathlib import Path

import pytest
import torch

from attnscope.heads import read_over_training
from attnscope.train import IGNORE_INDEX, induction, reversal, train
from attnscope.train.tasks import Repetition, Reversal, best_without_positions


def test_reversal_asks_for_the_mirrored_digit():
    batch = Reversal(sequence_length=6).get_batch([3, 4])
    assert torch.equal(batch.targets, batch.input_ids.flip(1))
    assert not torch.equal(batch.input_ids[0], batch.input_ids[1])


def test_a_row_depends_on_its_number_and_the_seed_alone():
    for task in (Reversal, Repetition):
        many = task(seed=1).get_batch(range(8))
        assert torch.equal(task(seed=1).get_batch([5, 2]).input_ids, many.input_ids[[5, 2]])
        assert not torch.equal(task(seed=2).get_batch(range(8)).input_ids, many.input_ids)


def test_repetition_asks_for_what_has_been_before_and_for_nothing_else():
    batch = Repetition(sequence_length=32).get_batch(range(50))
    periods = set()
    for tokens, targets in zip(batch.input_ids.tolist(), batch.targets.tolist(), strict=True):
        period = targets.count(IGNORE_INDEX) + 1
        periods.add(period)
        assert targets[: period - 1] == [IGNORE_INDEX] * (period - 1)
        assert targets[period - 1 :] == [tokens[(at + 1) % period] for at in range(period - 1, 32)]
    assert min(periods) == 8
    assert max(periods) == 16


def test_the_best_blind_guess_is_what_counting_cases_gives():
    """Every arrangement of a row's tokens is as likely as the next: guess the last token from the first, over all."""
    arrangements = list(permutations([0, 0, 1, 2]))
    accuracy = loss = 0.0
    for first in (0, 1, 2):
        answers = [row[3] for row in arrangements if row[0] == first]
        shares = [answers.count(token) / len(answers) for token in set(answers)]
        weight = len(answers) / len(arrangements)
        accuracy += weight * max(shares)
        loss -= weight * sum(share * math.log(share) for share in shares)
    assert best_without_positions(torch.tensor(arrangements)) == (pytest.approx(loss), pytest.approx(accuracy))


def test_a_layer_with_positions_reverses_and_one_without_stays_at_chance(tmp_path: Path):
    """Chance is that of whoever knows which digits a row has and not where they are."""
    seen = train(reversal(), tmp_path / "seen", progress=False)
    blind = train(reversal(with_positions=False), tmp_path / "blind", progress=False)
    rows = Reversal(seed=1_000_003).get_batch(range(512)).input_ids
    least_loss, accuracy = best_without_positions(rows)
    assert last_accuracy(tmp_path / "seen") >= 0.99
    assert seen.validation_loss < 0.01
    assert last_accuracy(tmp_path / "blind") == pytest.approx(accuracy, abs=0.02)
    assert least_loss <= blind.validation_loss <= least_loss + 0.2


def test_a_layer_without_positions_answers_a_shuffled_row_with_the_same_answers_shuffled(tmp_path: Path):
    model = train(reversal(with_positions=False, steps=5), tmp_path, progress=False).model
    assert model is not None
    row, order = Reversal().get_batch([0]).input_ids, torch.randperm(12)
    with torch.no_grad():
        torch.testing.assert_close(model(row[:, order]), model(row)[:, order], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_induction_heads_appear_when_the_loss_falls(tmp_path: Path):
    """The induction bump: half of the whole fall of the loss happens around the step at which the label appears."""
    train(induction(evaluate_every=50, heads_every=50), tmp_path, progress=False)
    run = read_over_training(tmp_path)
    appeared = {appearance.label: appearance for appearance in run.appearances()}
    assert appeared["induction"].layer == "blocks.1.attention"
    step = appeared["induction"].step
    losses = run.validation_loss
    before, after = losses[max(step - 100, 0)], losses[min(step + 100, 500)]
    assert before - after > 0.5 * (losses[0] - losses[500])
    assert run.max_scores("induction")[0] < 0.1
    assert run.max_scores("induction")[-1] > 0.5
    # What they are made of: heads of the first layer that look at the previous token, at the same time.
    previous = [float(table["previous"][:4].max()) for table in run.tables]
    assert previous[0] < 0.1
    assert previous[-1] > 0.4
    assert run.figure().axes


def test_heads_of_a_short_run_are_measured_at_the_steps_that_were_asked_for(tmp_path: Path):
    train(induction(steps=4, heads_every=2, evaluate_every=2, evaluate_sequences=8), tmp_path, progress=False)
    run = read_over_training(tmp_path)
    assert run.steps == (0, 2, 4)
    assert run.validation_loss.keys() == {0, 2, 4}
    assert run.validation_loss[4] < run.validation_loss[0]
    assert 0 < run.max_scores("induction")[0] < 0.1


def last_accuracy(folder: Path) -> float:
    """The accuracy at the end of a run."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["validation_accuracy"] for line in lines if "validation_accuracy" in line][-1]
