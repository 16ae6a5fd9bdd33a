"""What heads add to a logit: as dense code by the names of modules finds it, and refused where it is not so."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from attnscope.errors import AttnScopeError, SettingError, ShapeError, UnsupportedError
from attnscope.heads.logit_attribution import LogitAttribution, direct_logit_attribution
from attnscope.models import Decoder, DecoderConfig, Seq2Seq, Seq2SeqConfig
from attnscope.recording import load
from tests.models.smollm2 import FOLDER, PROMPTS, tokenizer, transformers_model
from tests.recording.exhibit import GROUPED, TEXT, make, words
from tests.recording.zoo import BYPASS, HYBRID, modeling_files
from tests.recording.zoo_decoders import DECODERS, GEMMA, SPARSE
from tests.recording.zoo_encoders import T5

CLOSE = 1e-5  # of logits around 3, in float32
OWN_CODE = ("BLOOM", "CodeGen", "Falcon", "GPT-J", "GPT-Neo", "MPT", "OpenAI GPT", "XGLM")  # decoders among BYPASS
ZOO = {
    exhibit.name: exhibit
    for exhibit in (*DECODERS, *HYBRID, *SPARSE, *BYPASS)
    if exhibit not in BYPASS or exhibit.name in OWN_CODE
}
IDS = words(13)[:1]

GATE = "no linear output projection"
BEHIND = "a cap or a factor follows its unembedding"
BETWEEN = "another operation lies between"
NEVER = "0.00 times"
UNSEEN = "its own attention code"

REFUSED = {
    **dict.fromkeys(("AFMoE", "BitNet", "DiffLlama", "HRM", "JetMoE", "Qwen3-Next", "Qwen3.5", "HY-V4"), GATE),
    **dict.fromkeys(("Cohere", "Cohere2", "Gemma 2", "Gemma 3n", "nanochat", "VaultGemma", "RecurrentGemma"), BEHIND),
    **dict.fromkeys(("BERT for generation", "ModernBERT decoder", "Zamba2"), NEVER),
    **dict.fromkeys(("EXAONE 4", "Gemma 3", "Gemma 4", "GLM-4", "OLMo 2", "OLMo 3", "MiniMax", "OLMo Hybrid"), NEVER),
    **dict.fromkeys(set(OWN_CODE) - {"Falcon"}, UNSEEN),
    "Doge": r"model\.layers\.0\.self_attn is not added",
    "MiniCPM3": BETWEEN,
}


@functools.cache
def smollm2(using: Any) -> nn.Module:
    return load(FOLDER, using=using, dtype=torch.float32)[0]


def prompt(number: int) -> Tensor:
    return torch.tensor(tokenizer()(PROMPTS[number])["input_ids"])


def config(**options: Any) -> DecoderConfig:
    sizes: dict[str, Any] = {"vocab_size": 50, "hidden_size": 16, "num_layers": 3, "num_heads": 4}
    sizes |= {"intermediate_size": 32, "max_position_embeddings": 32}
    return DecoderConfig(**(sizes | options))


def decoder(**options: Any) -> Decoder:
    """One of ours with random weights, none of which is zero or one."""
    model = Decoder(config(**options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


TEXT_OF_OURS = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])


def hooks_of(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def total(parts: LogitAttribution) -> float:
    return sum(float(heads.sum()) for heads in parts.heads.values()) + parts.biases + parts.rest


# What is compared with: dense code that knows each family by its names


def noted(model: Any, ids: Tensor) -> dict[str, Tensor]:
    """Dense weights times values of every layer, (heads, queries, dim), by the model's eager code."""
    model.set_attn_implementation("eager")
    paths = {module: path for path, module in model.named_modules()}
    heads: dict[str, Tensor] = {}

    def noting(function: Callable[..., Any]) -> Callable[..., Any]:
        def noting_function(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any):
            output, weights = function(module, query, key, value, *args, **kwargs)
            heads[paths[module]] = weights[0] @ value[0].repeat_interleave(query.shape[1] // value.shape[1], dim=0)
            return output, weights

        return noting_function

    with torch.no_grad(), ExitStack() as patches:
        for file in modeling_files(model):
            if hasattr(file, "eager_attention_forward"):
                function = noting(file.eager_attention_forward)
                patches.enter_context(patch.object(file, "eager_attention_forward", function))
        model(ids.reshape(1, -1))
    return heads


@torch.no_grad()
def by_formulas(model: Any, ids: Tensor, position: int, token: int, projection: str, norm: str) -> tuple[Any, float]:
    """The logit minus the one without a head's vector in the frozen last norm, for every head; and that of biases."""
    last: Any = model.get_submodule(norm)
    streams: list[Tensor] = []
    with last.register_forward_pre_hook(lambda _, args: streams.append(args[0][0, position].double())):
        heads = noted(model, ids)
    (stream,) = streams
    row = model.get_output_embeddings().weight[token].double()
    weight, bias = last.weight.double(), getattr(last, "bias", None)
    centred, epsilon = bias is not None, last.eps if hasattr(last, "eps") else last.variance_epsilon
    spread = (stream - stream.mean() if centred else stream).square().mean().add(epsilon).sqrt()

    def logit_of(vector: Tensor) -> Tensor:
        vector = vector - vector.mean() if centred else vector
        features = vector / spread * (1 + weight if "Gemma" in type(last).__name__ else weight)
        return (features + (0 if bias is None else bias.double())) @ row

    found, biases = {}, 0.0
    for name, said in heads.items():
        layer = model.get_submodule(name).get_submodule(projection)
        rows = layer.weight if type(layer).__name__ == "Conv1D" else layer.weight.T  # (heads * dim, width)
        slabs = rows.double().unflatten(0, (len(said), -1))
        vectors = torch.einsum("hd,hdw->hw", said[:, position].double(), slabs)
        found[name] = torch.stack([logit_of(stream) - logit_of(stream - vector) for vector in vectors])
        if layer.bias is not None:
            biases += float(logit_of(stream) - logit_of(stream - layer.bias.double()))
    return found, biases


@pytest.mark.parametrize(
    ("name", "projection", "norm"),
    [
        ("GPT-2", "c_proj", "transformer.ln_f"),
        ("GPT-NeoX", "dense", "gpt_neox.final_layer_norm"),  # parallel
        ("Phi", "dense", "model.final_layernorm"),  # parallel
        ("Llama", "o_proj", "model.norm"),  # grouped queries
        ("Gemma", "o_proj", "model.norm"),  # one plus weight
        ("DeepSeek-V2", "o_proj", "model.norm"),  # latent attention
        ("DeepSeek-V3", "o_proj", "model.norm"),
        ("Mixtral", "o_proj", "model.norm"),
        ("Jamba", "o_proj", "model.final_layernorm"),  # with Mamba
    ],
)
@pytest.mark.parametrize("position", [0, 7, -1])
def test_heads_and_biases_add_what_dense_code_finds(name: str, projection: str, norm: str, position: int):
    model = ZOO[name].build()
    parts = direct_logit_attribution(model, IDS, token=17, position=position)
    wanted, biases = by_formulas(model, IDS, position, 17, projection, norm)
    assert list(parts.heads) == list(wanted)
    torch.testing.assert_close(parts.heads, wanted, atol=CLOSE, rtol=0)
    assert parts.biases == pytest.approx(biases, abs=CLOSE)
    assert max(float(heads.abs().max()) for heads in wanted.values()) > 0.05  # it is about something
    with torch.no_grad():
        assert parts.logit == pytest.approx(float(model(IDS).logits[0, position, 17]), abs=CLOSE)


@pytest.mark.parametrize("number", [0, 3])
def test_trained_heads_add_what_dense_code_finds_in_both_libraries(number: int):
    ids = prompt(number)
    ours, theirs = (direct_logit_attribution(smollm2(using), ids) for using in ("attnscope", "transformers"))
    eager = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32, local_files_only=True).eval()
    wanted, _ = by_formulas(eager, ids, -1, ours.token, "o_proj", "model.norm")
    assert [len(heads) for heads in ours.heads.values()] == [9] * 30
    assert list(theirs.heads) == list(wanted)
    for found in (ours, theirs):
        values = torch.stack(list(found.heads.values()))
        torch.testing.assert_close(values, torch.stack(list(wanted.values())), atol=1e-4, rtol=0)
    assert (ours.token, ours.position) == (theirs.token, theirs.position)
    assert ours.logit == pytest.approx(theirs.logit, abs=1e-4)


