"""A static host with range requests, or without: as small as it can be."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    ignores_ranges: ClassVar[bool] = False

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        content = (path / "index.html" if path.is_dir() else path).read_bytes() if path.exists() else None
        if content is None:
            self.send_error(404)
            return
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        if found is None or self.ignores_ranges:
            self.send_response(200)
        else:
            first, last = int(found[1]), int(found[2])
            self.send_response(206)
            self.send_header("content-range", f"bytes {first}-{last}/{len(content)}")
            content = content[first : last + 1]
        self.send_header("content-type", self.guess_type(str(path)) if path.is_file() else "text/html")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - its name
        return


class _WithoutRanges(_Handler):
    ignores_ranges = True


@contextmanager
def hosted(folder: Path, *, ranges: bool = True) -> Iterator[str]:
    """The address of a folder on a free port of this machine."""
    handler = partial(_Handler if ranges else _WithoutRanges, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()
