"""Handlers of a watched training run: all heads and alerts, a statistic over steps, and the map of an alert.

In: requests that passed the guard. Out: JSON, which is not cached: the run may still be written.
Does not know: how a run is read. Memory: one response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.explorer.handlers.base import Handlers
from attnscope.explorer.library.watched_run import MAX_COLUMNS, WatchedRunView
from attnscope.explorer.service.guard import RequestError
from attnscope.explorer.service.http import json_int, path_int, query_choice, query_int, read_json_object, respond_json
from attnscope.telemetry.run_reader import MAX_HEADS

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


class WatchHandlers(Handlers):
    """Routes of a watched run."""

    async def about(self, request: Request) -> Response:
        """All heads, and the alerts."""
        return await self.respond_quick(request, self._require_run().about, cache="no-store")

    async def table(self, request: Request) -> Response:
        """One statistic of all heads over the steps."""
        run = self._require_run()
        statistic, columns = query_choice(request, "statistic", *run.statistics), _columns(request)
        return await self.respond_quick(request, lambda: run.table(statistic, columns), cache="no-store")

    async def head(self, request: Request) -> Response:
        """All statistics of one head over the steps."""
        run, columns = self._require_run(), _columns(request)
        row = path_int(request, "row", MAX_HEADS)
        return await self.respond_quick(request, lambda: run.head(row, columns), cache="no-store")

    async def open(self, request: Request) -> Response:
        """Open the trace of an alert: its id, and the pair with the largest logit."""
        run, body = self._require_run(), await read_json_object(request)
        number = json_int(body, "alert")

        def open_trace() -> dict[str, Any]:
            found = run.open_alert(number)
            if found is None:
                raise RequestError(404, "No trace of this alert was kept.")
            trace, alert, name = found
            trace_id = self.library.add(trace, name=name, live=True)
            return {"trace": trace_id, "query": alert.query, "key": alert.key}

        return respond_json(request, await self.run_quick(request, open_trace), cache="no-store")

    def _require_run(self) -> WatchedRunView:
        if self.library.watched is None:
            raise RequestError(404, "No watched run is open; open one with: attnscope explore FOLDER")
        return self.library.watched


def _columns(request: Request) -> int:
    return query_int(request, "columns", 1, MAX_COLUMNS)