def test_the_parts_are_those_of_the_models_own_likeliest_token():
    ids = prompt(0)
    with torch.no_grad():
        logits = transformers_model()(ids[None]).logits[0, -1]
    parts = direct_logit_attribution(transformers_model(), ids)
    assert tokenizer().decode([parts.token]) == " Paris"
    assert parts.token == int(logits.argmax())
    assert parts.logit == pytest.approx(float(logits.max()), abs=1e-4)
    assert total(parts) == pytest.approx(parts.logit, abs=1e-9)


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_what_is_left_is_what_embeddings_and_feed_forward_layers_and_the_norms_bias_add(norm: Any, tied: bool):
    model = decoder(norm=norm, tie_word_embeddings=tied, num_kv_heads=2)
    others: list[Tensor] = []
    streams: list[Tensor] = []
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if name.endswith("feed_forward"):
                said = module.register_forward_hook(lambda _, __, output: others.append(output[0, 5].double()))
                stack.enter_context(said)
        first = model.blocks[0].register_forward_pre_hook(lambda _, args: others.append(args[0][0, 5].double()))
        last = model.norm.register_forward_pre_hook(lambda _, args: streams.append(args[0][0, 5].double()))
        stack.enter_context(first)
        stack.enter_context(last)
        logits = model(TEXT_OF_OURS[None])[0, 5]
    parts = direct_logit_attribution(model, TEXT_OF_OURS, token=7, position=5)
    assert len(others) == 4
    row = (model.embedding.weight if model.head is None else model.head.weight)[7].double()
    centre = (lambda vector: vector - vector.mean()) if norm == "layer" else (lambda vector: vector)
    spread = (centre(streams[0]).square().mean() + 1e-5).sqrt()
    wanted = float(centre(torch.stack(others).sum(0)) / spread * model.get_parameter("norm.weight").double() @ row)
    wanted += float(model.norm.bias.double() @ row) if isinstance(model.norm, nn.LayerNorm) else 0.0
    assert parts.rest == pytest.approx(wanted, abs=CLOSE)
    assert parts.logit == pytest.approx(float(logits[7]), abs=CLOSE)
    assert abs(parts.biases) > 1e-3


