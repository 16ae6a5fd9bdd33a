"""What a survey costs: a token in its parts, more work, more workers, and on paper, much more of both.

Without `--model`, the model has the shape of SmolLM2 with random weights, and the text is made of random words. With
`--data`, these files are surveyed instead, each as a whole, by one process and by two workers, and compared.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from filecmp import cmp
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch

from attnscope.attention.plan import size_text
from attnscope.bench.memory import with_peak_bytes
from attnscope.bench.report import Table, duration
from attnscope.bench.survey_workers import Speed, plain_speed, ray_speed
from attnscope.bench.timing import race, seconds
from attnscope.errors import SettingError
from attnscope.models import Decoder, DecoderConfig, save, train_bpe
from attnscope.models.sizes import DECODERS
from attnscope.survey import Settings, Workers, run_survey
from attnscope.survey.corpus.batches import Batch, PlacedPassage
from attnscope.survey.corpus.passages import Passage
from attnscope.survey.corpus.plan import plan_shards
from attnscope.survey.cost import Cost, Rates, cost_per_token
from attnscope.survey.execution.shard_reader import ShardReader, accumulate_batch, read_shard
from attnscope.survey.partials.accumulator import ShardAccumulator
from attnscope.survey.partials.bins import STATISTICS

SHAPE, VOCABULARY = "smollm2-135m", 4096
BATCH = 2048  # tokens
WINDOWS = (128, 256, 512, 1024)
KNOWN = 128, 512  # the windows from which the costs of the others are foretold

ON_PAPER = ("llama-3.1-8b", "llama-3.1-70b")
PAPER_WINDOW = 2048
PAPER_TOKENS = (10**6, 10**9, 10**12)
ACCELERATOR = Rates(flops=400e12, attention_weights=3.35e12 / 100, binned_values=3.35e12 / 200)
"""Of an H100 on paper: 400 of its 989 TFLOP/s in bf16, and memory of 3.35 TB/s, over which our walk moves about 100
bytes for each cell and gathering about 200 for each number."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How far each measurement goes."""

    shape: DecoderConfig
    rounds: int
    windows: tuple[int, ...]
    words: int  # of the smallest piece of work
    least_speed: float | None  # of workers on Ray beside plain processes, where a shard is more than milliseconds


class Spent(NamedTuple):
    """Seconds of one token."""

    model: float
    statistics: float
    """Taken beside the model while it runs."""
    accumulator: float


SMALL = DecoderConfig(vocab_size=VOCABULARY, width=64, depth=2, heads=4, hidden=128, max_length=1024)
SIZES = {
    "small": Size(shape=SMALL, rounds=2, windows=(128, 256, 512), words=1000, least_speed=None),
    "full": Size(shape=DECODERS[SHAPE], rounds=5, windows=WINDOWS, words=1500, least_speed=0.85),
}


def tables(
    size: str, step: Callable[[str], None], data: Sequence[str] = (), model: str | None = None
) -> Iterator[Table]:
    """All measurements, one table each."""
    chosen = SIZES[size]
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as each of several workers has
    try:
        with TemporaryDirectory() as folder:
            text = Path(folder) / "words.txt"
            text.write_text(random_words(4 * chosen.words), encoding="ascii")
            if model is None:
                step("drawing weights")
                model = str(Path(folder) / "model")
                save(Decoder(chosen.shape), model)
                train_bpe([text.read_text("ascii")], VOCABULARY).save(model)
            for file in data:
                yield whole_file(model, Path(file), Path(folder), step)
            if not data:
                reader = ShardReader.load(Settings(model=model, sources=(str(text),)))
                yield parts_of_a_token(reader, chosen, step)
                yield more_work(model, text, step)
                yield more_workers(model, text, Path(folder), chosen, step)
                yield on_paper()
    finally:
        torch.set_num_threads(before)


