"""One process reads what is missing, tells how far it is, and leaves threads as they were."""

from __future__ import annotations

from pathlib import Path

import torch

from attnscope.survey.corpus.plan import make_plan
from attnscope.survey.folder import PARTS, Folder
from attnscope.survey.settings import Settings
from attnscope.survey.tally.part_files import load
from attnscope.survey.work.alone import run_alone
from attnscope.survey.work.pace import Pace
from attnscope.survey.work.shard import Reader
from attnscope.survey.work.workers import Step, Workers
from tests.survey.surveying import SMALL, write_model, write_text


def test_shards_are_read_and_steps_add_up_to_their_tokens(tmp_path: Path) -> None:
    model, text = write_model(tmp_path / "model"), write_text(tmp_path / "text.txt", 6000)
    settings = Settings(model=str(model), sources=(str(text),), **SMALL)
    plan, folder, steps = make_plan(settings), Folder(tmp_path / "out"), list[Step]()
    (tmp_path / "out" / PARTS).mkdir(parents=True)
    threads = torch.get_num_threads()
    run_alone(plan.shards, Reader.load(settings), folder, Workers(threads=threads + 1), steps.append)
    assert torch.get_num_threads() == threads
    parts = [load(folder.part(shard.number)) for shard in plan.shards]
    assert sum(step.tokens for step in steps) == sum(part.tokens for part in parts) > 5900
    assert [step.shard for step in steps if step.shard is not None] == [0, 1, 2]
    assert all(0 <= step.in_model <= step.seconds for step in steps)
    assert len(steps) > 10  # it is told of batches, not of shards alone


def test_the_pace_tells_what_is_left() -> None:
    pace = Pace(size=4000, shards=10, missing=8, workers=2)
    assert (pace.shards_done, pace.expected_tokens, pace.seconds_left) == (2, 800, None)
    pace.add(Step(150, 2.0, 1.0))
    assert (pace.tokens_a_second, pace.waiting, pace.expected_tokens) == (150.0, 0.5, 800)
    pace.add(Step(50, 2.0, 2.0, shard=4))  # so that a shard has 200 tokens
    assert (pace.shards_done, pace.expected_tokens) == (3, 1600)
    assert (pace.tokens_a_second, pace.waiting, pace.seconds_left) == (100.0, 0.25, 14.0)
