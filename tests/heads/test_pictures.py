"""There is one picture for each label that some head has: of the head that has most of it, on the text that decided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.image import imread

from attnscope.heads import HeadTable, assign_labels, read_repeated_tokens, score_heads
from attnscope.heads.pictures import label_pictures
from attnscope.models import Decoder, DecoderConfig
from attnscope.recording import Trace, load, read
from tests.models.smollm2 import FOLDER

MINILM = FOLDER.parent / "minilm-l6"
CONFIG = DecoderConfig(
    vocab_size=60, hidden_size=32, num_layers=2, num_heads=4, intermediate_size=48, max_position_embeddings=64
)
IDS = torch.randint(3, 60, (9,), generator=torch.Generator().manual_seed(0))
FIRST, SECOND = "blocks.0.attention", "blocks.1.attention"


@pytest.fixture(scope="module")
def model() -> Decoder:
    torch.manual_seed(0)
    return Decoder(CONFIG).eval()


@pytest.fixture(scope="module")
def traces(model: Decoder) -> tuple[Trace, Trace]:
    """A text of 9 tokens, and a probe of 14."""
    return read(model, IDS), read_repeated_tokens(model, length=7)


def scored(**scores: list[float]) -> HeadTable:
    """Eight heads of two layers that have these scores."""
    columns = {name: torch.tensor(values, dtype=torch.float64) for name, values in scores.items()}
    return assign_labels(HeadTable((FIRST,) * 4 + (SECOND,) * 4, (0, 1, 2, 3) * 2, columns))


def title_of(figure: Any) -> str:
    return figure.axes[0].get_title()


def image_of(figure: Any) -> Any:
    return figure.axes[0].images[0].get_array()


def test_each_label_has_one_picture_of_the_head_that_has_most_of_it(traces: tuple[Trace, Trace]) -> None:
    table = scored(
        sink=[0.6, 0.1, 0.1, 0.1, 0.1, 0.1, 0.9, 0.1],
        previous=[0.1, 0.1, 0.1, 0.5, 0.1, 0.1, 0.1, 0.1],
        local=[0.1] * 8,
        evenness=[0.2] * 7 + [0.85],
    )
    titles = {name: title_of(figure) for name, figure in label_pictures(table, traces[0])}
    assert titles == {
        "previous": "previous: head 3 of layer 0, previous 0.50",
        "sink": "sink: head 2 of layer 1, sink 0.90",
        "broad": "broad: head 3 of layer 1, evenness 0.85",
    }


def test_a_picture_shows_the_weights_of_its_head(traces: tuple[Trace, Trace]) -> None:
    table = scored(sink=[0.1, 0.1, 0.1, 0.1, 0.1, 0.9, 0.1, 0.1])
    ((_, figure),) = label_pictures(table, traces[0])
    weights = traces[0][SECOND].to_dense()[0, 1]
    shown = torch.tensor(image_of(figure).filled(0.0))
    torch.testing.assert_close(shown.float(), weights.tril().float())


def test_a_label_that_the_probe_decides_is_shown_on_the_probe_and_others_on_the_text(
    traces: tuple[Trace, Trace],
) -> None:
    trace, probe = traces
    table = scored(
        induction=[0.1] * 8,
        induction_probe=[0.1, 0.4, 0.2, 0.8] + [0.1] * 4,
        duplicate=[0.9] + [0.1] * 7,
        sink=[0.7] * 8,
    )
    found = dict(label_pictures(table, trace, probe))
    assert list(found) == ["induction", "duplicate", "sink"]
    assert title_of(found["induction"]) == "induction: head 3 of layer 0, induction on the probe 0.80"
    assert image_of(found["induction"]).shape == (14, 14)
    assert image_of(found["duplicate"]).shape == image_of(found["sink"]).shape == (9, 9)


def test_without_any_label_there_is_no_picture(traces: tuple[Trace, Trace]) -> None:
    table = scored(sink=[0.1] * 8)
    assert list(label_pictures(table, traces[0])) == []


def test_some_rows_of_a_table_call_their_layers_as_the_whole_table_does(traces: tuple[Trace, Trace]) -> None:
    table = scored(sink=[0.1, 0.1, 0.1, 0.1, 0.9, 0.1, 0.1, 0.1]).top("sink", 1)
    ((_, figure),) = label_pictures(table, traces[0])
    assert title_of(figure) == "sink: head 0 of layer 1, sink 0.90"


def test_pictures_of_a_trained_model_are_files_with_something_on_them(tmp_path: Path) -> None:
    model, tokenizer = load(MINILM)
    trace = read(model, "The keys to the cabinet are on the table, and she sees them.", tokenizer)
    probe = read_repeated_tokens(model, tokenizer, length=16)
    table = score_heads(trace, probe=probe)
    assert table.labels is not None
    found = dict(label_pictures(table, trace, probe))
    assert set(found) == {label for labels in table.labels for label in labels} - {"mixed"}
    assert {"previous", "next", "sink"} <= set(found)
    for name, figure in found.items():
        figure.savefig(tmp_path / f"{name}.png")
        pixels = imread(tmp_path / f"{name}.png")
        assert min(pixels.shape[:2]) > 200
        assert pixels.std() > 0.05, "not one colour"
    words = [label.get_text() for label in found["previous"].axes[0].get_xticklabels()]
    assert words[0] == "[CLS]"
    assert any("keys" in word for word in words)
