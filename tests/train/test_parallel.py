"""Many ranks learn what one learns: the same losses, weights, heads and samples, up to rounding."""

from __future__ import annotations

import csv
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage] - documented, and in no list

from attnscope.train import IGNORE_INDEX, Batch, Dataset, train
from attnscope.train.parallel import agree_on_restart
from tests.train.ranks import LastingRanks
from tests.train.torchrun import STEPS, curve, small, train_small, write_text

# Ranks add the same numbers in another order. Over 50 steps, more than the tests take, losses differ by 2e-7 of
# themselves at most, about what float32 rounds off, and weights by 9e-7. The order, and so the difference, depends on
# the machine: ten times the largest is allowed for all. The controls below differ by more than 100 times that.
TOLERANCE = 1e-5
LOOKING = {"evaluate_every": STEPS, "heads_every": STEPS, "sample_every": STEPS}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, text: Path) -> dict[str, Path]:
    """Runs of one rank, to which the others are held."""
    folder = tmp_path_factory.mktemp("alone")
    for kind in ("rotary", "learned"):
        train(small(kind, text, **LOOKING), folder / kind, progress=False)
    return {kind: folder / kind for kind in ("rotary", "learned")}


def difference(folder: Path, other: Path, name: str = "loss") -> float:
    """The largest relative difference of two curves."""
    these, those = curve(folder, name), curve(other, name)
    assert these.keys() == those.keys()
    return max(abs(these[step] - those[step]) / abs(those[step]) for step in those)


def assert_same_run(folder: Path, other: Path) -> None:
    assert list(curve(folder)) == list(range(1, STEPS + 1))
    for name in ("loss", "grad_norm", "learning_rate", "validation_loss"):
        assert difference(folder, other, name) < TOLERANCE, name
    weights, expected = (load_file(place / "model" / "model.safetensors") for place in (folder, other))
    assert weights.keys() == expected.keys()
    for name, weight in weights.items():
        keep = torch.ones_like(weight, dtype=torch.bool)
        if name.endswith("c_attn.bias"):
            # A bias of the keys shifts all scores of a query alike, which changes nothing: its gradient is rounding
            # alone, and AdamW makes steps of it.
            keep[32:64] = False
        torch.testing.assert_close(weight[keep], expected[name][keep], rtol=0, atol=TOLERANCE)
    assert curve(folder, "sample") == curve(other, "sample")
    assert list(curve(folder, "sample")) == [0, STEPS]
    for step in (0, STEPS):
        assert_same_heads(*(place / "heads" / f"step-{step:08}.csv" for place in (folder, other)))


def assert_same_heads(path: Path, other: Path) -> None:
    with path.open(encoding="utf-8") as these, other.open(encoding="utf-8") as those:
        rows, expected = list(csv.DictReader(these)), list(csv.DictReader(those))
    assert len(rows) == len(expected) == 8
    for row, wanted in zip(rows, expected, strict=True):
        words = ("layer", "head", "labels")
        assert [row.pop(name) for name in words] == [wanted.pop(name) for name in words]
        assert {name: float(value) for name, value in row.items()} == pytest.approx(
            {name: float(value) for name, value in wanted.items()}, rel=TOLERANCE, abs=TOLERANCE
        )


@pytest.mark.parametrize(
    ("world_size", "kind", "ways"),
    [
        pytest.param(2, "rotary", {}, id="data 2"),
        pytest.param(2, "rotary", {"context_parallel_size": 2}, id="context 2"),
        pytest.param(
            4, "rotary", {"context_parallel_size": 4}, id="context 4", marks=pytest.mark.slow
        ),  # test_ring has 4 ranks too
        pytest.param(2, "rotary", {"tensor_parallel_size": 2}, id="tensor 2"),
        pytest.param(4, "rotary", {"context_parallel_size": 2, "tensor_parallel_size": 2}, id="context 2 x tensor 2"),
        pytest.param(
            4,
            "learned",
            {"tensor_parallel_size": 2, "gradient_accumulation_steps": 2},
            id="data 2 x tensor 2, biases, accumulated",
        ),
    ],
)
def test_many_ranks_learn_what_one_learns(
    world_size: int,
    kind: str,
    ways: dict[str, Any],
    ranks: LastingRanks,
    alone: dict[str, Path],
    text: Path,
    tmp_path: Path,
) -> None:
    ranks.run(train_small, world_size, kind, text, tmp_path, LOOKING | ways)
    assert_same_run(tmp_path, alone[kind])


