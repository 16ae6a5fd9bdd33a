"""Write golden.json: attention, positions and next-token distributions as AttnScope computes them, for the page.

Run: python tests/steps/make_golden.py
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnscope import AttentionMatrix, Causal, Full, attend
from attnscope.attention import ALiBi, Sinks, Window
from attnscope.attention.positions import sinusoidal
from attnscope.attention.rotary import Rotary, rotate
from attnscope.attention.scores import ScoreMod
from attnscope.explorer.analysis.row_report import row_report
from attnscope.models.sampling import Sampling, probabilities

HERE = Path(__file__).parent


def attention(query: Tensor, key: Tensor, value: Tensor, *, mask: str, divide: bool, temperature: float) -> Any:
    """Weights, log-sum-exp and outputs of one head."""
    scale = 1 / ((math.sqrt(query.shape[-1]) if divide else 1) * temperature)
    allowed = Causal() if mask == "causal" else Full()
    output, lse = attend(query, key, value, mask=allowed, scale=scale, backend="reference", return_lse=True)
    weights = AttentionMatrix(query[None, None], key[None, None], mask=allowed, scale=scale)[0, 0, :, :]
    return {
        **{name: to_list(rows) for name, rows in (("queries", query), ("keys", key), ("values", value))},
        "mask": mask,
        "divide": divide,
        "temperature": temperature,
        "scale": scale,
        "weights": to_list(weights),
        "lse": to_list(lse),
        "output": to_list(output),
    }


def multi_head(seed: int) -> dict[str, Any]:
    """Two heads of 4 for one query, concatenated, through W_O."""
    draw = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(2, 5, 4, generator=draw, dtype=torch.float64) for _ in range(3))
    output = torch.randn(6, 8, generator=draw, dtype=torch.float64)
    heads = attend(query, key, value, mask=Causal(), backend="reference").transpose(0, 1).flatten(1)
    rows = {
        "queries": query,
        "keys": key,
        "values": value,
        "output": output,
        "heads": heads,
        "result": heads @ output.T,
    }
    return {name: to_list(numbers) for name, numbers in rows.items()}


def next_tokens(seed: int, *, temperature: float, top_k: int, top_p: float, listed: int) -> dict[str, Any]:
    """A distribution over 60 tokens, of which the page knows the largest few and the log-sum-exp of the others."""
    logits = 3 * torch.randn(60, generator=torch.Generator().manual_seed(seed))
    logits = logits.sort(descending=True).values
    sampling = Sampling(temperature=temperature, top_k=top_k or None, top_p=top_p)
    shares = probabilities(logits[None], sampling)[0]
    return {
        "logits": to_list(logits[:listed]),
        "restLogSumExp": float((logits[listed:].double() / temperature).logsumexp(0)),
        "temperature": temperature,
        "topK": top_k,
        "topP": top_p,
        "probabilities": to_list(shares[:listed]),
        "rest": float(shares[listed:].sum()),
    }


def trace_row(seed: int, score_mod: ScoreMod | None, *, query: int, key: int) -> dict[str, Any]:
    """A query of a recorded head with its strongest keys, and the weights and the output that follow from all keys."""
    draw = torch.Generator().manual_seed(seed)
    rows, keys, values = (torch.randn(1, 1, 40, dim, generator=draw, dtype=torch.float64) for dim in (8, 8, 3))
    matrix = AttentionMatrix(rows, keys, mask=Causal() & Window(before=20), score_mod=score_mod).batch(0).head(0)
    report = row_report(matrix, query, key, values=values[0, 0])
    for one in (report, *report["keys"]):
        one["text"] = None
    weights = matrix[query]
    listed = [one["position"] for one in report["keys"]]
    return {
        "report": report,
        "weights": to_list(weights[listed]),
        "others": float(weights.sum() - weights[listed].sum()),
        "output": to_list(weights @ values[0, 0]),
    }


def golden() -> dict[str, Any]:
    three = torch.tensor([[1.0, 0], [0, 1], [1, 1]], dtype=torch.float64)
    by_hand = three, three, torch.tensor([[10.0, 0], [0, 10], [5, 5]], dtype=torch.float64)
    draw = torch.Generator().manual_seed(0)
    wide = [torch.randn(6, 32, generator=draw, dtype=torch.float64) for _ in range(3)]
    memory = [wide[0], *(torch.randn(4, 32, generator=draw, dtype=torch.float64) for _ in range(2))]
    rows = torch.randn(9, 8, generator=draw, dtype=torch.float64)
    plain = {"mask": "bidirectional", "divide": True, "temperature": 1.0}
    return {
        "attention": [
            attention(*by_hand, **plain),
            attention(*by_hand, **{**plain, "divide": False}),
            attention(*by_hand, **{**plain, "mask": "causal"}),
            attention(*by_hand, **{**plain, "temperature": 0.25}),
            attention(*wide, **{**plain, "mask": "causal"}),
            attention(*wide, **{**plain, "divide": False, "temperature": 0.5}),
            attention(*memory, **{**plain, "mask": "cross"}),
        ],
        "multi_head": [multi_head(1)],
        "trace_rows": [
            trace_row(8, None, query=30, key=29),
            trace_row(9, ALiBi(1), query=39, key=2),
            trace_row(10, Sinks(torch.tensor([1.5])), query=3, key=0),
        ],
        "sinusoidal": [{"dim": dim, "rows": to_list(sinusoidal(13, dim, dtype=torch.float64))} for dim in (2, 16)],
        "rotary": [
            {
                "base": base,
                "rows": to_list(rows),
                "rotated": to_list(rotate(rows, Rotary(dim=8, layout="half", base=base))),
            }
            for base in (10_000.0, 100_000.0)
        ],
        "next_tokens": [
            next_tokens(2, temperature=1.0, top_k=0, top_p=1.0, listed=59),
            next_tokens(3, temperature=0.5, top_k=0, top_p=1.0, listed=20),
            next_tokens(4, temperature=1.5, top_k=5, top_p=1.0, listed=20),
            next_tokens(5, temperature=1.0, top_k=0, top_p=0.7, listed=20),
            next_tokens(6, temperature=2.0, top_k=10, top_p=0.8, listed=20),
            next_tokens(7, temperature=2.0, top_k=0, top_p=0.6, listed=8),
        ],
    }


def to_list(numbers: Tensor) -> Any:
    return numbers.double().mul(1e9).round().div(1e9).tolist()


def text() -> str:
    """The file: one line for each entry of each list."""
    parts = [
        f'"{name}": [\n' + ",\n".join(f"  {json.dumps(one, allow_nan=False)}" for one in entries) + "\n]"
        for name, entries in golden().items()
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    (HERE / "golden.json").write_text(text())
