"""Published sizes have the published numbers of parameters."""

import pytest
import torch

from attnscope.models.decoder import Decoder
from attnscope.models.encoder import Encoder
from attnscope.models.published_configs import DECODERS, ENCODERS, SEQ2SEQS
from attnscope.models.seq2seq import Seq2Seq

PUBLISHED = {
    "gpt2-small": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt3-175b": 174_604_259_328,  # published in billions only: 12 width² + 13 width a block, embeddings, last norm
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "llama-2-7b": 6_738_415_616,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-0.5b": 494_032_768,
    "qwen3-0.6b": 596_049_920,
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "minilm-l6": 22_713_216,
}


@pytest.mark.parametrize("name", [*DECODERS, *ENCODERS])
def test_parameters_are_as_many_as_published(name: str) -> None:
    with torch.device("meta"):
        model = Decoder(DECODERS[name]) if name in DECODERS else Encoder(ENCODERS[name])
    assert sum(parameter.numel() for parameter in model.parameters()) == PUBLISHED[name]


@pytest.mark.parametrize(("name", "millions"), [("transformer-base", 65), ("transformer-big", 213)])
def test_the_two_of_2017_are_near_the_rounded_numbers_of_their_paper(name: str, millions: int) -> None:
    with torch.device("meta"):
        model = Seq2Seq(SEQ2SEQS[name])
    count = sum(parameter.numel() for parameter in model.parameters())
    # The paper gives millions, and a vocabulary of "about 37000" tokens.
    assert abs(count / 1e6 / millions - 1) < 0.04
