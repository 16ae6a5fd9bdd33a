from functools import partial

import pytest
import torch
from torch import Tensor

from attnscope.errors import ShapeError
from attnscope.variants.linear import (
    State,
    bidirectional,
    chunked,
    elu_plus_one,
    identity,
    parallel,
    recurrent,
    step,
    update_state,
)
from tests.largest import LargestTensor

AGREEMENT = 1e-10
FORMS = {"parallel": parallel, "chunked": partial(chunked, chunk_size=4), "recurrent": recurrent}
SETTINGS = [(elu_plus_one, True), (elu_plus_one, False), (identity, False), (torch.relu, True)]
# One token, less than a chunk, exactly one, one and a bit, many and a bit.
LENGTHS = [1, 3, 4, 5, 23]


def draw(length: int, *, heads: tuple[int, ...] = (2, 3), key: int = 5, value: int = 7, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(*heads, length, width, generator=generator, dtype=torch.float64, requires_grad=True)
        for width in (key, key, value)
    ]


def by_loops(query: Tensor, key: Tensor, value: Tensor, feature_map, normalize: bool) -> Tensor:
    """One head in plain loops, straight from the definition: a weighted sum over the tokens so far."""
    rows = []
    for i in range(len(query)):
        weights = [feature_map(query[i]) @ feature_map(key[j]) for j in range(i + 1)]
        row = sum(weight * value[j] for j, weight in enumerate(weights))
        total = sum(weights) if normalize else 1
        rows.append(row / total if total != 0 else torch.zeros_like(value[0]))
    return torch.stack(rows)


def assert_same(actual, expected) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=AGREEMENT)


@pytest.mark.parametrize(("feature_map", "normalize"), SETTINGS)
def test_the_parallel_form_is_the_definition(feature_map, normalize):
    query, key, value = draw(6, heads=())
    output, _ = parallel(query, key, value, feature_map=feature_map, normalize=normalize)
    assert_same(output, by_loops(query, key, value, feature_map, normalize))


@pytest.mark.parametrize(("feature_map", "normalize"), SETTINGS)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("form", ["chunked", "recurrent"])
def test_the_forms_agree_in_output_state_and_gradient(form, length, feature_map, normalize):
    tensors = draw(length)
    weight = draw(length, seed=1)[2].detach()
    results = []
    for run in (parallel, FORMS[form]):
        output, state = run(*tensors, feature_map=feature_map, normalize=normalize)
        loss = (output * weight).sum() + state.matrix.square().sum()
        results.append((output, *(part for part in state if part is not None), *torch.autograd.grad(loss, tensors)))
    for actual, expected in zip(*results, strict=True):
        assert_same(actual, expected)


@pytest.mark.parametrize("form", FORMS)
def test_outputs_do_not_depend_on_whether_gradients_are_on(form):
    tensors = draw(23)
    with torch.no_grad():
        silent, _ = FORMS[form](*tensors)
    assert not silent.requires_grad
    assert torch.equal(silent, FORMS[form](*tensors)[0])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("normalize", [True, False])
def test_reading_piece_by_piece_is_reading_at_once(form, normalize):
    tensors = draw(23)
    expected, last = parallel(*tensors, normalize=normalize)
    state, pieces = None, []
    for start, stop in ((0, 1), (1, 10), (10, 14), (14, 23)):
        piece, state = FORMS[form](*(t[..., start:stop, :] for t in tensors), normalize=normalize, state=state)
        pieces.append(piece)
    assert isinstance(state, State)
    assert_same(torch.cat(pieces, dim=-2), expected)
    assert_same(state.matrix, last.matrix)


@pytest.mark.parametrize("normalize", [True, False])
def test_steps_are_the_recurrent_form(normalize):
    tensors = draw(6)
    expected, last = recurrent(*tensors, normalize=normalize)
    state = None
    for position in range(6):
        output, state = step(*(t[..., position, :] for t in tensors), normalize=normalize, state=state)
        assert_same(output, expected[..., position, :])
    assert isinstance(state, State)
    assert_same(state.matrix, last.matrix)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("feature_map", "normalize"), [(elu_plus_one, True), (identity, False)])
