"""The benchmark of checksums compares work with checksums and the same work without; no time is checked here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attnscope.errors import CheckpointError
from attnscope.models import Decoder
from attnscope.models.checkpoint.folder_checksums import read_checksums
from attnscope.models.published_configs import DECODERS
from attnscope.train.checkpoint_files import read_manifest
from benchmarks.checksums import MODEL, Pair, Times, pairs, take_turns

TINY = replace(DECODERS[MODEL], num_layers=1, vocab_size=64, hidden_size=72, intermediate_size=64)


def test_both_sides_of_a_pair_do_what_they_say(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with pairs(Decoder(TINY), tmp_path) as found:
        assert len(found) == 4
        saved, step = tmp_path / "saved", tmp_path / "checkpoints" / "step-00000001"
        for name, pair in found.items():
            for is_checked in (False, True):
                (pair.checked if is_checked else pair.without)()
                if name == "save a model":
                    assert (read_checksums(saved)["model.safetensors"] != "00000000") == is_checked
                if name == "save a training checkpoint":
                    assert (set(read_manifest(step).files.values()) != {"00000000"}) == is_checked
        weights = tmp_path / "model" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
        with pytest.raises(CheckpointError, match="is not the file that was saved"):
            found["load a model"].checked()
        found["load a model"].without()
        (step / ".metadata").write_bytes((step / ".metadata").read_bytes() + b"\0")
        with pytest.raises(CheckpointError, match="damaged"):
            found["load a training checkpoint"].checked()
        found["load a training checkpoint"].without()


def test_calls_take_turns_and_ratios_are_of_neighbours() -> None:
    order: list[str] = []
    pair = Pair(lambda: order.append("checked"), lambda: order.append("without"))
    without, checked, ratio = take_turns(pair, 2)
    assert order == ["checked", "without", "without", "checked", "checked", "without"]
    assert all(isinstance(one, Times) and one.wall > 0 for one in (without, checked, ratio))
