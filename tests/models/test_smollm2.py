"""Our decoder with SmolLM2's trained weights: as exact as transformers, whichever way the tokens arrive."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from attnscope.attention import Mask, Padding, Prefix
from attnscope.models.checkpoint import load
from attnscope.models.decoder import Decoder
from attnscope.models.generate import generate_tokens
from tests.models import smollm2

FACTOR = 4  # our error may be this many times that of transformers in float32


@cache
def ours(dtype: torch.dtype = torch.float32) -> Decoder:
    model = load(smollm2.FOLDER, dtype=dtype)
    assert isinstance(model, Decoder)
    return model


@cache
def exact_logits(length: int) -> Tensor:
    tokens = torch.tensor(smollm2.token_rows((length,)))
    with torch.no_grad():
        return smollm2.exact_model()(tokens).logits[0]


@cache
def transformers_error(length: int) -> float:
    tokens = torch.tensor(smollm2.token_rows((length,)))
    with torch.no_grad():
        return worst(smollm2.transformers_model()(tokens).logits[0], exact_logits(length))


def worst(found: Tensor, wanted: Tensor) -> float:
    return (found.double() - wanted).abs().max().item()


@torch.no_grad()
def test_the_exact_answer_is_the_same_from_both() -> None:
    tokens = torch.tensor(smollm2.token_rows((100,)))
    ours_exact = load(smollm2.FOLDER, dtype=torch.float64)(tokens)[0]
    assert worst(ours_exact, exact_logits(100)) < 1e-10


@pytest.mark.parametrize("length", [1, 17, 512, pytest.param(2048, marks=pytest.mark.slow)])
@torch.no_grad()
def test_a_pass_without_cache_is_as_exact_as_transformers(length: int) -> None:
    tokens = torch.tensor(smollm2.token_rows((length,)))
    assert worst(ours()(tokens)[0], exact_logits(length)) <= FACTOR * transformers_error(length)


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize(
    ("length", "cuts"),
    [
        (1, []),
        (17, [1, 2, 16]),
        (512, [250, 500, 511]),
        pytest.param(2048, [1000, 2000, 2047], marks=pytest.mark.slow),
    ],
)
@torch.no_grad()
def test_a_pass_in_pieces_with_cache_is_as_exact_as_transformers(length: int, cuts: list[int], static: bool) -> None:
    tokens = torch.tensor(smollm2.token_rows((length,)))
    cache = ours().new_cache(length if static else None)
    pieces = [ours()(piece, cache=cache) for piece in tokens.tensor_split(cuts, dim=1)]
    assert worst(torch.cat(pieces, dim=1)[0], exact_logits(length)) <= FACTOR * transformers_error(length)


@pytest.mark.slow
@torch.no_grad()
def test_exact_angles_make_a_long_pass_more_exact_than_that_of_transformers() -> None:
    tokens = torch.tensor(smollm2.token_rows((2048,)))
    assert worst(ours()(tokens)[0], exact_logits(2048)) < transformers_error(2048)


@pytest.mark.parametrize("left", [True, False])
@torch.no_grad()
def test_padded_batches_are_as_exact_as_transformers(left: bool) -> None:
    lengths = (130, 17, 1, 64)
    rows, longest = smollm2.token_rows(lengths), max(lengths)
    tokens, keep = torch.zeros(len(rows), longest, dtype=torch.long), torch.zeros(len(rows), longest, dtype=torch.bool)
    for index, row in enumerate(rows):
        where = slice(longest - len(row), None) if left else slice(0, len(row))
        tokens[index, where], keep[index, where] = torch.tensor(row), True
    positions = (keep.cumsum(1) - 1).clamp(min=0)
    masks: list[Mask] = [Padding(keep=keep)]
    masks.append(~Prefix([longest - length for length in lengths]) if left else Padding(lengths))

    options = {"attention_mask": keep.long(), "position_ids": positions}
    theirs = smollm2.transformers_model()(tokens, **options).logits
    exact = [smollm2.exact_model()(torch.tensor([row])).logits[0] for row in rows]
    for mask in masks:
        found = ours()(tokens, mask=mask, position_ids=positions)
        for index, wanted in enumerate(exact):
            bound = FACTOR * worst(theirs[index, keep[index]], wanted)
            assert worst(found[index, keep[index]], wanted) <= bound


@pytest.mark.slow
@torch.no_grad()
def test_greedy_continuations_of_64_tokens_are_those_of_transformers() -> None:
    prompts = [smollm2.tokenizer()(prompt)["input_ids"] for prompt in smollm2.PROMPTS]
    alone = []
    for prompt in prompts:
        theirs = (
            smollm2.transformers_model()
            .generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=64,
                do_sample=False,
                eos_token_id=-1,  # no token: the continuations run on past the end token, on both sides
                pad_token_id=0,
            )[0, len(prompt) :]
            .tolist()
        )
        assert len(theirs) == 64
        found = [tokens[0] for tokens in generate_tokens(ours(), [prompt], max_new_tokens=64)]
        assert found == theirs
        alone.append(found)
    together = list(zip(*generate_tokens(ours(), prompts, max_new_tokens=64), strict=True))
    assert [list(row) for row in together] == alone


@torch.no_grad()
def test_bfloat16_is_as_exact_as_transformers_in_bfloat16() -> None:
    tokens = torch.tensor(smollm2.token_rows((300,)))
    error = worst(smollm2.transformers_model(torch.bfloat16)(tokens).logits[0], exact_logits(300))
    assert worst(ours(torch.bfloat16)(tokens)[0], exact_logits(300)) <= 2 * error
