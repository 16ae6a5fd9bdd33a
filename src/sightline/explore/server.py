"""Every address of the explorer, behind its guard.

In: a library, and a stage where sentences can be typed. Out: an ASGI app. The files of the page are read when it is
made: no address becomes a path. Does not know: what is answered, how it is served. Memory: the files of the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sightline.errors import Cancelled, SettingError, SightlineError
from sightline.explore.answers import ASSETS, Answers
from sightline.explore.exchange import NOTHING_HERE, WENT_WRONG, said
from sightline.explore.guard import Guard, Refused, Settings
from sightline.explore.library import Library
from sightline.explore.live import Busy, Stage
from sightline.explore.typed import Typing
from sightline.explore.work import Gone, Work
from sightline.extras import import_extra

if TYPE_CHECKING:
    from starlette.applications import Starlette

STATIC = Path(__file__).parent / "static"


def make_app(
    library: Library,
    stage: Stage | None,
    settings: Settings,
    work: Work,
    *,
    assets: Mapping[str, bytes] | None = None,
) -> Guard:
    """The app behind its guard; `assets` stand in for the files of the page."""
    files = read_assets() if assets is None else assets
    return Guard(routed(Answers(library, stage, work, files), Typing(library, stage, work)), settings)


def read_assets(folder: Path = STATIC) -> dict[str, bytes]:
    """The files of the page, by name."""
    missing = [name for name in ASSETS if not (folder / name).is_file()]
    if missing:
        raise SettingError(
            f"explore: the page is not built: {folder} has no {', '.join(missing)}. In a checkout, build it in the "
            "folder web with: npm ci && node build.mjs"
        )
    return {name: (folder / name).read_bytes() for name in ASSETS}


def routed(answers: Answers, typing: Typing) -> Starlette:
    """Every address and what answers there."""
    Route = import_extra("starlette.routing").Route
    trace, head = "/api/1/{trace}", "/api/1/{trace}/{layer}/{head}"
    paths = {
        "/": answers.page,
        "/explorer.js": answers.page,
        "/explorer.css": answers.page,
        "/api/1/session": answers.session,
        f"{trace}/meta": answers.meta,
        f"{trace}/{{layer}}/tokens": answers.tokens,
        f"{trace}/{{layer}}/sections": answers.sections,
        f"{trace}/{{layer}}/find": answers.find,
        f"{head}/status": answers.status,
        f"{head}/cells": answers.cells,
        f"{head}/profile": answers.profile,
        f"{head}/scores": answers.scores,
        f"{head}/row/{{place}}": answers.row,
        f"{head}/col/{{place}}": answers.column,
        f"{head}/query/{{place}}": answers.query,
        f"{head}/key/{{place}}": answers.key,
        f"{head}/marginal/{{kind}}/{{z}}/{{block}}": answers.marginal,
        f"{head}/{{z}}/{{y}}/{{x}}": answers.tile,
    }
    routes = [Route(path, answer, methods=["GET"]) for path, answer in paths.items()]
    routes += [
        Route("/api/1/run", typing.run, methods=["POST"]),
        Route("/api/1/generate", typing.generate, methods=["POST"]),
    ]
    wrong = import_extra("starlette.exceptions").HTTPException
    app = import_extra("starlette.applications").Starlette(
        routes=routes,
        exception_handlers={
            Refused: lambda _, refused: said(refused.sentence, refused.status),
            Busy: lambda _, busy: said(str(busy), 429),
            Cancelled: lambda _, cancelled: said(str(cancelled), 503),
            SightlineError: lambda _, error: said(" ".join(str(error).split()), 400),
            Gone: lambda *_: said("Nobody waits for this.", 503),
            wrong: lambda _, error: said(NOTHING_HERE if error.status_code == 404 else error.detail, error.status_code),
            Exception: lambda *_: said(WENT_WRONG, 500),
        },
    )
    app.router.redirect_slashes = False
    return app
