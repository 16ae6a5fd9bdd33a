"""`read_photo`: the trace of an image model, or of a vision-language model, on a photo.

In: a model, its processor, and a photo; a question for a vision-language model. Out: a trace with the photo attached.
Does not know: files, how patches are found. Memory: O(n) per head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from attnscope.errors import SettingError
from attnscope.recording.recorder import record
from attnscope.recording.trace import Trace

DEFAULT_QUESTION = "Describe this image."


def read_photo(
    model: nn.Module, processor: Any, photo: Any, question: str | None = None, *, max_new_tokens: int = 0
) -> Trace:
    """Record a model of transformers on a photo.

    Args:
        model: A vision encoder, or a vision-language model.
        processor: Its image processor; of a vision-language model, its processor, which has a tokenizer.
        photo: An image of Pillow.
        question: A question, for a vision-language model only.
        max_new_tokens: Let a vision-language model write an answer of at most this many tokens, the most likely one at
            each step. The answer is part of the trace.

    Returns:
        The trace, with the photo.

    Raises:
        SettingError: A question or `max_new_tokens` was given to a model without a tokenizer.
        UnsupportedError: It is not known which positions of the model are patches.
    """
    tokenizer = getattr(processor, "tokenizer", None)
    if tokenizer is None:
        if question is not None or max_new_tokens:
            part = "a question" if question is not None else "an answer"
            raise SettingError(f"look: {part} needs a vision-language model, and this model reads images alone")
        inputs = {"pixel_values": processor(images=photo, return_tensors="pt")["pixel_values"]}
    else:
        inputs = dict(processor(images=photo, text=make_prompt(processor, question), return_tensors="pt"))
    parameter = next(model.parameters())
    moved = {
        name: value.to(parameter.device, parameter.dtype if value.is_floating_point() else None)
        for name, value in inputs.items()
    }
    if max_new_tokens:
        moved = with_answer(model, moved, max_new_tokens)
    with torch.no_grad(), record(model, tokenizer) as trace:
        model(**moved)
    trace.attach_photo(photo, processor=processor)
    return trace


@torch.no_grad()
def with_answer(model: Any, inputs: dict[str, torch.Tensor], max_new_tokens: int) -> dict[str, torch.Tensor]:
    """The same inputs with the answer of the model after the question; what is given per token grows with it."""
    question = inputs["input_ids"]
    whole = model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
    fill = {"attention_mask": 1}  # token types: 0 is text
    longer = {"input_ids": whole}
    for name, value in inputs.items():
        if value.shape == question.shape and name != "input_ids":
            rest = value.new_full((len(value), whole.shape[1] - question.shape[1]), fill.get(name, 0))
            longer[name] = torch.cat([value, rest], 1)
    return {**inputs, **longer}


def make_prompt(processor: Any, question: str | None) -> str:
    """The text with the place of the image: by the chat template, or the image token and the question."""
    text = question or DEFAULT_QUESTION
    if getattr(processor, "chat_template", None):
        content = [{"type": "image"}, {"type": "text", "text": text}]
        return processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    return f"{getattr(processor, 'image_token', '<image>')}{text}"
