"""Make the trace that the explorer brings along: six heads of SmolLM2-135M that each do one thing, in one sentence.

In: .cache/models/smollm2-135m, as scripts/fetch_models.py puts it there. Out: src/attnscope/explorer/example.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from attnscope.heads import score_heads
from attnscope.recording import load, read

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / ".cache" / "models" / "smollm2-135m"
FOLDER = ROOT / "src" / "attnscope" / "explorer" / "example"
TEXT = (
    "Mary Whitfield lent John Okafor her umbrella. The next day John Okafor thanked Mary Whitfield, and Mary Whitfield "
    "smiled at John Okafor."
)
HEADS = {0: [0], 5: [6], 16: [0, 6], 17: [4], 18: [8]}


def main() -> None:
    """Record, say what each head does, and save."""
    model, tokenizer = load(MODEL)
    trace = read(model, TEXT, tokenizer, heads=HEADS, progress=False)
    trace.model = "SmolLM2-135M"
    print(score_heads(trace, progress=False).to_text())
    shutil.rmtree(FOLDER, ignore_errors=True)
    trace.save(FOLDER)
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    print(f"{FOLDER.relative_to(ROOT)}: {len(files)} files, {sum(path.stat().st_size for path in files):,} bytes")


if __name__ == "__main__":
    main()
