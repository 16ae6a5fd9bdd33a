"""Fuzz one of the functions that open files, guided by coverage, and keep the inputs that it does not survive.

Needs atheris (Linux), which is not a dependency: pip install --target .cache/atheris atheris
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import shutil
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

ATHERIS = Path(__file__).resolve().parents[2] / ".cache" / "atheris"
SUMMARY, SUMMARY_EVERY = "summary", 50
NAMES = ("trace", "partial", "survey", "model", "gguf", "tokenizer", "run", "watch")


def main() -> int:
    """Fuzz for some time; 1 if anything was found."""
    options = parse()
    work = Path(tempfile.mkdtemp(prefix=f"fuzz-{options.opener}-"))
    started = time.monotonic()
    child = os.fork()  # libFuzzer ends its process by itself
    if not child:
        fuzz(options, work)
    _, status = os.waitpid(child, 0)
    tried, *found = (work / SUMMARY).read_text(encoding="utf-8").splitlines()
    seconds = time.monotonic() - started
    print(f"\n{options.opener}: {int(tried):,} inputs in {seconds:.0f} s, {len(found)} findings", flush=True)
    print("\n".join(f"  {signature}" for signature in found))
    crashed = list(work.glob("[cot]*-*"))  # crash, oom and timeout of libFuzzer itself
    if os.waitstatus_to_exitcode(status) or crashed:
        print(f"  the process ended with {os.waitstatus_to_exitcode(status)}: {', '.join(map(str, crashed))}")
        return 1
    shutil.rmtree(work)
    return 1 if found else 0


def fuzz(options: argparse.Namespace, work: Path) -> None:
    """Fuzz in this process, which does not return from it."""
    sys.path.append(str(ATHERIS))
    atheris: Any = import_module("atheris")
    with atheris.instrument_imports(include=["attnscope"]):
        import attnscope.heads.over_training
        import attnscope.models
        import attnscope.recording
        import attnscope.survey
        import attnscope.telemetry
        import attnscope.train  # noqa: F401

    from scripts.fuzzing.findings import keep, limit_memory, minimise, try_input
    from scripts.fuzzing.mutations import mutate_files, pack, read_folder, unpack
    from scripts.fuzzing.openers import OPENERS

    opener = OPENERS[options.opener]()
    found: list[str] = []
    seeds = work / "corpus"
    seeds.mkdir()
    with tempfile.TemporaryDirectory() as folder:
        opener.write_seed(Path(folder))
        (seeds / "seed.zip").write_bytes(pack(read_folder(Path(folder))))
        opener.open(Path(folder))  # imports what is imported on first use, which may take longer than an input
    import_module("torch._dynamo")  # so does torch, for tensors on the meta device
    limit_memory()
    tried = 0

    def summarize() -> None:
        (work / SUMMARY).write_text("\n".join([str(tried), *found]), encoding="utf-8")

    def try_one(blob: bytes) -> None:
        nonlocal tried
        tried += 1
        if tried % SUMMARY_EVERY == 1:
            summarize()
        with contextlib.redirect_stdout(io.StringIO()):
            finding = try_input(opener, blob)
        if finding is None or finding.signature in found:
            return
        found.append(finding.signature)
        small = minimise(opener, blob, finding.signature)
        path = keep(opener, small)
        print(f"\nfound {finding.signature}: {path or f'{len(small):,} bytes'}\n{finding.text}", flush=True)
        summarize()

    def mutate(blob: bytes, max_size: int, seed: int) -> bytes:
        files = unpack(bytes(blob))
        if not files:
            return bytes(blob)
        changed = mutate_files(files, random.Random(seed), lambda content: atheris.Mutate(content, len(content) + 64))
        packed = pack(changed)
        return packed if len(packed) <= max_size else bytes(blob)

    arguments = [f"-max_total_time={options.seconds}", f"-seed={options.seed}", "-timeout=30", "-rss_limit_mb=0"]
    arguments += ["-max_len=65536", f"-artifact_prefix={work}/", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *arguments, str(seeds)], try_one, custom_mutator=mutate)
    atheris.Fuzz()


def parse() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("opener", choices=NAMES)
    parser.add_argument("--seconds", type=int, default=600, help="how long (default: 600)")
    parser.add_argument("--seed", type=int, default=1, help="of libFuzzer (default: 1)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