def parts_of_a_token(reader: ShardReader, size: Size, step: Callable[[str], None]) -> Table:
    """Seconds for the model, for statistics and for gathering, and what the cost model foretells of them."""
    config = decoder_of(reader).config
    times, costs = dict[int, Spent](), dict[int, Cost]()
    for window in size.windows:
        step(f"a token in passages of {window:,}")
        times[window] = timed_parts(reader, window, size.rounds)
        costs[window] = cost_per_token(config, window, len(STATISTICS))
    rates = rates_between(*((times[window], costs[window]) for window in KNOWN))
    table = Table(
        title="milliseconds a token",
        comparison=f"CPU time of one thread, {config.depth} layers of {config.heads} heads, batches of {BATCH:,}, best "
        f"of {size.rounds}. Foretold from the passages of {KNOWN[0]:,} and {KNOWN[1]:,}: {rates.flops / 1e9:.3g} "
        f"GFLOP/s in the model; beside it {rates.attention_weights / 1e6:.3g} million cells/s and "
        f"{rates.binned_values / 1e6:.3g} million numbers/s.",
        columns=("passages", "model", "statistics", "gathering", "in all", "foretold", "measured / foretold"),
    )
    for window, spent in times.items():
        foretold = rates.seconds(costs[window])
        each = [f"{1e3 * part:.2f}" for part in (*spent, sum(spent), foretold)]
        table.add(f"{window:,}", *each, f"{sum(spent) / foretold:.2f}")
    return table


def rates_between(short: tuple[Spent, Cost], long: tuple[Spent, Cost]) -> Rates:
    """What this machine does in a second: of what a token takes beside the model, cells are what grows with passages.

    >>> rates_between((Spent(1, 2, 1), Cost(10, 5, 2)), (Spent(2, 3, 1), Cost(20, 10, 2)))
    Rates(flops=10.0, attention_weights=5.0, binned_values=1.0)
    """
    (before, few), (after, many) = short, long
    grown = after.statistics + after.accumulator - before.statistics - before.accumulator
    cells = (many.attention_weights - few.attention_weights) / grown if grown > 0 else math.inf
    rest = after.statistics + after.accumulator - many.attention_weights / cells
    return Rates(many.flops / after.model, cells, many.binned_values / rest if rest > 0 else math.inf)


def decoder_of(reader: ShardReader) -> Decoder:
    """The model, if it is one whose operations can be counted."""
    if not isinstance(reader.model, Decoder):
        raise SettingError(f"bench survey: {reader.settings.model} is no decoder; its operations are not counted")
    return reader.model


def timed_parts(reader: ShardReader, window: int, rounds: int) -> Spent:
    """Seconds a token: in the model, for statistics beside it, and for gathering them."""
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
    return Spent(*(spent / BATCH for spent in steps))


