"""Handlers of a survey: all heads, one head, and the map of a passage.

In: requests that passed the guard. Out: JSON, which is not cached: a survey may be run again into the same folder.
Does not know: how a survey is read, models. Memory: one response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.explorer.cancellation import CancelCheck
from attnscope.explorer.handlers.base import Handlers
from attnscope.explorer.handlers.model import MAX_INDEX, add_live_trace
from attnscope.explorer.library.library import Library
from attnscope.explorer.library.survey import SurveyView
from attnscope.explorer.service.guard import RequestError
from attnscope.explorer.service.http import json_int, path_int, query_choice, read_json_object, respond_json
from attnscope.explorer.service.workers import WorkerPools
from attnscope.explorer.sessions.lazy_session import LazySession

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


class SurveyHandlers(Handlers):
    """Routes of the survey."""

    def __init__(self, library: Library, session: LazySession | None, workers: WorkerPools) -> None:
        super().__init__(library, workers)
        self._session = session

    async def about(self, request: Request) -> Response:
        """All heads with the mean and standard deviation of every statistic, and the corpus."""
        info = await self.run_quick(request, self._require_survey().about)
        session = self._session
        reader = {
            "name": "" if session is None else session.name,
            "problem": None if session is None else session.problem,
            "ready": session is not None and session.session is not None,
        }
        return respond_json(request, {**info, "reader": reader}, cache="no-store")

    async def histograms(self, request: Request) -> Response:
        """The distribution of one statistic in every head."""
        survey, statistic = self._parse_statistic(request)
        return await self.respond_quick(request, lambda: survey.histograms(statistic), cache="no-store")

    async def head(self, request: Request) -> Response:
        """One statistic of one head: its numbers, its distribution, and passages."""
        survey, statistic = self._parse_statistic(request)
        layer = path_int(request, "layer", len(survey.layers))
        head = path_int(request, "head", len(survey.layers[layer].numbers))
        return await self.respond_quick(request, lambda: survey.head(layer, head, statistic), cache="no-store")

    async def read(self, request: Request) -> Response:
        """Run the model on a passage again: the new trace, and the index of the head in it."""
        survey, session, body = self._require_survey(), self._session, await read_json_object(request)
        if session is None:
            raise RequestError(409, "This survey names no model; start with: attnscope explore FOLDER --model MODEL")
        passage = json_int(body, "passage")
        layer, head = (json_int(body, name, maximum=MAX_INDEX) for name in ("layer", "head"))
        found = await self.run_quick(request, lambda: survey.passage(passage))
        if found is None or layer >= len(survey.layers):
            raise RequestError(404, "This passage or this layer is not in the survey.")

        def read(cancelled: CancelCheck) -> dict[str, Any]:
            trace = session.load(cancelled).run(found.ids, cancelled=cancelled)
            place = survey.find_head(trace, layer, head)
            summary = add_live_trace(self.library, trace, found.text)
            return {"trace": summary["trace"], "layer": place[0], "head": place[1]}

        result = await self.run_cancellable(request, self.workers.model, read)
        return respond_json(request, result, cache="no-store")

    def _require_survey(self) -> SurveyView:
        if self.library.survey is None:
            raise RequestError(404, "No survey is open; open one with: attnscope explore FOLDER")
        return self.library.survey

    def _parse_statistic(self, request: Request) -> tuple[SurveyView, str]:
        survey = self._require_survey()
        return survey, query_choice(request, "statistic", *survey.statistics)
