"""Curves over training hold the numbers they were given, and what is written beside them stays apart."""

from __future__ import annotations

import io
import itertools
import math

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from attnscope.errors import ShapeError
from attnscope.figures import training_curves
from attnscope.figures.curves import COLOURS, Kind
from tests.figures.drawn import notes

STEPS = [0, 100, 200, 300]
INDUCTION = np.array([[0.0, 0.1], [0.2, 0.1], [0.3, 0.8], [0.1, 0.9]])
PREVIOUS = np.array([[0.1, 0.0], [0.6, 0.1], [0.7, 0.2], [0.7, 0.1]])
KINDS = [Kind("induction", INDUCTION, 200), Kind("previous", PREVIOUS, 100)]


def lines(axes: Axes, label: str) -> list[np.ndarray]:
    """The points (steps, values) of all lines of a label."""
    return [np.array(line.get_data(), dtype=float) for line in axes.get_lines() if line.get_label() == label]


def widest(axes: Axes, label: str) -> float:
    return max(line.get_linewidth() for line in axes.get_lines() if line.get_label() == label)


def test_every_head_is_a_thin_line_and_the_strongest_of_each_step_a_thick_one() -> None:
    axes = training_curves(STEPS, KINDS).axes[0]
    for kind in KINDS:
        for head, line in enumerate(lines(axes, f"_{kind.name}")):
            np.testing.assert_array_equal(line, [STEPS, kind.scores[:, head]])
        (strongest,) = lines(axes, kind.name)
        np.testing.assert_array_equal(strongest, [STEPS, kind.scores.max(1)])
        assert widest(axes, kind.name) > 2 * widest(axes, f"_{kind.name}")
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("training step", "score")


def test_a_kind_has_a_dot_and_a_flag_at_the_step_it_appears_at_and_its_name_at_the_end() -> None:
    axes = training_curves(STEPS, KINDS, loss={0: 3.0, 300: 2.0}).axes[0]
    for label, point in (("induction at 200", (200, 0.8)), ("previous at 100", (100, 0.6))):
        (dot,) = lines(axes, f"_{label}")
        assert dot.ravel().tolist() == list(point)
        assert notes(axes)[label].xy[0] == point[0]
    assert notes(axes)["induction"].xy == (300, 0.9)
    assert notes(axes)["previous"].xy == (300, 0.7)


def test_a_kind_that_has_not_appeared_has_its_name_alone() -> None:
    axes = training_curves(STEPS, [Kind("induction", INDUCTION)]).axes[0]
    assert set(notes(axes)) == {"induction"}


def test_losses_are_drawn_above_over_the_same_steps() -> None:
    loss, validation = {50: 3.0, 150: 2.5, 400: 2.25}, {100: 2.75, 300: 2.5}
    below, above = training_curves(STEPS, KINDS, loss=loss, validation_loss=validation).axes
    np.testing.assert_array_equal(lines(above, "training")[0], [list(loss), list(loss.values())])
    np.testing.assert_array_equal(lines(above, "validation")[0], [list(validation), list(validation.values())])
    assert widest(above, "validation") > 2 * widest(above, "training")
    assert above.get_xlim() == below.get_xlim()
    assert below.get_xlim()[0] < 0 < 400 < below.get_xlim()[1]
    assert above.get_position().y0 > below.get_position().y1
    assert above.get_ylabel() == "nats per token"


def test_one_loss_alone_is_enough() -> None:
    for figure, name in (
        (training_curves(STEPS, KINDS, loss={100: 2.0, 200: 1.0}), "training"),
        (training_curves(STEPS, KINDS, validation_loss={100: 2.0, 200: 1.0}), "validation"),
    ):
        assert list(notes(figure.axes[1])) == [name]


def test_without_losses_there_is_one_panel() -> None:
    assert len(training_curves(STEPS, KINDS).axes) == 1


def test_scores_that_are_not_known_are_gaps() -> None:
    scores = np.array([[math.nan, 0.2], [0.5, math.nan], [math.nan, math.nan], [math.inf, 0.4], [math.nan, math.nan]])
    figure = training_curves([1, 2, 3, 4, 5], [Kind("sink", scores)], loss={1: math.nan, 2: math.inf, 3: 2.0})
    figure.savefig(io.BytesIO())
    np.testing.assert_array_equal(lines(figure.axes[0], "sink")[0][1], [0.2, 0.5, math.nan, math.inf, math.nan])
    assert notes(figure.axes[0])["sink"].xy == (2, 0.5), "the last point that can be drawn"
    assert figure.axes[0].get_ylim() == (0.0, 1.0)


def test_a_kind_without_any_number_has_no_name() -> None:
    figure = training_curves([1, 2], [Kind("sink", np.full((2, 3), math.nan))], loss={1: math.nan})
    figure.savefig(io.BytesIO())
    assert [notes(axes) for axes in figure.axes] == [{}, {}]