@pytest.mark.parametrize("model", [decoder, lambda: ZOO["GPT-2"].build()], ids=["ours", "GPT-2"])
def test_against_another_token_everything_is_the_difference_of_two(model: Callable[[], nn.Module]):
    built = model()
    first, second = (direct_logit_attribution(built, TEXT_OF_OURS, token=token) for token in (7, 9))
    both = direct_logit_attribution(built, TEXT_OF_OURS, token=7, against=9)
    for name, heads in both.heads.items():
        torch.testing.assert_close(heads, first.heads[name] - second.heads[name], atol=CLOSE, rtol=0)
    for name in ("biases", "rest", "logit"):
        assert getattr(both, name) == pytest.approx(getattr(first, name) - getattr(second, name), abs=CLOSE)
    assert (both.token, both.against) == (7, 9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_finds_the_same_up_to_its_rounding(dtype: torch.dtype):
    exact, rounded = smollm2("attnscope"), load(FOLDER, using="attnscope", dtype=dtype)[0]
    wanted, found = (direct_logit_attribution(model, prompt(0), token=7042) for model in (exact, rounded))
    for name, heads in wanted.heads.items():
        torch.testing.assert_close(found.heads[name], heads, atol=0.1, rtol=0.05)


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.filterwarnings("ignore")
def test_every_decoder_of_the_zoo_is_answered_or_refused_for_its_own_reason(name: str):
    model = ZOO[name].build()
    reason = REFUSED.get(name)
    if reason is None:
        assert total(parts := direct_logit_attribution(model, IDS)) == pytest.approx(parts.logit)
        assert {heads.shape for heads in parts.heads.values()} == {(4,)}
    else:
        with pytest.raises(UnsupportedError, match=reason):
            direct_logit_attribution(model, IDS)


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("granite", GROUPED | {"residual_multiplier": 0.22}, r"model\.layers\.0\.self_attn .* 0\.22 times"),
        ("granite", GROUPED | {"logits_scaling": 8.0}, BEHIND),
        ("gemma2", GEMMA | {"final_logit_softcapping": None}, r"model\.layers\.0\.self_attn .* 0\.00 times"),
        ("bert", TEXT | {"is_decoder": True}, NEVER),
    ],
)
def test_models_that_do_more_than_add_are_refused_with_the_factor_that_was_measured(
    kind: str, options: dict[str, Any], reason: str
):
    model = make(kind, "AutoModelForCausalLM", options)
    with pytest.raises(UnsupportedError, match=reason):
        direct_logit_attribution(model, IDS)
    assert not hooks_of(model)
    assert model.config._attn_implementation != "attnscope"


