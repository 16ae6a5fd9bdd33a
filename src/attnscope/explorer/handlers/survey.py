"""What the explorer says about a survey: all heads, one of them, and the map of one of its passages.

In: requests that the guard has let through. Out: JSON, which nobody keeps: a survey may be run again at the same place.
Does not know: how a survey is read, models. Memory: an answer at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.explorer.cancellation import CancelCheck
from attnscope.explorer.handlers.base import Handlers
from attnscope.explorer.handlers.model import add_live_trace
from attnscope.explorer.library.library import Library
from attnscope.explorer.library.survey import SurveyView
from attnscope.explorer.service.guard import RequestError
from attnscope.explorer.service.http import json_field, path_int, query_choice, read_json_object, respond, to_json
from attnscope.explorer.service.workers import WorkerPools
from attnscope.explorer.sessions.lazy_session import LazySession

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


class SurveyHandlers(Handlers):
    """One method for each address."""

    def __init__(self, library: Library, call: LazySession | None, work: WorkerPools) -> None:
        super().__init__(library, work)
        self._call = call

    async def about(self, request: Request) -> Response:
        """All heads with the mean and the spread of every statistic, and what was read for them."""
        survey = self._survey()
        told = await self.quick(request, survey.about)
        call = self._call
        reader = {"name": "" if call is None else call.name, "problem": None if call is None else call.problem}
        ready = call is not None and call.stage is not None
        return respond(request, to_json({**told, "reader": {**reader, "ready": ready}}), cache="no-store")

    async def histograms(self, request: Request) -> Response:
        """The distribution of one statistic in every head."""
        survey, statistic = self._asked(request)
        return await self._told(request, lambda: survey.histograms(statistic))

    async def head(self, request: Request) -> Response:
        """One statistic of one head: its numbers, its distribution, and passages."""
        survey, statistic = self._asked(request)
        layer = path_int(request, "layer", len(survey.layers))
        head = path_int(request, "head", len(survey.layers[layer].numbers))
        return await self._told(request, lambda: survey.head(layer, head, statistic))

    async def read(self, request: Request) -> Response:
        """A passage through the model, once more: the trace of it, and where in it the head is."""
        survey, call, wish = self._survey(), self._call, await read_json_object(request)
        if call is None:
            raise RequestError(
                409, "No model was named for this survey; start with: attnscope explore FOLDER --model MODEL"
            )
        passage, layer, head = (json_field(wish, name, int) for name in ("passage", "layer", "head"))
        found = survey.passage(passage)
        if found is None or not 0 <= layer < len(survey.layers):
            raise RequestError(404, "This passage or this layer is not in the survey.")

        def read(cancelled: CancelCheck) -> dict[str, Any]:
            trace = call.called(cancelled).run(found.ids, cancelled=cancelled)
            place = survey.place_in(trace, layer, head)
            return {
                "trace": add_live_trace(self.library, trace, found.text)["trace"],
                "layer": place[0],
                "head": place[1],
            }

        told = await self.until_disconnect(request, self.work.stage, read)
        return respond(request, to_json(told), cache="no-store")

    def _survey(self) -> SurveyView:
        if self.library.survey is None:
            raise RequestError(404, "No survey is open here; open one with: attnscope explore FOLDER")
        return self.library.survey

    def _asked(self, request: Request) -> tuple[SurveyView, str]:
        survey = self._survey()
        return survey, query_choice(request, "statistic", *survey.statistics)

    async def _told(self, request: Request, work: Any) -> Response:
        return respond(request, to_json(await self.quick(request, work)), cache="no-store")
