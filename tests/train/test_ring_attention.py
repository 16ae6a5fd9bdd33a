"""A text that is spread over processes is attended to as if it were in one."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from attnscope.attention import Causal, Padding, Softcap, attend, from_bool
from attnscope.attention.rotary import Rotary
from attnscope.errors import SettingError, ShapeError
from attnscope.models import Decoder, DecoderConfig
from attnscope.train.ring_attention import ContextShards, context_parallel, ring_attention
from tests.attention.cases import MASKS, SHAPES
from tests.attention.oracle import Inputs, Shape, golden, make_inputs, tier_a, tier_b
from tests.largest import LargestTensor
from tests.train.ranks import LastingRanks, call_in_gloo_group

CASES = {case.name: case for case in MASKS if "booleans" not in case.name}
SQUARE = {name: shape for name, shape in SHAPES.items() if shape.queries == shape.keys}
SHORT = Shape(1, 2, 1, 3, 3, 8, 8)
LEAVES = ("query", "key", "value")
RESULTS = ("output", "lse", *(f"gradient of {name}" for name in LEAVES))


def pairs() -> list[tuple[str, Shape]]:
    """Every mask on one shape, every shape with one mask, and a text with fewer positions than ranks."""
    lengths_differ = [(name, SQUARE["grouped heads"]) for name in CASES]
    return [*lengths_differ, *(("causal", shape) for shape in SQUARE.values()), ("causal", SHORT), ("full", SHORT)]


def inputs_of(name: str, shape: Shape, dtype: torch.dtype) -> Inputs:
    return make_inputs(CASES[name], shape, dtype, growing=dtype == torch.float32)


def here(shards: ContextShards, tensor: Tensor, dim: int = 2) -> Tensor:
    return shards.take(tensor, dist.get_rank(), dim)


def local_results(name: str, shape: Shape, dtype: torch.dtype) -> list[Tensor]:
    """A rank's share of what `golden` computes, from leaves that are transposed views, as they are in a model."""
    shards, inputs = ContextShards(shape.keys, dist.get_world_size()), inputs_of(name, shape, dtype)
    leaves = [here(shards, inputs.leaves[leaf].detach()).transpose(1, 2).contiguous() for leaf in LEAVES]
    query, key, value = (leaf.requires_grad_().transpose(1, 2) for leaf in leaves)
    output, lse = ring_attention(query, key, value, shards=shards, mask=CASES[name].mask(shape), return_lse=True)
    above = here(shards, inputs.output_gradient).transpose(1, 2).contiguous().transpose(1, 2)
    finite = lse.masked_fill(lse == -math.inf, 0.0) * here(shards, inputs.lse_gradient).to(lse)
    ((output * above).sum().to(lse.dtype) + finite.sum()).backward()
    gradients = [leaf.grad for leaf in leaves]
    return [output.detach(), lse.detach(), *(g.transpose(1, 2) for g in gradients if g is not None)]


def attention() -> list[list[Tensor]]:
    return [
        *(local_results(name, shape, torch.float32) for name, shape in pairs()),
        local_results("causal documents", SQUARE["grouped heads"], torch.bfloat16),
    ]


def new_groups(*members: list[int]) -> list[dist.ProcessGroup]:
    return [dist.new_group(ranks) for ranks in members]  # pyright: ignore[reportReturnType] - or a stand-in for others


