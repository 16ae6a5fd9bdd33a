"""Every address of the explorer, behind its guard.

In: a library, and a stage where sentences can be typed. Out: an ASGI app. The files of the page are read when it is
made: no address becomes a path. Does not know: what is answered, how it is served. Memory: the files of the page.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.errors import AttnScopeError, Cancelled, SettingError
from attnscope.explorer.handlers.layers import LayerHandlers
from attnscope.explorer.handlers.model import ModelHandlers
from attnscope.explorer.handlers.survey import SurveyHandlers
from attnscope.explorer.handlers.text import TextHandlers
from attnscope.explorer.handlers.traces import ASSETS, PAGES, TraceHandlers
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

    Answering = Callable[[Request], Awaitable[Response]]

STATIC = Path(__file__).parents[1] / "static"


def make_app(
    library: Library,
    stage: ModelSession | LazySession | None,
    settings: Settings,
    work: WorkerPools,
    *,
    assets: Mapping[str, bytes] | None = None,
) -> Guard:
    """The app behind its guard; `assets` stand in for the files of the page."""
    return Guard(make_router(library, stage, work, assets=assets), settings)


def read_assets(folder: Path = STATIC) -> dict[str, bytes]:
    """The files of the page, by name."""
    missing = [name for name in ASSETS if not (folder / name).is_file()]
    if missing:
        raise SettingError(
            f"explore: the page is not built: {folder} has no {', '.join(missing)}. In a checkout, build it in the "
            "folder web with: npm ci && node build.mjs"
        )
    return {name: (folder / name).read_bytes() for name in ASSETS}


def make_router(
    library: Library,
    stage: ModelSession | LazySession | None,
    work: WorkerPools,
    *,
    assets: Mapping[str, bytes] | None = None,
) -> Starlette:
    """Every address and what answers there, without a guard: for the guard, and for who asks in this process."""
    Route = import_extra("starlette.routing").Route
    files = read_assets() if assets is None else assets
    answers, saving = TraceHandlers(library, stage, work, files), ExportHandlers(library, work, files)
    passages, overview, typing = (
        TextHandlers(library, work),
        LayerHandlers(library, work),
        ModelHandlers(library, stage, work),
    )
    surveyed = SurveyHandlers(library, stage if isinstance(stage, LazySession) else None, work)
    of_traces = _of_traces(answers, passages, overview, saving)
    routes = [
        Route(path, answer, methods=["GET"]) for path, answer in (_of_pages(answers, surveyed) | of_traces).items()
    ]
    routes += [
        Route("/api/1/run", typing.run, methods=["POST"]),
        Route("/api/1/generate", typing.generate, methods=["POST"]),
        Route("/api/1/ablate", typing.ablate, methods=["POST"]),
        Route("/api/1/survey/read", surveyed.read, methods=["POST"]),
    ]
    wrong = import_extra("starlette.exceptions").HTTPException
    app = import_extra("starlette.applications").Starlette(
        routes=routes,
        exception_handlers={
            RequestError: lambda _, refused: error_response(refused.sentence, refused.status),
            BusyError: lambda _, busy: error_response(str(busy), 429),
            Cancelled: lambda _, cancelled: error_response(str(cancelled), 503),
            AttnScopeError: lambda _, error: error_response(" ".join(str(error).split()), 400),
            ClientDisconnected: lambda *_: error_response("Nobody waits for this.", 503),
            wrong: lambda _, error: error_response(
                NOT_FOUND if error.status_code == 404 else error.detail, error.status_code
            ),
            Exception: lambda *_: error_response(INTERNAL_ERROR, 500),
        },
    )
    app.router.redirect_slashes = False
    return app


def _of_pages(answers: TraceHandlers, surveyed: SurveyHandlers) -> dict[str, Answering]:
    """The files of both pages, and what there is to see. A survey is no trace, so it is asked for first."""
    return {
        **dict.fromkeys(PAGES, answers.page),
        **{f"/{name}": answers.page for name in ASSETS if name not in PAGES.values()},
        "/api/1/session": answers.session,
        "/api/1/survey/about": surveyed.about,
        "/api/1/survey/histograms": surveyed.histograms,
        "/api/1/survey/{layer}/{head}": surveyed.head,
    }


def _of_traces(
    answers: TraceHandlers, passages: TextHandlers, overview: LayerHandlers, saving: ExportHandlers
) -> dict[str, Answering]:
    """All that can be asked about a trace, its layers and its heads."""
    trace, head = "/api/1/{trace}", "/api/1/{trace}/{layer}/{head}"
    return {
        f"{trace}/meta": answers.meta,
        f"{trace}/{{layer}}/tokens": answers.tokens,
        f"{trace}/{{layer}}/sections": answers.sections,
        f"{trace}/{{layer}}/find": answers.find,
        f"{trace}/{{layer}}/text": passages.text,
        f"{trace}/{{layer}}/words": passages.words,
        f"{trace}/{{layer}}/thumbs": overview.thumbs,
        f"{trace}/{{layer}}/heads": overview.heads,
        f"{head}/status": answers.status,
        f"{head}/cells": answers.cells,
        f"{head}/profile": answers.profile,
        f"{head}/scores": answers.scores,
        f"{head}/block": passages.block,
        f"{head}/page": saving.page,
        f"{head}/links/{{side}}/{{place}}": passages.links,
        f"{head}/row/{{place}}": answers.row,
        f"{head}/col/{{place}}": answers.column,
        f"{head}/query/{{place}}": answers.query,
        f"{head}/key/{{place}}": answers.key,
        f"{head}/marginal/{{kind}}/{{z}}/{{block}}": answers.marginal,
        f"{head}/{{z}}/{{y}}/{{x}}": answers.tile,
    }
