"""Which calls the Triton kernels support, and what is said about the others."""

import subprocess
import sys
from itertools import product

import pytest
import torch

from attnscope.attention import ALiBi, Bias, Causal, Sinks, Softcap
from attnscope.attention.scores import ScoreMod, Temperature
from attnscope.attention.spec import AttentionSpec, Signature, make_spec
from attnscope.attention.triton.configs import ARCHITECTURES, CONFIGS, find_architecture, find_config
from attnscope.attention.triton.score_terms import to_score_terms
from attnscope.errors import UnsupportedError

SHAPE = torch.Size((1, 2, 6, 16))


def spec_with(score_mod: ScoreMod | None) -> AttentionSpec:
    signature = Signature(SHAPE, SHAPE, SHAPE, torch.float32, torch.device("cpu"))
    return make_spec(signature, mask=Causal(), scale=None, score_mod=score_mod, dropout=0.0)


@pytest.mark.parametrize(
    "score_mod",
    [Bias(torch.zeros(2, 6, 6)), ALiBi(2) + Softcap(3.0), Softcap(3.0) + Softcap(2.0), ALiBi(2) + ALiBi(2)],
    ids=str,
)
def test_scores_in_another_order_are_not_supported(score_mod: ScoreMod) -> None:
    assert to_score_terms(spec_with(score_mod)) is None


def test_temperatures_become_part_of_the_other_terms() -> None:
    parts = Temperature(2.0), Softcap(8.0), Temperature(4.0), ALiBi([0.5, 1.0]), Temperature(2.0), Sinks(torch.ones(2))
    chain = parts[0]
    for part in parts[1:]:
        chain = chain + part
    terms = to_score_terms(spec_with(chain))
    assert terms is not None
    assert terms.scale == 0.25 / 2.0 / 8.0
    assert terms.cap == 8.0 / 4.0 / 2.0
    assert terms.slopes is not None
    assert terms.slopes.tolist() == [0.25, 0.5]
    assert terms.sinks is not None


@pytest.mark.parametrize(
    ("backend", "name", "found"),
    [
        ("cuda", 80, "sm_80"),
        ("cuda", 89, "sm_80"),
        ("cuda", 103, "sm_100"),
        ("hip", "gfx942:sramecc+:xnack-", "gfx942"),
    ],
)
def test_a_device_takes_the_entry_of_its_architecture(backend: str, name: int | str, found: str) -> None:
    assert find_architecture(backend, name) == found


@pytest.mark.parametrize(("backend", "name"), [("cuda", 75), ("hip", "gfx1100")])
def test_a_device_without_an_entry_is_refused(backend: str, name: int | str) -> None:
    with pytest.raises(UnsupportedError, match=f"no configuration for {backend} {name}.*streaming"):
        find_architecture(backend, name)


def test_every_architecture_has_every_kernel_for_every_head_dim_and_dtype() -> None:
    assert CONFIGS.keys() == ARCHITECTURES.keys()
    for architecture, kernels in CONFIGS.items():
        assert kernels.keys() - {"bins"} == {"rows", "columns", "products"}
        every = ("rows", "columns", "bins", "products")
        for kernel, (head_dim, itemsize) in product(every, product((8, 32, 64, 96, 128, 200, 256), (2, 4))):
            found = find_config(kernel, architecture, head_dim, itemsize)
            # What the kernels assume: sums over 8 lanes of keys, and over pairs of 8 rows.
            assert found.block_keys % 16 == 0
            assert found.block_rows % 16 == 0


def test_a_head_dim_takes_the_configuration_of_the_next_larger_one() -> None:
    assert find_config("rows", "sm_90", 96, 2) == CONFIGS["sm_90"]["rows"][128, 2]
    assert find_config("rows", "sm_90", 129, 2) == CONFIGS["sm_90"]["rows"][256, 2]


@pytest.mark.parametrize(("head_dim", "itemsize"), [(512, 2), (64, 8)])
def test_a_call_without_a_configuration_is_refused(head_dim: int, itemsize: int) -> None:
    with pytest.raises(UnsupportedError, match="streaming"):
        find_config("rows", "sm_90", head_dim, itemsize)


def test_without_triton_only_the_launch_of_kernels_fails() -> None:
    code = """
import sys
sys.modules["triton"] = None
import attnscope.attention.intervals, attnscope.attention.triton.configs, attnscope.attention.triton.score_terms
from attnscope import AttentionMatrix
from attnscope.errors import MissingExtraError
try:
    import attnscope.attention.triton.launch
except MissingExtraError as error:
    print(error)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip().endswith('pip install "attnscope[triton]"')
