"""What editors and type checkers see: strict types in a user's file, Tab completion, and a star import without harm."""

import builtins
import json
import subprocess
import sys
from pathlib import Path

import pytest

import attnscope

SAMPLE = """
import torch
from torch import Tensor, nn

import attnscope as ats


def inspect_heads(model: nn.Module, ids: Tensor) -> Tensor:
    with torch.no_grad(), ats.record(model, layers=[-1]) as trace:
        model(ids)
    matrix: ats.AttentionMatrix = trace[0].batch(0).head(1)
    block: Tensor = matrix[2:4, :4]
    return block + matrix.to("cpu", torch.float64).entropy().sum()


def build(query: Tensor, key: Tensor) -> Tensor:
    mask = ats.Causal() & ats.Window(4) | ats.Prefix(2)
    mask = mask & ats.Padding(keep=torch.ones(1, 8, dtype=torch.bool)) & ~ats.Documents([0, 0, 1])
    matrix = ats.AttentionMatrix(query, key, mask=mask, score_mod=ats.Softcap(30.0))
    return ats.attend(query, key, key, mask=mask) + matrix @ key


def read_text(folder: str) -> ats.Trace:
    model, tokenizer = ats.load(folder)
    trace = ats.read(model, "one two", tokenizer)
    trace.save("trace")
    ats.explore(trace, open_browser=False, block=False)
    return ats.open_trace("trace")
"""
COMPLETE = """
from IPython.terminal.interactiveshell import TerminalInteractiveShell
from IPython.core.completer import provisionalcompleter
import json
shell = TerminalInteractiveShell.instance()
shell.run_cell("import attnscope as ats")
with provisionalcompleter():
    print(json.dumps([one.text for one in shell.Completer.completions("ats.", 4)]))
"""


def strict_errors(sample: str, folder: Path) -> list[str]:
    """What pyright reports for a user's file in strict mode."""
    (folder / "sample.py").write_text(sample)
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict", "include": ["sample.py"]}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(folder)]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return [found["message"] for found in json.loads(ran.stdout)["generalDiagnostics"]]


@pytest.mark.alone
def test_a_users_file_passes_strict_type_checks(tmp_path: Path) -> None:
    assert strict_errors(SAMPLE, tmp_path) == []
    assert strict_errors(SAMPLE.replace("matrix: ats.AttentionMatrix", "matrix: str"), tmp_path)


def test_tab_completion_lists_the_public_names() -> None:
    ran = subprocess.run([sys.executable, "-c", COMPLETE], capture_output=True, text=True, check=True)
    offered = {name.removeprefix("ats.").removeprefix(".") for name in json.loads(ran.stdout.splitlines()[-1])}
    assert set(attnscope.__all__) <= offered
    assert not {"import_module", "TYPE_CHECKING"} & offered
    assert set(attnscope.__all__) <= set(dir(attnscope))


def test_a_star_import_shadows_no_builtin() -> None:
    assert not set(attnscope.__all__) & set(dir(builtins))
    assert all(not isinstance(getattr(attnscope, name), type(sys)) for name in attnscope.__all__)
