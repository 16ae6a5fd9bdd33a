"""Heads that are silenced, scaled, averaged or patched are so at the input of the output projection, and only there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnscope.errors import SettingError, UnsupportedError
from attnscope.heads import HeadTable, ablate, patch
from attnscope.models import Decoder, DecoderConfig, Encoder, Seq2Seq, Seq2SeqConfig
from attnscope.recording import load, record
from tests.models.smollm2 import FOLDER, own_model, transformers_model
from tests.recording.zoo import BYPASS, EXHIBITS

MINILM = FOLDER.parent / "minilm-l6"
IDS = torch.randint(3, 99, (2, 12), generator=torch.Generator().manual_seed(0))
OTHER_IDS = torch.randint(3, 99, (2, 12), generator=torch.Generator().manual_seed(1))


class Subject:
    """A tiny model, a layer of it, and the projection behind the heads of that layer."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        build, self.layer, projection = SUBJECTS[name]
        self.model: nn.Module = build().eval()
        self.projection: Any = self.model.get_submodule(projection)
        self.is_inside = projection == "mixing.out_proj"  # of a function, where no hook sees it
        with torch.no_grad():
            for parameter in self.projection.parameters():
                parameter.normal_()

    def __call__(self, ids: Tensor = IDS) -> Tensor:
        """What the model returns."""
        with torch.no_grad():
            found = self.model(**_inputs(self.model, ids))
        found = found[0] if isinstance(found, tuple) else getattr(found, "logits", found)
        return found if isinstance(found, Tensor) else found.last_hidden_state

    def embedded(self, ids: Tensor) -> Tensor:
        """What the only layer of a Torch model is given."""
        assert isinstance(self.model, Torch)
        return self.model.embedding(ids).detach()

    def heads(self) -> int:
        with torch.no_grad(), record(self.model, layers=[self.layer]) as trace:
            self()
        return trace[self.layer].shape[1]


def _inputs(model: nn.Module, ids: Tensor) -> dict[str, Tensor]:
    if isinstance(model, Seq2Seq):
        return {"input_ids": ids, "decoder_input_ids": ids[:, :7]}
    if isinstance(model, Decoder | Encoder):
        return {"input_ids": ids}
    if isinstance(model, Torch):
        return {"ids": ids}
    config: Any = model.config
    both = {"input_ids": ids, "decoder_input_ids": ids[:, :7]}
    return both if config.is_encoder_decoder else {"input_ids": ids}


class Torch(nn.Module):
    """nn.MultiheadAttention, or attention by hand as in nanoGPT."""

    def __init__(self, *, by_hand: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(99, 32)
        self.mixing = Hand() if by_hand else nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        return x + (self.mixing(x) if isinstance(self.mixing, Hand) else self.mixing(x, x, x, need_weights=False)[0])


class Hand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.inward(x).chunk(3, -1))
        heads = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.outward(heads.transpose(1, 2).flatten(2))


def zoo(name: str) -> Callable[[], Any]:
    return next(exhibit.build for exhibit in EXHIBITS if exhibit.name == name)


OURS = DecoderConfig(
    vocab_size=99,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    intermediate_size=48,
    max_position_embeddings=64,
)
BOTH = Seq2SeqConfig(vocab_size=99, hidden_size=32, num_layers=2, num_heads=4, intermediate_size=48)

SUBJECTS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "ours": (lambda: Decoder(OURS), "blocks.1.attention", "blocks.1.attention.output"),
    "our cross-attention": (lambda: Seq2Seq(BOTH), "decoder.0.cross_attention", "decoder.0.cross_attention.output"),
    "Llama": (zoo("Llama"), "model.layers.0.self_attn", "model.layers.0.self_attn.o_proj"),
    "GPT-2": (zoo("GPT-2"), "transformer.h.1.attn", "transformer.h.1.attn.c_proj"),
    "DeepSeek-V3": (zoo("DeepSeek-V3"), "model.layers.0.self_attn", "model.layers.0.self_attn.o_proj"),
    "BERT": (zoo("BERT"), "encoder.layer.1.attention.self", "encoder.layer.1.attention.output.dense"),
    "BART": (zoo("BART"), "model.decoder.layers.0.encoder_attn", "model.decoder.layers.0.encoder_attn.out_proj"),
    "T5": (zoo("T5"), "encoder.block.1.layer.0.SelfAttention", "encoder.block.1.layer.0.SelfAttention.o"),
    "MiniLM": (lambda: load(MINILM, dtype=torch.float32)[0], "blocks.1.attention", "blocks.1.attention.output"),
    "nn.MultiheadAttention": (lambda: Torch(by_hand=False), "mixing", "mixing.out_proj"),
    "attention by hand": (lambda: Torch(by_hand=True), "mixing", "mixing.outward"),
}