class Adapted(nn.Module):
    """A linear layer and what a low-rank adapter adds to it, as LoRA has it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.down = base, nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 0.5 * self.up(self.down(x))


def test_an_adapter_around_the_projection_is_a_part_of_it():
    model = decoder()
    adapted = Adapted(model.blocks[1].attention.output)  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
    model.blocks[1].attention.output = adapted  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    found = direct_logit_attribution(model, TEXT_OF_OURS, token=7)
    with torch.no_grad():
        adapted.base.weight += 0.5 * adapted.up.weight @ adapted.down.weight
    model.blocks[1].attention.output = adapted.base  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    torch.testing.assert_close(
        found.heads, direct_logit_attribution(model, TEXT_OF_OURS, token=7).heads, atol=CLOSE, rtol=0
    )


class Block(nn.Module):
    """A block of torch's own attention or its function, with something wrong about it."""

    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong = wrong
        self.norm, self.last = nn.LayerNorm(16), nn.LayerNorm(16)
        self.inner, self.output, self.other = nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 16)
        self.scale = nn.Parameter(torch.full((16,), 0.9))
        self.network = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.inner(self.norm(x)).unflatten(-1, (12, 4)).transpose(1, 2).chunk(3, dim=1)
        heads = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        merged = heads.transpose(1, 2).flatten(2)
        if self.wrong == "order":
            merged = heads.permute(0, 2, 3, 1).flatten(2)
        if self.wrong == "gate":
            merged = merged * self.other(x).sigmoid()
        change = self.output(merged)
        if self.wrong == "second reader":
            change = change + self.other(merged)
        if self.wrong == "second use":
            change = change + 0.1 * merged
        if self.wrong == "layer scale":
            change = change * self.scale
        if self.wrong == "function as norm":
            change = nn.functional.layer_norm(change, (16,))
        x = x + change
        if self.wrong == "decay":
            x = 0.99 * x
        return x + self.network(self.last(x))


class Model(nn.Module):
    """A language model as somebody might write it."""

    def __init__(self, wrong: str = "", norm: nn.Module | None = None, head: nn.Module | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.blocks = nn.Sequential(Block(""), Block(wrong), Block(""))
        self.norm = nn.LayerNorm(16) if norm is None else norm
        self.head = nn.Linear(16, 50) if head is None else head

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embedding(ids))))


def test_models_that_nobody_has_heard_of_are_read_by_what_flows_in_them():
    model = Model().eval()
    parts = direct_logit_attribution(model, TEXT_OF_OURS, token=7, position=4)
    assert list(parts.heads) == ["blocks.0", "blocks.1", "blocks.2"]
    with torch.no_grad():  # nothing but a head of the last block changes, and its network hears nothing of it
        stream, logits = [], []
        model.norm.register_forward_pre_hook(lambda _, args: stream.append(args[0][0, 4]))
        held = {}
        last: Any = model.blocks[2]
        keep = last.network.register_forward_hook(lambda _, __, output: held.setdefault("network", output))
        logits.append(model(TEXT_OF_OURS[None])[0, 4, 7])
        last.output.register_forward_pre_hook(lambda _, args: (args[0] * (torch.arange(16) // 4 != 2),))
        model(TEXT_OF_OURS[None])
        keep.remove()
        spread = (stream[0].var(correction=0) + 1e-5).sqrt()
        without = (stream[1] - stream[1].mean()) / spread
        wanted = logits[0] - (without @ model.get_parameter("head.weight")[7] + model.get_parameter("head.bias")[7])
    assert float(parts.heads["blocks.2"][2]) == pytest.approx(float(wanted), abs=CLOSE)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("order", GATE),
        ("gate", GATE),
        ("second reader", r"blocks\.1 is not added"),
        ("second use", r"blocks\.1 is not added"),
        ("layer scale", r"blocks\.1 is not added .* 0\.90 times it .* something else of 0\.00 times"),
        ("function as norm", r"blocks\.1 is not added"),
        ("decay", r"blocks\.0 is not added .* 0\.99 times it .* something else of 0\.00 times"),
    ],
)
def test_one_layer_that_is_different_is_noticed(wrong: str, reason: str):
    model = Model(wrong).eval()
    with pytest.raises(UnsupportedError, match=reason):
        direct_logit_attribution(model, TEXT_OF_OURS)
    assert not hooks_of(model)


class Doubling(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name that torch's layer gives it
        return 2 * super().forward(input)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"norm": nn.Tanh()}, "neither a LayerNorm nor an RMSNorm"),
        ({"norm": nn.Identity()}, "not the output of a norm"),
        ({"head": Doubling(16, 50)}, "not a plain product"),
        ({"head": nn.Sequential(nn.Linear(16, 50), nn.Tanh())}, BEHIND),
    ],
)
def test_a_last_norm_or_an_unembedding_of_another_kind_is_refused(parts: dict[str, Any], reason: str):
    with pytest.raises(UnsupportedError, match=reason):
        direct_logit_attribution(Model(**parts).eval(), torch.arange(8))


