"""The cost of a survey: time per token, and scaling with text and workers.

Without `--model`, the model has the shape of SmolLM2 with random parameters, and the text consists of random words.
With `--data`, each of these files is surveyed by one process and by two workers, and the outputs are compared.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from filecmp import cmp
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch

from attnscope.bench import Size
from attnscope.bench.memory import with_peak_bytes
from attnscope.bench.report import Table, duration
from attnscope.bench.timing import race, seconds
from attnscope.errors import SettingError
from attnscope.formatting import format_bytes
from attnscope.models import Decoder, DecoderConfig, save, train_bpe
from attnscope.models.published_configs import DECODERS
from attnscope.survey import Settings, Workers, run_survey
from attnscope.survey.corpus.batches import Batch, PlacedPassage
from attnscope.survey.corpus.passages import Passage
from attnscope.survey.corpus.plan import plan_shards
from attnscope.survey.cost import Cost, Rates, cost_per_token
from attnscope.survey.execution.shard_reader import ShardReader, accumulate_batch, read_shard
from attnscope.survey.partials.accumulator import ShardAccumulator
from attnscope.survey.partials.bins import STATISTICS
from benchmarks.survey_workers import Speed, plain_speed, ray_speed

SHAPE, VOCABULARY = "smollm2-135m", 4096
BATCH = 2048  # tokens
WINDOWS = (128, 256, 512, 1024)
KNOWN = 128, 512  # the windows from which the costs of the others are predicted


class TokenSeconds(NamedTuple):
    """Seconds per token."""

    model: float
    statistics: float
    """Computed during the forward pass."""
    accumulation: float


SMALL_MODEL = DecoderConfig(
    vocab_size=VOCABULARY,
    hidden_size=64,
    num_layers=2,
    num_heads=4,
    intermediate_size=128,
    max_position_embeddings=1024,
)


def tables(
    size: Size, step: Callable[[str], None], data: Sequence[str] = (), model: str | None = None
) -> Iterator[Table]:
    """Run all measurements; yield one table each."""
    words, rounds = size.choose(small=(1000, 2), full=(1500, 5))
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as in each of several workers
    try:
        with TemporaryDirectory() as folder:
            text = Path(folder) / "words.txt"
            text.write_text(random_words(4 * words), encoding="ascii")
            if model is None:
                step("initializing parameters")
                model = str(Path(folder) / "model")
                save(Decoder(size.choose(small=SMALL_MODEL, full=DECODERS[SHAPE])), model)
                train_bpe([text.read_text("ascii")], VOCABULARY).save(model)
            for file in data:
                yield whole_file(model, Path(file), Path(folder), step)
            if not data:
                reader = ShardReader.load(Settings(model=model, sources=(str(text),)))
                yield time_per_token(reader, size.choose(small=WINDOWS[:3], full=WINDOWS), rounds, step)
                yield scaling_with_text(model, text, step)
                min_speed = size.choose(small=None, full=0.85)
                yield compare_workers(model, text, Path(folder), rounds, min_speed, step)
    finally:
        torch.set_num_threads(before)


def time_per_token(reader: ShardReader, windows: Sequence[int], rounds: int, step: Callable[[str], None]) -> Table:
    """Measure the time for the model, statistics and gathering, compared with the prediction of the cost model."""
    config = decoder_of(reader).config
    times, costs = dict[int, TokenSeconds](), dict[int, Cost]()
    for window in windows:
        step(f"passages of {window:,} tokens")
        times[window] = measure_token(reader, window, rounds)
        costs[window] = cost_per_token(config, window, len(STATISTICS))
    rates = rates_between(*((times[window], costs[window]) for window in KNOWN))
    table = Table(
        title="milliseconds per token",
        comparison=f"CPU time of one thread, {config.num_layers} layers of {config.num_heads} heads, "
        f"batches of {BATCH:,}, best of {rounds}. Predicted from the passages of {KNOWN[0]:,} and {KNOWN[1]:,}: "
        f"{rates.flops / 1e9:.3g} GFLOP/s in the model, {rates.attention_weights / 1e6:.3g} million cells/s and "
        f"{rates.binned_values / 1e6:.3g} million numbers/s.",
        columns=("passages", "model", "statistics", "gathering", "total", "predicted", "measured / predicted"),
    )
    for window, spent in times.items():
        predicted = rates.seconds(costs[window])
        each = [f"{1e3 * part:.2f}" for part in (*spent, sum(spent), predicted)]
        table.add(f"{window:,}", *each, f"{sum(spent) / predicted:.2f}")
    return table


def rates_between(short: tuple[TokenSeconds, Cost], long: tuple[TokenSeconds, Cost]) -> Rates:
    """Return the rates of this machine, from the costs at two window lengths; only the cost of cells grows with it.

    >>> rates_between((TokenSeconds(1, 2, 1), Cost(10, 5, 2)), (TokenSeconds(2, 3, 1), Cost(20, 10, 2)))
    Rates(flops=10.0, attention_weights=5.0, binned_values=1.0)
    """
    (before, few), (after, many) = short, long
    grown = after.statistics + after.accumulation - before.statistics - before.accumulation
    cells = (many.attention_weights - few.attention_weights) / grown if grown > 0 else math.inf
    rest = after.statistics + after.accumulation - many.attention_weights / cells
    return Rates(many.flops / after.model, cells, many.binned_values / rest if rest > 0 else math.inf)


def decoder_of(reader: ShardReader) -> Decoder:
    """Return the model; raise if its operations cannot be counted."""
    if not isinstance(reader.model, Decoder):
        raise SettingError(
            f"bench survey: {reader.settings.model} is not a decoder, so its operations cannot be counted"
        )
    return reader.model


def measure_token(reader: ShardReader, window: int, rounds: int) -> TokenSeconds:
    """Measure the seconds per token in the model, for statistics, and for gathering them."""
    model = decoder_of(reader)
    ids = torch.randint(reader.tokenizer.vocab_size, (BATCH // window, window))
    passages = [PlacedPassage(Passage(row.tolist(), "", 0, 0), at, 0) for at, row in enumerate(ids)]
    batch = Batch(ids, None, passages)
    trace, numbers = reader.record(batch), list(range(len(passages)))

    def plain() -> None:
        with torch.inference_mode():
            model.features(ids)

    best = race(
        {
            "model": plain,
            "recorded": lambda: reader.record(batch),
            "gathered": lambda: accumulate_batch(trace, batch, numbers, reader, ShardAccumulator(0)),
        },
        rounds,
        clock=time.process_time,
    )
    steps = best["model"], best["recorded"] - best["model"], best["gathered"]
    return TokenSeconds(*(spent / BATCH for spent in steps))


def scaling_with_text(model: str, text: Path, step: Callable[[str], None]) -> Table:
    """Measure time and memory for 1, 2 and 4 times as much text."""
    table = Table(
        title="more text",
        comparison="one shard, one process with one thread: time without loading, and peak memory of the whole process",
        columns=("tokens", "time", "milliseconds per token", "peak memory"),
    )
    characters = text.read_text("ascii")
    for times in (1, 2, 4):
        step(f"{times} of 4 parts of the text")
        part = text.with_name(f"{times}.txt")
        part.write_text(characters[: times * len(characters) // 4], encoding="ascii")
        (tokens, spent), peak = with_peak_bytes(read_whole, model, str(part))
        table.add(f"{tokens:,}", duration(spent), f"{1e3 * spent / tokens:.2f}", format_bytes(peak))
    return table


def read_whole(model: str, text: str) -> tuple[int, float]:
    """Read a text as one shard; return its number of tokens and the seconds that it takes."""
    torch.set_num_threads(1)
    settings = Settings(model=model, sources=(text,), shard_bytes=2**40)
    reader, (shard,) = ShardReader.load(settings), plan_shards(settings).shards
    partials = []
    spent = seconds(lambda: partials.append(read_shard(shard, reader)))
    return partials[0].tokens, spent


def compare_workers(
    model: str, text: Path, folder: Path, rounds: int, min_speed: float | None, step: Callable[[str], None]
) -> Table:
    """Compare two workers on Ray with two plain processes on the same shards; `min_speed` is the bound of the ratio."""
    settings = Settings(model=model, sources=(str(text),), shard_bytes=text.stat().st_size // 16)
    best = {"plain processes": Speed(0.0, 0.0), "workers on Ray": Speed(0.0, 0.0)}
    for number in range(1, rounds + 1):
        step(f"two processes, round {number}")
        found = plain_speed(settings, folder / f"plain-{number}", 2)
        best["plain processes"] = max(best["plain processes"], found)
        step(f"two workers, round {number}")
        found = ray_speed(settings, folder / f"ray-{number}", 2)
        best["workers on Ray"] = max(best["workers on Ray"], found)
    ratio = best["workers on Ray"].tokens_per_second / best["plain processes"].tokens_per_second
    table = Table(
        title="two workers",
        comparison=f"one thread each, 16 shards, best of {rounds} alternating runs; tokens per second after the models "
        f"are loaded. Bound: {'none' if min_speed is None else f'{min_speed}x'}.",
        columns=(
            "plain processes",
            "workers on Ray",
            "ratio",
            "startup of both",
            *(["bound kept"] if min_speed else []),
        ),
    )
    speeds = [f"{speed.tokens_per_second:,.0f}/s" for speed in best.values()]
    started = duration(best["workers on Ray"].startup_seconds)
    table.add(*speeds, f"{ratio:.2f}x", started, met=ratio >= min_speed if min_speed else None)
    return table


def whole_file(model: str, file: Path, folder: Path, step: Callable[[str], None]) -> Table:
    """Survey a file with one process and with two workers, and compare all output files."""
    spent, tokens = {}, 0
    for name, workers in (("alone", Workers(threads=1)), ("shared", Workers(count=2, threads=1))):
        step(f"{file.name}, {workers.count} workers")
        out = folder / f"{file.stem}-{name}"

        def survey(out: Path = out, workers: Workers = workers) -> None:
            run_survey(model, file, out, workers=workers)

        spent[name] = seconds(survey)
        tokens = int(run_survey(model, file, out).manifest["corpus"]["tokens"])
    alone, shared = (folder / f"{file.stem}-{name}" for name in spent)
    written = sorted(path.relative_to(alone) for path in alone.rglob("*") if path.suffix in (".part", ".parquet"))
    same = sum(cmp(alone / name, shared / name, shallow=False) for name in written)
    table = Table(
        title=file.name,
        comparison=f"{Path(model).name}, one thread each, one process and two workers on Ray; the files are partial "
        "results of shards, and tables",
        columns=("tokens", "one process", "two workers", "identical files", "all"),
    )
    table.add(f"{tokens:,}", duration(spent["alone"]), duration(spent["shared"]), f"{same:,} of {len(written):,}",
              met=same == len(written) > 0)  # fmt: skip
    return table


def random_words(count: int) -> str:
    """Return random words with a Zipf distribution."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(5000)]
    weights = [1 / (rank + 1) for rank in range(len(words))]
    chosen = draw.choices(words, weights, k=count)
    return "\n".join(" ".join(chosen[start : start + 12]) for start in range(0, count, 12)) + "\n"