@pytest.fixture(params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Subject:
    return Subject(request.param)


def slabs(projection: Any, heads: int) -> Tensor:
    """The weights of an output projection as (heads, dim, width), which may be written to."""
    weight = projection.weight.data
    weight = weight if type(projection).__name__ == "Conv1D" else weight.T
    return weight.unflatten(0, (heads, -1))


@contextmanager
def with_slab_times(subject: Subject, head: int, factor: float, heads: int) -> Iterator[None]:
    """The obvious way to silence a head, which changes the weights of the model for good."""
    kept = subject.projection.weight.data.clone()
    slabs(subject.projection, heads)[head] *= factor
    yield
    subject.projection.weight.data.copy_(kept)


def test_no_heads_and_a_factor_of_one_change_nothing_bit_for_bit(subject: Subject) -> None:
    plain = subject()
    with ablate(subject.model, {}):
        assert torch.equal(subject(), plain)
    with ablate(subject.model, {subject.layer: []}):
        assert torch.equal(subject(), plain)
    if not subject.is_inside:  # there heads are computed once more, by another kernel
        with ablate(subject.model, {subject.layer: [0, 1]}, 1.0):
            assert torch.equal(subject(), plain)
    with ablate(subject.model, {subject.layer: [0, 1]}, 1.0):
        torch.testing.assert_close(subject(), plain)
    assert torch.equal(subject(), plain)


@pytest.mark.parametrize("factor", [0.0, 0.5, -2.0])
def test_a_head_is_what_its_slab_of_the_output_projection_says(subject: Subject, factor: float) -> None:
    heads = subject.heads()
    plain = subject()
    for head in range(heads):
        with with_slab_times(subject, head, factor, heads):
            wanted = subject()
        assert (wanted - plain).abs().max() > 1e-4
        with ablate(subject.model, {subject.layer: [head]}, factor):
            torch.testing.assert_close(subject(), wanted, rtol=1e-4, atol=1e-5)
    with ablate(subject.model, {subject.layer: [0]}), with_slab_times(subject, 1, 0.0, heads):
        both = subject()
    with ablate(subject.model, {subject.layer: [0, 1]}, "zero"):
        torch.testing.assert_close(subject(), both, rtol=1e-4, atol=1e-5)


def test_without_all_heads_the_projection_says_its_bias(subject: Subject) -> None:
    said: list[Tensor] = []
    hook = subject.projection.register_forward_hook(lambda module, args, output: said.append(output))
    with ablate(subject.model, {subject.layer: range(subject.heads())}):
        output = subject()
    hook.remove()
    bias = getattr(subject.projection, "bias", None)
    bias = torch.zeros(1) if bias is None else bias.detach()
    if subject.is_inside:
        embedded = subject.embedded(IDS)
        assert torch.equal(output, embedded + bias)
    else:
        assert torch.equal(said[-1], bias.expand_as(said[-1]))


def test_the_mean_is_that_of_the_pass(subject: Subject) -> None:
    seen: list[Tensor] = []
    hook = subject.projection.register_forward_pre_hook(lambda module, args: seen.append(args[0].clone()))
    with ablate(subject.model, {subject.layer: [1]}, "mean"):
        changed = subject()
    hook.remove()
    if subject.is_inside:
        assert not torch.equal(changed, subject())
        return
    heads = subject.heads()
    with ablate(subject.model, {subject.layer: [1]}, 1.0):
        hook = subject.projection.register_forward_pre_hook(lambda module, args: seen.append(args[0].clone()))
        subject()
        hook.remove()
    ablated, plain = (rows.unflatten(-1, (heads, -1)) for rows in (seen[0], seen[-1]))
    torch.testing.assert_close(ablated[:, :, 1], plain[:, :, 1].mean((0, 1)).expand_as(ablated[:, :, 1]))
    others = [head for head in range(heads) if head != 1]
    assert torch.equal(ablated[:, :, others], plain[:, :, others])


def test_the_mean_of_one_token_of_a_cache_is_refused() -> None:
    model = Decoder(OURS).eval()
    cache = model.new_cache()
    with torch.no_grad():
        model(IDS, cache=cache)
    message = r"blocks\.0\.attention got 1 of 13 tokens.* how='zero'"
    with pytest.raises(SettingError, match=message), torch.no_grad(), ablate(model, {0: [1]}, "mean"):
        model(IDS[:, :1], cache=cache)


def test_everything_is_as_it_was_after_an_error(subject: Subject) -> None:
    plain = subject()
    hooks = [len(module._forward_hooks) for module in subject.model.modules()]
    implementation = getattr(getattr(subject.model, "config", None), "_attn_implementation", None)
    with pytest.raises(ZeroDivisionError), ablate(subject.model, {subject.layer: [0]}):
        _ = subject() / (1 // 0)
    with (
        pytest.raises(SettingError, match=r"expected heads 0 to \d+ of .*, got head 99"),
        ablate(subject.model, {subject.layer: [99]}),
    ):
        subject()
    assert torch.equal(subject(), plain)
    assert [len(module._forward_hooks) for module in subject.model.modules()] == hooks
    assert getattr(getattr(subject.model, "config", None), "_attn_implementation", None) == implementation


def test_other_threads_have_all_heads(subject: Subject) -> None:
    plain, found = subject(), []
    with ablate(subject.model, {subject.layer: [0, 1]}):
        thread = Thread(target=lambda: found.append(subject()))
        thread.start()
        thread.join()
        assert not torch.equal(subject(), plain)
    assert torch.equal(found[0], plain)


@pytest.mark.parametrize("outer", ["record", "ablate"])
def test_recording_and_ablation_go_together_in_either_order(subject: Subject, outer: str) -> None:
    with ablate(subject.model, {subject.layer: [0]}):
        wanted = subject()
    if outer == "record":
        with record(subject.model) as trace, ablate(subject.model, {subject.layer: [0]}):
            found = subject()
    else:
        with ablate(subject.model, {subject.layer: [0]}), record(subject.model) as trace:
            found = subject()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    with torch.no_grad(), record(subject.model) as plain:
        subject()
    assert list(trace) == list(plain)
    torch.testing.assert_close(trace[subject.layer].to_dense(), plain[subject.layer].to_dense())


def test_ablations_inside_each_other_add_up(subject: Subject) -> None:
    with ablate(subject.model, {subject.layer: [0, 1]}):
        wanted = subject()
    with ablate(subject.model, {subject.layer: [0]}), ablate(subject.model, {subject.layer: [1]}):
        torch.testing.assert_close(subject(), wanted)


def test_a_number_that_may_be_several_layers_is_refused() -> None:
    subject = Subject("BART")
    with (
        pytest.raises(SettingError, match=r"layer 0 .*encoder\.layers\.0\.self_attn or .* name"),
        ablate(subject.model, {0: [1]}),
    ):
        subject()
    with (
        pytest.raises(SettingError, match="no module of the model matches layer 7"),
        ablate(subject.model, {7: [1]}),
    ):
        subject()


def test_a_layer_whose_attention_cannot_be_reached_is_refused_as_soon_as_the_pass_is_over() -> None:
    exhibit = next(one for one in BYPASS if one.name == "BLOOM")
    model = exhibit.build()
    with (
        pytest.raises(
            UnsupportedError,
            match=r"layer 'transformer\.h\.0\.self_attention'",
        ),
        ablate(model, {0: [1]}),
    ):
        model(**exhibit.inputs(model))


class Half(nn.Module):
    """Two layers that any name for both has, one of which computes attention by code of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([OwnAttention(seen=True), OwnAttention(seen=False)])

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[1](self.layers[0](x))


class OwnAttention(nn.Module):
    def __init__(self, *, seen: bool) -> None:
        super().__init__()
        self.is_seen = seen

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (4, 8)).transpose(1, 2)
        if self.is_seen:
            return nn.functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)
        return ((heads @ heads.mT).softmax(-1) @ heads).transpose(1, 2).flatten(2)


def test_each_of_the_layers_that_a_name_stands_for_has_to_be_reached() -> None:
    with pytest.raises(UnsupportedError, match=r"layer 'layers\.1'"):
        with_ablated(Half(), {"layers.*": [0]})


def with_ablated(model: nn.Module, heads: Any) -> Tensor:
    with torch.no_grad(), ablate(model, heads):
        return model(torch.randn(1, 5, 32))


def test_other_layers_are_computed_as_they_always_are() -> None:
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(32, 4, 48, batch_first=True), 2, enable_nested_tensor=False
    )
    text, kept = torch.randn(2, 9, 32), []
    encoder.layers[0].register_forward_hook(lambda module, args, output: kept.append(output))
    encoder.train()  # without the fast path, which is one function for a whole layer
    for module in encoder.modules():
        if isinstance(module, nn.Dropout | nn.MultiheadAttention):
            module.eval()
    encoder(text)
    with ablate(encoder, {1: [0]}):
        encoder(text)
    assert torch.equal(kept[0], kept[1])


def test_heads_may_be_a_table_or_a_single_number() -> None:
    subject = Subject("Llama")
    table = HeadTable((subject.layer, subject.layer), (2, 1), {"score": torch.tensor([0.5, 0.7])})
    with ablate(subject.model, {0: [1]}):
        wanted = subject()
    with ablate(subject.model, table.top("score", 1)):
        assert torch.equal(subject(), wanted)
    with ablate(subject.model, {0: 1}):
        assert torch.equal(subject(), wanted)
    with pytest.raises(SettingError, match=r"{3: \[5\]}, or a HeadTable"):
        with_ablated(subject.model, wrong([(0, 1)]))


def test_a_model_that_did_not_run_inside_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="Run the model inside the with block"), ablate(Decoder(OURS), {0: [1]}):
        pass


def test_wrong_settings_are_refused() -> None:
    model = Decoder(OURS)
    for how in ("nothing", None, True):
        with pytest.raises(SettingError, match="how='zero', 'mean' or a number"), ablate(model, {0: [1]}, wrong(how)):
            pass
    with pytest.raises(SettingError, match=r"torch\.nn\.Module, got int"), ablate(wrong(3), {0: [1]}):
        pass


def wrong(value: object) -> Any:
    """A value that type checkers would refuse."""
    return value


def test_a_silent_head_learns_nothing() -> None:
    model = Decoder(OURS)
    with ablate(model, {1: [2]}):
        model(IDS).logsumexp(-1).sum().backward()
    gradient = model.get_parameter("blocks.1.attention.output.weight").grad
    assert gradient is not None
    gradient = gradient.unflatten(1, (4, -1))
    assert (gradient[:, 2] == 0).all()
    assert (gradient[:, [0, 1, 3]] != 0).any()


def test_generating_without_a_head_is_a_pass_without_it() -> None:
    model, tokenizer = own_model()
    ids = torch.tensor([tokenizer.encode("The capital of France is the city of")])
    with torch.no_grad(), ablate(model, {5: [2, 3], 20: [6]}):
        whole = model(ids)
        cache = model.new_cache()
        steps = [model(ids[:, at : at + 1], cache=cache) for at in range(ids.shape[1])]
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-3, atol=1e-3)


def test_a_trained_model_loses_the_same_head_by_both_libraries() -> None:
    ours, tokenizer = own_model()
    theirs = transformers_model(torch.float32)
    ids = torch.tensor([tokenizer.encode("When Mary and John went to the store, John gave a drink to")])
    heads = {3: [0], 17: [3, 4], 18: [6]}
    with torch.no_grad(), ablate(ours, heads):
        one = ours(ids)
    with torch.no_grad(), ablate(theirs, heads):
        other = theirs(ids).logits
    with torch.no_grad():
        assert (ours(ids) - one).abs().max() > 0.1
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def donor_of(subject: Subject, ids: Tensor) -> Any:
    with torch.no_grad(), record(subject.model, values=True) as trace:
        subject(ids)
    return trace


def test_a_head_patched_from_its_own_run_says_what_it_said(subject: Subject) -> None:
    plain = subject()
    with patch(subject.model, {subject.layer: [0, 1]}, donor_of(subject, IDS)):
        torch.testing.assert_close(subject(), plain)


@pytest.mark.parametrize("positions", [slice(None), [2, 5]], ids=["everywhere", "some positions"])
def test_a_patched_head_says_what_it_said_in_the_other_run(subject: Subject, positions: slice | list[int]) -> None:
    heads, rows = subject.heads(), []
    donor = donor_of(subject, OTHER_IDS)
    if subject.is_inside:
        with patch(subject.model, {"mixing": range(4)}, donor):
            said = subject() - subject.embedded(IDS)
        theirs = subject(OTHER_IDS) - subject.embedded(OTHER_IDS)
        torch.testing.assert_close(said, theirs, rtol=1e-4, atol=1e-5)
        return
    hook = subject.projection.register_forward_pre_hook(lambda module, args: rows.append(args[0].clone()))
    for ids in (IDS, OTHER_IDS):
        subject(ids)
    with patch(subject.model, {subject.layer: [1]}, donor, positions=positions):
        subject()
    hook.remove()
    mine, theirs, patched = (found.unflatten(-1, (heads, -1)) for found in rows)
    wanted = mine.clone()
    wanted[:, positions, 1] = theirs[:, positions, 1]
    torch.testing.assert_close(patched, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["ALBERT", "DiffLlama"])
def test_a_layer_that_is_called_several_times_says_each_time_what_it_said_then(name: str) -> None:
    model = zoo(name)()
    with torch.no_grad(), record(model, values=True) as donor:
        plain = model(IDS)[0]
    twice = next(layer for layer in donor if f"{layer}#2" in donor)
    with torch.no_grad(), patch(model, {twice: [0, 1]}, donor):
        torch.testing.assert_close(model(IDS)[0], plain)
        torch.testing.assert_close(model(IDS)[0], plain)  # the next pass begins anew


def test_positions_outside_of_the_text_are_refused() -> None:
    subject = Subject("Llama")
    donor = donor_of(subject, IDS)
    with pytest.raises(SettingError, match=r"positions below 12, .* got \[12\]"):
        with_patched(subject, donor, 12)
    torch.testing.assert_close(with_patched(subject, donor, 11), subject())


def with_patched(subject: Subject, donor: Any, position: int) -> Tensor:
    with patch(subject.model, {0: [1]}, donor, positions=position):
        return subject()


def test_heads_of_a_donor_are_found_by_their_numbers() -> None:
    subject = Subject("Llama")
    whole = donor_of(subject, OTHER_IDS)
    with torch.no_grad(), record(subject.model, heads=[3, 1], values=True) as some:
        subject(OTHER_IDS)
    with patch(subject.model, {0: [1]}, whole):
        wanted = subject()
    with patch(subject.model, {0: [1]}, some):
        torch.testing.assert_close(subject(), wanted)
    with (
        pytest.raises(SettingError, match=r"head 2 of .* donor"),
        patch(subject.model, {0: [2]}, some),
    ):
        subject()


def test_one_layer_by_its_number_and_by_its_name_has_the_heads_of_both() -> None:
    subject = Subject("Llama")
    with ablate(subject.model, {0: [0, 1]}):
        wanted = subject()
    with ablate(subject.model, {0: [0], subject.layer: [1]}):
        assert torch.equal(subject(), wanted)


def test_a_donor_that_does_not_fit_is_refused() -> None:
    subject = Subject("Llama")
    with torch.no_grad(), record(subject.model) as without:
        subject()
    with torch.no_grad(), record(subject.model, layers=[1], values=True) as elsewhere:
        subject()
    longer = donor_of(subject, torch.cat([IDS, IDS], 1))
    for donor, message in (
        (without, "record it with values=True"),
        (elsewhere, "not among the 1 layers of the donor"),
        (longer, r"\(2, 1, 24, 8\) .* in the donor and \(2, 1, 12, 8\) in this pass"),
    ):
        with pytest.raises(SettingError, match=message), patch(subject.model, {0: [1]}, donor):
            subject()
