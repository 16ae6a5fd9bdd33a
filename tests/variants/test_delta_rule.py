import pytest
import torch
from torch import Tensor

from attnscope.errors import ShapeError
from attnscope.variants import linear
from attnscope.variants.delta_rule import chunked, recurrent, step
from attnscope.variants.linear import State

AGREEMENT = 1e-10
LENGTHS = [1, 3, 4, 5, 23]


def draw(length: int, *, heads: tuple[int, ...] = (2, 3), key: int = 5, value: int = 7, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    query, keys, values = (
        torch.randn(*heads, length, width, generator=generator, dtype=torch.float64) for width in (key, key, value)
    )
    beta = torch.rand(*heads, length, generator=generator, dtype=torch.float64)
    keys = torch.nn.functional.normalize(keys, dim=-1)
    return [tensor.requires_grad_() for tensor in (query, keys, values, beta)]


def assert_same(actual, expected) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=AGREEMENT)


def test_the_recurrent_form_is_the_rule():
    query, key, value, beta = draw(6, heads=())
    memory, outputs = torch.zeros(7, 5, dtype=torch.float64), []
    for position in range(6):
        error = value[position] - memory @ key[position]
        memory = memory + beta[position] * torch.outer(error, key[position])
        outputs.append(memory @ query[position])
    output, state = recurrent(query, key, value, beta)
    assert_same(output, torch.stack(outputs))
    assert_same(state.matrix, memory)


@pytest.mark.parametrize("length", LENGTHS)
def test_the_forms_agree_in_output_state_and_gradient(length):
    tensors = draw(length)
    weight = draw(length, seed=1)[2].detach()
    results = []
    for run in (recurrent, lambda *tensors: chunked(*tensors, chunk_size=4)):
        output, state = run(*tensors)
        loss = (output * weight).sum() + state.matrix.square().sum()
        results.append((output, state.matrix, *torch.autograd.grad(loss, tensors)))
    for actual, expected in zip(*results, strict=True):
        assert_same(actual, expected)


@pytest.mark.parametrize("chunk", [1, 7, 64, 300])
def test_the_size_of_a_chunk_changes_nothing(chunk):
    tensors = draw(200, heads=(2,), key=16, value=16)
    with torch.no_grad():
        assert_same(chunked(*tensors, chunk_size=chunk)[0], recurrent(*tensors)[0])


@pytest.mark.parametrize("run", [recurrent, lambda *tensors, state: chunked(*tensors, state=state, chunk_size=4)])
def test_both_forms_have_the_right_gradient(run):
    tensors = draw(6, heads=(2,), key=2, value=3)
    matrix = torch.ones(2, 3, 2, dtype=torch.float64, requires_grad=True)

    def flat(*tensors: Tensor):
        output, state = run(*tensors[:4], state=State(tensors[4], None))
        return output, state.matrix

    assert torch.autograd.gradcheck(flat, (*tensors, matrix))


@pytest.mark.parametrize("run", [recurrent, lambda *tensors, state: chunked(*tensors, state=state, chunk_size=4)])
def test_reading_piece_by_piece_is_reading_at_once(run):
    query, key, value, beta = draw(23)
    expected, last = recurrent(query, key, value, beta)
    state, pieces = None, []
    for start, stop in ((0, 1), (1, 10), (10, 23)):
        tensors = (tensor[..., start:stop, :] for tensor in (query, key, value))
        piece, state = run(*tensors, beta[..., start:stop], state=state)
        pieces.append(piece)
    assert isinstance(state, State)
    assert_same(torch.cat(pieces, dim=-2), expected)
    assert_same(state.matrix, last.matrix)


def test_steps_are_the_recurrent_form():
    query, key, value, beta = draw(6)
    expected, _ = recurrent(query, key, value, beta)
    state = None
    for position in range(6):
        token = query[..., position, :], key[..., position, :], value[..., position, :], beta[..., position]
        output, state = step(*token, state=state)
        assert_same(output, expected[..., position, :])


def test_the_delta_rule_overwrites_where_the_sum_adds():
    key = torch.tensor([[0.6, 0.8], [0.6, 0.8]])
    value = torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])
    replaced, _ = recurrent(key, key, value, torch.ones(2))
    added, _ = linear.recurrent(key, key, value, feature_map=linear.identity, normalize=False)
    torch.testing.assert_close(replaced[1], value[1])
    torch.testing.assert_close(added[1], value[0] + value[1])


def test_the_delta_rule_and_the_sum_agree_on_orthonormal_keys():
    _, _, value, _ = draw(5, heads=())
    key = torch.linalg.qr(draw(5, heads=())[0].detach()).Q
    by_delta, _ = recurrent(key, key, value, torch.ones(5, dtype=torch.float64))
    by_sum, _ = linear.recurrent(key, key, value, feature_map=linear.identity, normalize=False)
    assert_same(by_delta, by_sum)
    assert_same(by_delta, value)


def test_a_strength_of_zero_writes_nothing():
    query, key, value, beta = draw(5)
    output, state = recurrent(query, key, value, torch.zeros_like(beta))
    assert not output.any()
    assert not state.matrix.any()


def test_half_precision_keeps_its_state_in_float32():
    tensors = [tensor.detach().bfloat16() for tensor in draw(23)]
    exact, _ = recurrent(*(tensor.double() for tensor in tensors))
    for output, state in (recurrent(*tensors), chunked(*tensors, chunk_size=4)):
        assert (output.dtype, state.matrix.dtype) == (torch.bfloat16, torch.float32)
        torch.testing.assert_close(output.double(), exact, rtol=2**-8, atol=1e-5)


def test_strengths_that_are_not_one_for_each_token_are_refused():
    query, key, value, beta = draw(5)
    with pytest.raises(ShapeError, match=r"beta.*\(2, 3, 5\), got \(2, 3, 5, 1\)"):
        recurrent(query, key, value, beta.unsqueeze(-1))


def test_a_state_with_a_normaliser_is_refused():
    query, key, value, beta = draw(5)
    _, state = linear.parallel(query, key, value)
    with pytest.raises(ShapeError, match=r"normalize=False.*normalize=True"):
        chunked(query, key, value, beta, state=state)


def test_a_chunk_holds_at_least_one_token():
    with pytest.raises(ShapeError, match=r"chunk_size.*got -2"):
        chunked(*draw(5), chunk_size=-2)