def attention_of_two_groups() -> dict[str, Tensor]:
    """Ranks with even numbers share one text, the others another one; what comes of it, and what should."""
    mine, place = dist.get_rank() % 2, dist.get_rank() // 2
    ranks = range(dist.get_world_size())
    group, shards = new_groups([*ranks[::2]], [*ranks[1::2]])[mine], ContextShards(21, len(ranks) // 2)
    text = torch.randn(3, 1, 2, 21, 8, generator=torch.Generator().manual_seed(mine), dtype=torch.float64)
    query, key, value = local = shards.take(text, place, 3).requires_grad_()
    ring_attention(query, key, value, shards=shards, group=group, mask=Causal()).square().sum().backward()
    query, key, value = text.requires_grad_()
    attend(query, key, value, mask=Causal()).square().sum().backward()
    assert local.grad is not None
    assert text.grad is not None
    return {"found": local.grad, "right": shards.take(text.grad, place, 3)}


def tokens_and_targets() -> tuple[Tensor, Tensor]:
    """Two texts, the second of which is padded."""
    tokens = torch.randint(50, (2, TEXT), generator=torch.Generator().manual_seed(4))
    targets = tokens.roll(-1, 1)
    targets[:, -1] = targets[1, LENGTHS[1] - 1 :] = -100
    return tokens, targets


TEXT, LENGTHS = 43, (43, 26)


def make_decoder() -> Decoder:
    torch.manual_seed(2)
    config = DecoderConfig(
        vocab_size=50, hidden_size=32, num_layers=3, num_heads=4, num_kv_heads=2, intermediate_size=48,
        max_position_embeddings=TEXT, norm="rms", gated=True,
        position_encoding=Rotary(dim=8, layout="half"), sliding_windows=(None, 9, None),
    )  # fmt: skip
    return Decoder(config).double()


def loss_of(decoder: Decoder, tokens: Tensor, targets: Tensor, positions: Tensor | None = None) -> Tensor:
    logits = decoder(tokens, mask=Padding(LENGTHS), position_ids=positions)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=-100)


def decoder_in_shares(*, backward_inside: bool, checkpointed: bool = False) -> dict[str, Tensor]:
    """Loss and gradients, summed over the ranks."""
    decoder, shards = make_decoder(), ContextShards(TEXT, dist.get_world_size())
    if checkpointed:
        for block in decoder.blocks:
            _checkpoint(block, shards)
    tokens, targets = (here(shards, tensor, 1) for tensor in tokens_and_targets())
    with context_parallel(shards):
        loss = loss_of(decoder, tokens, targets, shards.positions(dist.get_rank()))
        if backward_inside:
            loss.backward()
    if not backward_inside:
        loss.backward()
    return {name: _summed(tensor) for name, tensor in _loss_and_gradients(decoder, loss).items()}


def _checkpoint(block: nn.Module, shards: ContextShards) -> None:
    run = partial(checkpoint, block.forward, use_reentrant=False)
    block.forward = partial(run, context_fn=lambda: (nullcontext(), context_parallel(shards)))


def _loss_and_gradients(decoder: Decoder, loss: Tensor) -> dict[str, Tensor]:
    gradients = {name: parameter.grad for name, parameter in decoder.named_parameters()}
    return {"loss": loss.detach(), **{name: grad for name, grad in gradients.items() if grad is not None}}


def _summed(tensor: Tensor) -> Tensor:
    total = tensor.contiguous().clone()
    dist.all_reduce(total)
    return total


def decoders() -> list[dict[str, Tensor]]:
    return [
        decoder_in_shares(backward_inside=False),
        decoder_in_shares(backward_inside=True),
        decoder_in_shares(backward_inside=True, checkpointed=True),
        decoder_in_shares(backward_inside=False, checkpointed=True),
    ]