def test_a_batch_in_four_parts_teaches_what_it_teaches_whole(
    alone: dict[str, Path], text: Path, tmp_path: Path
) -> None:
    train(small("rotary", text, gradient_accumulation_steps=4, **LOOKING), tmp_path, progress=False)
    assert_same_run(tmp_path, alone["rotary"])


def test_the_rows_hold_what_makes_ranks_disagree(text: Path, tmp_path: Path) -> None:
    recipe = small("rotary", text)
    batch = recipe.data(tmp_path, recipe.settings).training.get_batch(range(8))
    assert batch.document_ids is not None
    ignored = (batch.targets == IGNORE_INDEX).sum(1)
    assert ignored.min() < ignored.max()  # a mean of each rank's mean would be another one
    assert batch.input_ids.shape[1] % 2  # shares of the positions differ in length


def test_some_gradients_are_shortened_and_some_are_not(alone: dict[str, Path]) -> None:
    lengths = curve(alone["rotary"], "grad_norm").values()
    assert max(lengths) > 0.9 > min(lengths)  # both sides of `clip` are in the comparison


class WithoutOneRow:
    """Batches in which a single sample of the whole run does not count."""

    def __init__(self, batches: Dataset):
        self.batches, self.sequence_length = batches, batches.sequence_length

    def get_batch(self, samples: Any) -> Batch:
        batch = self.batches.get_batch(samples)
        counts = torch.tensor([sample != 5 for sample in samples])[:, None]
        return batch._replace(targets=torch.where(counts, batch.targets, IGNORE_INDEX))


def test_a_single_row_that_is_missed_shows(alone: dict[str, Path], text: Path, tmp_path: Path) -> None:
    recipe = small("rotary", text)

    def data(folder: Path, settings: Any) -> Any:
        made = recipe.data(folder, settings)
        return made._replace(training=WithoutOneRow(made.training))

    override_settings = type(recipe)(name="rotary", settings=recipe.settings, data=data, model=recipe.model)
    train(override_settings, tmp_path, progress=False)
    assert difference(tmp_path, alone["rotary"]) > 100 * TOLERANCE


def test_another_seed_shows(alone: dict[str, Path], text: Path, tmp_path: Path) -> None:
    train(small("rotary", text, seed=1), tmp_path, progress=False)
    assert difference(tmp_path, alone["rotary"]) > 1000 * TOLERANCE


def test_bfloat16_learns_alike_on_two_ranks(
    ranks: LastingRanks, alone: dict[str, Path], text: Path, tmp_path: Path
) -> None:
    ranks.run(train_small, 2, "rotary", text, tmp_path / "two", {"steps": 10, "bf16": True})
    train(small("rotary", text, steps=10, bf16=True), tmp_path / "one", progress=False)
    # bfloat16 rounds to 2 ** -9; of a loss, which is a mean over hundreds of tokens, less than that is left.
    assert difference(tmp_path / "two", tmp_path / "one") < 2**-10
    exact, rounded = curve(alone["rotary"], "grad_norm"), curve(tmp_path / "one", "grad_norm")
    assert max(abs(rounded[step] / exact[step] - 1) for step in range(1, 6)) > 10 * TOLERANCE  # it is at work
    assert load_file(tmp_path / "two" / "model" / "model.safetensors")["model.norm.weight"].dtype == torch.float32


def test_ranks_that_are_started_anew_do_not_take_the_dead_for_the_living() -> None:
    store, names = HashStore(), list[set[str]]()
    for attempt in range(3):  # all beside what those before have left in the store
        with ThreadPoolExecutor(3) as pool:
            late = [0.0, 0.1, 0.05] if attempt % 2 else [0.1, 0.0, 0.05]
            coming = [
                pool.submit(
                    lambda rank, wait: (time.sleep(wait), agree_on_restart(store, rank, 3))[1], rank, late[rank]
                )
                for rank in range(3)
            ]
            names.append({come.result(timeout=60) for come in coming})
    assert [len(name) for name in names] == [1, 1, 1]
    assert len(set.union(*names)) == 3
