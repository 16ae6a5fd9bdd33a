"""Samples and head scores during training.

In: a whole model on one rank. Out: a sample of text, and a table of head scores per scored step in the folder of the
run. `attnscope heads --over-training` reads these tables and draws when each kind of head appears.
Does not know: the loop, ranks. Memory: a trace of two sequences.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from attnscope.heads import read_repeated_tokens, score_heads
from attnscope.heads.repeated_tokens import LENGTH
from attnscope.models import Decoder, Sampling, generate
from attnscope.recording import read
from attnscope.train.batch import Batch
from attnscope.train.recipe import Data

HEADS = "heads"
SAMPLE_TOKENS = 200
PROMPT_TOKENS = 4  # of the validation data, if the recipe has no prompt


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[nn.Module]:
    """Put a model in eval mode without gradients, and restore its mode and the random state afterwards."""
    was_training, rng_state = model.training, torch.get_rng_state()
    model.eval()
    try:
        with torch.no_grad():
            yield model
    finally:
        model.train(was_training)
        torch.set_rng_state(rng_state)


def generate_sample(model: nn.Module, data: Data, prompt: str | None, *, seed: int) -> str | None:
    """Generate text, with its prompt; None for a model without a tokenizer."""
    tokenizer = data.tokenizer
    if not isinstance(model, Decoder) or tokenizer is None:
        return None
    with evaluation_mode(model):
        device = next(model.parameters()).device
        prompt = (
            tokenizer.decode(data.validation.get_batch([0]).input_ids[0, :PROMPT_TOKENS]) if prompt is None else prompt
        )
        sampling, count = Sampling(temperature=0.8, seed=seed), SAMPLE_TOKENS
        if model.config.position_encoding == "learned":
            count = max(1, min(count, model.config.max_position_embeddings - len(tokenizer.encode(prompt))))
        return prompt + generate(model, tokenizer, [prompt], max_new_tokens=count, sampling=sampling, device=device)[0]


def write_head_scores(model: nn.Module, data: Data, folder: Path, step: int) -> Path:
    """Write the scores of every head on a validation document and on a repeated-token probe; return the CSV file."""
    with evaluation_mode(model):
        input_ids = longest_document(data.validation.get_batch([0])).to(next(model.parameters()).device)
        trace = read(model, input_ids, data.tokenizer, progress=False)
        probe = None
        if isinstance(model, Decoder) and model.config.vocab_size > 1:
            length = min(LENGTH, model.config.vocab_size // 2)
            probe = read_repeated_tokens(model, data.tokenizer, length=length, progress=False)
        table = score_heads(trace, probe=probe, progress=False)
    (folder / HEADS).mkdir(parents=True, exist_ok=True)
    place = folder / HEADS / f"step-{step:08}.csv"
    scratch = place.with_suffix(".new")
    table.to_csv(scratch)
    scratch.replace(place)
    return place


def longest_document(batch: Batch) -> Tensor:
    """Return the longest document of the first sequence, (1, positions); documents do not attend to each other."""
    if batch.document_ids is None:
        return batch.input_ids[:1]
    return batch.input_ids[:1, batch.document_ids[0] == batch.document_ids[0].mode().values]
