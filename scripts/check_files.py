"""Check workflows, issue forms, dependabot and CITATION.cff against schemas that come with check-jsonschema; offline.

All in one process: importing it takes seconds where rfc3987-syntax is installed, which builds a parser each time.
"""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from check_jsonschema import main as check_jsonschema

ROOT = Path(__file__).resolve().parent.parent
FILES = {
    "vendor.github-workflows": ".github/workflows/*.yml",
    "vendor.github-issue-forms": ".github/ISSUE_TEMPLATE/[!c]*.yml",
    "vendor.github-issue-config": ".github/ISSUE_TEMPLATE/config.yml",
    "vendor.dependabot": ".github/dependabot.yml",
    "vendor.citation-file-format": "CITATION.cff",
}


def file_faults(root: Path) -> str:
    """What is wrong with the files of a repository, as check-jsonschema says it; empty if nothing is."""
    said = ""
    for schema, pattern in FILES.items():
        files = [str(path) for path in sorted(root.glob(pattern))]
        with redirect_stdout(StringIO()) as output:
            code = check_jsonschema(["--builtin-schema", schema, *files], standalone_mode=False)
        said += output.getvalue() if code else ""
    return said


if __name__ == "__main__":
    sys.exit(file_faults(ROOT) or 0)