def more_work(model: str, text: Path, step: Callable[[str], None]) -> Table:
    """The same for 1, 2 and 4 times as much to read."""
    table = Table(
        title="more to read",
        comparison="one shard, one process with one thread: time without loading, and the peak of the whole process",
        columns=("tokens", "time", "milliseconds a token", "peak memory"),
    )
    characters = text.read_text("ascii")
    for times in (1, 2, 4):
        step(f"{times} of 4 parts of the text")
        part = text.with_name(f"{times}.txt")
        part.write_text(characters[: times * len(characters) // 4], encoding="ascii")
        (tokens, spent), peak = with_peak_bytes(read_whole, model, str(part))
        table.add(f"{tokens:,}", duration(spent), f"{1e3 * spent / tokens:.2f}", size_text(peak))
    return table


def read_whole(model: str, text: str) -> tuple[int, float]:
    """The tokens of a text as one shard, and the seconds that they take."""
    torch.set_num_threads(1)
    settings = Settings(model=model, sources=(text,), shard_bytes=2**40)
    reader, (shard,) = ShardReader.load(settings), plan_shards(settings).shards
    partials = []
    spent = seconds(lambda: partials.append(read_shard(shard, reader)))
    return partials[0].tokens, spent


def more_workers(model: str, text: Path, folder: Path, size: Size, step: Callable[[str], None]) -> Table:
    """Two workers of Ray beside two plain processes, on the same shards."""
    settings = Settings(model=model, sources=(str(text),), shard_bytes=text.stat().st_size // 16)
    best = {"plain processes": Speed(0.0, 0.0), "workers on Ray": Speed(0.0, 0.0)}
    for turn in range(size.rounds):
        step(f"two processes, turn {turn + 1}")
        found = plain_speed(settings, folder / f"plain-{turn}", 2)
        best["plain processes"] = max(best["plain processes"], found)
        step(f"two workers, turn {turn + 1}")
        found = ray_speed(settings, folder / f"ray-{turn}", 2)
        best["workers on Ray"] = max(best["workers on Ray"], found)
    least = size.least_speed
    ratio = best["workers on Ray"].tokens_per_second / best["plain processes"].tokens_per_second
    table = Table(
        title="two workers",
        comparison=f"one thread each, 16 shards, best of {size.rounds} in turns; tokens a second from when the models "
        f"are loaded until the last shard is written. Bound: {'none' if least is None else f'{least}x'}.",
        columns=("plain processes", "workers on Ray", "ratio", "both at work", *(["bound kept"] if least else [])),
    )
    speeds = [f"{speed.tokens_per_second:,.0f}/s" for speed in best.values()]
    started = duration(best["workers on Ray"].start_up)
    table.add(*speeds, f"{ratio:.2f}x", started, met=ratio >= least if least else None)
    return table


def on_paper() -> Table:
    """What larger models and corpora would take on accelerators that were not here."""
    table = Table(
        title="on paper",
        comparison=f"never run: counts of the cost model for passages of {PAPER_WINDOW:,} tokens, by the rates of an "
        "H100 on paper (400 TFLOP/s, 100 bytes a cell and 200 a number at 3.35 TB/s)",
        columns=("model", "heads", "GFLOP a token", "cells a token", "tokens a second and GPU", "GPU-hours for 1e6",
                 "1e9", "1e12", "queries and keys of 1e9 tokens in bf16"),
    )  # fmt: skip
    for name in (SHAPE, *ON_PAPER):
        config = DECODERS[name]
        cost = cost_per_token(config, PAPER_WINDOW, len(STATISTICS))
        spent = ACCELERATOR.seconds(cost)
        kept = 2 * config.depth * (config.heads + (config.key_heads or config.heads)) * (config.head_dim or 0)
        hours = [rounded(tokens * spent / 3600) for tokens in PAPER_TOKENS]
        counts = f"{cost.flops / 1e9:.3g}", f"{cost.attention_weights:,.0f}", f"{1 / spent:,.0f}"
        table.add(name, f"{config.depth * config.heads:,}", *counts, *hours, f"{rounded(kept * 10**9 / 1e12)} TB")
    return table


def rounded(number: float) -> str:
    """Two digits that count, written out.

    >>> rounded(0.0254), rounded(1894.2)
    ('0.025', '1,900')
    """
    return f"{float(f'{number:.2g}'):,.10g}"


def whole_file(model: str, file: Path, folder: Path, step: Callable[[str], None]) -> Table:
    """One file by one process and by two workers, and whether every table is the same."""
    spent, tokens = {}, 0
    for name, workers in (("alone", Workers(threads=1)), ("shared", Workers(count=2, threads=1))):
        step(f"{file.name}, {workers.count} at work")
        out = folder / f"{file.stem}-{name}"

        def survey(out: Path = out, workers: Workers = workers) -> None:
            run_survey(model, file, out, workers=workers)

        spent[name] = seconds(survey)
        tokens = int(run_survey(model, file, out).manifest["corpus"]["tokens"])
    alone, shared = (folder / f"{file.stem}-{name}" for name in spent)
    written = sorted(path.relative_to(alone) for path in alone.rglob("*") if path.suffix in (".partial", ".parquet"))
    same = sum(cmp(alone / name, shared / name, shallow=False) for name in written)
    table = Table(
        title=file.name,
        comparison=f"{Path(model).name}, one thread each, by one process and by two workers of Ray; files are parts of "
        "shards and tables",
        columns=("tokens", "one process", "two workers", "files that are the same, byte for byte", "all"),
    )
    table.add(f"{tokens:,}", duration(spent["alone"]), duration(spent["shared"]), f"{same:,} of {len(written):,}",
              met=same == len(written) > 0)  # fmt: skip
    return table


def random_words(count: int) -> str:
    """Words of which some are frequent and most are rare, as in languages."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(5000)]
    weights = [1 / (rank + 1) for rank in range(len(words))]
    chosen = draw.choices(words, weights, k=count)
    return "\n".join(" ".join(chosen[start : start + 12]) for start in range(0, count, 12)) + "\n"
