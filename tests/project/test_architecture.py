"""The tree in ARCHITECTURE.md is the tree on the disk."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# In every package, so not worth a line in the tree.
UNLISTED = {"__init__.py", "py.typed", "__pycache__"}


def tree_written(markdown: str) -> set[str]:
    """The paths in the fenced block that describes src/attnscope: two spaces a level, path first, folders end in /."""
    blocks = re.findall(r"^```text\n(.*?)^```", markdown, re.DOTALL | re.MULTILINE)
    block = next(block for block in blocks if "src/attnscope/" in block)
    paths, trail = set(), []
    for line in block.splitlines():
        depth = (len(line) - len(line.lstrip(" "))) // 2
        trail[depth:] = [line.split()[0]]
        paths.add("".join(trail))
    return paths


def tree_on_disk(root: Path) -> set[str]:
    """The files and folders of src/attnscope, and the other folders at the top that belong to the project."""
    source = root / "src" / "attnscope"
    traces = {found.parent for found in source.rglob("trace.json")}  # a saved trace is one thing, whatever is in it
    listed = (
        p
        for p in source.rglob("*")
        if not UNLISTED.intersection(p.relative_to(source).parts) and traces.isdisjoint(p.parents)
    )
    inside = {str(p.relative_to(root)) + "/" * p.is_dir() for p in listed}
    ignored = (root / ".gitignore").read_text().split()
    folders = {f"{p.name}/" for p in root.iterdir() if p.is_dir() and not p.name.startswith(".") and p.name != "src"}
    return {"src/attnscope/"} | inside | {name for name in folders if name not in ignored and f"/{name}" not in ignored}


def test_the_tree_in_architecture_is_the_tree_on_disk() -> None:
    written, disk = tree_written((ROOT / "ARCHITECTURE.md").read_text()), tree_on_disk(ROOT)
    assert {"not on disk": written - disk, "not in ARCHITECTURE.md": disk - written} == {
        "not on disk": set(),
        "not in ARCHITECTURE.md": set(),
    }


def test_both_directions_are_seen(tmp_path: Path) -> None:
    (tmp_path / "src/attnscope/matrix").mkdir(parents=True)
    (tmp_path / "src/attnscope/matrix/__init__.py").touch()
    (tmp_path / "src/attnscope/matrix/view.py").touch()
    (tmp_path / "web").mkdir()
    (tmp_path / "dist").mkdir()
    (tmp_path / ".gitignore").write_text("/dist/\n")
    text = "```text\nsrc/attnscope/\n  matrix/     a matrix\n    gone.py   nothing\ntests/\n```\n"
    written, disk = tree_written(text), tree_on_disk(tmp_path)
    assert written - disk == {"src/attnscope/matrix/gone.py", "tests/"}
    assert disk - written == {"src/attnscope/matrix/view.py", "web/"}