def test_every_form_has_the_right_gradient(form, feature_map, normalize):
    query, key, value = draw(6, heads=(2,), key=2, value=3)
    _, start = parallel(*draw(2, heads=(2,), key=2, value=3, seed=1), feature_map=feature_map, normalize=normalize)
    parts = [part.detach().requires_grad_() for part in start if part is not None]

    def run(query: Tensor, key: Tensor, value: Tensor, matrix: Tensor, normaliser: Tensor | None = None):
        state = State(matrix, normaliser)
        output, state = FORMS[form](query, key, value, feature_map=feature_map, normalize=normalize, state=state)
        return output, *(part for part in state if part is not None)

    assert torch.autograd.gradcheck(run, (query, key, value, *parts))


def test_a_step_has_the_right_gradient():
    tensors = [t[..., 0, :].detach().requires_grad_() for t in draw(1, heads=(2,), key=2, value=3)]
    _, state = step(*(t.detach() + 1 for t in tensors))
    assert torch.autograd.gradcheck(lambda *tensors: step(*tensors, state=state)[0], tensors)


def test_the_bidirectional_form_is_a_dense_average_over_all_keys():
    query = draw(4)[0].detach().requires_grad_()
    _, key, value = draw(9)
    weights = elu_plus_one(query) @ elu_plus_one(key).mT
    assert_same(bidirectional(query, key, value), weights / weights.sum(-1, keepdim=True) @ value)
    assert_same(bidirectional(query, key, value, feature_map=identity, normalize=False), query @ key.mT @ value)


def test_the_last_row_of_the_causal_form_reads_what_the_bidirectional_form_reads():
    tensors = draw(9)
    assert_same(parallel(*tensors)[0][..., -1, :], bidirectional(*tensors)[..., -1, :])


@pytest.mark.parametrize("form", FORMS)
def test_a_row_with_a_zero_normaliser_gives_zero_and_passes_no_gradient(form):
    query, key, value = (t.detach() for t in draw(5, heads=()))
    query, key = query.abs() + 1, key.abs() + 1
    query[3] = -1  # relu leaves nothing of this query
    key[:2] = -1  # nor of the first two keys, so the first two rows have nothing to read
    tensors = [t.requires_grad_() for t in (query, key, value)]
    output, _ = FORMS[form](*tensors, feature_map=torch.relu)
    assert [bool(row.any()) for row in output] == [False, False, True, False, True]
    gradients = torch.autograd.grad(output.sum(), tensors)
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert not gradients[0][[0, 1, 3]].any()


def test_the_bidirectional_form_gives_zero_where_the_normaliser_is_zero():
    assert not bidirectional(-torch.ones(2, 3), torch.ones(4, 3), torch.ones(4, 3), feature_map=torch.relu).any()


@pytest.mark.parametrize("tracked", [True, False])
@pytest.mark.parametrize("form", ["chunked", "recurrent"])
def test_no_tensor_is_larger_than_the_inputs(form, tracked):
    length, width = 512, 16
    tensors = [t.detach().requires_grad_(tracked) for t in draw(length, heads=(1,), key=width, value=width)]
    with LargestTensor() as largest:
        FORMS[form](*tensors)
    assert largest.elements == length * width
    with LargestTensor() as largest:
        parallel(*tensors)
    assert largest.elements == length**2


def test_a_long_text_is_read_in_the_memory_of_a_short_one():
    state, largest = None, LargestTensor()
    piece = [t.detach() for t in draw(64, heads=(1,), key=4, value=4)]
    with largest:
        for _ in range(50):
            _, state = chunked(*piece, state=state, chunk_size=16)
    assert isinstance(state, State)
    assert state.matrix.shape == (1, 4, 4)
    assert largest.elements == 64 * 4


def test_orthonormal_keys_are_an_exact_memory():
    keys = torch.linalg.qr(draw(6, heads=(), key=6)[0].detach()).Q
    values = draw(6, heads=())[2].detach()
    empty = State(torch.zeros(7, 6, dtype=torch.float64), None)
    memory = update_state(keys, values, empty)
    torch.testing.assert_close(keys @ memory.matrix.mT, values, rtol=0, atol=1e-14)
    later, _ = recurrent(keys, torch.zeros_like(keys), values, feature_map=identity, normalize=False, state=memory)
    torch.testing.assert_close(later, values, rtol=0, atol=1e-14)