@pytest.mark.parametrize("norm_first", [True, False])
def test_torchs_own_layers_are_read_where_their_norms_come_first(norm_first: bool):
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.norm, self.head = nn.Embedding(50, 16), nn.LayerNorm(16), nn.Linear(16, 50)
            layer = functools.partial(nn.TransformerEncoderLayer, 16, 4, 32, batch_first=True, norm_first=norm_first)
            self.layers = nn.ModuleList([layer(), layer()])

        def forward(self, ids: Tensor) -> Tensor:
            x = self.embedding(ids)
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x))

    model = Own().eval()
    if not norm_first:
        with pytest.raises(UnsupportedError, match=NEVER):
            direct_logit_attribution(model, TEXT_OF_OURS)
        return
    parts = direct_logit_attribution(model, TEXT_OF_OURS)
    assert list(parts.heads) == ["layers.0.self_attn", "layers.1.self_attn"]
    with torch.no_grad():
        assert parts.logit == pytest.approx(float(model(TEXT_OF_OURS[None])[0, -1].max()), abs=CLOSE)


def test_the_model_is_as_it_was_afterwards_and_says_the_same():
    for model in (ZOO["Llama"].build(), decoder()):
        with torch.no_grad():
            before = model(IDS % 50)
            direct_logit_attribution(model, IDS % 50)
            after = model(IDS % 50)
        first, second = (output if isinstance(output, Tensor) else output.logits for output in (before, after))
        assert torch.equal(first, second)
        assert not hooks_of(model)


def test_models_that_read_two_texts_are_refused():
    theirs = make("t5", "AutoModelForSeq2SeqLM", T5)
    ours = Seq2Seq(Seq2SeqConfig(vocab_size=50, hidden_size=16, num_layers=1, num_heads=4, intermediate_size=32)).eval()
    for model in (theirs, ours):
        with pytest.raises(UnsupportedError, match="reads two texts"):
            direct_logit_attribution(model, TEXT_OF_OURS)


def test_hooks_are_gone_after_an_error_inside_the_model():
    model = decoder()
    with pytest.raises(IndexError):
        direct_logit_attribution(model, torch.tensor([1, 999]))
    assert not hooks_of(model)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"ids": torch.zeros(2, 3, dtype=torch.long)}, ShapeError, r"ids of one text.*\(2, 3\)"),
        ({"ids": torch.zeros(3)}, ShapeError, "float32"),
        ({"ids": torch.zeros(0, dtype=torch.long)}, ShapeError, "ids of one text"),
        ({"position": 8}, SettingError, "position=8 .* 8 tokens"),
        ({"token": 50}, SettingError, "token from 0 to 49.* got 50"),
        ({"against": -1}, SettingError, "against from 0 to 49.* got -1"),
        ({"model": decoder().train()}, SettingError, r"model\.eval\(\)"),
        ({"model": "gpt2"}, SettingError, r"torch\.nn\.Module, got str"),
        ({"model": nn.Embedding(50, 16)}, UnsupportedError, "no attention in Embedding"),
        ({"model": nn.Sequential(nn.Embedding(50, 16), Block(""), nn.Flatten(1))}, UnsupportedError, "returns logits"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_a_message_that_says_so(
    change: dict[str, Any], error: type[AttnScopeError], message: str
):
    given: dict[str, Any] = {"model": decoder(), "ids": TEXT_OF_OURS} | change
    if isinstance(given["model"], nn.Module) and not isinstance(given["model"], Decoder):
        given["model"].eval()
    with pytest.raises(error, match=message):
        direct_logit_attribution(given.pop("model"), given.pop("ids"), **given)
