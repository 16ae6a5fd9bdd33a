"""Word times of recorded speech from the cross-attention of a trained model, compared with a forced alignment.

The model and two recordings of English speech come from `scripts/convert_moonshine.py`. The reference is the forced
alignment of pocketsphinx (Huggins-Daines et al., 2006), whose wheel has an acoustic model of its own.
Usage: `pip install pocketsphinx`, then `python scripts/align_speech.py MOONSHINE_FOLDER OUTPUT_FOLDER`.
"""

from __future__ import annotations

import argparse
import re
import wave
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import AutoTokenizer, MoonshineForConditionalGeneration

from attnscope import AttentionMatrix
from attnscope.figures import heatmap
from attnscope.heads import HeadTable, score_alignment, token_times
from attnscope.progress import report_progress
from attnscope.recording import Trace, record

RATE = 16_000
FRAME = 384 / RATE  # seconds per encoder frame
RECORDINGS = ("beckett.wav", "two_cities.wav")
SHORTEST, LONGEST = 5.0, 11.0  # seconds of a segment that is not the last one of its recording
BEST = 6  # heads whose mean weights give the times


class Segment(NamedTuple):
    """A part of a recording: its name, samples, and token ids with start and end token, and the trace of both."""

    name: str
    samples: np.ndarray
    ids: list[int]
    trace: Trace


class Word(NamedTuple):
    """A word, and the indices of its first and last token, without punctuation."""

    text: str
    first: int
    last: int


def read_recording(path: Path) -> np.ndarray:
    """The samples of a recording at 16 kHz, from -1 to 1."""
    with wave.open(str(path)) as file:
        rate, data = file.getframerate(), file.readframes(file.getnframes())
    samples = np.frombuffer(data, "<i2").astype(np.float32) / 2**15
    step = rate // RATE
    if step > 1:  # low-pass, then take every third sample
        at = np.arange(-20 * step, 20 * step + 1)
        samples = np.convolve(samples, np.sinc(at / step) / step * np.hamming(len(at)), "same")[::step]
    return samples.astype(np.float32)


