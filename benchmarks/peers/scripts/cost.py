"""Measures time and memory of one method to get the attention weights of a forward pass.

The script runs in the environment of the library and prints one line of JSON. Each process loads the model twice, for
the plain pass and for the method; memory is counted above both. Linux only: it reads /proc.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
WARM_UP = 32  # tokens of a first pass, which loads what libraries load once
OPTIONS = {"use_cache": False, "logits_to_keep": 1}  # store nothing else

Run = Callable[[torch.Tensor], Any]
"""Takes token ids (1, positions), returns the stored weights."""


def load_model(folder: str, implementation: str) -> Any:
    """Load the model with an attention implementation of transformers."""
    auto = import_module("transformers").AutoModelForCausalLM
    return auto.from_pretrained(folder, dtype=torch.float32, attn_implementation=implementation).eval()


def plain(folder: str) -> Run:
    """The fused kernel, without storing weights."""
    return _discard(load_model(folder, "sdpa"))


def eager(folder: str) -> Run:
    """Compute every matrix, and discard it."""
    return _discard(load_model(folder, "eager"))


def _discard(model: Any) -> Run:
    def run(ids: torch.Tensor) -> None:
        model(ids, **OPTIONS)

    return run


def output_attentions(folder: str) -> Run:
    """Compute every matrix, and keep it."""
    model = load_model(folder, "eager")
    return lambda ids: list(model(ids, output_attentions=True, **OPTIONS).attentions)


def lens_patterns(folder: str) -> Run:
    """TransformerLens with a filter for the patterns."""
    return _lens(folder, lambda name: name.endswith("hook_pattern"))


def lens_everything(folder: str) -> Run:
    """TransformerLens as most of its examples call it."""
    return _lens(folder, None)


def _lens(folder: str, names_filter: Callable[[str], bool] | None) -> Run:
    bridge = import_module("transformer_lens.model_bridge").TransformerBridge
    model = bridge.boot_transformers(folder, dtype=torch.float32)
    model.eval()

    def run(ids: torch.Tensor) -> Any:
        _, cache = model.run_with_cache(ids, names_filter=names_filter, **OPTIONS)
        return cache

    return run


def nnsight_saved(folder: str) -> Run:
    """Nnsight, which saves the second output of every attention module."""
    nnsight = import_module("nnsight")
    model = nnsight.TransformersModel(
        folder, task="text-generation", dtype=torch.float32, attn_implementation="eager", dispatch=True
    )

    def run(ids: torch.Tensor) -> Any:
        with model.trace(ids, **OPTIONS):
            kept = nnsight.save([])
            for layer in model.model.layers:
                kept.append(layer.self_attn.output[1])
        return kept

    return run


def attnscope_matrix(folder: str) -> Run:
    """Record attention matrices with AttnScope."""
    return _recorded(folder, "matrix")


def attnscope_statistics(folder: str) -> Run:
    """Record statistics with AttnScope."""
    return _recorded(folder, "statistics")


def attnscope_find_heads(folder: str) -> Run:
    """Record with AttnScope, and rank all heads by the largest weight of the last token."""
    find_heads = import_module("attnscope.heads").find_heads
    return _recorded(folder, "matrix", lambda trace: find_heads(trace, query=-1))


def attnscope_max_logit(folder: str) -> Run:
    """Record with AttnScope, and compute the largest attention logit of every head."""
    return _recorded(folder, "matrix", lambda trace: [layer.matrix().max_logit() for layer in _layers(trace)])


def attnscope_received(folder: str) -> Run:
    """Record with AttnScope, and sum the columns of every head, as H2O does."""
    return _recorded(folder, "matrix", lambda trace: [layer.matrix().received() for layer in _layers(trace)])


def _layers(trace: Any) -> list[Any]:
    return [trace.layer(number) for number in range(len(trace))]


def _recorded(folder: str, keep: str, analyze: Callable[[Any], object] = lambda _: None) -> Run:
    record = import_module("attnscope.recording").record
    model = load_model(folder, "sdpa")

    def run(ids: torch.Tensor) -> Any:
        with record(model, keep=keep) as trace:
            model(ids, **OPTIONS)
        analyze(trace)
        return trace

    return run


METHODS = {
    method.__name__: method
    for method in (plain, eager, output_attentions, lens_patterns, lens_everything, nnsight_saved, attnscope_matrix,
                   attnscope_statistics, attnscope_find_heads, attnscope_max_logit, attnscope_received)
}  # fmt: skip


def entropy_of_last(kept: Any) -> float | None:
    """Return the entropy in nats of the last row of the first head of the last layer; all methods should agree."""
    if kept is None:
        return None
    if hasattr(kept, "summary"):
        return kept.summary(-1).entropy[0, 0, -1].item()
    if not isinstance(kept, list):
        kept = [kept[name] for name in kept if name.endswith("hook_pattern")]
    row = kept[-1][0, 0, -1].double()
    return -torch.special.xlogy(row, row).sum().item()


def measure(method: Run, plain_run: Run, ids: torch.Tensor, rounds: int) -> dict[str, Any]:
    """Measure the peak memory of the first pass, and the best times of several, alternating with the plain pass."""
    for run in (method, plain_run):
        run(ids[:, :WARM_UP])
    best = {name: {"cpu": float("inf"), "wall": float("inf")} for name in ("method", "plain")}
    rise, entropy = 0, None
    for number in range(rounds):
        CLEAR.write_text("5")  # resets the peak
        before = _kilobytes("VmRSS")
        kept = _timed(method, ids, best["method"])
        if number == 0:
            rise, entropy = (_kilobytes("VmHWM") - before) * 1024, entropy_of_last(kept)
        del kept
        _timed(plain_run, ids, best["plain"])
    return {"rise": max(rise, 0), "entropy": entropy, **best}


def _timed(run: Run, ids: torch.Tensor, best: dict[str, float]) -> Any:
    cpu, wall = time.process_time(), time.perf_counter()
    kept = run(ids)
    best["cpu"] = min(best["cpu"], time.process_time() - cpu)
    best["wall"] = min(best["wall"], time.perf_counter() - wall)
    return kept


def _kilobytes(field: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1])


def main(name: str, folder: str, text: str, length: str, rounds: str) -> None:
    """Measure one method at one length."""
    ids = torch.tensor([json.loads(Path(text).read_text(encoding="utf-8"))["ids"][: int(length)]])
    with torch.no_grad():
        plain_run, method = plain(folder), METHODS[name](folder)
        answer = measure(method, plain_run, ids, int(rounds))
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
