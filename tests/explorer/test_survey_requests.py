"""Requests about a survey: numbers of any size are answered, and tables are not read in the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from attnscope.explorer.sessions.model_session import ModelSession
from attnscope.survey import open_survey
from attnscope.survey.tables.table_reader import TableReader
from tests.explorer.serving import Handle, serving, small_model, small_trace
from tests.explorer.survey_folder import make_survey, survey_served

API = "/api/1/survey"
TOO_LARGE = (2**31, 2**53, 2**63 - 1, 2**63, 2**64, 2**80, 10**400)
NUMBERS = (-1, *TOO_LARGE, *(-number for number in TOO_LARGE))
OTHERS = (None, True, 1.0, 1e300, "1", [1], {})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_survey(tmp_path_factory.mktemp("survey"))


@pytest.fixture(scope="module")
def surveyed(folder: Path) -> Iterator[Handle]:
    with survey_served(folder) as handle:
        yield handle


@pytest.mark.parametrize("field", ["passage", "layer", "head"])
def test_numbers_of_any_size_are_refused_when_a_passage_is_read(surveyed: Handle, folder: Path, field: str) -> None:
    passage = open_survey(folder).examples("blocks.0.attention", 0, "self")[0].passage
    wish = {"passage": passage, "layer": 0, "head": 0}
    for value in (*NUMBERS, *OTHERS):
        answer = surveyed.post(f"{API}/read", {**wish, field: value})
        assert answer.status in (400, 404), value
        assert answer.json["error"], value
    assert surveyed.post(f"{API}/read", wish).status == 200


def test_numbers_of_any_size_in_a_path_or_a_query_are_refused(surveyed: Handle) -> None:
    for value in (*map(str, NUMBERS), "", "1.0", "1e3", "+1", "١", "one"):
        for path in (f"{API}/{value}/0?statistic=self", f"{API}/0/{value}?statistic=self"):
            assert surveyed.get(quote(path, "/?=")).status == 404, value
        assert surveyed.get(f"{API}/histograms?statistic={quote(value)}").status == 400, value


@pytest.fixture(scope="module")
def live() -> Iterator[Handle]:
    model, tokenizer = small_model()
    with serving(small_trace(), ModelSession(model, tokenizer, "tiny")) as handle:
        yield handle


@pytest.mark.parametrize("field", ["count", "seed", "layer", "head"])
def test_numbers_of_any_size_are_refused_in_generation(live: Handle, field: str) -> None:
    wish = {"text": "the day", "count": 1, "temperature": 0, "seed": 0, "layer": 0, "head": 0}
    for value in (*NUMBERS, *OTHERS):
        if field == "seed" and value == 2**31:
            continue
        assert live.post("/api/1/generate", {**wish, field: value}).status == 400, value
    assert live.post("/api/1/generate", wish).status == 200
    assert live.post("/api/1/generate", {**wish, "temperature": 1.0, "seed": 2**53 - 1}).status == 200


def test_numbers_of_any_size_are_refused_in_ablation(live: Handle) -> None:
    trace = live.server.library.summaries()[0]["trace"]
    for value in (*NUMBERS, *OTHERS):
        for heads in ([[value, 0]], [[0, value]]):
            answer = live.post("/api/1/ablate", {"trace": trace, "heads": heads})
            assert answer.status == 400, value
            assert answer.json["error"], value
    assert live.post("/api/1/ablate", {"trace": trace, "heads": [[0, 0]]}).status == 200


def test_no_table_is_read_in_the_event_loop(surveyed: Handle, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passage = open_survey(folder).examples("blocks.1.attention", 1, "self")[0].passage
    read, in_event_loop = TableReader.read, list[bool]()

    def watched(self: TableReader, *arguments: object, **options: object) -> object:
        try:
            asyncio.get_running_loop()
            in_event_loop.append(True)
        except RuntimeError:
            in_event_loop.append(False)
        return read(self, *arguments, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(TableReader, "read", watched)
    for path in (f"{API}/about", f"{API}/histograms?statistic=self", f"{API}/1/1?statistic=self"):
        before = len(in_event_loop)
        assert surveyed.get(path).status == 200
        assert len(in_event_loop) > before, path
    before = len(in_event_loop)
    assert surveyed.post(f"{API}/read", {"passage": passage, "layer": 1, "head": 1}).status == 200
    assert len(in_event_loop) > before
    assert not any(in_event_loop)
