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


def read_photo(model: nn.Module, processor: Any, photo: Any, question: str | None = None) -> Trace:
    """Record a model of transformers on a photo.

    Args:
        model: A vision encoder, or a vision-language model.
        processor: Its image processor; of a vision-language model, its processor, which has a tokenizer.
        photo: An image of Pillow.
        question: A question, for a vision-language model only.

    Returns:
        The trace, with the photo.

    Raises:
        SettingError: A question was given to a model without a tokenizer.
        UnsupportedError: It is not known which positions of the model are patches.
    """
    tokenizer = getattr(processor, "tokenizer", None)
    if tokenizer is None:
        if question is not None:
            raise SettingError("look: a question needs a vision-language model, and this model reads images alone")
        inputs = {"pixel_values": processor(images=photo, return_tensors="pt")["pixel_values"]}
    else:
        inputs = dict(processor(images=photo, text=make_prompt(processor, question), return_tensors="pt"))
    parameter = next(model.parameters())
    moved = {
        name: value.to(parameter.device, parameter.dtype if value.is_floating_point() else None)
        for name, value in inputs.items()
    }
    with torch.no_grad(), record(model, tokenizer) as trace:
        model(**moved)
    trace.attach_photo(photo, processor=processor)
    return trace


def make_prompt(processor: Any, question: str | None) -> str:
    """The text with the place of the image: by the chat template, or the image token and the question."""
    text = question or DEFAULT_QUESTION
    if getattr(processor, "chat_template", None):
        content = [{"type": "image"}, {"type": "text", "text": text}]
        return processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    return f"{getattr(processor, 'image_token', '<image>')}{text}"
