"""Find where the patches of images are, from what known image models are called with.

In: a model. Out: layouts for each submodule that reads patches, while the model runs. Does not know: which models are
known (`images.known_models`). Memory: O(patches).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from attnscope.images.known_models import Layouts, find_layouts, finder_of
from attnscope.recording.hooks.coverage import is_attention
from attnscope.recording.hooks.observers import Observer, current_observers


@contextmanager
def observe_images(model: nn.Module, observer: Observer, layouts: Layouts) -> Iterator[None]:
    """Add the layouts of images to `layouts`, by submodule, while the model runs for this observer.

    The images of a second forward pass are left out, because they are not those of the first layers.
    """

    def hook(part: str, module: nn.Module) -> Callable:
        signature = inspect.signature(module.forward)

        def before(_: nn.Module, args: tuple, kwargs: dict[str, Any] | None = None) -> None:
            if observer not in current_observers():
                return
            bound = signature.bind_partial(*args, **(kwargs or {})).arguments
            for inner, found in find_layouts(module, {**bound, **bound.get("kwargs", {})}).items():
                layouts.setdefault(".".join(filter(None, (part, inner))), found)

        return before

    handles = [
        module.register_forward_pre_hook(hook(part, module), with_kwargs=True)
        for part, module in model.named_modules()
        if finder_of(module) is not None and any(map(is_attention, module.modules()))
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