def test_one_step_is_drawn_as_points() -> None:
    figure = training_curves([500], [Kind("sink", np.array([[0.9, 0.1]]), 500)], loss={500: 2.0})
    figure.savefig(io.BytesIO())
    (line,) = (line for line in figure.axes[0].get_lines() if line.get_label() == "sink")
    assert line.get_marker() == "o"
    assert figure.axes[0].get_xlim() == (499, 501)


def test_scores_below_zero_are_seen() -> None:
    axes = training_curves([1, 2], [Kind("agreement", np.array([[-0.25, 0.0], [0.5, 0.25]]))]).axes[0]
    assert axes.get_ylim()[0] < -0.25


@pytest.mark.parametrize(
    ("steps", "scale"),
    [
        (range(0, 2001, 100), "linear"),
        (range(10, 100_001, 10), "linear"),
        ([2**k for k in range(6)], "linear"),
        ([2**k for k in range(15)], "symlog"),
        ([0, *(2**k for k in range(15))], "symlog"),
        ([1, 3, 10, 30, 100], "symlog"),
        ([0], "linear"),
    ],
)
def test_steps_spaced_like_powers_over_two_decades_are_drawn_so(steps: list[int], scale: str) -> None:
    axes = training_curves(list(steps), [Kind("sink", np.full((len(steps), 1), 0.5))]).axes[0]
    assert axes.get_xscale() == scale
    low, high = axes.get_xlim()
    assert low < steps[0] <= steps[-1] < high


def test_losses_that_go_on_do_not_change_the_scale_of_even_steps() -> None:
    kind = Kind("sink", np.full((10, 1), 0.5))
    axes = training_curves(range(100, 1001, 100), [kind], loss={1: 3.0, 100_000: 2.0}).axes[0]
    assert axes.get_xscale() == "linear"


def texts_on(figure: Figure) -> list[tuple[str, tuple[float, float, float, float]]]:
    """Every note with the corners of its text, in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    boxes = []
    for axes in figure.axes:
        for text, note in notes(axes).items():
            box = super(Annotation, note).get_window_extent(canvas.get_renderer())  # without its line
            boxes.append((text, (box.x0, box.y0, box.x1, box.y1)))
    return boxes


NAMES = ("induction", "coreference", "agreement", "duplicate", "previous", "local")


@pytest.mark.parametrize(
    "at",
    [
        [0, 0, 0, 0, 0, 0],
        [19, 19, 19, 19, 19, 19],
        [0, 1, 2, 3, 4, 5],
        [9, 7, 5, 6, 8, 10],
        [14, 15, 16, 17, 18, 19],
        [3, 19, 3, 0, 18, 4],
    ],
)
@pytest.mark.parametrize("scale", ["linear", "symlog"])
def test_no_text_is_written_over_another_or_beyond_the_figure(at: list[int], scale: str) -> None:
    steps = [100_000 * step for step in range(20)] if scale == "linear" else [0, *(2**step for step in range(19))]
    generator = np.random.default_rng(0)
    kinds = [
        Kind(name, generator.uniform(0.85, 0.9, (20, 4)), steps[place]) for name, place in zip(NAMES, at, strict=True)
    ]
    losses = dict.fromkeys(steps, 2.0)
    figure = training_curves(steps, kinds, loss=losses, validation_loss=losses, title="a run")
    assert figure.axes[0].get_xscale() == scale
    found = texts_on(figure)
    assert len(found) == 6 + 6 + 2
    for (one, a), (other, b) in itertools.combinations(found, 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], f"{one} is over {other}"
    for text, (left, bottom, right, top) in found:
        assert left >= 0, text
        assert bottom >= 0, text
        assert right <= figure.bbox.width, text
        assert top <= figure.bbox.height, text


@pytest.mark.parametrize("form", ["png", "svg"])
def test_it_can_be_saved_on_white_in_either_form_with_a_title_of_any_signs(form: str) -> None:
    saved = io.BytesIO()
    training_curves(STEPS, KINDS, title="costs $5 and $x_").savefig(saved, format=form)
    assert len(saved.getvalue()) > 5000
    assert training_curves(STEPS, KINDS).get_facecolor() == (1.0, 1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("steps", "kinds", "message"),
    [
        ([], [], "at least one step"),
        ([0, 100, 100, 300], KINDS, "in increasing order"),
        (STEPS, [], "1 to 6 kinds of heads, got 0"),
        (STEPS, [KINDS[0]] * (len(COLOURS) + 1), "1 to 6 kinds of heads, got 7"),
        (STEPS[:3], KINDS, r"scores \(3, heads\) for induction, got \(4, 2\)"),
        (STEPS, [Kind("sink", INDUCTION[:, 0])], r"scores \(4, heads\) for sink, got \(4,\)"),
        (STEPS, [Kind("sink", INDUCTION[:, :0])], "for sink"),
        (STEPS, [Kind("sink", INDUCTION, 150)], "sink .* got 150"),
    ],
)
def test_what_does_not_fit_together_is_refused(steps: list[int], kinds: list[Kind], message: str) -> None:
    with pytest.raises(ShapeError, match=f"training_curves: .*{message}"):
        training_curves(steps, kinds)