def split(samples: np.ndarray) -> Iterator[np.ndarray]:
    """Yield segments that end where the recording is quietest."""
    window = RATE // 10
    loudness = np.abs(samples[: len(samples) // window * window]).reshape(-1, window).mean(1)
    start = 0
    while len(samples) - start > (LONGEST + 1) * RATE:
        first = (start + int(SHORTEST * RATE)) // window
        quietest = first + int(loudness[first : first + int((LONGEST - SHORTEST) * RATE) // window].argmin())
        end = quietest * window + window // 2
        yield samples[start:end]
        start = end
    yield samples[start:]


@torch.no_grad()
def transcribe(model: Any, samples: np.ndarray, name: str) -> Segment:
    """Transcribe a segment, and record the model on it and its transcript."""
    sound = torch.from_numpy(samples.copy())[None]
    ids = model.generate(input_values=sound, max_new_tokens=120, do_sample=False)
    with record(model) as trace:
        model(input_values=sound, decoder_input_ids=ids)
    return Segment(name, samples, ids[0].tolist(), trace)


def words_of(tokenizer: Any, ids: Sequence[int]) -> list[Word]:
    """The words of a transcript, without start and end token; indices count from 0."""
    words: list[Word] = []
    for index, token in enumerate(tokenizer.convert_ids_to_tokens(list(ids)[1:-1])):
        letters = re.sub(r"[^a-z']", "", token.lower())
        if token.startswith("▁") and letters:
            words.append(Word(letters, index, index))
        elif letters:
            words[-1] = Word(words[-1].text + letters, words[-1].first, index)
    return words


def forced_alignment(samples: np.ndarray, words: Sequence[Word]) -> list[tuple[float, float]]:
    """Start and end of each word in seconds, by pocketsphinx."""
    decoder = import_module("pocketsphinx").Decoder(samprate=RATE, loglevel="FATAL", beam=1e-80, wbeam=1e-60)
    decoder.set_align_text(" ".join(word.text for word in words))
    decoder.start_utt()
    decoder.process_raw((samples * 2**15).clip(-(2**15), 2**15 - 1).astype("<i2").tobytes(), full_utt=True)
    decoder.end_utt()
    found = [one for one in decoder.seg() if not one.word.startswith(("<", "["))]
    if [re.sub(r"\(.*", "", one.word) for one in found] != [word.text for word in words]:
        raise SystemExit("align_speech: pocketsphinx aligned other words")
    return [(one.start_frame / 100, (one.end_frame + 1) / 100) for one in found]


def rank(segments: Sequence[Segment]) -> HeadTable:
    """All heads by their mean alignment score, read at the query that predicts a token and at that of the token itself.

    Column `alignment` is the score at the query before each token, `at_token` that at the token.
    """
    columns: dict[str, Tensor] = {}
    layers: tuple[str, ...] = ()
    heads: tuple[int, ...] = ()
    for column, shift in (("alignment", 0), ("at_token", 1)):
        total: dict[tuple[str, int], float] = {}
        for segment in segments:
            tokens = slice(shift, len(segment.ids) - 2 + shift)
            table = score_alignment(segment.trace, tokens=tokens)
            for layer, head, score in zip(table.layers, table.heads, table["alignment"].tolist(), strict=True):
                total[layer, head] = total.get((layer, head), 0.0) + score / len(segments)
        layers, heads = zip(*sorted(total), strict=True)
        columns[column] = torch.tensor([total[key] for key in sorted(total)])
    return HeadTable(layers, heads, columns).top("alignment")


def errors(
    segments: Sequence[Segment], tokenizer: Any, references: Sequence[Any], heads: Sequence[tuple[str, int]], shift: int
) -> np.ndarray:
    """Differences of start and end from the reference in seconds, (words, 2), without the first word of a segment.

    The alignment gives every frame to a token, so the silence before the first word counts as part of it.
    """
    found = []
    for segment, reference in zip(segments, references, strict=True):
        times = token_times(
            segment.trace, heads, seconds=FRAME, tokens=slice(shift, len(segment.ids) - 2 + shift)
        ).tolist()
        for word, (start, end) in list(zip(words_of(tokenizer, segment.ids), reference, strict=True))[1:]:
            found.append((times[word.first][0] - start, times[word.last][1] - end))
    return np.array(found)


def to_report(
    segments: Sequence[Segment], tokenizer: Any, table: HeadTable, rows: Sequence[tuple[str, np.ndarray]]
) -> str:
    """The transcripts, the heads and the errors."""
    count = len(rows[0][1])
    lines = [
        "# Word times of recorded speech",
        "",
        "Made by `scripts/align_speech.py`: Moonshine tiny (English) from the wheel moonshine-voice 0.1.0, whose 8-bit",
        f"parameters are made float32, CPU. {len(segments)} segments of {' and '.join(RECORDINGS)} from the same "
        "wheel, "
        f"{sum(len(one.samples) for one in segments) / RATE:.0f} s. The reference is the forced alignment of "
        f"pocketsphinx, in steps of 10 ms. An encoder frame is {1000 * FRAME:.0f} ms.",
        f"{count} words: all but the first one of each segment.",
        "",
        "## Transcripts",
        "",
        *(f"- {tokenizer.decode(one.ids, skip_special_tokens=True)}" for one in segments),
        "",
        "## Difference from the reference",
        "",
        "| heads | median, start | median, end | median of size, start | within 50 ms | within 100 ms |",
        "|---|---|---|---|---|---|",
    ]
    for name, differences in rows:
        start, end = (np.median(differences[:, side]) * 1000 for side in (0, 1))
        size = np.abs(differences[:, 0])
        lines.append(
            f"| {name} | {start:+.0f} ms | {end:+.0f} ms | {np.median(size) * 1000:.0f} ms "
            f"| {(size <= 0.05).mean():.0%} | {(size <= 0.1).mean():.0%} |"
        )
    lines += ["", "## Alignment scores", "", "| head | before the token | at the token |", "|---|---|---|"]
    for name, before, at in zip(names(table), table["alignment"].tolist(), table["at_token"].tolist(), strict=True):
        lines.append(f"| {name} | {before:.2f} | {at:.2f} |")
    return "\n".join([*lines, ""])


def names(table: HeadTable) -> list[str]:
    """The heads of a table as decoder layer and head, such as 3.2."""
    return [f"{re.findall(r'[0-9]+', layer)[0]}.{head}" for layer, head in zip(table.layers, table.heads, strict=True)]


def draw(segment: Segment, tokenizer: Any, heads: Sequence[tuple[str, int]], path: Path) -> None:
    """Draw the cross-attention of the best head on the first segment: tokens down, frames to the right."""
    layer, head = heads[0]
    tokens = [token.replace("▁", " ") for token in tokenizer.convert_ids_to_tokens(segment.ids[1:])]
    weights = segment.trace.layer(layer).matrix().batch(0).head(head)[: len(tokens), :]
    matrix = AttentionMatrix.from_dense(weights)
    heatmap(matrix, query_tokens=tokens, scale="linear", title=f"{layer}, head {head}").savefig(path)


def main() -> None:
    """Transcribe, rank heads, and compare the times of words."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    model = MoonshineForConditionalGeneration.from_pretrained(options.model).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    parts = [(name, part) for name in RECORDINGS for part in split(read_recording(options.model / name))]
    segments = []
    with report_progress(True, "transcribing") as report:
        for name, part in parts:
            segments.append(transcribe(model, part, name))
            report(len(segments), len(parts))
    references = [forced_alignment(one.samples, words_of(tokenizer, one.ids)) for one in segments]
    table = rank(segments)
    keys = list(zip(table.layers, table.heads, strict=True))
    is_predicting = (table["alignment"] > table["at_token"]).tolist()
    predicting = [key for key, chosen in zip(keys, is_predicting, strict=True) if chosen][:BEST]
    others = [key for key, chosen in zip(keys, is_predicting, strict=True) if not chosen][:1]
    rows = [
        (f"best {BEST} of any kind, before the token", errors(segments, tokenizer, references, keys[:BEST], 0)),
        (f"best {BEST} that score higher before the token", errors(segments, tokenizer, references, predicting, 0)),
        ("the best that scores higher at the token", errors(segments, tokenizer, references, others, 1)),
    ]
    options.output.mkdir(parents=True, exist_ok=True)
    text = to_report(segments, tokenizer, table.rows(range(12)), rows)
    (options.output / "word_times.md").write_text(text)
    print(text)
    draw(segments[0], tokenizer, predicting, options.output / "cross_attention.png")


if __name__ == "__main__":
    main()