class Messages(TorchDispatchMode):
    """Remembers what is sent and received: elements, and whether they lie in one stretch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int, bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.seen += [(func.__name__, tensor.numel(), tensor.is_contiguous()) for tensor in args[0]]
        return func(*args, **(kwargs or {}))


LONG = 512


def memory() -> dict[str, Any]:
    """The sizes of tensors while queries, keys and values that are transposed views are attended to and back."""
    shards = ContextShards(LONG, dist.get_world_size())
    share = len(shards.positions(dist.get_rank()))
    leaves = [torch.randn(1, share, 2, 8, requires_grad=True) for _ in LEAVES]
    saved: list[int] = []

    def save(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    with LargestTensor() as largest, Messages() as messages:
        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            query, key, value = (leaf.transpose(1, 2) for leaf in leaves)
            output = ring_attention(query, key, value, shards=shards, mask=Causal())
        output.transpose(1, 2).contiguous().square().sum().backward()
    return {"largest": largest.elements, "saved": saved, "messages": messages.seen}


def refusals() -> dict[str, str]:
    """What each request that cannot be answered is told."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    shards = ContextShards(16, ranks)
    text = torch.randn(1, 2, 16, 8, requires_grad=True)
    share = here(shards, text)

    def inside(call: Callable[[], object]) -> Callable[[], object]:
        def run() -> object:
            with context_parallel(shards):
                return call()

        return run

    def twice() -> object:
        output = ring_attention(share, share, share, shards=shards)
        (gradient,) = torch.autograd.grad(output.square().sum(), share, create_graph=True)
        return gradient.sum().backward()

    def checkpointed() -> object:
        with context_parallel(shards):
            output = checkpoint(lambda x: attend(x, x, x, mask=Causal()).square(), share, use_reentrant=False)
        return output.sum().backward()

    requests: dict[str, Callable[[], object]] = {
        "dropout": inside(lambda: attend(share, share, share, dropout=0.1)),
        "score": inside(lambda: attend(share, share, share, score_mod=Softcap(2.0))),
        "backend": inside(lambda: attend(share, share, share, backend="streaming")),
        "whole": inside(lambda: attend(text, text, text)),
        "cache": inside(lambda: attend(share, text, text)),
        "booleans": inside(lambda: attend(share, share, share, mask=from_bool(attend=torch.rand(16, 16) > 0.5))),
        "mask size": inside(lambda: attend(share, share, share, mask=Padding([17]))),
        "torch's attention": inside(lambda: F.scaled_dot_product_attention(share, share, share)),
        "torch's layer": inside(lambda: nn.MultiheadAttention(8, 2)(share[0], share[0], share[0])),
        "ranks": lambda: context_parallel(ContextShards(16, ranks + 1)),
        "group": lambda: _attend_in_a_group_of_others(rank, share),
        "twice": twice,
        "checkpoint": checkpointed,
    }
    answers = {}
    for name, request in requests.items():
        try:
            request()
        except Exception as error:
            answers[name] = f"{type(error).__name__}: {error}"
    return answers


def _attend_in_a_group_of_others(rank: int, share: Tensor) -> object:
    others = new_groups([0], [1])[rank == 0]
    return ring_attention(share, share, share, shards=ContextShards(16, 1), group=others)


CLAIMS: tuple[Callable[[], Any], ...] = (attention, attention_of_two_groups, decoders, memory, refusals)


def everything() -> dict[str, Any]:
    """All that is looked at below, since starting processes takes longer than what they do."""
    return {claim.__name__: claim() for claim in CLAIMS}


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def found(request: pytest.FixtureRequest, ranks: LastingRanks) -> list[dict[str, Any]]:
    """`everything` on each rank."""
    return ranks.run(call_in_gloo_group, request.param, everything)


def whole(shards: ContextShards, parts: list[Tensor]) -> Tensor:
    """The text of which each rank has its share."""
    order = torch.cat([shards.positions(rank) for rank in range(shards.ranks)]).argsort()
    return torch.cat(parts, dim=2)[:, :, order].double()


def test_shares_of_a_text_give_the_output_lse_and_gradients_of_the_whole_text(found: list[dict[str, Any]]) -> None:
    complaints = {}
    for at, (name, shape) in enumerate([*pairs(), ("causal documents", SQUARE["grouped heads"])]):
        dtype = torch.float32 if at < len(pairs()) else torch.bfloat16
        shards, inputs = ContextShards(shape.keys, len(found)), inputs_of(name, shape, dtype)
        parts = [rank["attention"][at] for rank in found]
        got = {result: whole(shards, [part[i] for part in parts]) for i, result in enumerate(RESULTS)}
        truth, plain = golden(CASES[name], shape, inputs, torch.float64), golden(CASES[name], shape, inputs, dtype)
        wrong = tier_a(got, plain, truth) if dtype == torch.float32 else tier_b(got, plain, truth, dtype)
        complaints |= {(name, shape): wrong} if wrong else {}
    assert complaints == {}


def test_groups_of_ranks_attend_to_their_own_texts(found: list[dict[str, Any]]) -> None:
    for rank in found:
        gradients = rank["attention_of_two_groups"]
        torch.testing.assert_close(gradients["found"], gradients["right"], rtol=0, atol=1e-12)


def test_a_decoder_over_ranks_learns_what_one_over_the_whole_text_learns(found: list[dict[str, Any]]) -> None:
    decoder = make_decoder()
    loss = loss_of(decoder, *tokens_and_targets())
    loss.backward()
    right = _loss_and_gradients(decoder, loss)
    assert len(right) == 1 + len(list(decoder.parameters()))
    for rank in found:
        for summed in rank["decoders"]:
            assert summed.keys() == right.keys()
            for name, tensor in summed.items():
                torch.testing.assert_close(tensor, right[name], rtol=1e-10, atol=1e-12, msg=name)


