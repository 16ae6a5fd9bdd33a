import mpmath
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as gptj_apply
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as llama_apply

from attnscope.attention.positions import position_ids
from attnscope.attention.rotary import Rotary, apply_rotation, convert_layout, rotate, rotation
from attnscope.attention.rotary_scaling import YarnScaling
from attnscope.errors import ShapeError

LAYOUTS = ("half", "interleaved")


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def rotate_by_complex_numbers(x: Tensor, positions: Tensor, layout: str, dim: int) -> Tensor:
    """A pair is a complex number, and turning it is multiplying it by exp(i * angle)."""
    pairs = x[..., :dim].unflatten(-1, (2, dim // 2)).mT if layout == "half" else x[..., :dim].unflatten(-1, (-1, 2))
    angles = positions.double()[..., None] / 10000 ** (torch.arange(dim // 2, dtype=torch.float64) * 2 / dim)
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * torch.exp(1j * angles))
    turned = turned.mT.flatten(-2) if layout == "half" else turned.flatten(-2)
    return torch.cat((turned, x[..., dim:]), dim=-1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dim", [2, 6, 10])
def test_rotation_is_multiplication_of_complex_numbers(layout, dim):
    x = draw(2, 3, 7, 10)
    expected = rotate_by_complex_numbers(x, torch.arange(7) + 100, layout, dim)
    torch.testing.assert_close(rotate(x, Rotary(dim=dim, layout=layout), offset=100), expected, rtol=0, atol=1e-12)


def test_half_layout_is_that_of_llama_in_transformers():
    x = draw(2, 3, 9, 16, dtype=torch.float32)
    config = LlamaConfig(hidden_size=48, num_attention_heads=3, head_dim=16, max_position_embeddings=64)
    cos, sin = LlamaRotaryEmbedding(config)(x, torch.arange(9).unsqueeze(0))
    expected, _ = llama_apply(x, x, cos, sin)
    torch.testing.assert_close(rotate(x, Rotary(dim=16, layout="half")), expected, rtol=0, atol=2e-6)


def test_interleaved_layout_is_that_of_gptj_in_transformers():
    x = draw(2, 3, 9, 16)
    turn = rotation(Rotary(dim=16, layout="interleaved"), torch.arange(9), dtype=torch.float64)
    expected = gptj_apply(x.transpose(1, 2), turn.sin[None, ..., 1], turn.cos[None, ..., 1]).transpose(1, 2)
    torch.testing.assert_close(apply_rotation(x, turn), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scores_depend_only_on_the_difference_of_positions(layout):
    query, key = draw(1, 32), draw(2, 32)[1:]
    rotary = Rotary(dim=32, layout=layout)

    def score(i: int, j: int) -> float:
        return (rotate(query, rotary, offset=i) @ rotate(key, rotary, offset=j).T).item()

    for shift in (1, 100, 10_000, 1_000_000):
        # An angle is rounded to eps * position, and 32 products of size about 1 are summed.
        assert score(19 + shift, 4 + shift) == pytest.approx(score(19, 4), abs=64 * 2.3e-16 * (20 + shift) + 1e-13)
    assert abs(score(19, 5) - score(19, 4)) > 1e-3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rotation_keeps_lengths(layout):
    x = draw(2, 5, 8)
    torch.testing.assert_close(rotate(x, Rotary(dim=8, layout=layout), offset=3).norm(dim=-1), x.norm(dim=-1))


def test_cosines_at_a_million_have_all_their_digits():
    rotary, position = Rotary(dim=64, layout="half", base=500000.0), 1_000_000
    with mpmath.workdps(40):
        angles = [position * mpmath.mpf(500000) ** (mpmath.mpf(-2 * pair) / 64) for pair in range(32)]
        cosines = torch.tensor([float(mpmath.cos(angle)) for angle in angles], dtype=torch.float64)
        sines = torch.tensor([float(mpmath.sin(angle)) for angle in angles], dtype=torch.float64)
    double = rotation(rotary, torch.tensor([position]), dtype=torch.float64)
    single = rotation(rotary, torch.tensor([position]))
    # float64 angles round to eps * position; float32 tables round to half a unit in the last place below 1.
    assert (double.cos[0, 1] - cosines).abs().max() < 3 * 2.3e-16 * position
    assert (double.sin[0, 1] - sines).abs().max() < 3 * 2.3e-16 * position
    assert single.cos.dtype == torch.float32
    assert (single.cos[0, 1] - cosines).abs().max() < 6e-8
    assert (single.sin[0, 1] - sines).abs().max() < 6e-8


def test_partial_rotary_passes_the_other_coordinates_through_untouched():
    x = draw(2, 3, 5, 10, dtype=torch.bfloat16)
    turned = rotate(x, Rotary(dim=4, layout="half"), offset=9)
    assert torch.equal(turned[..., 4:], x[..., 4:])
    torch.testing.assert_close(turned[..., :4], rotate(x[..., :4], Rotary(dim=4, layout="half"), offset=9))


def test_offsets_and_explicit_positions_say_the_same():
    x, rotary = draw(2, 3, 4, 8), Rotary(dim=8, layout="half")
    rows = torch.tensor([5, 0])
    by_row = torch.stack([rotate(x[0], rotary, offset=5), rotate(x[1], rotary, offset=0)])
    for turned in (
        rotate(x, rotary, offset=rows),
        rotate(x, rotary, positions=position_ids(4, offset=rows)),
        apply_rotation(x, rotation(rotary, position_ids(4, offset=rows), dtype=torch.float64)),
    ):
        assert torch.equal(turned, by_row)
    assert torch.equal(rotate(x, rotary, offset=5), rotate(x, rotary, positions=torch.arange(5, 9)))
    assert torch.equal(rotate(x, rotary, offset=5), rotate(x, rotary, positions=torch.arange(5, 9).unsqueeze(0)))


def test_positions_may_be_in_any_order():
    x, rotary, order = draw(3, 4, 8), Rotary(dim=8, layout="interleaved"), torch.tensor([2, 0, 3, 1])
    assert torch.equal(rotate(x[:, order], rotary, positions=order), rotate(x, rotary)[:, order])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_turned_in_float32_and_rounded_once(dtype):
    x, rotary = draw(2, 5, 8, dtype=dtype), Rotary(dim=8, layout="half")
    turned = rotate(x, rotary, offset=1_000_000)
    assert turned.dtype == dtype
    assert torch.equal(turned, rotate(x.float(), rotary, offset=1_000_000).to(dtype))


def test_yarn_amplitude_lengthens_what_is_turned_and_nothing_else():
    x = draw(3, 12)
    scaling = YarnScaling(factor=4.0, original_length=32, attention_factor=1.5)
    turned = rotate(x, Rotary(dim=8, layout="half", scaling=scaling))
    torch.testing.assert_close(turned[:, :8].norm(dim=-1), 1.5 * x[:, :8].norm(dim=-1))
    assert torch.equal(turned[:, 8:], x[:, 8:])


@pytest.mark.parametrize("dim", [8, 4])
def test_rotating_in_one_layout_is_permuting_and_rotating_in_the_other(dim):
    x = draw(2, 3, 5, 8)
    other = convert_layout(x, source="half", target="interleaved", head_dim=8, rotary_dim=dim)
    turned = rotate(other, Rotary(dim=dim, layout="interleaved"), offset=11)
    back = convert_layout(turned, source="interleaved", target="half", head_dim=8, rotary_dim=dim)
    assert torch.equal(back, rotate(x, Rotary(dim=dim, layout="half"), offset=11))


def test_converted_weights_give_the_same_scores_in_the_other_layout():
    hidden, query_weight, key_weight = draw(6, 10), draw(16, 10), draw(17, 10)[1:]

    def scores(query_weight: Tensor, key_weight: Tensor, rotary: Rotary) -> Tensor:
        query, key = (
            (hidden @ weight.T).unflatten(-1, (2, 8)).transpose(0, 1) for weight in (query_weight, key_weight)
        )
        return rotate(query, rotary) @ rotate(key, rotary).mT

    def convert(weight: Tensor) -> Tensor:
        return convert_layout(weight, source="interleaved", target="half", head_dim=8, axis=0)

    torch.testing.assert_close(
        scores(query_weight, key_weight, Rotary(dim=8, layout="interleaved")),
        scores(convert(query_weight), convert(key_weight), Rotary(dim=8, layout="half")),
        rtol=0,
        atol=1e-12,
    )


def test_converting_there_and_back_changes_nothing():
    bias = torch.arange(24)
    there = convert_layout(bias, source="half", target="interleaved", head_dim=12, rotary_dim=8, axis=0)
    assert there.tolist()[:12] == [0, 4, 1, 5, 2, 6, 3, 7, 8, 9, 10, 11]
    assert torch.equal(convert_layout(there, source="interleaved", target="half", head_dim=12, rotary_dim=8), bias)
    assert convert_layout(bias, source="half", target="half", head_dim=12) is bias


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rotation_has_the_right_gradient(layout):
    x = draw(2, 3, 6).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: rotate(x, Rotary(dim=4, layout=layout), offset=5), (x,))


def test_rotary_refuses_what_it_cannot_pair():
    with pytest.raises(ShapeError, match=r"Rotary: .*even dim.*got 7"):
        Rotary(dim=7, layout="half")
    with pytest.raises(ValueError, match=r'layout.*"half" or "interleaved", got .neox.'):
        Rotary(dim=8, layout="neox")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"Rotary: .*base > 1, got 0"):
        Rotary(dim=8, layout="half", base=0)


def test_rotate_refuses_a_head_narrower_than_the_rotation():
    with pytest.raises(ShapeError, match=r"at least 8, got \(3, 4\); set Rotary.dim"):
        rotate(draw(3, 4), Rotary(dim=8, layout="half"))


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (3, 5), (1, 1, 5)])
def test_rotate_refuses_positions_that_do_not_fit(shape):
    expected = rf"positions.* got \({', '.join(map(str, shape))},?\) .*\(2, 4, 5, 8\)"
    with pytest.raises(ShapeError, match=expected):
        rotate(draw(2, 4, 5, 8), Rotary(dim=8, layout="half"), positions=torch.zeros(shape))


def test_rotate_refuses_two_ways_of_saying_where():
    with pytest.raises(ShapeError, match="add the offset to the positions"):
        rotate(draw(3, 4), Rotary(dim=4, layout="half"), offset=1, positions=torch.arange(3))


def test_convert_layout_refuses_axes_that_do_not_hold_heads():
    with pytest.raises(ShapeError, match=r"axis 0.*head_dim 4, got shape \(10, 2\)"):
        convert_layout(draw(10, 2), source="half", target="interleaved", head_dim=4, axis=0)
    with pytest.raises(ShapeError, match=r"even rotary_dim.*head_dim 4, got 6"):
        convert_layout(draw(8), source="half", target="interleaved", head_dim=4, rotary_dim=6)
    with pytest.raises(ValueError, match=r'target.*"half" or "interleaved"'):
        convert_layout(draw(8), source="half", target="neox", head_dim=4)  # pyright: ignore[reportArgumentType]
