"""Published sites: what writing one costs, how fast a browser shows it, and how many requests a web server answers.

Needs nginx, Chromium and wrk, and Caddy for one row; each is found on this machine or its rows say that it is missing.
All servers listen on the loopback interface, and all load stops by itself. In: the model of the full size is SmolLM2,
that of the small size has random parameters.
"""

from __future__ import annotations

import os
import pydoc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch

from attnscope.atlas import ZoomPlan
from attnscope.bench import Size
from attnscope.bench.report import Table, duration
from attnscope.errors import SettingError
from attnscope.explorer.static_site.plan import select_heads
from attnscope.formatting import format_bytes
from attnscope.labs import reference_text
from attnscope.models import Decoder
from attnscope.recording import load, open_trace, read
from attnscope.recording.layers.recorded import Layer
from benchmarks.peers import SMOLLM2, find_model
from benchmarks.publish_cost import CHANNELS, SiteShape, count_bins
from benchmarks.publishing import web_servers
from benchmarks.publishing.exact_values import Comparison, compare, wait_for_levels
from benchmarks.publishing.load import Load, Target, generate_load
from benchmarks.publishing.publication import (
    WORKERS,
    Publication,
    count_bytes,
    is_tile,
    publish,
    read_indexes,
    tile_targets,
)
from benchmarks.publishing.viewer import (
    LATENCY_MS,
    AccessLog,
    Cost,
    HeadId,
    chromium,
    find_chromium,
    measure_minute,
    measure_opening,
    measure_step,
    open_site,
    viewer_steps,
)
from benchmarks.publishing.web_servers import find_programs

CONNECTIONS = 256
LIVE_CONNECTIONS = 64  # the limit of the explorer


class Plan(NamedTuple):
    """What is measured."""

    tokens: int
    load_seconds: int
    minute_seconds: float
    opens: int
    compared_heads: int
    blocks: int
    """Blocks of single weights that are compared per head."""


class Trial(NamedTuple):
    """A trace, and the site of it."""

    trace: Path
    site: Path
    heads: list[HeadId]
    length: int
    shape: SiteShape
    publication: Publication
    busy: float
    """The load average before publishing: other work makes times longer."""


SMALL = Plan(tokens=2304, load_seconds=2, minute_seconds=6.0, opens=1, compared_heads=2, blocks=2)
FULL = Plan(tokens=8192, load_seconds=60, minute_seconds=60.0, opens=3, compared_heads=30, blocks=8)


def tables(
    size: Size,
    step: Callable[[str], None],
    model: str | None = None,
    data: Sequence[str] = (),
    tokens: int | None = None,
    heads: str = "",
    seconds: int | None = None,
) -> Iterator[Table]:
    """Publish heads of a text, view the site, compare it with the explorer, and load both.

    Args:
        size: How much is measured, where no other argument says it.
        step: Called with what comes next.
        model: The model that reads the text.
        data: A saved trace to publish instead.
        tokens: The length of the text.
        heads: The heads to publish; all of them by default.
        seconds: How long each web server is loaded.
    """
    plan = size.choose(small=SMALL, full=FULL)
    plan = plan._replace(tokens=tokens or plan.tokens, load_seconds=seconds or plan.load_seconds)
    if len(data) > 1 or (data and (model or tokens)):
        raise SettingError("publish: expected one saved trace, without a model and a number of tokens")
    with TemporaryDirectory() as place:
        folder = Path(place)
        if data:
            trace, about = Path(data[0]), f"The saved trace {Path(data[0]).name}"
        else:
            source = find_model((model,) if model else size.choose(small=(), full=SMOLLM2), folder, step)
            step(f"recording {plan.tokens:,} tokens")
            trace, about = record_text(source, plan.tokens, folder / "trace"), describe_text(source)
        trial = publish_trace(trace, folder, step, heads)
        yield publishing_table(trial, about)
        yield from view(trial, plan, folder, step)
        yield load_table(trial, plan, folder, step)


def record_text(source: Path, length: int, folder: Path, *, num_layers: int | None = None) -> Path:
    """Record the first `length` tokens of help() and save the trace; `num_layers` leaves out all later layers."""
    model, tokenizer = load(source, dtype=torch.float32)
    text = reference_text() + pydoc.plain(pydoc.render_doc("builtins"))
    ids = tokenizer.encode(text[: 64 * length])[:length]
    if num_layers is not None:  # what the first layers compute does not depend on the later ones
        assert isinstance(model, Decoder)
        model.blocks, model.config = model.blocks[:num_layers], replace(model.config, num_layers=num_layers)
    read(model, ids, tokenizer, progress=False).save(folder)
    return folder


def describe_text(source: Path) -> str:
    """Name a model and the text that it has read."""
    return f"{source.name} in float32 and Python's help()"


