"""Writes the HTML page of one library for a text, and prints the time and size as one line of JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

DOCUMENT = '<!DOCTYPE html><html><head><meta charset="utf-8"></head><body>{}</body></html>'
"""Wraps HTML that is made for a notebook cell."""


def attentions(model: Any, ids: Sequence[int]) -> list[torch.Tensor]:
    """Return the weights of every layer, (1, heads, queries, keys) each."""
    with torch.no_grad():
        found = model(torch.tensor([ids]), output_attentions=True, use_cache=False, logits_to_keep=1)
    return list(found.attentions)


def bertviz_head_view(model: Any, ids: Sequence[int], texts: Sequence[str]) -> str:
    """All layers, one visible at a time."""
    view = import_module("bertviz").head_view
    return DOCUMENT.format(view(attentions(model, ids), list(texts), html_action="return").data)


def bertviz_model_view(model: Any, ids: Sequence[int], texts: Sequence[str]) -> str:
    """All layers at once."""
    view = import_module("bertviz").model_view
    return DOCUMENT.format(view(attentions(model, ids), list(texts), html_action="return").data)


def circuitsvis_patterns(model: Any, ids: Sequence[int], texts: Sequence[str]) -> str:
    """All heads of all layers, with the script in the page."""
    draw = import_module("circuitsvis").attention.attention_patterns
    weights = torch.cat([layer[0] for layer in attentions(model, ids)])
    return DOCUMENT.format(draw(tokens=list(texts), attention=weights).local_src)


def circuitsvis_heads(model: Any, ids: Sequence[int], texts: Sequence[str]) -> str:
    """The same with the function that its authors recommend now."""
    draw = import_module("circuitsvis").attention.attention_heads
    weights = torch.cat([layer[0] for layer in attentions(model, ids)])
    return DOCUMENT.format(draw(attention=weights, tokens=list(texts)).local_src)


PAGES: dict[str, Callable[[Any, Sequence[int], Sequence[str]], str]] = {
    page.__name__: page for page in (bertviz_head_view, bertviz_model_view, circuitsvis_patterns, circuitsvis_heads)
}
ATTNSCOPE = "attnscope_page"


def save_attnscope(model: Any, folder: str, ids: Sequence[int], out: Path) -> int:
    """Save the static page of a recording, and return the number of heads in it."""
    read, tokenizer = (
        import_module("attnscope.recording").read,
        import_module("attnscope.models").load_tokenizer(folder),
    )
    return read(model, ids, tokenizer, progress=False).save_page(out)


def main(name: str, folder: str, text: str, length: str, out: str) -> None:
    """Write one page; the clock starts when the model is loaded and has run once."""
    given = json.loads(Path(text).read_text(encoding="utf-8"))
    ids, texts = given["ids"][: int(length)], given["texts"][: int(length)]
    auto = import_module("transformers").AutoModelForCausalLM
    implementation = "sdpa" if name == ATTNSCOPE else "eager"
    model = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation=implementation).eval()
    with torch.no_grad():
        model(torch.tensor([ids[:32]]))
    start = time.perf_counter()
    if name == ATTNSCOPE:
        heads = save_attnscope(model, folder, ids, Path(out))
    else:
        heads = model.config.num_hidden_layers * model.config.num_attention_heads
        Path(out).write_text(PAGES[name](model, ids, texts), encoding="utf-8")
    answer = {"seconds": time.perf_counter() - start, "bytes": Path(out).stat().st_size, "heads": heads}
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
