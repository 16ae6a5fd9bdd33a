"""The app: all routes of the explorer, behind the guard.

In: a library, and a session if there is a model. Out: an ASGI app. The files of the page are read when the app is
made, so no request path becomes a file path. Does not know: responses, the server. Memory: the files of the page.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.errors import AttnScopeError, Cancelled, SettingError
from attnscope.explorer.handlers.eviction import EvictionHandlers
from attnscope.explorer.handlers.images import ImageHandlers
from attnscope.explorer.handlers.layers import LayerHandlers
from attnscope.explorer.handlers.model import ModelHandlers
from attnscope.explorer.handlers.survey import SurveyHandlers
from attnscope.explorer.handlers.text import TextHandlers
from attnscope.explorer.handlers.traces import ASSETS, PAGES, TraceHandlers
from attnscope.explorer.handlers.watch import WatchHandlers
from attnscope.explorer.library.library import Library
from attnscope.explorer.service.guard import Guard, RequestError, Settings
from attnscope.explorer.service.http import INTERNAL_ERROR, NOT_FOUND, error_response
from attnscope.explorer.service.workers import ClientDisconnected, WorkerPools
from attnscope.explorer.sessions.lazy_session import LazySession
from attnscope.explorer.sessions.model_session import BusyError, ModelSession
from attnscope.explorer.static_export.exporter import ExportHandlers
from attnscope.extras import import_extra

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    Handler = Callable[[Request], Awaitable[Response]]

STATIC = Path(__file__).parents[1] / "static"
PAGE_PATHS = (*PAGES, *(f"/{name}" for name in ASSETS if name not in PAGES.values()))
"""Paths of the files of the page, which are served without the token."""


def make_app(
    library: Library,
    session: ModelSession | LazySession | None,
    settings: Settings,
    workers: WorkerPools,
    *,
    assets: Mapping[str, bytes] | None = None,
) -> Guard:
    """Make the app behind its guard; `assets` replace the files of the page."""
    return Guard(make_router(library, session, workers, assets=assets), settings, PAGE_PATHS)


def read_assets(folder: Path = STATIC) -> dict[str, bytes]:
    """Read the files of the page, by name; raises SettingError if the page is not built."""
    missing = [name for name in ASSETS if not (folder / name).is_file()]
    if missing:
        raise SettingError(
            f"explore: the page is not built: {folder} has no {', '.join(missing)}. In a checkout, build it in the "
            "folder web with: npm ci && node build.mjs"
        )
    return {name: (folder / name).read_bytes() for name in ASSETS}


def make_router(
    library: Library,
    session: ModelSession | LazySession | None,
    workers: WorkerPools,
    *,
    assets: Mapping[str, bytes] | None = None,
) -> Starlette:
    """Make the app without a guard, for the guard and for requests within this process."""
    Route = import_extra("starlette.routing").Route
    files = read_assets() if assets is None else assets
    traces, export = TraceHandlers(library, session, workers, files), ExportHandlers(library, workers, files)
    text, layers = TextHandlers(library, workers), LayerHandlers(library, workers)
    model = ModelHandlers(library, session, workers)
    survey = SurveyHandlers(library, session if isinstance(session, LazySession) else None, workers)
    watch = WatchHandlers(library, workers)
    get_routes = _page_routes(traces, survey, watch) | _trace_routes(traces, text, layers, export)
    get_routes |= _image_routes(ImageHandlers(library, workers))
    get_routes["/api/1/{trace}/predictions"] = model.predictions
    get_routes["/api/1/{trace}/{layer}/{head}/projection"] = model.projection
    eviction = EvictionHandlers(library, workers)
    get_routes["/api/1/{trace}/{layer}/{head}/evicted"] = eviction.evicted
    get_routes["/api/1/{trace}/{layer}/{head}/lost/{place}"] = eviction.lost
    routes = [Route(path, handler, methods=["GET"]) for path, handler in get_routes.items()]
    routes += [
        Route("/api/1/run", model.run, methods=["POST"]),
        Route("/api/1/generate", model.generate, methods=["POST"]),
        Route("/api/1/ablate", model.ablate, methods=["POST"]),
        Route("/api/1/ablate_each", model.ablate_each, methods=["POST"]),
        Route("/api/1/survey/read", survey.read, methods=["POST"]),
        Route("/api/1/watch/open", watch.open, methods=["POST"]),
    ]
    http_error = import_extra("starlette.exceptions").HTTPException
    app = import_extra("starlette.applications").Starlette(
        routes=routes,
        exception_handlers={
            RequestError: lambda _, error: error_response(error.message, error.status),
            BusyError: lambda _, error: error_response(str(error), 429),
            Cancelled: lambda _, error: error_response(str(error), 503),
            AttnScopeError: lambda _, error: error_response(" ".join(str(error).split()), 400),
            ClientDisconnected: lambda *_: error_response("The client disconnected.", 503),
            http_error: lambda _, error: error_response(
                NOT_FOUND if error.status_code == 404 else error.detail, error.status_code
            ),
            Exception: lambda *_: error_response(INTERNAL_ERROR, 500),
        },
    )
    app.router.redirect_slashes = False
    return app


def _page_routes(traces: TraceHandlers, survey: SurveyHandlers, watch: WatchHandlers) -> dict[str, Handler]:
    """Routes of pages, session, survey and watched run; they precede those of traces, which would match them too."""
    return {
        **dict.fromkeys(PAGE_PATHS, traces.page),
        "/api/1/session": traces.session,
        "/api/1/survey/about": survey.about,
        "/api/1/survey/histograms": survey.histograms,
        "/api/1/survey/{layer}/{head}": survey.head,
        "/api/1/watch/about": watch.about,
        "/api/1/watch/table": watch.table,
        "/api/1/watch/heads/{row}": watch.head,
    }


def _image_routes(images: ImageHandlers) -> dict[str, Handler]:
    """Routes of the images of a trace."""
    return {
        "/api/1/{trace}/photo": images.photo,
        "/api/1/{trace}/{layer}/patches": images.patches,
        "/api/1/{trace}/{layer}/picture": images.picture,
        "/api/1/{trace}/{layer}/sinks": images.sinks,
    }


def _trace_routes(
    traces: TraceHandlers, text: TextHandlers, layers: LayerHandlers, export: ExportHandlers
) -> dict[str, Handler]:
    """Routes of a trace, its layers and its heads."""
    trace, head = "/api/1/{trace}", "/api/1/{trace}/{layer}/{head}"
    return {
        f"{trace}/meta": traces.meta,
        f"{trace}/find_heads": layers.find_heads,
        f"{trace}/opening": layers.opening,
        f"{trace}/{{layer}}/tokens": traces.tokens,
        f"{trace}/{{layer}}/sections": traces.sections,
        f"{trace}/{{layer}}/find": traces.find,
        f"{trace}/{{layer}}/text": text.text,
        f"{trace}/{{layer}}/words": text.words,
        f"{trace}/{{layer}}/thumbs": layers.thumbs,
        f"{trace}/{{layer}}/heads": layers.heads,
        f"{head}/status": traces.status,
        f"{head}/cells": traces.cells,
        f"{head}/profile": traces.profile,
        f"{head}/why": traces.why,
        f"{head}/steps": traces.steps,
        f"{head}/preview": layers.preview,
        f"{head}/scores": traces.scores,
        f"{head}/block": text.block,
        f"{head}/page": export.page,
        f"{head}/links/{{side}}/{{place}}": text.links,
        f"{head}/row/{{place}}": traces.row,
        f"{head}/col/{{place}}": traces.column,
        f"{head}/query/{{place}}": traces.query,
        f"{head}/key/{{place}}": traces.key,
        f"{head}/marginal/{{kind}}/{{z}}/{{block}}": traces.marginal,
        f"{head}/{{z}}/{{y}}/{{x}}": traces.tile,
    }
