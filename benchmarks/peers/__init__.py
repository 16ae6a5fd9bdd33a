"""Compare AttnScope with other libraries that show attention, on one model and text: cost, and where each stops.

Each is installed into an environment of its own, in the user's cache, and each point is measured in a fresh process
with a limit on its memory. Without `--model`, the small size draws weights, and the full one takes SmolLM2-135M.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pydoc_data.topics import topics
from tempfile import TemporaryDirectory

import torch

from attnscope.bench.report import Table
from attnscope.errors import SettingError
from attnscope.models import Decoder, load_tokenizer, save, train_bpe
from attnscope.models.checkpoint.source import locate
from attnscope.models.published_configs import DECODERS
from benchmarks.peers import costs, pages
from benchmarks.peers.environments import NotInstalledError, cache_folder, python_with, versions_in
from benchmarks.peers.peers import PAGES, PEERS, WAYS, Page, Peer, Way

SMOLLM2 = (".cache/models/smollm2-135m", "HuggingFaceTB/SmolLM2-135M")
VOCABULARY = 2048
SHARPER = 4.0  # than weights are drawn
SHARE = 0.75  # of the machine's memory that one point may take


@dataclass(frozen=True, kw_only=True)
class Size:
    """How far each measurement goes."""

    lengths: tuple[int, ...]
    page_lengths: tuple[int, ...]
    models: tuple[str, ...]
    """Where the model is looked for; the last one may be a name on the hub. Without any, weights are drawn."""


SIZES = {
    "small": Size(lengths=(64, 128), page_lengths=(64,), models=()),
    "full": Size(
        lengths=(256, 512, 1024, 2048, 4096, 8192),
        page_lengths=(64, 128, 256, 512, 1024, 2048, 4096, 8192),
        models=SMOLLM2,
    ),
}


def tables(
    size: str, step: Callable[[str], None], model: str | None = None, memory: float | None = None
) -> Iterator[Table]:
    """Versions, time, memory and pages of everyone; `memory` is what a point may hold, in GiB."""
    chosen = SIZES[size]
    limit = machine_memory() * SHARE if memory is None else memory * 2**30
    if limit <= 0:
        raise SettingError(f"peers: a point may hold more than nothing, got memory={memory}")
    folder = cache_folder()
    pythons, refused = installed(PEERS, folder, step)
    with TemporaryDirectory() as place:
        source = the_model(chosen, model, Path(place), step)
        text = Path(place) / "text.json"
        write_text(source, max(*chosen.lengths, *chosen.page_lengths), text)
        bench = costs.Bench(model=source, text=text, memory=limit, pythons=pythons)
        yield from compared(WAYS, PAGES, chosen, bench, step, folder, refused)


def compared(
    ways: Sequence[Way],
    looks: Sequence[Page],
    size: Size,
    bench: costs.Bench,
    step: Callable[[str], None],
    folder: Path,
    refused: Mapping[Peer, str],
) -> Iterator[Table]:
    """All tables of these ways and pages."""
    about = f"{bench.model.name}, float32, English text."
    outcomes = costs.measure(ways, size.lengths, bench, step)
    yield versions(bench.pythons, refused)
    yield costs.times(outcomes, size.lengths, about)
    yield costs.memories(outcomes, size.lengths, about, bench.memory)
    shown = pages.measure(looks, size.page_lengths, bench, folder, step)
    yield pages.table(shown, about, bench.memory)


def installed(
    peers: Sequence[Peer], folder: Path, step: Callable[[str], None]
) -> tuple[dict[Peer, Path], dict[Peer, str]]:
    """The Python of each peer, and why some have none."""
    pythons, refused = {}, {}
    for peer in peers:
        step(f"installing {peer.name} into {folder}")
        try:
            pythons[peer] = python_with(peer.requirements, folder / peer.name.lower())
        except NotInstalledError as error:
            refused[peer] = str(error)
    return pythons, refused


def versions(pythons: Mapping[Peer, Path], refused: Mapping[Peer, str]) -> Table:
    """What was installed."""
    table = Table(
        title="who was measured",
        comparison="Each peer as pip installs it today, in an environment of its own above the same torch.",
        columns=("peer", "version", "transformers", "torch"),
    )
    for peer, python in pythons.items():
        found = versions_in(python)
        table.add(peer.name, *(found.get(name, "-") for name in (peer.package, "transformers", "torch")))
    for peer, why in refused.items():
        table.add(peer.name, why, "-", "-")
    return table


def the_model(size: Size, named: str | None, place: Path, step: Callable[[str], None]) -> Path:
    """The folder of the model that everyone runs."""
    places = (named,) if named else size.models
    if places:
        step("finding the model")
        return locate(next((place for place in places if Path(place).expanduser().is_dir()), places[-1])).absolute()
    step("drawing weights")
    shape = replace(
        DECODERS["smollm2-135m"],
        vocab_size=VOCABULARY, width=64, depth=2, heads=4, key_heads=2, hidden=128, max_length=1024,
    )  # fmt: skip
    folder = place / "two layers of random weights"
    model = Decoder(shape)
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # heads that see all keys alike would agree with any others
            if name.endswith("query_key_value.weight"):
                parameter.mul_(SHARPER)
    save(model, folder)
    train_bpe([english()[:100_000]], VOCABULARY).save(folder)
    return folder


def write_text(model: Path, length: int, file: Path) -> None:
    """Ids and texts of the first tokens of an English text."""
    tokenizer = load_tokenizer(model)
    ids = tokenizer.encode(english()[: 64 * length], special=False)[:length]
    if len(ids) < length:
        raise SettingError(f"peers: the text has {len(ids):,} tokens for this model, and {length:,} are wanted")
    file.write_text(json.dumps({"ids": ids, "texts": tokenizer.texts(ids)}), encoding="utf-8")


def english() -> str:
    """The topics of Python's own help: prose that is there wherever this runs."""
    return "\n\n".join(topics[name].strip() for name in sorted(topics))


def machine_memory() -> int:
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
