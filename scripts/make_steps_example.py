"""Make the real numbers of the page "One weight, step by step": heads of SmolLM2-135M on the example's sentence.

In: .cache/models/smollm2-135m, as scripts/fetch_models.py puts it there. Out: web/src/steps/example_data.ts with
queries and keys before the rotation, values, W_O of each head, and the largest next-token logits of each position.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from attnscope.attention.rotary import Rotary
from attnscope.explorer.library.example import example
from attnscope.models import Decoder
from attnscope.models.layers import MultiHeadAttention
from attnscope.recording import load

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / ".cache" / "models" / "smollm2-135m"
FILE = ROOT / "web" / "src" / "steps" / "example_data.ts"
HEADS = {(16, 0): "previous token", (17, 4): "induction", (5, 6): "duplicate token"}
HEAD_DIM = 64
BLOCK = 32
"""Parameters of the model are rounded in blocks: each has 16 levels of its own, at equal distances."""
NUM_LISTED = 40
TEMPERATURES = [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0]


@torch.no_grad()
def make_data() -> dict[str, Any]:
    """Run the model on the tokens of the example and collect what the page shows."""
    model, tokenizer = load(MODEL)
    assert isinstance(model, Decoder)
    rotary = model.config.position_encoding
    assert isinstance(rotary, Rotary)
    assert (rotary.layout, rotary.dim, rotary.scaling) == ("half", HEAD_DIM, None), "the page rotates in this way only"
    texts = example().tokens() or []
    ids = torch.tensor([tokenizer.encode("".join(texts))])
    inputs: dict[int, Tensor] = {}

    def keep_input(layer: int) -> RemovableHandle:
        def keep(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            inputs[layer] = args[0]

        return get_attention(model, layer).register_forward_pre_hook(keep)

    hooks = [keep_input(layer) for layer, _ in HEADS]
    logits = model(ids)[0].float()
    for hook in hooks:
        hook.remove()
    return {
        "model": "SmolLM2-135M-Instruct, rounded to 4 bits per parameter (Q4_1)",
        "tokens": texts,
        "rotaryBase": rotary.base,
        "heads": [make_head(get_attention(model, layer), inputs[layer], layer, head) for layer, head in HEADS],
        "temperatures": TEMPERATURES,
        "nextTokens": make_next_tokens(logits, tokenizer),
    }


def get_attention(model: Decoder, layer: int) -> MultiHeadAttention:
    """The attention of a block."""
    attention = model.blocks[layer].attention
    assert isinstance(attention, MultiHeadAttention)
    return attention


def make_head(attention: MultiHeadAttention, x: Tensor, layer: int, head: int) -> dict[str, Any]:
    """One head: its rows before the rotation, and its part of W_O."""
    query, key, value = attention._project_self(x, None)
    shared = head * attention.num_kv_heads // attention.num_heads
    columns = slice(head * attention.head_dim, (head + 1) * attention.head_dim)
    return {
        "layer": layer,
        "head": head,
        "name": HEADS[layer, head],
        "queries": encode(query[0, head]),
        "keys": encode(key[0, shared]),
        "values": encode(value[0, shared]),
        "output": encode_blocks(attention.output.weight[:, columns]),
    }


def make_next_tokens(logits: Tensor, tokenizer: Any) -> list[dict[str, Any]]:
    """The largest logits of each position, and the log-sum-exp of the others at each temperature."""
    values, ids = logits.sort(dim=-1, descending=True)
    scaled = values[:, NUM_LISTED:].double()
    rest = torch.stack([(scaled / temperature).logsumexp(-1) for temperature in TEMPERATURES], -1)
    return [
        {
            "tokens": [tokenizer.decode([token]) for token in ids[place, :NUM_LISTED].tolist()],
            "logits": [round(number, 5) for number in values[place, :NUM_LISTED].tolist()],
            "rest": [round(number, 5) for number in rest[place].tolist()],
        }
        for place in range(len(logits))
    ]


def encode(rows: Tensor) -> str:
    """Rows as little-endian float32 in base64."""
    return base64.b64encode(to_bytes(rows)).decode()


def to_bytes(numbers: Tensor) -> bytes:
    """Little-endian float32."""
    return numbers.float().contiguous().numpy().astype(numpy.dtype("<f4")).tobytes()


def encode_blocks(rows: Tensor) -> str:
    """Rows of 4-bit parameters in base64: per block its smallest number, the distance of its levels, and 32 levels."""
    parts = []
    for block in rows.reshape(-1, BLOCK).double():
        levels = block.unique()
        step = levels.diff().min() if len(levels) > 1 else torch.tensor(1.0, dtype=torch.float64)
        codes = ((block - levels[0]) / step).round()
        step = (block - levels[0]).sum() / codes.sum().clamp_min(1)  # more exact than one difference of two numbers
        error = (levels[0] + step * codes - block).abs().max()
        assert codes.max() < 16, "these parameters have more levels than 4 bits"
        assert error <= 1e-6 * block.abs().max(), "the levels of these parameters are not at equal distances"
        pairs = codes.to(torch.uint8).view(-1, 2)
        parts.append(to_bytes(torch.stack([levels[0], step])) + bytes((pairs[:, 0] | pairs[:, 1] << 4).tolist()))
    return base64.b64encode(b"".join(parts)).decode()


def main() -> None:
    """Write the module."""
    data = json.dumps(make_data(), ensure_ascii=True)
    FILE.write_text(
        "/** Numbers of a trained model, written by scripts/make_steps_example.py. */\n\n"
        'import type { ExampleData } from "./example";\n\n'
        f"export const EXAMPLE_DATA: ExampleData = {data};\n"
    )
    print(f"{FILE.relative_to(ROOT)}: {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
