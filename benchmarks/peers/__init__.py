"""Compare AttnScope with other libraries on one model and text: time, memory, and the longest sequence that works.

Each library is installed into its own virtual environment in the user's cache, and each point is measured in a fresh
process with a memory limit. Without `--model`, the small size uses random parameters, and the full size uses
SmolLM2-135M-Instruct: the 4-bit checkpoint of a checkout, else the model on the hub.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from attnscope.bench import Size
from attnscope.bench.report import Table
from attnscope.downloads import MODELS
from attnscope.errors import SettingError
from attnscope.labs import reference_text
from attnscope.models import Decoder, load_tokenizer, save, train_bpe
from attnscope.models.checkpoint.source import locate
from attnscope.models.published_configs import DECODERS
from benchmarks.peers import costs, pages
from benchmarks.peers.environments import NotInstalledError, cache_folder, python_with, versions_in
from benchmarks.peers.libraries import LIBRARIES, METHODS, PAGES, Library, Method, Page
from benchmarks.peers.saved_points import SavedPoints

SMOLLM2 = (".cache/models/smollm2-135m", MODELS["smollm2-135m"].hub_name)
"""Where the model of the full size is looked for: in a checkout, then on the hub."""
PAGE_LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
VOCABULARY = 2048
SHARPER = 4.0  # factor on the query, key and value projections
SHARE = 0.75  # of the machine's memory, the limit for one point


def tables(
    size: Size,
    step: Callable[[str], None],
    model: str | None = None,
    memory: float | None = None,
    points: SavedPoints | None = None,
    only: Sequence[str] = (),
) -> Iterator[Table]:
    """Measure versions, time, memory and pages of all libraries.

    Args:
        size: The sequence lengths, and the model if none is given.
        step: Called with a description of the next measurement.
        model: Folder or hub name of the model for all libraries.
        memory: The limit for one point, in GiB.
        points: Where measured points are kept.
        only: The names of the libraries to measure; all of them by default.
    """
    if unknown := set(only) - {library.name for library in LIBRARIES}:
        names = ", ".join(library.name for library in LIBRARIES)
        raise SettingError(f"peers: unknown library {', '.join(sorted(unknown))}; expected some of {names}")
    points = points or SavedPoints()
    lengths = size.choose(small=(64, 128), full=PAGE_LENGTHS[2:])
    page_lengths = size.choose(small=PAGE_LENGTHS[:1], full=PAGE_LENGTHS)
    limit = machine_memory() * SHARE if memory is None else memory * 2**30
    if limit <= 0:
        raise SettingError(f"peers: expected a memory limit above 0 GiB, got --memory {memory}")
    folder = cache_folder()
    pythons, failures = install(LIBRARIES, folder, step)
    with TemporaryDirectory() as place:
        source = find_model((model,) if model else size.choose(small=(), full=SMOLLM2), Path(place), step)
        text = Path(place) / "text.json"
        write_text(source, max(*lengths, *page_lengths), text)
        found = {library.name: versions_in(python).get(library.package) for library, python in pythons.items()}
        points.check({"model": source.name, "size": size, "memory": limit, "versions": found})
        bench = costs.Bench(model=source, text=text, memory=limit, pythons=pythons, points=points)
        methods = [method for method in METHODS if not only or method.library.name in only]
        shown = [page for page in PAGES if not only or page.library.name in only]
        yield from compare(methods, shown, lengths, page_lengths, bench, step, folder, failures)


def compare(
    methods: Sequence[Method],
    shown_pages: Sequence[Page],
    lengths: Sequence[int],
    page_lengths: Sequence[int],
    bench: costs.Bench,
    step: Callable[[str], None],
    folder: Path,
    failures: Mapping[Library, str],
) -> Iterator[Table]:
    """Measure these methods and pages; yield all tables."""
    about = f"{bench.model.name}, float32, English text."
    outcomes = costs.measure(methods, lengths, bench, step)
    yield versions(bench.pythons, failures)
    yield costs.times(outcomes, lengths, about)
    yield costs.memories(outcomes, lengths, about, bench.memory)
    shown = pages.measure(shown_pages, page_lengths, bench, folder, step)
    yield pages.table(shown, about, bench.memory)


def install(
    libraries: Sequence[Library], folder: Path, step: Callable[[str], None]
) -> tuple[dict[Library, Path], dict[Library, str]]:
    """Install the libraries; return the Python of each, and the reasons where it failed."""
    pythons, failures = {}, {}
    for library in libraries:
        step(f"installing {library.name} into {folder}")
        try:
            pythons[library] = python_with(library.requirements, folder / library.name.lower())
        except NotInstalledError as error:
            failures[library] = str(error)
    return pythons, failures


def versions(pythons: Mapping[Library, Path], failures: Mapping[Library, str]) -> Table:
    """Return the table of installed versions."""
    table = Table(
        title="versions",
        comparison="Each library as pip installs it today, in its own virtual environment, with the same torch.",
        columns=("library", "version", "transformers", "torch"),
    )
    for library, python in pythons.items():
        found = versions_in(python)
        table.add(library.name, *(found.get(name, "-") for name in (library.package, "transformers", "torch")))
    for library, why in failures.items():
        table.add(library.name, why, "-", "-")
    return table


def find_model(places: Sequence[str], folder: Path, step: Callable[[str], None]) -> Path:
    """Return the folder of the model: the first of `places` that exists, or a new one with random parameters."""
    if places:
        step("finding the model")
        return locate(next((place for place in places if Path(place).expanduser().is_dir()), places[-1])).absolute()
    step("initializing parameters")
    shape = replace(
        DECODERS["smollm2-135m"],
        vocab_size=VOCABULARY, hidden_size=64, num_layers=2, num_heads=4, num_kv_heads=2, intermediate_size=128,
        max_position_embeddings=1024,
    )  # fmt: skip
    path = folder / "two layers with random parameters"
    model = Decoder(shape)
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # with uniform weights, all methods would agree
            if name.endswith("query_key_value.weight"):
                parameter.mul_(SHARPER)
    save(model, path)
    train_bpe([reference_text()[:100_000]], VOCABULARY).save(path)
    return path


def write_text(model: Path, length: int, file: Path) -> None:
    """Write the ids and texts of the first tokens of an English text."""
    tokenizer = load_tokenizer(model)
    ids = tokenizer.encode(reference_text()[: 64 * length], add_special_tokens=False)[:length]
    if len(ids) < length:
        raise SettingError(f"peers: expected a text of {length:,} tokens, got {len(ids):,} with this tokenizer")
    file.write_text(json.dumps({"ids": ids, "texts": tokenizer.texts(ids)}), encoding="utf-8")


def machine_memory() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
