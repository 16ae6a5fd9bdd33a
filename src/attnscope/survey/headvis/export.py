"""`export_headvis`: a survey or a trace as the HeadVis data tree that Neuronpedia documents.

The model reads every sequence twice: first for the metrics and the largest weight of each head, which decide what is
shown, then for the patterns of the chosen sequences. The tree is written beside its final folder and renamed when it is
complete. In: a survey or a trace. Out: the folder of the tree.
Does not know: databases, viewers. Memory: the trace of one sequence, one number per head and sequence, and the
sequences of one head.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnscope.errors import SettingError
from attnscope.progress import Progress, report_progress
from attnscope.recording import Trace
from attnscope.survey.headvis.measures import HeadSums, QueryCounts, find_largest_weights, sum_heads
from attnscope.survey.headvis.sampling import (
    NUM_INTERVALS,
    PER_INTERVAL,
    PER_TOP_INTERVAL,
    Chosen,
    choose_sequences,
)
from attnscope.survey.headvis.source import (
    RecordedLayer,
    Source,
    check_places,
    find_layers,
    open_survey_source,
    open_trace_source,
)
from attnscope.survey.headvis.tree import (
    Place,
    config_file,
    head_file,
    make_folder_name,
    scatter_row,
    sequence_record,
    to_json,
)
from attnscope.survey.partials.examples import SAMPLE_SIZE
from attnscope.survey.tables.survey import Survey

PASSES = 2
MAX_SHOWN = PER_INTERVAL * (NUM_INTERVALS - 1) + PER_TOP_INTERVAL
HEAD_BYTES = 3000
"""Of the file of a head without its sequences."""


class Estimate(NamedTuple):
    """What an export takes."""

    num_heads: int
    num_sequences: int
    num_tokens: int
    num_bytes: int
    seconds: float


class Totals(NamedTuple):
    """Sums over all sequences, for the heads in `places`."""

    places: list[Place]
    sums: HeadSums
    counts: QueryCounts
    largest: NDArray[np.float64]
    """The largest weight of each head in each sequence, (sequences, heads)."""


def export_headvis(
    source: Survey | Trace,
    out: str | Path,
    *,
    model: str | Path | None = None,
    model_id: str | None = None,
    dataset: str | None = None,
    num_passages: int = SAMPLE_SIZE,
    progress: Progress | bool = True,
    on_estimate: Callable[[Estimate], object] | None = None,
) -> Path:
    """Write a survey or a trace as a HeadVis data tree.

    All numbers of the tree are those of the same sequences: the random sample of passages that a survey stores, or the
    text of a trace. A survey stores no attention patterns, so its model reads these passages again.

    Args:
        source: A survey, or a trace of one text with its token ids.
        out: The tree is written to `out/<model_id>/headvis/<dataset>`, which must not exist.
        model: Where the model of a survey is now; by default where it was when the survey ran.
        model_id: The id of the model on Neuronpedia; by default the last part of its name in lower case.
        dataset: The name of the corpus; needed for a trace, and for a survey of several files.
        num_passages: How many passages of the sample to read, at most 256.
        progress: True for a progress bar on a terminal, False for none, or a function `(done, total)` of tokens.
        on_estimate: Called with the expected time and size before the export starts.

    Returns:
        The folder of the tree.

    Raises:
        SettingError: The folder exists, a name is missing, or the model is not the one of the survey.
        UnsupportedError: The format has no place for these patterns, such as those of cross-attention.
    """
    if isinstance(source, Trace):
        if dataset is None:
            raise SettingError("export_headvis: a trace does not name its corpus; give dataset=")
        opened = open_trace_source(source, dataset=dataset)
    else:
        opened = open_survey_source(
            source, model=model, dataset=dataset, num_passages=num_passages, progress=progress is True
        )
    if on_estimate is not None:
        on_estimate(estimate(opened))
    with report_progress(progress, "recording") as report:
        return write_tree(opened, out, model_id=model_id, progress=report)


def estimate(source: Source) -> Estimate:
    """Estimate time and size, by recording the first sequence on this machine."""
    record_sums(source, 0)  # the first pass starts kernels
    start = time.perf_counter()
    layers, _, _ = record_sums(source, 0)
    seconds = time.perf_counter() - start
    trace, tokens = source.record(0), source.read_texts(0)
    patterns = [find_largest_weights(trace[layer.name].batch(0).head(0)) for layer in layers]
    rows = [sequence_record(Chosen(1, 0), tokens, pattern, 0.0) for pattern in patterns]
    mean_bytes = sum(len(to_json(row)) for row in rows) / len(rows)
    num_tokens, first = sum(map(len, source.sequences)), len(source.sequences[0])
    shown = min(MAX_SHOWN, len(source.sequences)) * num_tokens / len(source.sequences) / first
    num_heads = sum(layer.num_heads for layer in layers)
    return Estimate(
        num_heads=num_heads,
        num_sequences=len(source.sequences),
        num_tokens=num_tokens,
        num_bytes=round(num_heads * (HEAD_BYTES + shown * mean_bytes)),
        seconds=PASSES * seconds * num_tokens / first,
    )


def write_tree(source: Source, out: str | Path, *, model_id: str | None, progress: Progress) -> Path:
    """Record all sequences, and write the tree; nothing is left if that fails."""
    name = make_folder_name((model_id or source.model_name.rpartition("/")[2].lower()).replace("/", "-"))
    target = Path(out) / name / "headvis" / make_folder_name(source.dataset_name)
    unfinished = target.with_name(f".{target.name}.part")
    for folder in (target, unfinished):
        if folder.exists():
            raise SettingError(f"headvis: {folder} exists; remove it, or give another folder")
    unfinished.mkdir(parents=True)
    try:
        totals = sum_sequences(source, progress)
        _write_heads(source, totals, unfinished, progress)
        _write_json(unfinished / "server_config.json", {})
        (unfinished / "attributions").mkdir()
        _write_json(unfinished / "attributions" / "manifest.json", {})
        rows = [
            scatter_row(place, HeadSums(*(sums[head] for sums in totals.sums)), totals.counts)
            for head, place in enumerate(totals.places)
        ]
        _write_json(unfinished / "scatter_data.json", rows)
        _write_json(unfinished / "config.json", config_file(source, totals.places, name))
        unfinished.rename(target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return target


def record_sums(source: Source, number: int) -> tuple[list[RecordedLayer], HeadSums, NDArray[np.float64]]:
    """Record a sequence: its layers, the sums of all heads, and the largest weight of each."""
    ids, trace = source.sequences[number], source.record(number)
    layers = find_layers(trace, len(ids))
    if source.num_layers is not None and layers[-1].number >= source.num_layers:
        raise SettingError(
            f"headvis: {layers[-1].name} is beyond the {source.num_layers} layers that the config of the model states"
        )
    found = [sum_heads(trace[layer.name].batch(0), ids) for layer in layers]
    sums = HeadSums(*map(np.concatenate, zip(*(sums for sums, _ in found), strict=True)))
    return layers, sums, np.concatenate([largest for _, largest in found])


def sum_sequences(source: Source, progress: Progress) -> Totals:
    """Record every sequence, and sum the metrics of all heads."""
    total, done = PASSES * sum(map(len, source.sequences)), 0
    layers, sums, largest = list[RecordedLayer](), HeadSums(*[np.zeros(0)] * len(HeadSums._fields)), []
    progress(0, total)
    for number, ids in enumerate(source.sequences):
        found, own_sums, own_largest = record_sums(source, number)
        if number == 0:
            layers, sums = found, own_sums
        else:
            check_places(found, layers)
            sums = HeadSums(*map(np.add, sums, own_sums))
        largest.append(own_largest)
        done += len(ids)
        progress(done, total)
    places = [(layer.number, head) for layer in layers for head in range(layer.num_heads)]
    counts = QueryCounts(*map(sum, zip(*map(QueryCounts.of, source.sequences), strict=True)))
    return Totals(places, sums, counts, np.stack(largest))


def _write_heads(source: Source, totals: Totals, folder: Path, progress: Progress) -> None:
    """Record the chosen sequences again, and write the file of each head."""
    heads, rows = folder / "heads", folder / "rows"
    heads.mkdir()
    rows.mkdir()
    chosen = [choose_sequences(totals.largest[:, head]) for head in range(len(totals.places))]
    _write_rows(source, totals, chosen, rows, progress)
    for head, place in enumerate(totals.places):
        path = rows / _file_name(place, "jsonl")
        records = {found["sequence_id"]: found for found in map(json.loads, path.read_text("utf-8").splitlines())}
        sequences = [records[one.sequence] for one in chosen[head]]
        _write_json(heads / _file_name(place, "json"), head_file(sequences, totals.largest[:, head]))
        path.unlink()
    rows.rmdir()


def _write_rows(source: Source, totals: Totals, chosen: list[list[Chosen]], folder: Path, progress: Progress) -> None:
    """Append each chosen sequence of each head to the file of the head, in the order of the sequences."""
    num_tokens, done = sum(map(len, source.sequences)), 0
    for number, ids in enumerate(source.sequences):
        wanted = {
            totals.places[head]: (one, float(totals.largest[number, head]))
            for head, some in enumerate(chosen)
            for one in some
            if one.sequence == number
        }
        if wanted:
            trace, tokens = source.record(number), source.read_texts(number)
            names = {layer.number: layer.name for layer in find_layers(trace, len(ids))}
            for place, (one, largest) in wanted.items():
                pattern = find_largest_weights(trace[names[place[0]]].batch(0).head(place[1]))
                with (folder / _file_name(place, "jsonl")).open("a", encoding="utf-8") as file:
                    file.write(to_json(sequence_record(one, tokens, pattern, largest)) + "\n")
        done += len(ids)
        progress(num_tokens + done, PASSES * num_tokens)


def _file_name(place: Place, suffix: str) -> str:
    return f"L{place[0]}H{place[1]}.{suffix}"


def _write_json(path: Path, content: Any) -> None:
    path.write_text(to_json(content) + "\n", encoding="utf-8")