def publish_trace(folder: Path, place: Path, step: Callable[[str], None], names: str = "") -> Trial:
    """Publish heads of a saved trace; all of them without names."""
    trace = open_trace(folder)
    heads = select_heads(trace, [name for name in names.split(",") if name])
    first = trace.layer(0)
    assert isinstance(first, Layer)
    call = first.merge_calls()
    _, num_heads, length, head_dim = call.query.shape
    shape = SiteShape(len(trace), num_heads, call.key.shape[1], head_dim, call.query.element_size())
    step(f"publishing {len(heads):,} heads of {length:,} tokens")
    busy = os.getloadavg()[0]
    publication = publish(folder, place / "site", names, place)
    return Trial(folder, place / "site", heads, length, shape, publication, busy)


def publishing_table(trial: Trial, text: str) -> Table:
    """What publishing took, and what is in the site."""
    found, parts, heads = trial.publication, count_bytes(trial.site), len(trial.heads)
    table = Table(
        title=f"Publishing {trial.length:,} tokens",
        comparison=f"{text}, {trial.length:,} tokens: {heads:,} heads by `attnscope publish --workers {WORKERS}`.",
        columns=("what", "measured"),
    )
    table.add("load average of the machine before", f"{trial.busy:.1f} on {os.cpu_count()} cores")
    table.add("time", duration(found.seconds))
    table.add("CPU time", duration(found.cpu_seconds))
    table.add("CPU time per head", duration(found.cpu_seconds / heads))
    table.add("peak private memory of all processes", format_bytes(found.private_bytes))
    table.add("peak memory of one process with mapped pages of the trace", format_bytes(found.resident_bytes))
    table.add("site", f"{format_bytes(found.num_bytes)} in {found.num_files:,} files")
    table.add("per head", format_bytes(found.num_bytes / heads))
    table.add("tiles", f"{format_bytes(parts.tiles)}, {len(tile_targets(trial.site)):,} different ones")
    bins = CHANNELS * count_bins(trial.length) * heads
    table.add("per bin of a stored tile", f"{parts.tiles / bins:.3f} bytes")
    table.add("queries and keys", format_bytes(parts.queries_and_keys))
    table.add("numbers per token", format_bytes(parts.numbers))
    table.add("statistics, texts, indexes, scripts", format_bytes(parts.rest))
    return table


def view(trial: Trial, plan: Plan, folder: Path, step: Callable[[str], None]) -> Iterator[Table]:
    """View the site in Chromium, served by nginx, and compare it with the live explorer."""
    title = f"Viewing {trial.length:,} tokens"
    missing = [*find_programs("nginx"), *([] if find_chromium() else ["chromium"])]
    if missing:
        yield missing_table(title, missing)
        return
    log = folder / "access.log"
    with ExitStack() as stack:
        url = stack.enter_context(web_servers.nginx(trial.site, folder, log=log))
        browser = stack.enter_context(chromium())
        heads = viewed_heads(trial.heads)
        steps, reader = viewer_steps(trial.length, heads), AccessLog(log)
        costs: dict[str, list[Cost]] = {}
        for number in range(plan.opens):
            step(f"viewing, round {number + 1} of {plan.opens}")
            with open_site(browser, url, heads[0]) as page:
                costs.setdefault("first heatmap", []).append(measure_opening(page, reader))
                for one in steps:
                    costs.setdefault(one.name, []).append(measure_step(page, reader, one))
        step("a minute of a viewer")
        with open_site(browser, url, heads[0]) as page:
            minute = measure_minute(page, reader, steps, plan.minute_seconds)
        yield viewing_table(title, costs, minute, plan, browser.version)
        step("comparing exact values")
        live = stack.enter_context(web_servers.explorer(folder, "explore", str(trial.trace)))
        with open_site(browser, url, heads[0], latency_ms=0) as page:
            yield exact_table(
                compare(page, live, spread(trial.heads, plan.compared_heads), trial.length, plan.blocks), trial
            )


