"""Scores the key-value pairs of a context, by kvpress or by AttnScope, and prints time and memory as one line of JSON.

It runs in two environments, because kvpress needs an older transformers; scores are exchanged as files.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

COMPRESSION = 0.5


def by_kvpress(model: Any, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """The scores of `ObservedAttentionPress`, (layers, key-value heads, keys), and the keys that it keeps, sorted."""
    kvpress = import_module("kvpress")
    scores, positions = [], []

    class Observed(kvpress.ObservedAttentionPress):
        """The press of the library; it also remembers its scores."""

        def score(self, *arguments: Any, **named: Any) -> torch.Tensor:
            found = super().score(*arguments, **named)
            scores.append(found[0].clone())
            kept = import_module("kvpress.utils").compute_n_kept(found.shape[-1], self.compression_ratio)
            positions.append(found.topk(kept, dim=-1).indices[0].sort(-1).values)
            return found

    with torch.no_grad(), Observed(compression_ratio=COMPRESSION)(model):
        model(ids, use_cache=True, logits_to_keep=1)
    return {"scores": torch.stack(scores), "kept": torch.stack(positions)}


def by_attnscope(model: Any, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same by AttnScope, with the fused kernel of the model."""
    cache, recording = import_module("attnscope.cache"), import_module("attnscope.recording")
    trace = recording.read(model, ids, progress=False)
    scores = cache.score_pairs(trace, "received", progress=False)
    kept = scores.keep(1 - COMPRESSION)
    positions = [keep[0].nonzero()[:, 1].view(keep.shape[1], -1) for keep in kept.keep.values()]
    return {"scores": torch.stack([some[0] for some in scores.scores.values()]), "kept": torch.stack(positions)}


METHODS = {"kvpress": by_kvpress, "attnscope": by_attnscope}


def main(name: str, folder: str, text: str, length: str, out: str) -> None:
    """Score one context; the clock starts when the model is loaded and has run once."""
    ids = torch.tensor([json.loads(Path(text).read_text(encoding="utf-8"))["ids"][: int(length)]])
    auto = import_module("transformers").AutoModelForCausalLM
    implementation = "eager" if name == "kvpress" else "sdpa"
    model = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation=implementation).eval()
    METHODS[name](model, ids[:, :128])
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = memory_bytes("VmRSS")
    start, cpu = time.perf_counter(), time.process_time()
    found = METHODS[name](model, ids)
    answer = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
    answer |= {"extra_bytes": memory_bytes("VmHWM") - before}
    torch.save(found, out)
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


def memory_bytes(name: str) -> int:
    """The resident memory of this process, now (VmRSS) or at its largest (VmHWM)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))


if __name__ == "__main__":
    main(*sys.argv[1:])
