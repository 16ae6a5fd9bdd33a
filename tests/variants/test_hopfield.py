import pytest
import torch
from torch import Tensor

from attnscope.errors import ShapeError
from attnscope.variants.hopfield import energy, retrieve
from tests.largest import LargestTensor

# Rounding of a float64 energy of size about 10.
ROUNDING = 1e-13
BACKENDS = ("auto", "fused", "streaming", "reference")


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def energy_by_definition(state: Tensor, patterns: Tensor, beta: float) -> Tensor:
    """One state, equation 2 of arXiv:2008.02217 term by term."""
    similarity = torch.logsumexp(beta * patterns @ state, dim=0) / beta
    largest = patterns.norm(dim=-1).max()
    count = torch.tensor(float(len(patterns)), dtype=torch.float64)
    return -similarity + state @ state / 2 + count.log() / beta + largest**2 / 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_step_is_softmax_attention_over_the_patterns(backend):
    state, patterns = draw(2, 3, 4, 8), draw(2, 3, 9, 8, seed=1)
    expected = torch.softmax(0.7 * state @ patterns.mT, dim=-1) @ patterns
    torch.testing.assert_close(retrieve(state, patterns, beta=0.7, backend=backend), expected, rtol=0, atol=1e-13)


def test_many_steps_are_one_step_many_times():
    state, patterns = draw(4, 8), draw(9, 8, seed=1)
    expected = state
    for _ in range(5):
        expected = retrieve(expected, patterns, beta=0.5)
    assert torch.equal(retrieve(state, patterns, beta=0.5, steps=5), expected)


def test_energy_is_the_formula_of_the_paper():
    state, patterns = draw(2, 4, 8), draw(2, 9, 8, seed=1)
    values = energy(state, patterns, beta=0.7)
    assert values.shape == (2, 4)
    for batch in range(2):
        for row in range(4):
            expected = energy_by_definition(state[batch, row], patterns[batch], 0.7)
            torch.testing.assert_close(values[batch, row], expected, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("beta", [0.05, 0.5, 2.0, 20.0])
@pytest.mark.parametrize("seed", range(5))
def test_energy_never_increases_along_retrieval(beta, seed):
    state, patterns = 2 * draw(16, 12, seed=seed), draw(30, 12, seed=seed + 100)
    before = energy(state, patterns, beta=beta)
    for _ in range(30):
        state = retrieve(state, patterns, beta=beta)
        after = energy(state, patterns, beta=beta)
        assert (after <= before + ROUNDING).all()
        before = after


def test_energy_is_never_negative():
    assert (energy(3 * draw(200, 6), draw(10, 6, seed=1), beta=0.3) >= 0).all()


def test_a_lone_pattern_has_energy_zero():
    pattern = draw(1, 8)
    torch.testing.assert_close(energy(pattern, pattern, beta=2.0), torch.zeros(1).double(), rtol=0, atol=ROUNDING)


def test_retrieval_is_a_gradient_step_of_length_one_down_the_energy():
    state, patterns = draw(4, 8).requires_grad_(), draw(9, 8, seed=1)
    (gradient,) = torch.autograd.grad(energy(state, patterns, beta=0.7).sum(), state)
    torch.testing.assert_close(state - gradient, retrieve(state, patterns, beta=0.7), rtol=0, atol=1e-13)


def test_a_stored_pattern_is_a_fixed_point_for_large_beta():
    patterns = draw(20, 32)
    torch.testing.assert_close(retrieve(patterns, patterns, beta=20.0), patterns, rtol=0, atol=1e-12)


def test_a_damaged_pattern_is_restored():
    patterns = draw(20, 64).sign()
    damaged = patterns.clone()
    damaged[:, :16] = 0
    torch.testing.assert_close(retrieve(damaged, patterns, beta=4.0), patterns, rtol=0, atol=1e-12)


def test_a_small_beta_retrieves_the_average_of_all_patterns():
    state, patterns = draw(4, 8), draw(9, 8, seed=1)
    average = patterns.mean(0).expand(4, 8)
    torch.testing.assert_close(retrieve(state, patterns, beta=1e-9), average, rtol=0, atol=1e-7)


def test_a_tolerance_stops_where_nothing_moves_any_more():
    state, patterns = draw(4, 8), draw(9, 8, seed=1)
    settled = retrieve(state, patterns, beta=0.5, steps=10_000, tolerance=1e-12)
    torch.testing.assert_close(retrieve(settled, patterns, beta=0.5), settled, rtol=0, atol=1e-12)


def test_a_loose_tolerance_stops_after_the_first_small_move():
    state, patterns = draw(4, 8), draw(9, 8, seed=1)
    once = retrieve(state, patterns, beta=0.5)
    assert torch.equal(retrieve(state, patterns, beta=0.5, steps=50, tolerance=1e9), once)


@pytest.mark.parametrize("backend", BACKENDS)
def test_retrieval_has_the_right_gradient(backend):
    state, patterns = draw(2, 3, 4).requires_grad_(), draw(2, 5, 4, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda s, p: retrieve(s, p, beta=0.7, steps=2, backend=backend), (state, patterns))


@pytest.mark.parametrize("backend", BACKENDS)
def test_energy_has_the_right_gradient(backend):
    state, patterns = draw(2, 3, 4).requires_grad_(), draw(2, 5, 4, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda s, p: energy(s, p, beta=0.7, backend=backend), (state, patterns))


def test_states_by_patterns_is_never_built():
    state, patterns = draw(2048, 16).float(), draw(4096, 16, seed=1).float()
    with LargestTensor() as largest:
        retrieve(state, patterns, beta=1.0, steps=2)
        energy(state, patterns, beta=1.0)
    assert largest.elements <= 2 * patterns.numel()


def test_bfloat16_states_have_float32_energies():
    assert energy(draw(4, 8).bfloat16(), draw(9, 8).bfloat16(), beta=1.0).dtype == torch.float32


def test_what_cannot_be_retrieved_is_refused():
    with pytest.raises(ShapeError, match=r"equal dim.*states \(4, 8\) and patterns \(9, 7\)"):
        retrieve(draw(4, 8), draw(9, 7), beta=1.0)
    with pytest.raises(ShapeError, match=r"patterns \(9, 8\); expand shared patterns"):
        retrieve(draw(2, 4, 8), draw(9, 8), beta=1.0)
    with pytest.raises(ShapeError, match=r"got states \(4, 8\) and patterns \(8,\)"):
        retrieve(draw(4, 8), draw(8), beta=1.0)
    with pytest.raises(ShapeError, match=r"at least one pattern .* patterns \(0, 8\)"):
        energy(draw(4, 8), draw(0, 8), beta=1.0)
    with pytest.raises(ValueError, match="positive beta, got 0"):
        retrieve(draw(4, 8), draw(9, 8), beta=0)
    with pytest.raises(ValueError, match=r"steps.*got 0"):
        retrieve(draw(4, 8), draw(9, 8), beta=1.0, steps=0)