def viewed_heads(heads: Sequence[HeadId]) -> list[HeadId]:
    """A head in the middle, one of its layer if there is one, and two of other layers."""
    first = heads[len(heads) // 2]
    same = [head for head in heads if head[0] == first[0] and head != first]
    other = [head for head in heads if head[0] != first[0]]
    return [first, *same[:1], *other[:1], *other[-1:]]


def spread(heads: Sequence[HeadId], count: int) -> list[HeadId]:
    """At most `count` heads, evenly spread.

    >>> spread([(0, head) for head in range(9)], 3)
    [(0, 0), (0, 3), (0, 6)]
    """
    count = min(count, len(heads))
    return [heads[at * len(heads) // count] for at in range(count)]


def viewing_table(title: str, costs: dict[str, list[Cost]], minute: Cost, plan: Plan, version: str) -> Table:
    """The cost of each step."""
    table = Table(
        title=title,
        comparison=f"Chromium {version} with {LATENCY_MS} ms of latency added by its network emulation, nginx on the "
        f"same machine, HTTP/1.1, an empty cache in each of {plan.opens} rounds. Time until the heatmap is complete: "
        "the fastest and the slowest round; after the first one, from a change of the state of the page, as by a link. "
        "Requests and bytes until the server has logged nothing for 0.7 s: the most of all rounds. The last row is all "
        f"steps in {plan.minute_seconds:.0f} s, at an even pace.",
        columns=("step", "time", "requests", "bytes"),
    )
    for name, some in costs.items():
        times = [cost.seconds for cost in some if cost.seconds is not None]
        slowest = max(some, key=lambda cost: cost.requests)
        table.add(name, format_range(times), f"{slowest.requests:,}", format_bytes(max(c.num_bytes for c in some)))
    table.add(f"{plan.minute_seconds:.0f} s of a viewer", "-", f"{minute.requests:,}", format_bytes(minute.num_bytes))
    return table


def format_range(seconds: Sequence[float]) -> str:
    """The shortest and the longest time.

    >>> format_range([0.41, 0.534]), format_range([2.0]), format_range([])
    ('0.41-0.53 s', '2.00 s', '-')
    """
    if not seconds:
        return "-"
    ends = [f"{end:.2f}" for end in (min(seconds), max(seconds))]
    return f"{'-'.join(dict.fromkeys(ends))} s"


def exact_table(found: Comparison, trial: Trial) -> Table:
    """How far the site and the explorer differ."""
    table = Table(
        title=f"Deepest zoom of {trial.length:,} tokens",
        comparison="Weights of blocks of 64 x 64 cells, below the diagonal and on it, and colour codes of tiles of the "
        "deepest level. The browser computes them from queries and keys; the running explorer computes them in torch.",
        columns=("what", "compared", "different", "largest difference"),
    )
    relative = f"{found.largest_difference:.1e}, {found.largest_relative:.1e} of the weight"
    table.add("weights", f"{found.weights:,}", "-", relative)
    table.add("masked cells of the blocks", "-", f"{found.masks_differ:,}", "-")
    table.add(
        "colour codes", f"{found.codes:,}", f"{found.different_codes:,}", f"{found.largest_code_difference} of 255"
    )
    return table


def load_table(trial: Trial, plan: Plan, folder: Path, step: Callable[[str], None]) -> Table:
    """Requests per second of web servers and of the explorer."""
    missing = find_programs("wrk")
    if missing:
        return missing_table("Load", missing)
    table = Table(
        title="Load",
        comparison=f"wrk with 2 threads for {plan.load_seconds} s on the same machine. Static: range requests of "
        f"random stored tiles of all {len(trial.heads):,} heads. Explorer: the same levels of one head, after they are "
        f"built. The explorer accepts {LIVE_CONNECTIONS} connections; wrk opens others again and again. Latencies are "
        "those of all responses. Socket errors are closed connections and responses after 2 s.",
        columns=(
            *("server", "connections", "successful responses per second", "error responses", "socket errors"),
            *("median", "99%", "received per second"),
        ),
    )
    targets = tile_targets(trial.site)
    for name, serve in (("nginx", web_servers.nginx), ("caddy", web_servers.caddy)):
        if find_programs(name):
            table.add(name, "not measured: not on this machine", *["-"] * 6)
            continue
        step(f"load on {name}")
        with serve(trial.site, folder) as url:
            found = generate_load(url, targets, folder, connections=CONNECTIONS, seconds=plan.load_seconds)
            table.add(*load_row(name, CONNECTIONS, found))
    head = trial.heads[0]
    with web_servers.explorer(folder, "explore", str(trial.trace)) as live:
        step("building the levels of a head")
        path = wait_for_levels(live, head, ZoomPlan(trial.length, trial.length))
        own = live_targets(trial, head, path, live.token)
        for connections in (CONNECTIONS, LIVE_CONNECTIONS):
            step(f"load on the explorer, {connections} connections")
            found = generate_load(live.base, own, folder, connections=connections, seconds=plan.load_seconds)
            table.add(*load_row("attnscope explore", connections, found))
    return table


def live_targets(trial: Trial, head: HeadId, path: str, token: str) -> list[Target]:
    """The tiles of a head that the site stores, as requests of the explorer."""
    stored = read_indexes(trial.site)[head[0]]["heads"][str(head[1])]["responses"]
    names = sorted(name for name, place in stored.items() if place and is_tile(name))
    return [Target(f"{path}/{name}", "Authorization", f"Bearer {token}") for name in names]


def load_row(name: str, connections: int, found: Load) -> tuple[str, ...]:
    """The cells of one run."""
    return (
        *(name, f"{connections}", f"{found.per_second:,.0f}", f"{found.error_responses:,}", f"{found.socket_errors:,}"),
        *(duration(found.p50_ms / 1e3), duration(found.p99_ms / 1e3)),
        format_bytes(found.num_bytes / found.microseconds * 1e6),
    )


def missing_table(title: str, names: Sequence[str]) -> Table:
    """Says what is missing."""
    table = Table(title=title, comparison="Not measured.", columns=("missing program", "Debian package"))
    for name in names:
        table.add(name, name)
    return table