def test_no_rank_holds_or_keeps_more_than_its_share(found: list[dict[str, Any]]) -> None:
    for rank in found:
        share = 2 * 8 * LONG // len(found)
        assert rank["memory"]["largest"] == 2 * share  # its keys and its values, packed for the journey
        assert sorted(rank["memory"]["saved"]) == [share // 8, *[share] * 4]  # lse; query, key, value and output


def test_transposed_views_travel_in_one_stretch_of_memory(found: list[dict[str, Any]]) -> None:
    steps = len(found) - 1
    for rank in found:
        messages = rank["memory"]["messages"]
        assert {contiguous for *_, contiguous in messages} == {True}
        assert {elements for _, elements, _ in messages} == {2 * 2 * 8 * LONG // len(found)}
        # Keys and values in the forward and in the backward, and gradients, which have one step more to come home.
        assert len(messages) == 2 * (steps + steps + steps + 1)


REFUSALS = {
    "dropout": "UnsupportedError: context_parallel: attend was called with dropout=0.1",
    "score": "UnsupportedError: context_parallel: attend was called with score_mod=Softcap",
    "backend": "UnsupportedError: context_parallel: attend was called with backend='streaming'",
    "whole": "ShapeError: ring_attention: rank",
    "cache": "ShapeError: ring_attention: rank",
    "booleans": "UnsupportedError: ring_attention: the mask from_bool",
    "mask size": "ShapeError: Padding: expected lengths from 0 to 16",
    "torch's attention": "UnsupportedError: context_parallel: scaled_dot_product_attention was called",
    "torch's layer": "UnsupportedError: context_parallel: multi_head_attention_forward was called",
    "ranks": "SettingError: ring_attention: ContextShards(sequence_length=16",
    "group": "SettingError: ring_attention: ContextShards(sequence_length=16, ranks=1)",
    "twice": "UnsupportedError: attend: the ring backend does not support second-order gradients",
    "checkpoint": "CheckpointError: torch.utils.checkpoint: Recomputed values",
}


def test_what_ranks_cannot_answer_together_is_refused_by_name(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["refusals"].keys() == REFUSALS.keys()
        for name, beginning in REFUSALS.items():
            assert rank["refusals"][name].startswith(beginning)


def test_without_other_processes_the_ring_says_what_is_missing() -> None:
    query = torch.randn(1, 1, 4, 8)
    with pytest.raises(SettingError, match="init_process_group"):
        ring_attention(query, query, query, shards=ContextShards(4, 1))


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("length", [1, 2, 5, 16, 97])
def test_every_position_has_one_rank(length: int, ranks: int) -> None:
    shards = ContextShards(length, ranks)
    positions = [shards.positions(rank) for rank in range(ranks)]
    assert torch.cat(positions).sort().values.tolist() == list(range(length))
    text = torch.randn(2, length)
    for rank in range(ranks):
        assert torch.equal(shards.take(text, rank, 1), text[:, positions[rank]])
        assert torch.equal(shards.take(text, rank, -1), text[:, positions[rank]])


def test_ranks_have_equal_work_under_a_causal_mask() -> None:
    shards = ContextShards(4096, 8)
    cells = [int((shards.positions(rank) + 1).sum()) for rank in range(8)]
    assert max(cells) == min(cells)


def test_neighbouring_chunks_are_one_piece() -> None:
    assert ContextShards(12, 1).spans(0) == ((0, 12),)
    assert ContextShards(12, 2).spans(1) == ((3, 9),)


def test_shares_refuse_what_they_do_not_have() -> None:
    for length, ranks in ((0, 2), (5, 0)):
        with pytest.raises(SettingError, match="one position and one rank"):
            ContextShards(length, ranks)
    with pytest.raises(SettingError, match="there are ranks 0 to 1"):
        ContextShards(5, 2).spans(2)
    with pytest.raises(ShapeError, match=r"dimension 0 of \(4, 5\)"):
        ContextShards(5, 2).take(torch.zeros(4, 5), 0, 0)
