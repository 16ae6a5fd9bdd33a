"""Handlers of images: photos, where patches are, and maps over them.

In: requests that passed the guard. Out: PNG and JSON. Does not know: how anything is computed. Memory: one response.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attnscope.explorer.analysis import image_maps
from attnscope.explorer.analysis.png import encode_png
from attnscope.explorer.cancellation import CancelCheck
from attnscope.explorer.handlers.base import LONG, Handlers, query_range
from attnscope.explorer.library.library import Entry
from attnscope.explorer.service.guard import RequestError
from attnscope.explorer.service.http import query_choice, query_int, respond, to_json
from attnscope.images import ImageAttention

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

PNG = "image/png"
MAX_PHOTO_SIDE = 2048
MAX_POSITIONS = 256  # of one map
QUICK_KINDS = ("query", "key")


class ImageHandlers(Handlers):
    """Routes of images."""

    async def photo(self, request: Request) -> Response:
        """The photo of an image."""
        entry, image = self.entry(request), _image(request)
        photo = entry.trace.photos.get(image)
        if photo is None:
            raise RequestError(404, f"This trace has no photo of image {image}.")
        body = await self.run_quick(request, lambda: encode_png(photo.pixels, MAX_PHOTO_SIDE))
        return respond(request, body, PNG)

    async def patches(self, request: Request) -> Response:
        """Where the patches of an image are in a layer."""
        entry, layer = self.layer(request)
        image = _image(request)
        name = _require_layer(entry, layer, image)
        return await self.respond_quick(
            request, lambda: image_maps.patches(image_maps.open_image(entry.trace, image), name)
        )

    async def picture(self, request: Request) -> Response:
        """A map over the patches for all heads of a layer."""
        entry, layer = self.layer(request)
        kind = query_choice(request, "of", *image_maps.KINDS)
        shape = entry.layer(layer).shape
        positions = query_range(request, "p0", "p1", shape[3 if kind == "key" else 2])
        if kind != "received" and positions is None:
            raise RequestError(400, f"Expected positions p0 and p1 of a map of kind {kind}.")
        if positions is not None and len(positions) > MAX_POSITIONS:
            raise RequestError(400, f"Expected at most {MAX_POSITIONS} positions, got {len(positions):,}.")

        def make(image: ImageAttention, name: str) -> dict[str, Any]:
            return image_maps.make_map(image, name, kind, positions)

        return await self._compute(request, make, slow=kind not in QUICK_KINDS or shape[2] > LONG)

    async def sinks(self, request: Request) -> Response:
        """The positions of a layer that receive most attention."""
        return await self._compute(request, image_maps.list_sinks, slow=True)

    async def _compute(
        self, request: Request, make: Callable[[ImageAttention, str], object], *, slow: bool
    ) -> Response:
        """Respond with something about an image in a layer; `slow` for passes over all weights."""
        entry, layer = self.layer(request)
        image = _image(request)
        name = _require_layer(entry, layer, image)

        def compute(cancelled: CancelCheck) -> bytes:
            return to_json(make(image_maps.open_image(entry.trace, image, cancelled), name))

        if slow:
            return respond(request, await self.run_slow(request, compute))
        return respond(request, await self.run_cancellable(request, self.workers.quick, compute))


def _image(request: Request) -> int:
    return query_int(request, "image") if "image" in request.query_params else 0


def _require_layer(entry: Entry, layer: int, image: int) -> str:
    """Return the name of a layer; raises a 404 if it has no patches of the image."""
    name = entry.layer(layer).name
    if not any(one["image"] == image and layer in one["layers"] for one in entry.images):
        raise RequestError(404, f"The layer {name} has no patches of image {image}.")
    return name
