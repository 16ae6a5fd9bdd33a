"""Generation of text: pieces that add up to the text, stop strings, ends, and SmolLM2 for real."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from attnscope.models import CharacterTokenizer, Decoder, DecoderConfig, Sampling, generate, stream
from attnscope.models.generate import generate_tokens
from tests.models import smollm2
from tests.models.copied import randomize

ALPHABET = CharacterTokenizer("abcdefgh")


def small() -> Decoder:
    config = DecoderConfig(
        vocab_size=8, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=24, max_position_embeddings=200
    )
    model = Decoder(config).double().eval()
    randomize(model)
    return model


def text_of(model: Decoder, prompt: str, count: int, sampling: Sampling) -> str:
    tokens = generate_tokens(model, [ALPHABET.encode(prompt)], max_new_tokens=count, sampling=sampling)
    return ALPHABET.decode([token for (token,) in tokens if token is not None])


def test_pieces_of_a_batch_add_up_to_the_text_of_each_row() -> None:
    model, sampling = small(), Sampling(temperature=2.0)
    assert generate(model, ALPHABET, ["abc"], max_new_tokens=40, sampling=sampling) == [
        text_of(model, "abc", 40, sampling)
    ]
    rows = generate(model, ALPHABET, ["abc", "h", "defg"], max_new_tokens=40, sampling=sampling)
    assert [len(row) for row in rows] == [40, 40, 40]
    assert rows[0] == text_of(model, "abc", 40, sampling)


def test_text_ends_before_the_first_stop_string_and_nothing_is_computed_after_it() -> None:
    model, sampling = small(), Sampling(temperature=2.0)
    endless = text_of(model, "abc", 100, sampling)
    stop = endless[30:32]
    computed = []
    count = model.logits
    model.logits = lambda features: computed.append(1) or count(features)  # pyright: ignore[reportAttributeAccessIssue]
    found = generate(model, ALPHABET, ["abc"], max_new_tokens=100, sampling=sampling, stop=[stop])
    assert found == [endless.split(stop)[0]]
    assert len(computed) == len(found[0]) + 2


def test_rows_stop_each_on_its_own() -> None:
    model, sampling = small(), Sampling(temperature=2.0)
    whole = generate(model, ALPHABET, ["abc", "hg"], max_new_tokens=60, sampling=sampling)
    stopped = generate(model, ALPHABET, ["abc", "hg"], max_new_tokens=60, sampling=sampling, stop=["ab", "cd"])
    for text, found in zip(whole, stopped, strict=True):
        ends = [place for stop in ("ab", "cd") if (place := text.find(stop)) >= 0]
        assert found == text[: min(ends, default=60)]


def test_one_text_instead_of_a_list_is_refused() -> None:
    with pytest.raises(TypeError, match=r"prompts: .*\['abc'\]"):
        generate(small(), ALPHABET, "abc", max_new_tokens=3)


def test_smollm2_answers_in_pieces_of_whole_characters() -> None:
    model, tokenizer = smollm2.own_model()
    waves = "🌊" * 12
    assert len(tokenizer.encode(waves)) >= 24, "a wave is more than one token"
    pieces = [piece for _, piece in stream(model, tokenizer, [waves], max_new_tokens=24)]
    assert "".join(pieces).startswith("🌊🌊🌊")
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def test_smollm2_writes_the_text_of_transformers() -> None:
    model, tokenizer = smollm2.own_model()
    theirs, prompt = smollm2.transformers_model(), smollm2.PROMPTS[2]
    ids = smollm2.tokenizer()(prompt, return_tensors="pt")
    tokens = theirs.generate(**ids, max_new_tokens=30, do_sample=False, pad_token_id=0)[0, ids["input_ids"].shape[1] :]
    wanted = smollm2.tokenizer().decode(tokens, skip_special_tokens=True)
    assert generate(model, tokenizer, [prompt], max_new_tokens=30) == [wanted]


def test_an_answer_ends_at_the_end_token() -> None:
    model, tokenizer = smollm2.own_model()
    chat = "<|im_start|>user\nSay only the word yes.<|im_end|>\n<|im_start|>assistant\n"
    (answer,) = generate(model, tokenizer, [chat], max_new_tokens=100, add_special_tokens=False)
    assert 0 < len(answer) < 200
    assert "<|im_end|>" not in answer


def test_a_seed_writes_the_same_text_again_and_another_a_different_one() -> None:
    model, tokenizer = smollm2.own_model()
    texts = [
        generate(
            model, tokenizer, ["Once upon a time"], max_new_tokens=12, sampling=Sampling(temperature=1.2, seed=seed)
        )
        for seed in (5, 5, 6)
    ]
    assert [first == second for first, second in pairwise(texts)] == [True, False]


def test_an_empty_prompt_begins_with_the_first_token() -> None:
    model, tokenizer = smollm2.own_model()
    assert tokenizer.bos_token_id is not None
    (text,) = generate(model, tokenizer, [""], max_new_tokens=5)
    tokens = [
        token for (token,) in generate_tokens(model, [[tokenizer.bos_token_id]], max_new_tokens=5) if token is not None
    ]
    assert text == tokenizer.decode(tokens)


@pytest.mark.parametrize("options", [{"max_new_tokens": -1}, {"max_new_tokens": 3, "chunk_size": 0}])
def test_counts_below_their_least_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least"):
        next(generate_tokens(small(), [[1, 2]], **options))  # pyright: ignore[reportArgumentType]


def test_generation_leaves_gradients_as_they_were() -> None:
    steps = generate_tokens(small(), [[1, 2]], max_new_tokens=3)
    next(steps)
    assert torch.is_grad_enabled()