def test_the_identity_map_is_the_fast_weight_programmer():
    query, key, value = (t.detach() for t in draw(5, heads=()))
    fast_weights, outputs = torch.zeros(7, 5, dtype=torch.float64), []
    for position in range(5):
        fast_weights = fast_weights + torch.outer(value[position], key[position])
        outputs.append(fast_weights @ query[position])
    output, state = parallel(query, key, value, feature_map=identity, normalize=False)
    assert_same(output, torch.stack(outputs))
    assert_same(state.matrix, fast_weights)


def test_elu_plus_one_is_elu_plus_one_and_stays_positive():
    x = torch.linspace(-30, 5, 71, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(elu_plus_one(x), torch.nn.functional.elu(x) + 1, rtol=0, atol=1e-15)
    assert (elu_plus_one(x.float()) > 0).all()
    assert torch.autograd.gradcheck(
        elu_plus_one, (torch.tensor([-800.0, -1, 2, 800], dtype=torch.float64).requires_grad_(),)
    )


@pytest.mark.parametrize("form", FORMS)
def test_half_precision_sums_in_float32_and_rounds_once(form):
    tensors = [t.detach().bfloat16() for t in draw(23)]
    output, state = FORMS[form](*tensors)
    assert (output.dtype, state.matrix.dtype) == (torch.bfloat16, torch.float32)
    exact, _ = parallel(*(t.double() for t in tensors))
    torch.testing.assert_close(output.double(), exact, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tracked", [True, False])
def test_no_tokens_leave_the_state_as_it_was(form, tracked):
    tensors = [t.detach().requires_grad_(tracked) for t in draw(0)]
    _, start = parallel(*draw(3))
    output, state = FORMS[form](*tensors, state=start)
    assert output.shape == (2, 3, 0, 7)
    assert torch.equal(state.matrix, start.matrix)


@pytest.mark.parametrize("form", FORMS)
def test_the_callers_state_is_never_written_to(form):
    tensors = [t.detach() for t in draw(5)]
    _, start = parallel(*tensors)
    copy = start.matrix.clone()
    FORMS[form](*tensors, state=start)
    assert torch.equal(start.matrix, copy)


@pytest.mark.parametrize("form", FORMS)
def test_shapes_that_do_not_belong_together_are_refused(form):
    x = torch.zeros(2, 4, 3)
    for query, key, value in (
        (x, x[:, :3], x[:, :3]),
        (x, torch.zeros(2, 4, 5), x),
        (x, x[:1], x[:1]),
        (x, x, x[:, :3]),
        (x[0, 0], x[0, 0], x[0, 0]),
    ):
        with pytest.raises(ShapeError, match=r"same heads and positions, got query .* repeat key and value heads"):
            FORMS[form](query, key, value)


def test_bidirectional_refuses_only_what_it_must():
    x = torch.zeros(2, 4, 3)
    with pytest.raises(ShapeError, match=r"same heads, got query \(2, 4, 3\), key \(1, 4, 3\)"):
        bidirectional(x, x[:1], x[:1])


def test_a_state_of_another_making_is_refused():
    x = torch.ones(2, 4, 3)
    _, state = parallel(x, x, x)
    with pytest.raises(ShapeError, match=r"state.matrix.*\(2, 5, 3\), got \(2, 3, 3\)"):
        parallel(x, x, torch.ones(2, 4, 5), state=state)
    with pytest.raises(ShapeError, match=r"normalize=False.*normalize=True"):
        parallel(x, x, x, normalize=False, state=state)
    with pytest.raises(ShapeError, match=r"normalize=True.*normalize=False"):
        parallel(x, x, x, state=State(state.matrix, None))


def test_a_chunk_holds_at_least_one_token():
    x = torch.ones(2, 4, 3)
    with pytest.raises(ShapeError, match=r"chunk_size.*got 0"):
        chunked(x, x, x, chunk_size=0)
