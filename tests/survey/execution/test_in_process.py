"""One process reads what is missing, tells how far it is, and leaves threads as they were."""

from __future__ import annotations

from pathlib import Path

import torch

from attnscope.cli.survey import status_text
from attnscope.survey.corpus.plan import plan_shards
from attnscope.survey.execution.in_process import run_in_process
from attnscope.survey.execution.progress import SurveyProgress
from attnscope.survey.execution.shard_reader import ShardReader
from attnscope.survey.execution.workers import Workers, WorkReport
from attnscope.survey.folder import PARTIALS, SurveyFolder
from attnscope.survey.partials.partial_files import load_partial
from attnscope.survey.settings import Settings
from tests.survey.survey_process import SMALL, write_model, write_text


def test_shards_are_read_and_steps_add_up_to_their_tokens(tmp_path: Path) -> None:
    model, text = write_model(tmp_path / "model"), write_text(tmp_path / "text.txt", 6000)
    settings = Settings(model=str(model), sources=(str(text),), **SMALL)
    plan, folder, steps = plan_shards(settings), SurveyFolder(tmp_path / "out"), list[WorkReport]()
    (tmp_path / "out" / PARTIALS).mkdir(parents=True)
    threads = torch.get_num_threads()
    run_in_process(plan.shards, ShardReader.load(settings), folder, Workers(threads=threads + 1), steps.append)
    assert torch.get_num_threads() == threads
    partials = [load_partial(folder.partial_path(shard.number)) for shard in plan.shards]
    assert sum(step.tokens for step in steps) == sum(partial.tokens for partial in partials) > 5900
    assert [step.shard for step in steps if step.shard is not None] == [0, 1, 2]
    assert all(0 <= step.model_seconds <= step.seconds for step in steps)
    assert len(steps) > 10  # it is told of batches, not of shards alone


def test_the_pace_tells_what_is_left() -> None:
    pace = SurveyProgress(size=4000, shards=10, missing=8, workers=2)
    assert (pace.shards_done, pace.expected_tokens, pace.remaining_seconds) == (2, 800, None)
    pace.add(WorkReport(150, 2.0, 1.0))
    assert (pace.tokens_per_second, pace.overhead, pace.expected_tokens) == (150.0, 0.5, 800)
    pace.add(WorkReport(50, 2.0, 2.0, shard=4))  # so that a shard has 200 tokens
    assert (pace.shards_done, pace.expected_tokens) == (3, 1600)
    assert (pace.tokens_per_second, pace.overhead, pace.remaining_seconds) == (100.0, 0.25, 14.0)
    assert status_text(pace).startswith("shard 3/10  100 tokens/s")
    pace.to_merge = 12
    pace.add(WorkReport(0, 0.0, 0.0, merged=3))
    assert pace.tokens_per_second == 100.0
    assert status_text(pace) == "merged 3/12 partial results"
