"""Fuzz one of the functions that open files, guided by coverage, and keep the inputs that it does not survive.

Needs atheris (Linux), which is not a dependency: pip install --target .cache/atheris atheris
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import io
import random
import sys
import tempfile
import time
from pathlib import Path

ATHERIS = Path(__file__).resolve().parents[2] / ".cache" / "atheris"
NAMES = ("trace", "partial", "survey", "model", "gguf", "tokenizer", "run")


def main() -> None:
    """Fuzz for some time; exit code 1 if anything was found."""
    options = parse()
    sys.path.append(str(ATHERIS))
    import atheris

    with atheris.instrument_imports(include=["attnscope"]):
        import attnscope.heads.over_training
        import attnscope.models
        import attnscope.recording
        import attnscope.survey
        import attnscope.train  # noqa: F401

    from scripts.fuzzing.findings import keep, limit_memory, minimise, try_input
    from scripts.fuzzing.mutations import mutate_files, pack, read_folder, unpack
    from scripts.fuzzing.openers import OPENERS

    opener = OPENERS[options.opener]()
    found: set[str] = set()
    work = Path(tempfile.mkdtemp(prefix=f"fuzz-{opener.name}-"))
    seeds = work / "corpus"
    seeds.mkdir()
    with tempfile.TemporaryDirectory() as folder:
        opener.write_seed(Path(folder))
        (seeds / "seed.zip").write_bytes(pack(read_folder(Path(folder))))
    limit_memory()
    tried, started = 0, time.monotonic()

    def try_one(blob: bytes) -> None:
        nonlocal tried
        tried += 1
        with contextlib.redirect_stdout(io.StringIO()):
            finding = try_input(opener, blob)
        if finding is None or finding.signature in found:
            return
        found.add(finding.signature)
        small = minimise(opener, blob, finding.signature)
        path = keep(opener, small)
        print(f"\nfound {finding.signature}: {path or f'{len(small):,} bytes'}\n{finding.text}", flush=True)

    def mutate(blob: bytes, max_size: int, seed: int) -> bytes:
        files = unpack(bytes(blob))
        if not files:
            return bytes(blob)
        changed = mutate_files(files, random.Random(seed), lambda content: atheris.Mutate(content, len(content) + 64))
        packed = pack(changed)
        return packed if len(packed) <= max_size else bytes(blob)

    def report() -> None:
        seconds = time.monotonic() - started
        print(f"\n{opener.name}: {tried:,} inputs in {seconds:.0f} s, {len(found)} findings", flush=True)
        for signature in sorted(found):
            print(f"  {signature}")

    arguments = [f"-max_total_time={options.seconds}", f"-seed={options.seed}", "-timeout=30", "-rss_limit_mb=0"]
    arguments += ["-max_len=65536", f"-artifact_prefix={work}/", "-print_final_stats=0", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *arguments, str(seeds)], try_one, custom_mutator=mutate)
    atexit.register(report)
    atheris.Fuzz()


def parse() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("opener", choices=NAMES)
    parser.add_argument("--seconds", type=int, default=600, help="how long (default: 600)")
    parser.add_argument("--seed", type=int, default=1, help="of libFuzzer (default: 1)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
